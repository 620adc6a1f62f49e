"""Matrix products and attention at other sizes than the tour's, each against its best baseline.

Type: python -m pytest -m gpu -s tests/bench_matmul.py

A line a case. A case under 0.85 of its baseline fails, unless SLOWER says why.
"""

import pytest
import torch

from sections import flash_attention, gemm
from sections.common.build import build
from sections.common.measure import Work, alternate
from sections.common.page import Page
from sections.common.verify import compare
from sections.flash_attention import Case

FLOOR = 0.85
PRODUCTS = [(2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192), (16384, 4096, 4096),
            (4096, 4096, 16384), (3000, 5000, 1000), (1000, 1000, 1000), (4096, 4099, 4096)]
ATTENTIONS = [Case(batch, 16, length, size, causal)
              for batch, length in ((16, 1024), (4, 4096), (1, 16384))
              for size in (128, 64) for causal in (False, True)]
SLOWER: dict[str, str] = {}  # case: why it is under the floor


def race(gpu, case: str, kernel, arguments: dict, tensors, baseline, work: Work, **check) -> None:
    """Check a kernel, time it in turn with its baseline, print a line, hold it to the floor."""
    (built,) = build(gpu, [(kernel, arguments)])
    if isinstance(built, BaseException):
        raise built
    result = compare(built(*tensors), check.pop("expected"), torch.float16, **check)
    assert result.passed, result.problem
    name, function = baseline
    ms, against = alternate(lambda: built(*tensors), {name: function}, rounds=3)
    ratio = against[name].ratio
    rate, unit = work.rate(ms)
    print(f"\n{case}: {ms:.3f} ms, {rate:.0f} {unit}, {ratio:.3f}x {name} "
          f"({against[name].low:.3f}-{against[name].high:.3f}), {built.code.name}", end="")
    assert ratio >= FLOOR or case in SLOWER


@pytest.mark.gpu
@pytest.mark.parametrize("shape", PRODUCTS, ids=lambda shape: "x".join(map(str, shape)))
def test_products(gpu, shape):
    page = Page(gpu)
    A, B = gemm.inputs(page, *shape)
    kernel, schedule = gemm.kernel_for(gpu, *shape)
    problem = gemm.problem(page, *shape)
    race(gpu, problem.case, kernel, {**problem.arguments, **schedule}, problem.inputs,
         problem.baseline, problem.work, expected=problem.expected, **problem.bounds)


@pytest.mark.gpu
@pytest.mark.parametrize("case", ATTENTIONS, ids=lambda case: case.name.replace(" ", "-"))
def test_attention(gpu, case):
    kernel, schedule = flash_attention.kernel_for(gpu, case)
    problem = flash_attention.problem(Page(gpu), case, case)
    race(gpu, problem.case, kernel, {**problem.arguments, **schedule}, problem.inputs,
         problem.baseline, problem.work, expected=problem.expected, **problem.bounds)
