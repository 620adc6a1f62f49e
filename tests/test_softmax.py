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
from sections.hopper import softmax as hopper
from tests.mutations import MUTATIONS, events, rehearsal_device, run_section

LENGTHS = [1, 7, 1000, 1025, 4099, 16385, 32768, 131072]
BOTH_KERNELS = [1025, 20003]  # columns, one row length for each


def schedule_for(device, dtype):
    """The section's, which counts float16 columns."""
    schedule = section.schedule_for(device)
    return {**schedule, "kept": 2 * schedule["kept"] // dtype.itemsize // section.TILE
            * section.TILE}


def typed(jobs, dtype):
    """The jobs for a dtype."""
    name = {torch.float16: T.float16, torch.float32: T.float32}[dtype]
    return [(jit, {**arguments, "dtype": name}) for jit, arguments in jobs]


def kernels_for(device, M, lengths, dtype):
    schedule = schedule_for(device, dtype)
    return build(device, typed([section.job(M, N, schedule) for N in lengths], dtype))


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


def gpu_of(arch, mode="gpu"):
    return Device(mode, arch, SHARED_BYTES[arch], "a GPU", arch, 132, 80 << 30)


def test_shared_memory_keeps_what_fits():
    def kept(arch, N):
        device = gpu_of(arch)
        _, chosen = section.choose(N, section.schedule_for(device))
        assert 2 * chosen["kept"] + 8192 <= SHARED_BYTES[arch]
        return chosen["kept"], chosen["blocks"]

    assert kept("sm_75", 32768) == (24576, 1)
    assert kept("sm_80", 32768) == kept("sm_90a", 32768) == (32768, 2)
    assert kept("sm_86", 32768) == (32768, 1)
    assert kept("sm_90a", 131072) == (106496, 1)
    assert section.choose(32768, section.SCHEDULE)[1]["kept"] == 0


def test_hopper_takes_rows_that_fill_an_sm():
    def chosen(arch, N, mode="gpu"):
        device = gpu_of(arch, mode)
        return section.kernel_for(device, N, section.schedule_for(device))

    assert chosen("sm_90a", 131072) == (
        hopper.softmax_hopper, {"kept": 24, "held": 8, "threads": 512})
    assert chosen("sm_90a", 65536)[1] == {"kept": 16, "held": 0, "threads": 512}
    for arch, N, mode in (("sm_90a", 32768, "gpu"), ("sm_90a", 131080, "gpu"),
                          ("sm_90a", 1 << 18, "gpu"), ("sm_90a", 131072, "rehearsal"),
                          ("sm_100a", 131072, "gpu"), ("sm_80", 131072, "gpu")):
        assert chosen(arch, N, mode)[0] is section.online_softmax, (arch, N, mode)


@pytest.mark.parametrize("kept", [0, 8192, 16384])
def test_a_row_that_is_kept_in_part(rehearsal, kept):
    arguments = {"M": 12, "N": 20003, "kept": kept}
    (kernel,) = build(rehearsal, [(section.online_softmax, arguments)])
    assert verdict(kernel, section.odd_rows(Page(rehearsal), 20003)).passed


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
    half = min(N // 2, 2 * section.TILE)
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
    assert all(f"def {name}(" in text for name in ("take_in", "agree", "softmax_hopper"))


@pytest.mark.parametrize("name", MUTATIONS)
def test_wrong_results_fail(rehearsal, name, capsys):
    page = run_section("softmax", rehearsal, mutate=MUTATIONS[name])
    missed = {event["case"] for event in events(page, "check") if event["passed"]}
    assert missed == set()
    assert len(page.failures) == 8


def test_a_loose_check_would_pass_zeros():
    """Why the check is a relative one: zeros pass an absolute one."""
    X = torch.randn(4, 8192)
    zeros, expected = torch.zeros(4, 8192), section.reference(X)
    assert torch.allclose(zeros, expected, atol=1e-2)
    assert not compare(zeros, expected, torch.float32, reduction=8192).passed


def test_what_the_text_says_about_the_code():
    def read(N, **overrides):
        schedule = {**section.schedule_for(gpu_of("sm_90a")), **overrides}
        jit, arguments = section.job(65536, N, schedule)
        code = codegen.generate(jit, "sm_90a", **arguments)
        return code, {mark.name for mark in codegen.landmarks(code)}

    whole, names = read(4096)
    assert codegen.count(whole, "AllReduce") == 2
    assert {"vector load", "vector store"} <= names and "bounds guard" not in names
    online, names = read(32768)
    assert codegen.count(online, "AllReduce") == 2, "once for the row, not once a tile"
    assert {"vector load", "vector store"} <= names and "bounds guard" not in names
    assert online.shared_bytes >= 65536
    ragged, names = read(4099)
    assert "bounds guard" in names and "-CUDART_INF_F" in ragged.source
    one_warp, names = read(4096, values=128)
    assert one_warp.threads == 32 and one_warp.shared_bytes == 0 and "block barrier" not in names


def test_sizes_by_memory():
    def page(gigabytes, quick=False):
        return Page(Device("gpu", "sm_75", 1 << 16, "T4", "sm_75", 40, gigabytes << 30), quick)

    assert section.shapes_here(page(15)) == ((65536, 4096), (4096, 32768), (2048, 131072))
    assert section.shapes_here(page(6)) == ((32768, 4096), (2048, 32768), (1024, 131072))
    assert section.shapes_here(page(15, quick=True)) == ((16384, 4096), (1024, 32768))


class PretendGpu(Device):
    """A GPU in all but where tensors live."""

    torch_device = "cpu"


class PretendPage(Page):
    """A page that takes its kernels from the C backend and its times from thin air."""

    def build(self, jobs, read=(), torch_compile=False):
        return build(rehearsal_device(), list(jobs))

    def measure(self, case, variant, kernel, inputs, baselines, work, rounds=5):
        assert work.bytes_moved == 2 * inputs[0].numel() * 2
        for name, function in baselines.items():
            assert (function is None) == (name == "copy ceiling")
            assert function is None or torch.allclose(function(), kernel(*inputs), atol=1e-2)
        return [{"case": case, "variant": variant, "ms": 0.25, "value": 4000.0, "unit": "GB/s",
                 "baseline": name,
                 "baseline_ms": 0.5, "ratio": 2.0, "ratio_low": 1.0, "ratio_high": 3.0}
                for name in baselines]


def test_what_a_gpu_would_print(rehearsal, capsys, monkeypatch):
    device = PretendGpu("gpu", "sm_80", SHARED_BYTES["sm_80"], "A100", "sm_80", 108, 40 << 30)
    monkeypatch.setattr(section, "shapes_here", lambda page: ((20, 4096), (4, 32768), (2, 49152)))
    monkeypatch.setattr(PretendPage, "torch_compiled", lambda self, function: {})
    page = PretendPage(device)
    section.run(page)
    assert page.failures == []
    text = " ".join(capsys.readouterr().out.split())
    assert "20x4096 float16 whole row, 128 threads 0.250 4000 torch.softmax 0.500 2.00x" in text
    assert "4x32768 float16 (online, 32768 columns kept, 1024 threads) 0.250 ms, 4000 GB/s" in text
    assert "Step by step, 2x49152 float16" in text and "+ kept in shared memory 100 KB" in text
    assert "On sm_80 the kernels above are used" in text


ALL = ("sm_75", "sm_80", "sm_90a", "sm_120a")


def takes(arch, N):
    device = gpu_of(arch)
    jit, arguments = section.kernel_for(device, N, section.schedule_for(device))
    arguments = {"M": 4096, "N": N, **arguments}
    code = codegen.generate(jit, arch, **arguments)
    found = codegen.resources(code)
    assert found is not None, "nvcc is needed"
    assert found.spill_bytes == 0
    assert code.shared_bytes + found.static_shared_bytes <= SHARED_BYTES[arch]


@pytest.mark.parametrize("arch, N", [(arch, 4096) for arch in ARCHITECTURES]
                         + [(arch, 32768) for arch in ALL] + [("sm_90a", 131072)])
def test_nvcc_takes_the_kernels(arch, N):
    takes(arch, N)


def test_hopper_is_told_of_all_tiles_at_once():
    code = codegen.generate(hopper.softmax_hopper, "sm_90a", M=2048, N=131072, kept=24, held=8)
    marks = {mark.name: mark.line for mark in codegen.landmarks(code)}
    assert marks["TMA load"] < marks["vector load"] < marks["mbarrier wait"]
    assert codegen.count(code, "TMA load") == 1 and codegen.count(code, "AllReduce") == 2


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


def hopper_jobs(device, M):
    """Hopper's kernel with all, some and none of a row in registers; elsewhere what is taken."""
    own = [(hopper.softmax_hopper, {"M": M, "N": N, **chosen})
           for N, chosen in ((4096, {"kept": 1, "held": 0}), (12288, {"kept": 1, "held": 2}),
                             (8192, {"kept": 4, "held": 4, "threads": 128}))]
    schedule = section.schedule_for(device)
    jobs = [(kernel, {"M": M, "N": N, **chosen}) for N in (65536, 102400, 131072)
            for kernel, chosen in [section.kernel_for(device, N, schedule)]]
    return [*own, *jobs] if device.mode == "gpu" and device.arch == "sm_90a" else jobs


@pytest.mark.gpu
def test_hopper_on_a_gpu(gpu):
    jobs = hopper_jobs(gpu, 12)
    for (_, arguments), kernel in zip(jobs, build(gpu, jobs), strict=True):
        N = arguments["N"]
        for seed in (0, 1, 2):
            X = section.odd_rows(Page(gpu), N, seed)
            X[10, N // 3], X[11, N - 1] = float("nan"), float("inf")
            found = verdict(kernel, X)
            assert found.passed, f"{arguments}: {found.problem}"


@pytest.mark.gpu
def test_hopper_the_same_bits_fifty_times(gpu):
    jobs = hopper_jobs(gpu, 500)
    for (_, arguments), kernel in zip(jobs, build(gpu, jobs), strict=True):
        X = section.inputs(Page(gpu), 500, arguments["N"])
        first = kernel(X)
        assert verdict(kernel, X).passed
        assert all(torch.equal(kernel(X), first) for _ in range(50)), arguments


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
        assert ratios["4096x32768 float16", "torch.softmax"] >= 1.6
        assert ratios["2048x131072 float16", "torch.softmax"] >= 1.75
