"""Matrix products and attention at other sizes than the tour's, each against its best baseline.

Type: python -m pytest -m gpu -s tests/bench_matmul.py

A line a case. A case under 0.85 of its baseline fails, unless SLOWER says why.
"""

import pytest
import torch

from sections import flash_attention, gemm
from sections.common.build import build
from sections.common.measure import alternate
from sections.common.page import Page
from sections.common.verify import compare
from sections.flash_attention import Case

FLOOR = 0.85
PRODUCTS = [(2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192), (16384, 4096, 4096),
            (4096, 4096, 16384), (3000, 5000, 1000)]
ATTENTIONS = [Case(batch, 16, length, size, causal)
              for batch, length in ((16, 1024), (4, 4096), (1, 16384))
              for size in (128, 64) for causal in (False, True)]
SLOWER = {  # case: why it may be under the floor
    "3000x5000x1000 float16": "480 tiles on 132 SMs, the last round leaves 48 without work, and 16 "
                              "steps of K are few to hide it behind; cuBLAS takes other tiles",
}


@pytest.fixture(scope="module")
def kernels(gpu):
    """{shape or case: compiled kernel}, all compiled in parallel."""
    jobs = {}
    for shape in PRODUCTS:
        kernel, schedule = gemm.kernel_for(gpu, *shape)
        jobs[shape] = kernel, {**gemm.sizes(*shape), **schedule}
    for case in ATTENTIONS:
        kernel, schedule = flash_attention.kernel_for(gpu, case)
        jobs[case] = kernel, {**case.arguments, **schedule}
    return dict(zip(jobs, build(gpu, list(jobs.values())), strict=True))


def race(problem, kernel) -> None:
    """Check a kernel, time it in turn with its baseline, print a line, hold it to the floor."""
    if isinstance(kernel, BaseException):
        raise kernel
    result = compare(kernel(*problem.inputs), problem.expected, torch.float16, **problem.bounds)
    assert result.passed, result.problem
    ms, against = alternate(lambda: kernel(*problem.inputs), dict([problem.baseline]), rounds=3)
    (name, versus), = against.items()
    rate, unit = problem.work.rate(ms)
    print(f"\n{problem.case}: {ms:.3f} ms, {rate:.0f} {unit}, {versus.ratio:.3f}x {name} "
          f"({versus.low:.3f}-{versus.high:.3f}), {kernel.code.name}", end="")
    assert versus.ratio >= FLOOR or problem.case in SLOWER


@pytest.mark.gpu
@pytest.mark.parametrize("shape", PRODUCTS, ids=lambda shape: "x".join(map(str, shape)))
def test_products(gpu, kernels, shape):
    race(gemm.problem(Page(gpu), *shape), kernels[shape])


@pytest.mark.gpu
@pytest.mark.parametrize("case", ATTENTIONS, ids=lambda case: case.name.replace(" ", "-"))
def test_attention(gpu, kernels, case):
    race(flash_attention.problem(Page(gpu), case, case), kernels[case])
