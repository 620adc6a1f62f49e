"""The command line: what is asked for, checked before anything is installed or imported."""

import argparse
import difflib
import os
from contextlib import suppress
from dataclasses import dataclass

from sections.common.device import ARCHITECTURES, full_arch
from sections.course import Course
from sections.exercises import ORDER as EXERCISES
from sections.exercises import hints, source


class UsageError(Exception):
    """A wrong command line; the message says what was found, what is valid, what to type."""


@dataclass(frozen=True)
class Options:
    """A checked command line.

    hint     which hint of the exercise is asked for; 0 where none is
    learner  the file in which a learner works on the exercise that is to be checked
    """

    names: tuple[str, ...]
    list: bool = False
    check: bool = False
    reference: bool = False
    quick: bool = False
    device: str = "auto"
    arch: str | None = None
    results: str | None = None
    timeout: float = 600.0
    install: bool = True
    pictures: str | None = None
    compare: tuple[str, dict] | None = None
    source: tuple[str, dict] | None = None
    exercise: str | None = None
    hint: int = 0
    learner: str | None = None


class _Parser(argparse.ArgumentParser):
    def error(self, message: str):
        known = [option for action in self._actions for option in action.option_strings]
        _, unknown, words = message.partition("unrecognized arguments: ")
        for word in words.split() if unknown else ():
            near = difflib.get_close_matches(word.split("=")[0], known, 1)
            message += f" (did you mean {near[0]}?)" if near else ""
        raise UsageError(f"{message}\n{self.format_usage().strip()}")


def parser() -> argparse.ArgumentParser:
    """The tour's options, in the order in which a newcomer meets them."""
    options = _Parser(
        prog="python tilelang_tour.py",
        description="From nothing to understanding TileLang: runs sections that each write, check, "
        "time and explain one kind of GPU kernel. Without a GPU the same kernels run on the CPU.",
        allow_abbrev=False,
    )
    add = options.add_argument
    add("--only", action="append", metavar="A,B", help="run these sections, in the tour's order")
    add("--skip", action="append", metavar="A,B", help="leave these sections out")
    add("--list", action="store_true", help="name the sections and stop")
    add("--quick", action="store_true",
        help="smaller sizes and the two ends of each ladder, in less time")
    add("--device", choices=("auto", "cuda", "cpu"), default="auto",
        help="where kernels run; cpu rehearses without a GPU (default: auto)")
    add("--arch", metavar="sm_75", help="generate code for this architecture and, on a newer GPU, "
        f"run it there: {', '.join(ARCHITECTURES)}")
    add("--check", action="store_true", help="look at this machine and stop; installs nothing")
    add("--reference", action="store_true", help="print the quick reference and stop")
    add("--results", metavar="FILE", help="write everything that was checked and measured as JSON")
    add("--timeout", type=float, default=600.0, metavar="SECONDS",
        help="limit for one section (default: 600)")
    add("--no-install", action="store_true", help="never call pip")
    add("--pictures", metavar="FOLDER", help="draw the run into this folder, as PNG and as SVG")
    add("--compare", metavar="FILE", help="hold the run against another results file; reference "
        "stands for the run on an H200 that comes with the tour")
    add("--from", metavar="FILE", help="read this results file instead of running")
    add("--exercise", nargs="+", metavar=("NAME", "hint"), help="make a file to work on, then "
        "check it; NAME hint for a hint; list names the exercises")
    return options


def parse(arguments: list[str], course: Course) -> Options:
    """Turn a command line into Options; raises UsageError, and SystemExit(0) after --help."""
    found = parser().parse_args(arguments)
    if not (0 < found.timeout < float("inf")):
        raise UsageError(f"--timeout {found.timeout:g}: needs seconds above 0, such as 600")
    exercise, hint = _exercise(found)
    return Options(
        names=select_names(course.order, found.only, found.skip),
        list=found.list,
        check=found.check,
        reference=found.reference,
        quick=found.quick,
        device=found.device,
        arch=_arch(found.arch),
        results=writable(found.results),
        timeout=found.timeout,
        install=not found.no_install,
        compare=_results("--compare", found.compare),
        source=_source(found),
        pictures=_folder(found.pictures),
        exercise=exercise,
        hint=hint,
    )


def select_names(order: tuple[str, ...], only: list[str] | None, skip: list[str] | None):
    """The sections to run, in the tour's order, from what --only and --skip name."""
    wanted = _names(order, "--only", only) if only is not None else set(order)
    left = wanted - (_names(order, "--skip", skip) if skip is not None else set())
    if not left:
        raise UsageError(f"nothing left to run; the sections are: {', '.join(order)}")
    return tuple(name for name in order if name in left)


def _names(order: tuple[str, ...], option: str, parts: list[str]) -> set[str]:
    names = {name.strip().lower() for part in parts for name in part.split(",")} - {""}
    if not names:
        raise UsageError(f"{option} names no section; the sections are: {', '.join(order)}")
    unknown = sorted(names - set(order))
    if unknown:
        near = [match for name in unknown for match in difflib.get_close_matches(name, order, 1)]
        hint = f"did you mean {', '.join(dict.fromkeys(near))}? " if near else ""
        raise UsageError(f"{option} {','.join(unknown)}: no such section; {hint}"
                         f"the sections are: {', '.join(order)}")
    return names


WITH_EXERCISE = {"exercise", "quick", "device", "arch", "timeout", "no_install"}


def _exercise(found: argparse.Namespace) -> tuple[str | None, int]:
    """The exercise that is asked for ("list" for their list) and the number of a hint, or 0."""
    if found.exercise is None:
        return None, 0
    given = vars(found).items()
    beside = [f"--{option.replace('_', '-')}" for option, value in given
              if option not in WITH_EXERCISE and value not in (None, False)]
    if beside:
        raise UsageError(f"--exercise does not go with {', '.join(beside)}")
    name, *words = (word.strip().lower() for word in found.exercise)
    if name not in (*EXERCISES, "list"):
        near = difflib.get_close_matches(name, (*EXERCISES, "list"), 1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UsageError(f"--exercise {name}: no such exercise; {hint}"
                         f"the exercises are: {', '.join(EXERCISES)}; list describes them")
    if not words:
        return name, 0
    number = "".join(words[1:]) or "1"
    if name == "list" or words[0] != "hint" or not (
            number.isdecimal() and len(number) < 10):
        raise UsageError(f"--exercise {' '.join(found.exercise)}: not understood; after an "
                         "exercise's name may stand: hint, or hint 2")
    most = len(hints(source(name)))
    if not 1 <= int(number) <= most:
        raise UsageError(f"--exercise {name} hint {number}: there are hints 1 to {most}")
    return name, int(number)


def _folder(path: str | None) -> str | None:
    """The pictures' folder, made absolute and made, if files can be written there."""
    import tempfile  # takes time, and is rarely needed

    if path is None:
        return None
    if not path:
        raise UsageError("--pictures names no folder; name one, such as pictures")
    path = os.path.abspath(os.path.expanduser(path))
    try:
        os.makedirs(path, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except (OSError, ValueError) as error:
        raise UsageError(f"--pictures {path}: no files can be written there "
                         f"({getattr(error, 'strerror', error)}); "
                         "name another folder, such as pictures") from None
    return path


def _source(found: argparse.Namespace) -> tuple[str, dict] | None:
    """What --from names; it runs nothing, so no option of a run goes with it."""
    source = vars(found)["from"]
    if source is None:
        return None
    given = {**vars(found), "device": found.device != "auto", "timeout": found.timeout != 600.0}
    beside = [f"--{option.replace('_', '-')}" for option, value in given.items()
              if option not in ("from", "pictures", "compare") and value not in (None, False)]
    if beside:
        raise UsageError(f"--from reads a file and runs nothing: leave out {', '.join(beside)}")
    return _results("--from", source)


def _results(option: str, path: str | None) -> tuple[str, dict] | None:
    """A results file: what it was called, and what it holds."""
    if path is None:
        return None
    from sections.runner import results  # takes time

    file = results.REFERENCE if path == "reference" else os.path.expanduser(path)
    try:
        return path, results.read(file)
    except OSError as error:
        raise UsageError(f"{option} {file}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise UsageError(f"{option} {file} is no results file of the tour: {error}; "
                         "needed: a file that --results FILE has written") from None


def _arch(name: str | None) -> str | None:
    try:
        return None if name is None else full_arch(name)
    except ValueError as error:
        raise UsageError(f"--arch {error}") from None


def writable(path: str | None) -> str | None:
    """The results path, made absolute, if a file can be written there."""
    if path is None:
        return None
    path = os.path.abspath(os.path.expanduser(path))
    existed = os.path.exists(path)
    special = existed and not os.path.isfile(path) and not os.path.isdir(path)
    if special and os.access(path, os.W_OK):  # a pipe or a device: opening it may wait or be heard
        return path
    try:
        with open(path, "a", encoding="utf-8"):
            pass
    except (OSError, ValueError) as error:  # ValueError: no name that a file can have
        raise UsageError(f"--results {path}: cannot be written "
                         f"({getattr(error, 'strerror', error)}); "
                         "name a file in a folder that exists, such as results.json") from None
    if not existed:
        with suppress(OSError):
            os.remove(os.path.realpath(path))
    return path
