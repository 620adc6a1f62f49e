"""Kernels compiled for the device at hand, a section's together and in parallel."""

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import cached_property

import tilelang

from sections.common import codegen, rehearsal
from sections.common.device import Device


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
    device: Device, jobs: Sequence[tuple], progress: Callable[[int, int], None] | None = None
) -> list[Kernel | BaseException]:
    """Compile (jit, arguments) pairs: each one's kernel or the exception that stopped it, in order.

    Jobs that come to the same program are compiled once in a process. `progress` is called with
    the numbers of jobs done and of all jobs as they end. Shared memory is not checked here: a
    kernel over the device's limit compiles and fails at launch.
    """
    global _seconds
    start = time.perf_counter()
    try:
        return _build(device, list(jobs), progress or (lambda done, total: None))
    finally:
        _seconds += time.perf_counter() - start


def _build(device: Device, jobs: list, progress: Callable) -> list:
    if not device.is_gpu:
        rehearsal.install()
    results: list = [None] * len(jobs)
    programs, waiting = {}, {}  # by key: the program to compile, and the jobs that wait for it

    def end(numbers: list[int], outcome) -> None:
        for number in numbers:
            failed = isinstance(outcome, BaseException)
            results[number] = outcome if failed else Kernel(*jobs[number], device.arch, *outcome)
        progress(sum(result is not None for result in results), len(jobs))

    for number, (jit, arguments) in enumerate(jobs):
        try:
            program = codegen.trace(jit, device.target, arguments)
            key = program.key(str(device.target))
        except Exception as error:
            end([number], error)
            continue
        programs[key] = program
        waiting.setdefault(key, []).append(number)

    new = [key for key in programs if key not in _compiled]
    pool = ThreadPoolExecutor(max(1, min(len(new), cores())), "build")
    try:
        futures = {pool.submit(_compile, programs[key], device): key for key in new}
        for key in programs.keys() - set(new):
            end(waiting[key], _compiled[key])
        for future in as_completed(futures):
            key, error = futures[future], future.exception()
            if error is None:
                _compiled[key] = future.result()
            end(waiting[key], error or _compiled[key])
    finally:
        pool.shutdown(cancel_futures=True)
    return results


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
    else:
        kernel = tilelang.compile(
            program.tir, target=device.target,
            pass_configs={**program.pass_configs, **rehearsal.PASS_CONFIGS},
            compile_flags=rehearsal.COMPILE_FLAGS,
        )
    return kernel, time.perf_counter() - start


def cores() -> int:
    """The cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
