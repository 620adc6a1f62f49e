"""How fast is it? One timer for kernel and baseline, taken in turn, and this GPU's ceilings."""

import signal
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from statistics import median

import torch

SHORT_MS = 0.010  # below this a launch costs as much as the work: time inside a CUDA graph


@dataclass(frozen=True)
class Work:
    """What one call of a kernel has to do at least.

    bytes_moved  bytes read from and written to global memory, each counted once
    flops        floating-point operations
    """

    bytes_moved: int = 0
    flops: int = 0

    def rate(self, ms: float) -> tuple[float, str]:
        """Throughput of one call of `ms` and its unit: TFLOP/s or GB/s (1 GB = 1e9 bytes)."""
        if self.flops:
            return self.flops / ms / 1e9, "TFLOP/s"
        return self.bytes_moved / ms / 1e6, "GB/s"


@dataclass(frozen=True)
class Versus:
    """A kernel against one baseline, from alternating pairs.

    baseline_ms    median time of the baseline
    ratio          median over the pairs of baseline time / kernel time; above 1 the kernel wins
    low, high      smallest and largest ratio of a pair
    """

    baseline_ms: float
    ratio: float
    low: float
    high: float


def time_ms(function: Callable[[], object], budget_ms: float = 20.0, graph: bool = False) -> float:
    """Median time of one call in ms, the L2 cache flushed before it.

    With `graph` the calls are replayed from a CUDA graph, so that launching them costs nothing; the
    cache is then flushed before each replay of many calls.
    """
    from tilelang.profiler import do_bench

    return do_bench(
        function,
        warmup=budget_ms / 4,
        rep=budget_ms,
        return_mode="median",
        backend="cudagraph" if graph else "event",
    )


def alternate(
    kernel: Callable[[], object],
    baselines: dict[str, Callable[[], object]],
    rounds: int = 5,
    budget_ms: float = 20.0,
) -> tuple[float, dict[str, Versus]]:
    """Time a kernel and its baselines in turn: the clock drifts, but drifts for all of them.

    Each round times everything once, every other round in reverse order. Returns the kernel's
    median time in ms and how it stands against each baseline.
    """
    functions = {"": kernel, **baselines}
    graph = time_ms(kernel, budget_ms / 4) < SHORT_MS
    times = {name: [] for name in functions}
    for turn in range(rounds):
        for name in functions if turn % 2 == 0 else reversed(functions):
            times[name].append(time_ms(functions[name], budget_ms, graph))
    own = times.pop("")
    against = {}
    for name, series in times.items():
        ratios = [theirs / ours for theirs, ours in zip(series, own, strict=True)]
        against[name] = Versus(median(series), median(ratios), min(ratios), max(ratios))
    return median(own), against


def torch_compiled(function: Callable[[], object], seconds: int) -> Callable[[], object]:
    """`function` through torch.compile, called once. Raises TimeoutError if that takes too long."""
    with time_limit(seconds):
        fast = torch.compile(function, dynamic=False)
        fast()
    return fast


def warm_up_torch_compile() -> None:
    """torch.compile something tiny: the first time costs seconds, mostly for imports."""
    with suppress(Exception):  # torch_compiled will tell
        ones = torch.ones(8, device="cuda")
        torch.compile(lambda: ones + 1, dynamic=False)()


@contextmanager
def time_limit(seconds: int):
    """Raise TimeoutError in the main thread if the body takes longer."""

    def give_up(*_):
        raise TimeoutError(f"not ready after {seconds} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def copy_of(bytes_moved: int) -> Callable[[], object]:
    """A device-to-device copy that moves that many bytes, half read and half written."""
    source = torch.empty(max(bytes_moved // 2, 1), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def copy_ceiling(memory_bytes: int) -> float:
    """What a device-to-device copy reaches on this GPU, in GB/s (read + write)."""
    moved = min(2 << 30, memory_bytes // 8)
    return Work(bytes_moved=moved).rate(time_ms(copy_of(moved), 60.0))[0]


def matmul_ceiling(memory_bytes: int) -> float:
    """What cuBLAS reaches on this GPU with a large float16 product, in TFLOP/s."""
    size = 8192 if memory_bytes > 32e9 else 4096
    a = torch.randn(size, size, dtype=torch.float16, device="cuda")
    b = torch.randn(size, size, dtype=torch.float16, device="cuda")
    return Work(flops=2 * size**3).rate(time_ms(lambda: torch.matmul(a, b), 60.0))[0]
