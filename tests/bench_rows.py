"""Fused epilogues and softmaxes at other sizes than the tour's, each against its best baseline.

Type: python -m pytest -m gpu -s tests/bench_rows.py

A line a case. A case under 0.85 of its baseline fails, unless SLOWER says why.
"""

import pytest
import torch
import torch.nn.functional as F

from sections import fused_epilogue, softmax
from sections.common.build import build
from sections.common.measure import Work, alternate, copy_of
from sections.common.page import Page
from sections.common.verify import compare

FLOOR = 0.85
PRODUCTS = [(2048, 2048, 2048), (4096, 4096, 4096), (16384, 4096, 4096), (16384, 1024, 512),
            (3000, 5000, 1000), (1000, 1000, 1000)]
ROWS = [(262144, 1000), (65536, 4096), (32768, 8192), (16384, 16384), (8192, 20000), (8192, 32768),
        (4096, 40000), (4096, 65536), (2048, 131072), (1024, 262144)]
# Why a case may be under the floor.
SLOWER = {f"{shape} float16 {form}": why for form in ("erf", "tanh") for shape, why in (
    ("1000x1000x1000", "64 tiles of 128 x 128 leave half of the SMs without work; the libraries "
                       "take smaller ones"),
    ("3000x5000x1000", "16 steps of K leave little to hide bias, GELU and store behind, and the "
                       "last round is not full"),
)}


def race(gpu, case: str, job: tuple, tensors, baselines: dict, work: Work, expected, **bounds):
    """Check a kernel, time it in turn with its baselines, print a line, hold it to the floor."""
    (kernel,) = build(gpu, [job])
    if isinstance(kernel, BaseException):
        raise kernel
    result = compare(kernel(*tensors), expected, torch.float16, **bounds)
    assert result.passed, result.problem
    copy = {"copy ceiling": copy_of(work.bytes_moved)} if work.bytes_moved else {}
    ms, against = alternate(lambda: kernel(*tensors), {**baselines, **copy}, rounds=3)
    rate, unit = work.rate(ms)
    ratios = ", ".join(f"{versus.ratio:.3f}x {name} ({versus.low:.3f}-{versus.high:.3f})"
                       for name, versus in against.items())
    print(f"\n{case}: {ms:.3f} ms, {rate:.0f} {unit}, {ratios}, {job[0].func.__name__}", end="")
    assert min(against[name].ratio for name in baselines) >= FLOOR or case in SLOWER


@pytest.mark.gpu
@pytest.mark.parametrize("tanh", [False, True], ids=["erf", "tanh"])
@pytest.mark.parametrize("shape", PRODUCTS, ids=fused_epilogue.name_of)
def test_epilogues(gpu, shape, tanh):
    page = Page(gpu)
    A, B, bias = tensors = fused_epilogue.inputs(page, *shape)
    form = fused_epilogue.APPROXIMATE[tanh]
    baselines = {"torch.addmm": lambda: F.gelu(torch.addmm(bias, A, B), approximate=form)}
    if tanh:
        baselines |= fused_epilogue.library(*tensors)[0]
    M, N, K = shape
    job = fused_epilogue.kernel_for(gpu, shape, tanh)
    race(gpu, fused_epilogue.case(shape, tanh), job, tensors, baselines,
         Work(flops=2 * M * N * K), fused_epilogue.reference(*tensors, tanh), reduction=K)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", ROWS, ids=lambda shape: "x".join(map(str, shape)))
def test_softmaxes(gpu, shape):
    M, N = shape
    X = softmax.inputs(Page(gpu), M, N)
    kernel, chosen = softmax.kernel_for(gpu, N, softmax.schedule_for(gpu))
    race(gpu, softmax.case(M, N), (kernel, {"M": M, "N": N, **chosen}), (X,),
         {"torch.softmax": lambda: torch.softmax(X, dim=1)}, Work(bytes_moved=2 * X.nbytes),
         softmax.reference(X), reduction=N)
