"""Autotuning: let the GPU choose the schedule, after arithmetic has thrown out what cannot run

The best tile, the best depth of the pipeline and the best number of threads differ from one GPU to
the next, and a schedule tuned by hand for one is often poor on another. So list many, throw out
those whose tiles do not fit this GPU's shared memory (a product of a few numbers says so, long
before a compiler is asked), compile the rest in parallel, check each, time each. TileLang can do
the search for you: @tilelang.autotune compiles, times, picks the fastest and remembers its choice
on disk.
"""

import contextlib
import dataclasses
import io
import itertools
import os
import tempfile
import time
from pathlib import Path
from unittest import mock

import tilelang
import torch
from tilelang.autotuner import AutoTuner

from sections import gemm
from sections.common import rehearsal
from sections.common.build import FEW_CORES, cores
from sections.common.device import capability
from sections.common.errors import root_cause, whole
from sections.common.ladder import describe
from sections.common.measure import Work
from sections.common.page import Skip, kilobytes

# Values to combine, by architecture. One that is not named takes those of the newest older one.
SPACE = {
    "sm_75": {"tile": ((128, 128), (128, 64), (64, 128), (256, 64)), "block_K": (32, 64),
              "num_stages": (0, 2, 3), "threads": (128,)},
    "sm_80": {"tile": ((128, 128), (128, 256), (64, 128)), "block_K": (32, 64),
              "num_stages": (2, 3, 4, 5), "threads": (128,)},
    "sm_86": {"tile": ((128, 128), (128, 64), (64, 128)), "block_K": (32, 64),
              "num_stages": (2, 3, 4, 5), "threads": (128,)},
    "sm_90a": {"tile": ((128, 256), (256, 128), (128, 192), (128, 128)), "block_K": (64, 128),
               "num_stages": (2, 3, 4), "threads": (256,)},
    "sm_100a": {"tile": ((128, 128), (128, 256), (256, 128)), "block_K": (32, 64),
                "num_stages": (3, 4, 5, 6), "threads": (256,)},
    "sm_120a": {"tile": ((128, 128), (128, 64), (64, 128)), "block_K": (32, 64),
                "num_stages": (2, 3, 4, 5), "threads": (256,)},
}
TEXTBOOK = {"block_M": 128, "block_N": 128, "block_K": 32, "num_stages": 3, "threads": 128,
            "swizzle": 0}
CHANGES = ({"swizzle": 0}, {"swizzle": 4}, {"threads": 256})  # tried with the hand-made best
TUNED = ("block_M", "block_N", "block_K", "num_stages", "threads", "swizzle")
SPREAD = 0.03  # by so much the same kernel, timed twice, can differ
REHEARSED = 4  # configurations tuned on the CPU, where each costs seconds


@dataclasses.dataclass
class Candidate:
    """One configuration, and what became of it."""

    config: dict
    estimate: int
    verdict: str = "kept"
    cause: str = ""  # why it did not compile
    code: object = None
    kernel: object = None
    measurement: dict | None = None


def space(device) -> list[dict]:
    """Every configuration to consider, gemm's hand-made best and TileLang's textbook one first.

    Between them the first tile of SPACE with the hand-made one's other values: a tile that a
    learner puts there is tried. Then the rows of gemm's ladder that differ in nothing else: the
    tour has compiled those.
    """
    best = gemm.best_schedule(device)
    hand_made = {name: best[name] for name in TUNED}
    block_M, block_N = device.preset(SPACE)["tile"][0]
    learners = {**hand_made, "block_M": block_M, "block_N": block_N}
    ladder = [{name: step.schedule[name] for name in TUNED} for step in device.preset(gemm.LADDERS)
              if all(step.schedule[name] == best[name] for name in best if name not in TUNED)]
    configs = [hand_made, learners, TEXTBOOK, *ladder,
               *({**hand_made, **change} for change in CHANGES)]
    for (block_M, block_N), *rest in itertools.product(*device.preset(SPACE).values()):
        values = (block_M, block_N, *rest, hand_made["swizzle"])
        configs.append(dict(zip(TUNED, values, strict=True)))
    return [config for n, config in enumerate(configs) if config not in configs[:n]]


def estimate(config: dict, fixed: dict) -> int:
    """Shared memory of a configuration in bytes: num_stages tiles of A and of B, float16.

    The tile of C that is stored through shared memory takes the place of the tiles of A and B.
    """
    stage = (config["block_M"] + config["block_N"]) * config["block_K"] * 2
    store = config["block_M"] * config["block_N"] * 2 if fixed["store_shared"] else 0
    return max(max(config["num_stages"], 1) * stage, store)


def fixed_part(device) -> dict:
    """What is not tuned: how warps share a tile, and how it is stored."""
    best = gemm.best_schedule(device)
    return {name: best[name] for name in best if name not in TUNED}


def run(page):
    device = page.device
    fixed = fixed_part(device)
    page.schedule({})  # there is nothing to replace: SPACE is what to change
    size = (2048 if page.quick else 4096) if device.is_gpu else 256
    arguments = {**gemm.sizes(size, size, size), **fixed}
    candidates = [Candidate(config, estimate(config, fixed)) for config in space(device)]

    page.say(f"""Nothing new moves here: the kernel is gemm's, its arguments are what is searched.
    {len(candidates)} configurations: the one made by hand, TileLang's textbook one, their
    neighbours, and all combinations of SPACE, which has for {device.arch}:""")
    page.text("\n".join(f"  {name}: {', '.join(map(str, values))}"
                        for name, values in device.preset(SPACE).items()))
    page.say(f"""First the filter. A configuration needs num_stages x (block_M + block_N) x block_K
    x 2 bytes, and a block may have {kilobytes(device.shared_bytes)} on {device.arch}. Of those that
    fit, the first {budget(page)} are compiled and tried: each costs seconds of a core (cores here:
    {cores()}). The table has the compiler's own figure beside the estimate, also for some that
    cannot run.""")
    page.show(estimate)
    keep_what_fits(page, candidates, budget(page))
    compile_kept(page, candidates, arguments)
    A, B = gemm.inputs(page, size, size, size)
    check_kept(page, candidates, arguments, (A, B))
    survivors = [candidate for candidate in candidates if candidate.verdict == "kept"]
    if not survivors:
        table(page, candidates)
        reasons = {each.verdict + (f" ({each.cause})" if each.cause else "") for each in candidates}
        raise Skip("no configuration is left to tune: " + ", ".join(sorted(reasons)))
    if device.is_gpu:
        time_all(page, survivors, (A, B), size)
    table(page, candidates)
    if capability(device.arch) < 80:
        page.say(f"""Expect little of num_stages on {device.arch}: it has no cp.async. A thread
        loads its part of the next tile into registers, waits for it and stores it to shared memory;
        only then the block multiplies, however many tiles there is room for. What does hide the
        wait is another block on the same SM, and more stages take away its room.""")

    winner, config, seconds, again = tune(page, [c.config for c in survivors], arguments)
    page.say("""Now TileLang's own search. Two lines make a kernel one that is tuned: a decorator
    with the list of configurations, and a call that leaves their names out:""")
    page.text(f"  @tilelang.autotune(configs=[{survivors[0].config},\n"
              f"                              ...])  # above @tilelang.jit\n"
              f"  C = gemm(A, B)  # the first call for a size searches")
    asked_again = f"""Asked again by a process that has forgotten it, its disk cache answers in
    {again:.2f} s.""" if again else "Its disk cache kept nothing of that."
    page.say(f"""On the {len(survivors)} that ran it chose {describe(config)} in
    {seconds:.1f} s; the tour had compiled them all. {asked_again}""")
    page.check(f"{gemm.case(size, size, size)} tuned", winner, (A, B), gemm.reference(A, B),
               reduction=size)
    conclude(page, survivors, winner, config, (A, B), size)


def budget(page) -> int:
    """How many configurations to compile: each costs seconds of one core."""
    if not page.device.is_gpu:
        return REHEARSED
    few = cores() <= FEW_CORES
    return (2 if few else 4) if page.quick else (8 if few else 12)


def keep_what_fits(page, candidates: list[Candidate], most: int) -> None:
    """Leave out what is over the shared memory, and what this machine has no time for."""
    limit = page.device.shared_bytes
    kept = 0
    for candidate in candidates:
        if candidate.estimate > limit:
            candidate.verdict = "left out: shared memory"
        elif kept == most:
            candidate.verdict = "not tried"
        else:
            kept += 1


def compile_kept(page, candidates: list[Candidate], arguments: dict) -> None:
    """Compile the kept ones in parallel; ask the compiler what the too large ones would need."""
    from sections.common.codegen import generate

    kept = [candidate for candidate in candidates if candidate.verdict == "kept"]
    kernels = page.build((gemm.gemm, {**arguments, **candidate.config}) for candidate in kept)
    shown = gemm.sizes(gemm.SHOWN, gemm.SHOWN, gemm.SHOWN)
    for candidate, kernel in zip(kept, kernels, strict=True):
        try:
            candidate.code = page.code(kernel, **shown)
            candidate.kernel = kernel
        except Exception as error:
            candidate.verdict, candidate.cause = "did not compile", root_cause(error)
            page.details.append(whole(error))
    too_large = [each for each in candidates if each.verdict == "left out: shared memory"]
    for candidate in too_large[: 2 if cores() <= FEW_CORES else None]:
        page.progress("asking the compiler about what was left out")
        with contextlib.suppress(Exception):  # then the table has only the estimate
            candidate.code = generate(gemm.gemm, page.device.arch,
                                      **{**arguments, **shown, **candidate.config})


def check_kept(page, candidates: list[Candidate], arguments: dict, tensors) -> None:
    """Run and check every compiled one."""
    expected = gemm.reference(*tensors)
    for candidate in candidates:
        if candidate.kernel is None:
            continue
        case = f"{gemm.case(*(arguments[side] for side in 'MNK'))} {describe(candidate.config)}"
        if not page.check(case, candidate.kernel, tensors, expected, reduction=arguments["K"]):
            candidate.verdict = "wrong result"


def time_all(page, survivors: list[Candidate], tensors, size: int) -> None:
    """Time every survivor in turn with cuBLAS."""
    for candidate in survivors:
        candidate.measurement = page.measure(
            gemm.case(size, size, size), describe(candidate.config), candidate.kernel, tensors,
            {"cuBLAS (torch.matmul)": lambda: torch.matmul(*tensors)}, Work(flops=2 * size**3),
            rounds=3,
        )[0]


def table(page, candidates: list[Candidate]) -> None:
    """All configurations: estimate, the compiler's own figure, verdict, and the time if any."""
    timed = [c for c in candidates if c.measurement]
    ranked = sorted(timed, key=lambda c: -c.measurement["ratio"])
    marks = {id(each): "textbook" for each in candidates if each.config == TEXTBOOK}
    marks[id(candidates[0])] = "hand-made"
    if ranked:
        marks[id(ranked[-1])] = "worst"
        marks[id(ranked[0])] = "best" + (", hand-made" if ranked[0] is candidates[0] else "")
    rows = []
    for candidate in ranked + [c for c in candidates if not c.measurement]:
        m = candidate.measurement
        rows.append([
            describe(candidate.config), kilobytes(candidate.estimate),
            kilobytes(candidate.code.shared_bytes) if candidate.code else None,
            *([f"{m['ms']:.3f}", f"{m['baseline_ms']:.3f}", f"{m['value']:.0f}",
               f"{m['ratio']:.2f}x"] if m else []),
            *([None] * 4 if timed and not m else []),
            marks.get(id(candidate), "") if candidate.verdict == "kept" else candidate.verdict,
        ])
    figures = ["ms", "cuBLAS ms", "TFLOP/s", "vs cuBLAS"] if timed else []
    page.table(["configuration", "estimate", "compiler", *figures, ""], rows,
               right=("estimate", "compiler", *figures))
    for cause in dict.fromkeys(each.cause for each in candidates if each.cause):
        these = "; ".join(describe(each.config) for each in candidates if each.cause == cause)
        page.say(f"Did not compile: {these}. {cause}")
    if timed:
        page.say("""Sorted by the ratio, of pairs timed in turn, since the clock drifts from row to
        row. The same kernel's ratio can differ by 3 per cent when it is timed again: rows so close
        to each other are equals.""")


def tune(page, configs: list[dict], arguments: dict):
    """TileLang's own tuner: its kernel, its choice, its seconds, and its seconds from disk.

    The last is None where it could write nothing to disk. What it keeps is kept for this run alone,
    so that it searches in every run, and meets nothing damaged.
    """
    kernel = gemm.gemm
    if not page.device.is_gpu:
        kernel = dataclasses.replace(kernel, pass_configs=rehearsal.PASS_CONFIGS,
                                     compile_flags=rehearsal.COMPILE_FLAGS)
    page.progress("tilelang.autotune at work")
    effort = {"warmup": 10, "rep": 60} if page.device.is_gpu else {"warmup": 3, "rep": 20}  # ms

    def ask():
        AutoTuner._memory_cache.clear()  # what a new process would not know
        start = time.perf_counter()
        tuner = tilelang.autotune(configs=configs, **effort)(kernel)
        best = tuner.compile(**arguments)
        ((_, config),) = tuner._tuner_cache.values()
        return best, config, time.perf_counter() - start

    with quiet() as folder, mock.patch.object(AutoTuner, "cache_dir", folder / "results"):
        best, config, seconds = ask()
        again = ask()[2] if any((folder / "results").glob("*")) else None
    return best, config, seconds, again


@contextlib.contextmanager
def quiet():
    """TileLang's tuner writes a log into the current folder, bars and lines on the screen."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()), \
            contextlib.redirect_stderr(io.StringIO()):
        os.chdir(folder)
        try:
            yield Path(folder)
        finally:
            os.chdir(before)


def conclude(page, survivors, winner, config, tensors, size: int) -> None:
    """The winner beside the hand-made best, the textbook schedule and cuBLAS."""
    if not page.device.is_gpu:
        page.lesson(f"""arithmetic alone left out what cannot run on {page.device.arch}. The search
        itself was real, but on this CPU: its choice says nothing about a GPU.""")
    else:
        by_hand, worst = survivors[0], min(s.measurement["ratio"] for s in survivors)
        measured = page.measure(
            gemm.case(size, size, size), f"tuned: {describe(config)}", winner, tensors,
            {"cuBLAS (torch.matmul)": lambda: torch.matmul(*tensors)}, Work(flops=2 * size**3),
            rivals={"by hand": lambda: by_hand.kernel(*tensors)},
        )[0]
        page.headline(measured)
        against = measured["rivals"]["by hand"]["ratio"]
        found = ("the schedule made by hand" if config == by_hand.config else
                 "another schedule than the one made by hand, and level with it"
                 if abs(against - 1) <= SPREAD else
                 f"a {'better' if against > 1 else 'worse'} schedule than the one made by hand")
        page.lesson(f"""from a list of what fits {page.device.arch} the tuner found {found}
        ({against:.2f}x, timed in turn): {measured['ms']:.3f} ms, {measured['value']:.0f} TFLOP/s,
        {measured['ratio']:.2f}x cuBLAS. What a search saves you from is the other end: the worst of
        the {len(survivors)} timed stands at {worst:.2f}x.""")
        page.limit("""a search knows only what is listed, and the kernel it is given; it cannot tell
        apart what differs by less than the clock drifts.""")
    page.try_this("""put a tile of your own before the tiles that SPACE has here, in
    sections/autotune.py; then python -m sections.autotune: it is tried with the hand-made
    schedule's other values. Does it fit, and does it win?""")


if __name__ == "__main__":
    from sections.common.alone import run_alone

    raise SystemExit(run_alone(__file__))
