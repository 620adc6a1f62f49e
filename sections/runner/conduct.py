"""A whole tour: look at the machine, make TileLang usable, run the sections, sum up."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from sections.course import Course
from sections.runner import results, summary
from sections.runner.arguments import Options
from sections.runner.check import report
from sections.runner.environment import LEFT_OUT, PASSED_ON, Probe, machine_facts, neutralised
from sections.runner.install import Outcome, make_usable
from sections.runner.problems import Problem, problems
from sections.runner.quick_reference import render
from sections.runner.retell import announce, look
from sections.runner.screen import Screen
from sections.runner.tour import Record, Tour


def conduct(
    course: Course,
    options: Options,
    screen: Screen,
    verdict: Callable[[Record], str] | None = None,
) -> int:
    """Run the tour that `options` asks for; returns its exit code.

    verdict  what is said at the end of an exercise, in place of a summary
    """
    told = "1 exercise" if options.learner else \
        f"{len(options.names)} section{'s' if len(options.names) > 1 else ''}"
    told += " in quick mode" if options.quick else ""
    with ThreadPoolExecutor(1) as pool:
        facts = pool.submit(machine_facts)  # while the worker imports torch

        def begin(probe: Probe) -> None:
            screen.line(heading(probe, facts.result(), told))
            if course.needs_tilelang:
                for problem in problems(facts.result(), probe):
                    screen.line(f"note: {problem}")
                for variable in facts.result()["variables"]:
                    if variable.endswith((LEFT_OUT, PASSED_ON)):
                        screen.line(f"note: {variable}")

        def mend(probe: Probe) -> Outcome:
            nonlocal facts
            try:
                return make_usable(
                    facts.result(), probe, tour.probe, screen.line, options.install
                )
            finally:
                facts = pool.submit(machine_facts)  # an install may have changed them

        try:
            tour = Tour(course, options, neutralised(os.environ), screen, begin, mend)
        except OSError as error:
            needed = "a folder for temporary files with room in it"
            screen.line(str(Problem(str(error.strerror), needed, "export TMPDIR=~")))
            return 1
        if options.check:
            return check(tour, facts.result(), screen)
        announce(options, screen)
        before = course.sources()
        record = tour.run()
        record.changed = sorted({name for name, _ in before.items() ^ course.sources().items()})
        if verdict:
            screen.line(verdict(record))
            return record.exit_code
        written = end(record, facts.result(), options, screen, reference(course, record))
    return record.exit_code if written else record.exit_code or 1


def check(tour: Tour, facts: dict, screen: Screen) -> int:
    """Print what is here; 0 when a tour could run now, without installing anything."""
    probe = tour.probe()
    screen.line(report(facts, probe, problems(facts, probe)))
    return 0 if probe.usable else 1


def reference(course: Course, record: Record) -> str:
    """The quick reference after a whole tour; after a part of it, how to get it."""
    if not course.needs_tilelang or "PASS" not in {row.status for row in record.rows}:
        return ""
    if record.interrupted or len(record.rows) < len(course.order):
        return "The quick reference: python tilelang_tour.py --reference"
    return render()


def heading(probe: Probe, facts: dict, what: str) -> str:
    """What runs ("8 sections") and where: mode, GPU, architecture, versions."""
    fact = probe.fact
    if not fact("device", "mode"):  # a course that needs no device
        return what
    arch, shared = fact("device", "arch"), (fact("device", "shared_bytes") or 0) // 1024
    where = f"{fact('device', 'gpu')} ({fact('device', 'gpu_arch')}, " \
            f"{fact('device', 'multiprocessors')} SMs)"
    first = {
        "gpu": f"TileLang tour: GPU mode on {where}, {shared} KB shared memory per block",
        "arch": f"TileLang tour: the {arch} code path on {where}; {arch} has {shared} KB shared "
                f"memory per block\nTimes are those of this GPU running {arch} code, not of an "
                f"{arch} GPU.",
        "rehearsal": "TileLang tour: CPU rehearsal, no GPU is used. The same kernels are compiled "
                     f"to C, run on\nsmall inputs and are checked; the CUDA shown is for {arch} "
                     f"({shared} KB shared memory per block).",
    }[fact("device", "mode")]
    versions = [f"tilelang {fact('tilelang', 'version')}", f"torch {fact('torch', 'version')}"]
    if facts["driver"]:
        versions.append(f"driver {facts['driver']}")
    versions.append(f"nvcc {facts['nvcc_version']}" if facts["nvcc_version"] else "no nvcc")
    return f"{first}\n{', '.join(versions)}; {what}"


def end(record: Record, facts: dict, options: Options, screen: Screen, reference: str) -> bool:
    """Write the results; print the summary and the reference, draw pictures, the verdict last.

    Results are written before anything is printed: a terminal that is gone cannot lose them.
    Returns whether the files that were asked for could be written.
    """
    probe = record.probe or Probe()
    found = results.as_dict(record, environment(probe, facts))
    written, told = True, ""
    if options.results:
        try:
            results.write(options.results, found)
            told = f"results: {options.results}"
        except OSError as error:
            told = f"--results {options.results} could not be written: {error}"
            written = False
    screen.line()
    screen.line(summary.table(record, timed=probe.fact("device", "mode") in ("gpu", "arch")))
    for line in summary.notes(record):
        screen.line(line)
    if reference:
        screen.line(f"\n{reference}\n")
    if told:
        screen.line(told)
    written = look(found, options, screen) and written
    screen.line(summary.verdict(record))
    return written


def environment(probe: Probe, facts: dict) -> dict:
    """The environment as the results file has it, with the mode; versions also where an import
    failed."""

    def version(module: str) -> str | None:
        return probe.fact(module, "version") or facts["versions"].get(module)

    return {
        "mode": probe.fact("device", "mode"),
        "gpu": probe.fact("device", "gpu"),
        "arch": probe.fact("device", "arch"),
        "driver": facts["driver"],
        "torch": version("torch"),
        "tilelang": version("tilelang"),
        "python": facts["python"],
        "nvcc": facts["nvcc_version"],
    }
