"""sections/softmax.py"""

import pytest
import tilelang.language as T
import torch

from sections import softmax as section
from sections.common import codegen
from sections.common.build import build
from sections.common.device import ARCHITECTURES, SHARED_BYTES, Device
from sections.common.page import Page
from sections.common.verify import compare
from tests.mutations import MUTATIONS, events, rehearsal_device, run_section

LENGTHS = [1, 7, 1000, 1025, 4099, 16385, 32768, 131072]
BOTH_KERNELS = [1025, 20003]  # columns, one row length for each


def kernels_for(device, M, lengths, dtype):
    jobs = [section.job(M, N, section.SCHEDULE) for N in lengths]
    name = {torch.float16: T.float16, torch.float32: T.float32}[dtype]
    return build(device, [(jit, {**arguments, "dtype": name}) for jit, arguments in jobs])


def verdict(kernel, X):
    return compare(kernel(X), section.reference(X), X.dtype, reduction=X.shape[1])


@pytest.mark.parametrize("dtype, lengths", [
    pytest.param(torch.float16, LENGTHS, id="float16"),
    pytest.param(torch.float32, [7, 1025, 20003], id="float32"),
])
def test_any_row_length(rehearsal, dtype, lengths):
    for N, kernel in zip(lengths, kernels_for(rehearsal, 3, lengths, dtype), strict=True):
        for seed in (0, 1):
            X = section.inputs(Page(rehearsal), 3, N, seed, dtype)
            found = verdict(kernel, X)
            assert found.passed, f"{N}: {found.problem}"


def test_the_row_length_chooses_the_kernel():
    for N, threads in ((1, 32), (1024, 32), (1025, 64), (4096, 128), (16384, 512)):
        assert section.choose(N, section.SCHEDULE) == (section.softmax, {"threads": threads})
    kernel, _ = section.choose(16385, section.SCHEDULE)
    assert kernel is section.online_softmax


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("N", BOTH_KERNELS)
def test_odd_rows_are_as_in_torch(rehearsal, N, dtype):
    (kernel,) = kernels_for(rehearsal, 12, [N], dtype)
    X = section.odd_rows(Page(rehearsal), N, dtype=dtype)
    Y = kernel(X)
    assert verdict(kernel, X).passed
    assert Y[1].isnan().all(), "a row of -inf"
    rest = torch.cat([Y[:1], Y[2:]]).float()
    assert rest.isfinite().all()
    assert (rest.sum(1) - 1).abs().max() < 2e-3
    half = min(N // 2, section.SCHEDULE["block_N"])
    assert (Y[2, :half] == 0).all() and (Y[3, half:] == 0).all()
    assert Y[4].tolist() == [0] * (N - 1) + [1]
    assert torch.equal(Y[5], Y[9]), "large negative values, all equal, are like zeros"


@pytest.mark.parametrize("N", BOTH_KERNELS)
def test_nan_and_inf_take_their_row_as_in_torch(rehearsal, N):
    (kernel,) = kernels_for(rehearsal, 12, [N], torch.float16)
    X = section.inputs(Page(rehearsal), 12, N)
    X[2, 5], X[4, N - 1], X[6, 0] = float("nan"), float("inf"), float("inf")
    wrong = kernel(X).isnan().all(dim=1)
    assert wrong.nonzero().flatten().tolist() == [2, 4, 6]
    assert verdict(kernel, X).passed


def test_float32_extremes(rehearsal):
    for N, kernel in zip(BOTH_KERNELS, kernels_for(rehearsal, 2, BOTH_KERNELS, torch.float32),
                         strict=True):
        X = torch.full((2, N), -3.4e38)
        X[1, ::2] = 3.4e38
        assert verdict(kernel, X).passed, N


def test_run_passes_in_rehearsal(rehearsal, capsys):
    page = run_section("softmax", rehearsal)
    assert page.failures == []
    assert events(page, "measurement") == []
    assert len(events(page, "check")) == 8
    text = " ".join(capsys.readouterr().out.split())
    assert "tl::AllReduce<tl::MaxOp, 128" in text
    assert "2 of them cross warps" in text and "From 16385 on" in text


@pytest.mark.parametrize("name", MUTATIONS)
def test_wrong_results_fail(rehearsal, name, capsys):
    page = run_section("softmax", rehearsal, mutate=MUTATIONS[name])
    missed = {event["case"] for event in events(page, "check") if event["passed"]}
    assert missed == set()
    assert len(page.failures) == 8


def test_a_loose_check_would_pass_zeros():
    """Why the check is a relative one: case 15 of softmaxes that were all zeros."""
    X = torch.randn(4, 8192)
    zeros, expected = torch.zeros(4, 8192), section.reference(X)
    assert torch.allclose(zeros, expected, atol=1e-2)
    assert not compare(zeros, expected, torch.float32, reduction=8192).passed


def test_what_the_text_says_about_the_code():
    def read(N, **overrides):
        jit, arguments = section.job(65536, N, {**section.SCHEDULE, **overrides})
        code = codegen.generate(jit, "sm_90a", **arguments)
        return code, {mark.name for mark in codegen.landmarks(code)}

    whole, names = read(4096)
    assert codegen.count(whole, "AllReduce") == 2
    assert {"vector load", "vector store"} <= names and "bounds guard" not in names
    online, _ = read(32768)
    assert codegen.count(online, "AllReduce") == 2
    ragged, names = read(4099)
    assert "bounds guard" in names and "-CUDART_INF_F" in ragged.source
    one_warp, names = read(4096, values=128)
    assert one_warp.threads == 32 and one_warp.shared_bytes == 0 and "block barrier" not in names


def test_sizes_by_memory():
    def page(gigabytes, quick=False):
        return Page(Device("gpu", "sm_75", 1 << 16, "T4", "sm_75", 40, gigabytes << 30), quick)

    assert section.shapes_here(page(15)) == ((65536, 4096), (4096, 32768))
    assert section.shapes_here(page(6)) == ((32768, 4096), (2048, 32768))
    assert section.shapes_here(page(15, quick=True)) == ((16384, 4096), (1024, 32768))


class PretendGpu(Device):
    """A GPU in all but where tensors live."""

    torch_device = "cpu"


class PretendPage(Page):
    """A page that takes its kernels from the C backend and its times from thin air."""

    def build(self, jobs):
        return build(rehearsal_device(), list(jobs))

    def measure(self, case, variant, kernel, inputs, baselines, work):
        assert work.bytes_moved == 2 * inputs[0].numel() * 2
        for name, function in baselines.items():
            assert (function is None) == (name == "copy ceiling")
            assert function is None or torch.allclose(function(), kernel(*inputs), atol=1e-2)
        return [{"case": case, "variant": variant, "ms": 0.25, "value": 4000.0, "unit": "GB/s",
                 "baseline": name,
                 "baseline_ms": 0.5, "ratio": 2.0, "ratio_low": 1.0, "ratio_high": 3.0}
                for name in baselines]


def test_what_a_gpu_would_print(rehearsal, capsys, monkeypatch):
    device = PretendGpu("gpu", "sm_90a", SHARED_BYTES["sm_90a"], "H200", "sm_90a", 132, 140 << 30)
    monkeypatch.setattr(section, "shapes_here", lambda page: ((20, 4096), (4, 32768)))
    page = PretendPage(device, quick=True)
    section.run(page)
    assert page.failures == []
    text = " ".join(capsys.readouterr().out.split())
    assert "20x4096 float16 whole row, 128 threads 0.250 4000 torch.softmax 0.500 2.00x" in text
    assert "4x32768 float16 (online, tiles of 16384, 512 threads) reaches 4000 GB/s" in text


ALL = ("sm_75", "sm_80", "sm_90a", "sm_120a")


def takes(arch, N):
    jit, arguments = section.job(4096, N, section.SCHEDULE)
    code = codegen.generate(jit, arch, **arguments)
    found = codegen.resources(code)
    assert found is not None, "nvcc is needed"
    assert found.spill_bytes == 0
    assert code.shared_bytes + found.static_shared_bytes <= SHARED_BYTES[arch]


@pytest.mark.parametrize("arch, N", [(arch, 4096) for arch in ARCHITECTURES]
                         + [(arch, 32768) for arch in ALL])
def test_nvcc_takes_the_kernels(arch, N):
    takes(arch, N)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_nvcc_takes_every_row_length(arch):
    for N in [*LENGTHS, 8192, 16384]:
        takes(arch, N)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_any_row_length_on_a_gpu(gpu, dtype):
    lengths = [*LENGTHS, 2, 31, 33, 4096, 8193, 16384, 20003, 32769, 131071]
    for N, kernel in zip(lengths, kernels_for(gpu, 33, lengths, dtype), strict=True):
        for seed in (0, 1, 2):
            found = verdict(kernel, section.inputs(Page(gpu), 33, N, seed, dtype))
            assert found.passed, f"{N}: {found.problem}"


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_odd_rows_on_a_gpu(gpu, dtype):
    lengths = [1000, *BOTH_KERNELS, 32768, 131072]
    for N, kernel in zip(lengths, kernels_for(gpu, 12, lengths, dtype), strict=True):
        X = section.odd_rows(Page(gpu), N, dtype=dtype)
        X[10, N // 3], X[11, N - 1] = float("nan"), float("inf")
        found = verdict(kernel, X)
        assert found.passed, f"{N}: {found.problem}"


@pytest.mark.gpu
def test_the_same_bits_fifty_times(gpu):
    for N, kernel in zip(BOTH_KERNELS, kernels_for(gpu, 500, BOTH_KERNELS, torch.float16),
                         strict=True):
        X = section.inputs(Page(gpu), 500, N)
        first = kernel(X)
        assert all(torch.equal(kernel(X), first) for _ in range(50))


@pytest.mark.gpu
def test_speed_on_a_gpu(gpu):
    page = run_section("softmax", gpu)
    assert page.failures == []
    ratios = {(entry["case"], entry["baseline"]): entry["ratio"]
              for entry in events(page, "measurement")}
    assert all(ratio > 0.9 for (_, against), ratio in ratios.items() if against == "torch.softmax")
    if gpu.mode == "gpu" and gpu.arch == "sm_90a":
        assert ratios["65536x4096 float16", "copy ceiling"] >= 0.95
