"""sections/common/measure.py: ratios from alternating pairs; the timer itself on a GPU."""

import time

import pytest
import torch

from sections.common import measure
from sections.common.measure import Work


def test_rates():
    assert Work(bytes_moved=3_000_000_000).rate(1.0) == (3000.0, "GB/s")
    assert Work(flops=2 * 4096**3).rate(0.2) == (pytest.approx(687.19, abs=0.01), "TFLOP/s")


def test_pairs_alternate_and_the_median_ratio_is_quoted(monkeypatch):
    calls = []
    kernel_ms = iter([9.0, 1.0, 2.0, 4.0])  # the first only decides whether a graph is needed
    base_ms = iter([2.0, 2.0, 4.0])

    def time_ms(function, budget_ms=20.0, graph=False):
        calls.append(function.__name__)
        return next(kernel_ms if function.__name__ == "kernel" else base_ms)

    def kernel(): ...
    def base(): ...

    monkeypatch.setattr(measure, "time_ms", time_ms)
    ms, against = measure.alternate(kernel, {"torch": base}, rounds=3)
    assert calls == ["kernel", "kernel", "base", "base", "kernel", "kernel", "base"]
    assert ms == 2.0
    assert against["torch"] == measure.Versus(2.0, 1.0, 1.0, 2.0)


def test_short_kernels_are_timed_in_a_graph(monkeypatch):
    graphs = []

    def time_ms(function, budget_ms=20.0, graph=False):
        graphs.append(graph)
        return 0.004

    monkeypatch.setattr(measure, "time_ms", time_ms)
    measure.alternate(lambda: None, {"torch": lambda: None}, rounds=1)
    assert graphs == [False, True, True]


@pytest.mark.gpu
def test_time_is_that_of_the_work(gpu):
    a = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    b = torch.empty_like(a)
    once = measure.time_ms(lambda: b.copy_(a))
    twice = measure.time_ms(lambda: (b.copy_(a), b.copy_(a)))
    assert 1.6 < twice / once < 2.4


@pytest.mark.gpu
def test_a_slow_first_call_is_not_in_the_time(gpu):
    calls = []

    def slow_at_first():
        if not calls:
            time.sleep(2)  # as where a kernel is compiled in its first call
        calls.append(b.copy_(a))

    a = torch.empty(1 << 26, dtype=torch.uint8, device="cuda")
    b = torch.empty_like(a)
    ms, against = measure.alternate(slow_at_first, {"torch": lambda: b.copy_(a)})
    assert ms < 1 and 0.8 < against["torch"].ratio < 1.25


@pytest.mark.gpu
def test_the_cache_is_flushed(gpu):
    size = 8 << 20  # fits the L2 of every GPU that has one of 16 MB or more
    a = torch.empty(size, dtype=torch.uint8, device="cuda")
    b = torch.empty_like(a)
    rate = Work(bytes_moved=2 * size).rate(measure.time_ms(lambda: b.copy_(a)))[0]
    assert rate < 1.1 * measure.copy_ceiling(gpu.memory_bytes)


@pytest.mark.gpu
def test_a_kernel_against_itself_is_even(gpu):
    a = torch.randn(4096, 4096, device="cuda").half()
    _, against = measure.alternate(lambda: a @ a, {"torch": lambda: a @ a})
    assert 0.93 < against["torch"].ratio < 1.07
    assert against["torch"].low <= against["torch"].ratio <= against["torch"].high
