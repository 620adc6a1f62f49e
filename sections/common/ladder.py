"""A ladder of schedules: one change a row, each checked, timed, and beside it what it bought.

`selected` chooses the rows, `climb` builds, checks and times them, `show` prints them.
"""

from dataclasses import dataclass, replace

from sections.common.measure import Work
from sections.common.page import Page, kilobytes


@dataclass(frozen=True)
class Step:
    """One row: what changed, the whole schedule, and the reason in a few words.

    kernel  a kernel of the row's own, for one architecture; None: the ladder's
    fault   why it cannot be compiled, where that is known
    """

    change: str
    schedule: dict
    why: str
    kernel: object = None
    fault: str = ""

    @property
    def variant(self) -> str:
        """The schedule in a few words, and whose it is where the kernel is the row's own."""
        words = describe(self.schedule)
        return f"{self.change}, {words}" if self.kernel else words


@dataclass(frozen=True)
class Problem:
    """What every step of a ladder computes.

    case       e.g. "4096x4096x4096 float16"
    arguments  of the kernel beside the schedule, e.g. {"M": 4096, ...}
    shown      the sizes whose generated code is read; the same, except in rehearsal
    inputs, expected   tensors; `bounds` as page.check takes them
    baseline   its name and a function without arguments
    """

    case: str
    arguments: dict
    shown: dict
    inputs: tuple
    expected: object
    bounds: dict
    baseline: tuple
    work: Work


@dataclass
class Rung:
    """A step with what came of it; `measurement` is None where nothing was timed.

    left_out  why the row was not run, or not timed; empty where it was
    """

    step: Step
    kernel: object = None
    code: object = None
    measurement: dict | None = None
    left_out: str = ""


def steps(*changes: tuple[str, dict, str]) -> list[Step]:
    """Steps that build on each other: (change, {name: new value}, why); the first one is whole."""
    schedule: dict = {}
    ladder = []
    for change, values, why in changes:
        schedule = {**schedule, **values}
        ladder.append(Step(change, schedule, why))
    return ladder


def selected(page: Page, ladder: list[Step], schedule: dict, own: list[Step] = ()) -> list[Step]:
    """The rows to climb: all, or in quick mode the first and the best; then the learner's.

    schedule  the best row's
    own       rows with kernels of their own; they come last, and not in quick mode
    """
    if page.quick:
        best = next(step for step in ladder if step.schedule == schedule)
        best = replace(best, change="the best row", why="all changes at once")
        ladder = [ladder[0], best]
        own = []
    yours = steps(("yours", page.schedule(schedule), "from the command line"))
    return [*ladder, *own, *(yours if page.overrides else [])]


def jobs(page: Page, kernel, ladder: list[Step], arguments: dict) -> list[tuple]:
    """What `page.build` takes: the rows that run here."""
    return [(step.kernel or kernel, {**arguments, **step.schedule}) for step in ladder
            if _runs(page, step)]


def _runs(page: Page, step: Step) -> bool:
    """Whether a row runs here: a kernel of its own needs its GPU."""
    return not step.fault and (page.device.is_gpu or not step.kernel)


def climb(page: Page, kernel, ladder: list[Step], problem: Problem) -> list[Rung]:
    """Compile all steps in parallel, check each, time each in turn with the baseline.

    A step whose shared memory is over this device's limit is left out, with both figures. One with
    a kernel of its own is only read where there is no GPU.
    """
    from sections.common.codegen import generate

    limit = page.device.shared_bytes
    rungs = [Rung(step) for step in ladder]
    built = iter(page.build(jobs(page, kernel, ladder, problem.arguments)))
    for rung in rungs:
        if rung.step.fault:
            rung.left_out = f"left out: {rung.step.fault}"
            continue
        result = next(built) if _runs(page, rung.step) else None
        try:
            if result:
                rung.code = page.code(result, **problem.shown)
                rung.kernel = result
            else:
                rung.code = generate(rung.step.kernel, page.device.arch, **problem.shown,
                                     **rung.step.schedule)
        except Exception as error:
            page.did_not_compile(rung.step.change, error)
            rung.left_out = "did not compile"
            continue
        if not result:
            rung.left_out = f"not run here; {rung.step.why}"
        elif rung.code.shared_bytes > limit:
            rung.left_out = (f"left out: {kilobytes(rung.code.shared_bytes)} is over "
                             f"{page.device.arch}'s {kilobytes(limit)}")
        elif not page.check(problem.case, result, problem.inputs, problem.expected,
                            **problem.bounds):
            rung.left_out = "wrong result"
    if page.device.is_gpu:
        for rung in rungs:
            if not rung.left_out:
                rung.measurement = page.measure(
                    problem.case, rung.step.variant, rung.kernel, problem.inputs,
                    dict([problem.baseline]), problem.work, rounds=3,
                )[0]
    return rungs


def show(page: Page, rungs: list[Rung], against: str) -> None:
    """Print a ladder: on a GPU times and ratios, without one what the generated code does."""
    if page.device.is_gpu:
        cells, headers = _figures, ["ms", "TFLOP/s", f"vs {against}"]
    else:
        cells, headers = _instructions, ["threads", "copies", "multiplies"]
    rows = [[number, rung.step.change, rung.code and kilobytes(rung.code.shared_bytes),
             *cells(rung), rung.left_out or rung.step.why + ("; here a loss" if lost else "")]
            for number, (rung, lost) in enumerate(zip(rungs, losses(rungs), strict=True), 1)]
    page.table(["", "step", "shared", *headers, "why"], rows,
               right=("", "shared", "ms", "TFLOP/s", f"vs {against}", "threads"))


def losses(rungs: list[Rung]) -> list[bool]:
    """Of each row whether it stands clearly worse than the timed row above it."""
    found, above = [], 0.0
    for rung in rungs:
        ratio = rung.measurement["ratio"] if rung.measurement else above
        found.append(ratio < 0.98 * above)
        above = ratio
    return found


def _figures(rung: Rung) -> list:
    """Time, throughput and ratio of a row."""
    m = rung.measurement
    return [f"{m['ms']:.3f}", f"{m['value']:.0f}", f"{m['ratio']:.2f}x"] if m else [None] * 3


def _instructions(rung: Rung) -> list:
    """Threads of a row, and what copies and multiplies in its generated code."""
    from sections.common.codegen import landmarks

    if not rung.code:
        return [None] * 3
    found = {mark.name for mark in landmarks(rung.code)}
    copies = next((name for name in ("TMA load", "cp.async") if name in found), "plain loads")
    return [rung.code.threads, copies, "wgmma" if "wgmma" in found else "mma.sync"]


def describe(schedule: dict) -> str:
    """A schedule in a few words: "128x256x64, 3 stages, 256 threads, swizzle"."""
    left = dict(schedule)
    sides = [name for name in ("block_M", "block_N", "block_K") if name in left]
    words = ["x".join(str(left.pop(name)) for name in sides)] if sides else []
    if "num_stages" in left:
        stages = left.pop("num_stages")
        words.append(f"{stages} stage{'' if stages == 1 else 's'}")
    if "threads" in left:
        words.append(f"{left.pop('threads')} threads")
    words += [name if value is True else f"{name}={value}"
              for name, value in left.items() if value is not False]
    return ", ".join(words)


def best(rungs: list[Rung]) -> Rung | None:
    """The rung that stands best against the baseline, None where nothing was timed.

    Times of different rows are not compared: the clock drifts from one row to the next, but not
    within a pair.
    """
    timed = [rung for rung in rungs if rung.measurement]
    return max(timed, key=lambda rung: rung.measurement["ratio"]) if timed else None
