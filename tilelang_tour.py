"""The TileLang tour: from nothing to understanding GPU kernels in TileLang, in one command.

    python tilelang_tour.py                    the whole tour
    python tilelang_tour.py --only gemm        some of it
    python tilelang_tour.py --exercise list    exercises, to work on yourself
    python tilelang_tour.py --help             the other options

arguments > environment > install > sections > summary > quick reference
"""

import os
import signal
import sys

if sys.version_info < (3, 10):  # noqa: UP036 - the one line that older Pythons must understand
    sys.exit("Python " + sys.version.split()[0] + " found; the tour needs 3.10 or newer.")

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path.insert(0, HERE)

import sections  # noqa: E402, F401

# From now on this folder comes last: a random.py or a torch.py beside the tour hides no module.
sys.path[:] = [path for path in sys.path if os.path.realpath(path or ".") != HERE] + [HERE]

from sections.course import Course  # noqa: E402
from sections.runner import arguments as command_line  # noqa: E402
from sections.runner.screen import Screen  # noqa: E402


def main(arguments: list[str] | None = None, course: Course | None = None) -> int:
    """Run the tour as the command line says; returns the exit code and never exits.

    arguments  without the program's name; None takes those of the command line. From a notebook
               cell call main([]) or main(["--only", "gemm"]).
    course     the sections to choose from, those of the tour unless given
    """
    screen, course = Screen(), course or Course()
    if arguments is None:
        arguments = [] if "ipykernel" in sys.modules else sys.argv[1:]
    try:
        options = command_line.parse(arguments, course)
    except command_line.UsageError as error:
        screen.line(f"tilelang_tour.py: {error}")
        return 2
    except FileNotFoundError:  # a name is looked up from a folder that somebody has removed
        screen.line("tilelang_tour.py: the current folder is gone; needed: one that is there; "
                    "type: cd")
        return 2
    except SystemExit as end:  # --help
        return int(end.code or 0)
    except KeyboardInterrupt:  # while a pipe is read, say
        screen.line("interrupted")
        return 130
    if options.list:
        for name in course.order:
            screen.line(f"{name:<16} {course.docstring(name)[0]}")
        return 0
    if options.reference:
        from sections.runner.quick_reference import render

        screen.line(render())
        return 0
    from sections.runner.conduct import conduct
    from sections.runner.exercise import exercise
    from sections.runner.retell import retell

    try:
        if options.exercise:
            return exercise(options, screen)
        if options.source:
            return retell(options, screen)
        return conduct(course, options, screen)
    except KeyboardInterrupt:  # before the first section or after the last
        screen.line("interrupted")
        return 130


if __name__ == "__main__":
    for descriptor, name in ((0, "stdin"), (1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:  # it was closed: else a pipe would get its number
            os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)
            mode = "w" if descriptor else "r"
            setattr(sys, name, os.fdopen(descriptor, mode, closefd=False))
    for word in ("SIGTERM", "SIGHUP"):  # `timeout`, a closed window: as Ctrl-C
        number = getattr(signal, word, None)
        if number and signal.getsignal(number) is signal.SIG_DFL:  # nohup's is left
            signal.signal(number, signal.default_int_handler)
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError as error:  # whoever read the output has gone
        if error.__cause__:
            print(f"tilelang_tour.py: {error}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = 130
    except KeyboardInterrupt:  # while it imports
        code = 130
    raise SystemExit(code)
