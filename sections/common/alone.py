"""One section by itself, with a full traceback: python -m sections.gemm num_stages=4"""

import ast
import importlib
import sys
from pathlib import Path

from sections.common.device import DeviceError, full_arch, select
from sections.common.page import Page, Skip
from sections.common.start import prepare
from sections.course import Course

USAGE = "usage: python -m sections.{name} [--quick] [--device cpu] [--arch sm_75] [name=value ...]"


def run_alone(file: str, arguments: list[str] | None = None) -> int:
    """Run the section in `file`; name=value replaces a value of its default schedule.

    Returns the exit code: 0 when every check held, 1 when one failed, 2 for wrong arguments.
    """
    name = Path(file).stem
    try:
        given = sys.argv[1:] if arguments is None else arguments
        if {"-h", "--help"} & set(given):
            print(USAGE.format(name=name))
            return 0
        options, overrides = _parse(given)
        device = select(options["--device"], options["--arch"])
    except (ValueError, DeviceError) as error:
        print(f"{error}\n{USAGE.format(name=name)}", file=sys.stderr)
        return 2 if isinstance(error, ValueError) else 1
    prepare(device)
    title, introduction = Course().docstring(name)
    page = Page(device, options["--quick"], overrides)
    where = device.gpu or "the CPU (rehearsal)"
    print(f"{name}: {title}\n  on {where}, code for {device.arch}")
    page.say(introduction)
    try:
        importlib.import_module(f"sections.{name}").run(page)
    except Skip as reason:
        print(f"SKIPPED: {reason}")
    except KeyboardInterrupt:
        print("interrupted")
        return 130
    except SystemExit as wrong:  # an unknown name in name=value
        print(wrong.code, file=sys.stderr)
        return 2
    page.close()
    for text in page.details:
        print(text, file=sys.stderr)
    for failure in page.failures:
        print(f"FAILED: {failure}")
    return 1 if page.failures else 0


def _parse(arguments: list[str]) -> tuple[dict, dict]:
    """Options and name=value pairs; raises ValueError."""
    options = {"--quick": False, "--device": "auto", "--arch": None}
    overrides = {}
    left = list(arguments)
    while left:
        word = left.pop(0)
        key, equals, value = word.partition("=")
        if word == "--quick":
            options["--quick"] = True
        elif key in ("--device", "--arch"):
            if not equals and not left:
                raise ValueError(f"{key} needs a value")
            options[key] = value if equals else left.pop(0)
        elif equals and key.isidentifier():
            try:
                overrides[key] = ast.literal_eval(value)
            except (ValueError, SyntaxError):
                raise ValueError(f"{word}: the value must be a number or True/False") from None
        else:
            raise ValueError(f"{word}: not understood")
    if options["--device"] not in ("auto", "cuda", "cpu"):
        raise ValueError(f"--device {options['--device']}: one of auto, cuda, cpu")
    if options["--arch"]:
        options["--arch"] = full_arch(options["--arch"])
    return options, overrides
