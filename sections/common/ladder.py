"""A ladder of schedules: one change a row, each checked, timed, and beside it what it bought."""

from dataclasses import dataclass

from sections.common.measure import Work
from sections.common.page import Page, kilobytes


@dataclass(frozen=True)
class Step:
    """One row: what changed, the whole schedule, and the reason in a few words."""

    change: str
    schedule: dict
    why: str


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
    """A step with what came of it; `measurement` is None where nothing was timed."""

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


def climb(page: Page, kernel, ladder: list[Step], problem: Problem) -> list[Rung]:
    """Compile all steps in parallel, check each, time each in turn with the baseline.

    A step whose shared memory is over this device's limit is left out, with both figures.
    """
    limit = page.device.shared_bytes
    rungs = [Rung(step) for step in ladder]
    built = page.build((kernel, {**problem.arguments, **step.schedule}) for step in ladder)
    for rung, result in zip(rungs, built, strict=True):
        if isinstance(result, BaseException):
            page.fail(f"{rung.step.change}: did not compile: {result}")
            rung.left_out = "did not compile"
            continue
        rung.kernel, rung.code = result, page.code(result, **problem.shown)
        if rung.code.shared_bytes > limit:
            rung.left_out = (f"left out: {kilobytes(rung.code.shared_bytes)} is over "
                             f"{page.device.arch}'s {kilobytes(limit)}")
        elif not page.check(problem.case, result, problem.inputs, problem.expected,
                            **problem.bounds):
            rung.left_out = "wrong result"
    if page.device.is_gpu:
        for rung in rungs:
            if not rung.left_out:
                rung.measurement = page.measure(
                    problem.case, describe(rung.step.schedule), rung.kernel, problem.inputs,
                    dict([problem.baseline]), problem.work, rounds=3,
                )[0]
    return rungs


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
