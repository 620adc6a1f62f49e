"""Kernels compiled for the device at hand, a section's together and in parallel."""

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property

import tilelang

from sections.common import codegen, rehearsal
from sections.common.device import Device

FEW_CORES = 2  # with no more, as on Colab beside a T4, sections leave out what they can
MEANWHILE_SECONDS = 60  # how long the compiled kernels wait for what goes on beside


@dataclass(eq=False)
class Kernel:
    """A compiled kernel: call it with tensors, it returns the output tensor(s).

    jit, arguments  the @tilelang.jit object and what it was compiled with
    arch            the architecture `code` is for (in rehearsal the kernel itself is C)
    function        the compiled function
    seconds         how long compiling took
    """

    jit: object = field(repr=False)
    arguments: dict
    arch: str
    function: Callable = field(repr=False)
    seconds: float

    def __call__(self, *tensors):
        return self.function(*tensors)

    @cached_property
    def code(self) -> codegen.Code:
        """The CUDA generated for `arch`."""
        return codegen.generate(self.jit, self.arch, **self.arguments)


_compiled: dict[str, tuple] = {}  # a program's key for a target -> (function, seconds)
_seconds = 0.0


def seconds_spent() -> float:
    """Seconds spent in `build` by this process."""
    return _seconds


def build(
    device: Device,
    jobs: Sequence[tuple],
    progress: Callable[[int, int], None] | None = None,
    read: Sequence[tuple] = (),
    meanwhile: Callable[[], None] = lambda: None,
) -> list[Kernel | BaseException]:
    """Compile jobs in parallel: each one's kernel or the exception that stopped it, in order.

    jobs       (jit, arguments), or (jit, arguments, another device) where that is not `device`
    progress   called with the numbers of jobs done and of all jobs as they end
    read       (jit, arguments), or (jit, arguments, an architecture), whose CUDA will be read and
               whose registers will be asked for: got ready beside
    meanwhile  called in a thread of its own, and waited for

    Jobs that come to the same program are compiled once in a process. Shared memory is not checked
    here: a kernel over the device's limit compiles and fails at launch.
    """
    global _seconds
    start = time.perf_counter()
    beside = threading.Thread(target=meanwhile, daemon=True)
    beside.start()
    try:
        return _build(device, list(jobs), progress or (lambda done, total: None), read)
    finally:
        beside.join(MEANWHILE_SECONDS)
        _seconds += time.perf_counter() - start


def _build(device: Device, jobs: list, progress: Callable, read: Sequence[tuple]) -> list:
    if not device.is_gpu:
        rehearsal.install()
    results: list = [None] * len(jobs)
    waiting, futures = {}, {}  # by key the jobs that wait for it; by future the key it compiles

    def end(numbers: list[int], outcome) -> None:
        for number in numbers:
            jit, arguments, *other = jobs[number]
            arch = (other[0] if other else device).arch
            failed = isinstance(outcome, BaseException)
            results[number] = outcome if failed else Kernel(jit, arguments, arch, *outcome)
        progress(sum(result is not None for result in results), len(jobs))

    pool = ThreadPoolExecutor(cores(), "build")
    try:
        for number, (jit, arguments, *other) in enumerate(jobs):
            where = other[0] if other else device
            try:
                program = codegen.trace(jit, where.target, arguments)
                key = program.key(str(where.target))
            except Exception as error:
                end([number], error)
                continue
            if key not in waiting and key not in _compiled:
                futures[pool.submit(_compile, program, where)] = key
            waiting.setdefault(key, []).append(number)
        for jit, arguments, *arch in read:
            pool.submit(_get_ready, jit, arguments, arch[0] if arch else device.arch)
        for key in waiting.keys() & _compiled.keys():
            end(waiting[key], _compiled[key])
        for future in as_completed(futures):
            key, error = futures[future], future.exception()
            if error is None:
                _compiled[key] = future.result()
            end(waiting[key], error or _compiled[key])
    except BaseException:  # an interruption: what has not begun is left
        pool.shutdown(cancel_futures=True)
        raise
    pool.shutdown()
    return results


def _get_ready(jit, arguments: dict, arch: str) -> None:
    """Generate code and ask nvcc about it; who reads it then will find it, or the error."""
    with suppress(Exception):
        codegen.resources(codegen.generate(jit, arch, **arguments))


def _compile(program: codegen.Program, device: Device) -> tuple[Callable, float]:
    """The compiled function and the seconds it took."""
    start = time.perf_counter()
    if device.is_gpu:
        kernel = tilelang.compile(
            program.tir, target=device.target, pass_configs=program.pass_configs,
            compile_flags=program.compile_flags or None,
        )
        if kernel.artifact is not None:  # None where it came from TileLang's disk cache
            codegen.remember(program, device.arch, kernel.artifact)
            load_host_code(kernel)
    else:
        kernel = tilelang.compile(
            program.tir, target=device.target,
            pass_configs={**program.pass_configs, **rehearsal.PASS_CONFIGS},
            compile_flags=rehearsal.COMPILE_FLAGS,
        )
        tidy_up(kernel)
    return kernel, time.perf_counter() - start


def load_host_code(kernel) -> None:
    """Load a fresh JITKernel's host code here, in parallel; TileLang does it at the first call.

    It would compile it for that once more; what its disk cache got is the same.
    """
    saved = os.path.join(getattr(kernel, "_tilelang_cache_path", ""), "executable.so")
    executable = kernel.adapter.get_exportable_executable()
    if os.path.isfile(saved):
        executable.jit(fcompile=lambda target, files, **options: shutil.copyfile(saved, target))
    else:
        executable.jit()


def tidy_up(kernel) -> None:
    """Remove the source and the library of a JITKernel in C that TileLang leaves in the folder for
    temporary files; the library is loaded, and who asks for it gets the disk cache's copy."""
    generator = kernel.adapter.lib_generator
    for path in filter(None, (generator.srcpath, generator.libpath)):
        if os.path.dirname(path) == tempfile.gettempdir():
            with suppress(OSError):
                os.remove(path)
    saved = os.path.join(getattr(kernel, "_tilelang_cache_path", ""), "kernel_lib.so")
    if os.path.isfile(saved):
        generator.libpath = saved


def cores() -> int:
    """The cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
