"""All sections' kernels compiled together, before the first section: many cores then have work.

A section waits for the slowest of its own kernels; all of them together keep every core busy. Each
section is run up to its first `build`, on a page that prints nothing, to learn what it needs; when
it is run for good, that is ready. Whatever goes wrong here, the section itself will tell.
"""

import contextlib
import importlib
import os
import time
from collections.abc import Callable, Sequence

from sections.common.build import Kernel, cores
from sections.common.device import Device
from sections.common.page import Page

ENOUGH_CORES = 8  # with fewer a learner reads the first section while the second one compiles


class _Found(BaseException):
    """What a section asked its page to build: jobs, what it will read, whether it will use
    torch.compile."""


class _Scout(Page):
    """A page that nobody reads; it ends its section at the first `build`."""

    def build(
        self, jobs: Sequence[tuple], read: Sequence[tuple] = (), torch_compile: bool = False
    ) -> list:
        raise _Found(list(jobs), list(read), torch_compile)

    def _print(self, text: str, by: str = "") -> None:
        pass


def worthwhile(device: Device, sections: Sequence[str]) -> bool:
    """Whether compiling ahead saves time: a GPU, many cores, more than one section."""
    return device.is_gpu and cores() >= ENOUGH_CORES and len(sections) > 1


def compile_ahead(
    device: Device, modules: Sequence[str], quick: bool, progress: Callable[[str], None]
) -> str:
    """Compile what the sections' first builds ask for; returns what was done, as a sentence."""
    start = time.perf_counter()
    jobs, read, torch_compile = [], [], False
    for module in modules:
        progress(f"looking at what {module.rpartition('.')[2]} compiles")
        wanted = _wanted(device, module, quick)
        jobs += wanted[0]
        read += wanted[1]
        torch_compile |= wanted[2]
    reporter = Page(device, quick, emit=lambda event: progress(event["text"]))
    built = reporter.build(jobs, read, torch_compile)
    number = len({id(kernel.function) for kernel in built if isinstance(kernel, Kernel)})
    return (f"{number} kernels of {len(modules)} sections compiled first, on {cores()} cores: "
            f"{time.perf_counter() - start:.0f} s")


def _wanted(device: Device, module: str, quick: bool) -> tuple[list, list, bool]:
    """What a section's first build was given; nothing where it fails before it builds."""
    try:
        with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing), \
                contextlib.redirect_stderr(nothing):
            importlib.import_module(module).run(_Scout(device, quick))
    except _Found as found:
        return found.args
    except BaseException:
        pass
    return [], [], False
