"""sections/common/device.py: modes and limits, the facts of GPUs stubbed."""

import importlib
from types import SimpleNamespace

import pytest
import torch

from sections import ORDER
from sections.common.device import (
    ARCHITECTURES,
    EXAMPLE_MEMORY,
    SHARED_BYTES,
    DeviceError,
    arch_name,
    capability,
    full_arch,
    preset,
    select,
)
from sections.common.page import Page


@pytest.fixture
def gpu_of(monkeypatch):
    """Make torch see a GPU of a name, a capability, shared memory and free memory."""
    def see(name, major, minor, shared_kb, free_gb=15.0):
        facts = SimpleNamespace(
            name=name, major=major, minor=minor, shared_memory_per_block_optin=shared_kb * 1024,
            multi_processor_count=40, total_memory=int(200e9),
        )
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: facts)
        monkeypatch.setattr(torch.cuda, "mem_get_info",
                            lambda index: (int(free_gb * 1e9), facts.total_memory))
    return see


def test_without_a_gpu_the_cpu_rehearses():
    device = select("cpu")
    assert (device.mode, device.arch, device.target) == ("rehearsal", "sm_90a", "c")
    assert not device.is_gpu and device.torch_device == "cpu"
    assert select("cpu", "sm_75").shared_bytes == 64 * 1024


def test_cuda_that_is_not_there_is_an_error(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match="type: python tilelang_tour.py --device cpu"):
        select("cuda")
    assert select("auto").mode == "rehearsal"


def test_a_t4(gpu_of):
    gpu_of("Tesla T4", 7, 5, 64)
    device = select("auto")
    assert (device.mode, device.arch, device.shared_bytes) == ("gpu", "sm_75", 64 * 1024)
    assert device.target == {"kind": "cuda", "arch": "sm_75"}
    assert select("cuda", "sm_75").mode == "gpu", "the GPU's own architecture is GPU mode"
    with pytest.raises(DeviceError, match="newer than this GPU .*needed: one of sm_75; type: "):
        select("auto", "sm_80")


def test_an_older_code_path_on_a_newer_gpu(gpu_of):
    gpu_of("NVIDIA H200", 9, 0, 227)
    device = select("auto", "sm_75")
    assert (device.mode, device.arch, device.gpu_arch) == ("arch", "sm_75", "sm_90a")
    assert device.target == {"kind": "cuda", "arch": "sm_75", "code": ["sm_90"]}
    assert device.shared_bytes == 64 * 1024, "the older architecture's limit holds"
    assert select("auto", "sm_90a").mode == "gpu"


def test_code_tied_to_its_chips_is_refused_elsewhere(gpu_of):
    gpu_of("NVIDIA B200", 10, 0, 227)
    assert select("auto").arch == "sm_100a"
    with pytest.raises(DeviceError, match="--arch sm_90a: that code is tied to its own chips"):
        select("auto", "sm_90a")


def test_a_gpu_too_old_rehearses_and_says_so(gpu_of, capsys):
    gpu_of("Tesla V100", 7, 0, 96)
    assert select("auto").mode == "rehearsal"
    assert "Tesla V100 is sm_70; needed: sm_75 or newer" in capsys.readouterr().out
    with pytest.raises(DeviceError, match="needed: sm_75 or newer; type: .*--device cpu"):
        select("cuda")


def test_unknown_and_newer_capabilities_get_the_nearest_presets(gpu_of):
    gpu_of("a later GPU", 10, 3, 227)
    device = select("auto")
    assert device.arch == "sm_103a"
    assert device.preset({"sm_75": 1, "sm_90a": 2, "sm_100a": 3, "sm_120a": 4}) == 3


def tables():
    """Every table by architecture that a section has, by name."""
    for name in ORDER:
        module = importlib.import_module(f"sections.{name}")
        for key, value in vars(module).items():
            if isinstance(value, dict) and "sm_75" in value:
                yield f"{name}.{key}", value


@pytest.mark.parametrize("major, minor, shared_kb", [
    (8, 7, 163), (10, 3, 227), (11, 0, 227), (12, 1, 99), (13, 0, 99), (20, 5, 99),
])
def test_no_section_needs_to_know_a_capability(gpu_of, major, minor, shared_kb):
    """What it takes is made for an older architecture with no more shared memory."""
    gpu_of("a GPU that nobody knows", major, minor, shared_kb)
    device = select("auto")
    known = [arch for arch in ARCHITECTURES if capability(arch) < capability(device.arch)]
    assert (device.mode, device.shared_bytes) == ("gpu", shared_kb * 1024)
    assert SHARED_BYTES[known[-1]] <= device.shared_bytes
    named = dict(tables())
    assert len(named) >= 6
    for name, table in named.items():
        assert device.preset(table) == preset(table, known[-1]), name


def test_memory_is_what_other_processes_leave(gpu_of):
    gpu_of("Tesla T4", 7, 5, 64, free_gb=3.5)
    assert select("auto").memory_bytes == 3.5e9
    gpu_of("NVIDIA H200", 9, 0, 227, free_gb=140)
    assert select("auto").memory_bytes == 140e9
    assert select("auto", "sm_75").memory_bytes == 15e9, "a T4's sizes with a T4's code"
    gpu_of("NVIDIA H200", 9, 0, 227, free_gb=2)
    assert select("auto", "sm_75").memory_bytes == 2e9
    assert EXAMPLE_MEMORY.keys() == {arch for arch in ARCHITECTURES if not arch.endswith("a")}


def test_a_gpu_that_is_full_to_the_brim(gpu_of, monkeypatch):
    def full(index):
        raise RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported later")

    gpu_of("Tesla T4", 7, 5, 64)
    monkeypatch.setattr(torch.cuda, "mem_get_info", full)
    with pytest.raises(DeviceError) as refused:
        select("auto")
    assert str(refused.value) == (
        "Tesla T4 cannot be used: CUDA error: out of memory; needed: a GPU with free memory; "
        "type: nvidia-smi, to see which processes fill it")


@pytest.mark.parametrize("free_gb", [15.0, 6.0, 2.0])
def test_every_section_s_sizes_fit_the_free_memory(gpu_of, free_gb):
    """Counted: the largest tensors that a section holds at once, its reference's among them."""
    from sections import flash_attention, fused_epilogue, gemm, softmax, vector_add

    gpu_of("Tesla T4", 7, 5, 64, free_gb)
    page = Page(select("auto"))
    half = free_gb * 1e9 / 2
    assert 1 << 24 <= vector_add.largest(page) <= half / (4 * 4)  # A, B, C, C of torch, float32
    for M, N in softmax.shapes_here(page):  # X, Y, torch's Y in float16; X and Y in float32
        assert 1 << 24 <= M * N <= half / (3 * 2 + 2 * 4)
    for case in flash_attention.cases(page):  # scores and weights of the three operations
        assert 3 * case.score_bytes + 8 * case.output_bytes <= half
    for M, N, K in fused_epilogue.shapes_here(page):  # in float32, too; four results
        assert 6 * (M * K + K * N) + 6 * 4 * M * N <= half
    assert not gemm.goes_larger(page)


def test_presets():
    table = {"sm_75": "turing", "sm_80": "ampere", "sm_90a": "hopper"}
    found = [preset(table, arch) for arch in ARCHITECTURES]
    assert found == ["turing", "ampere", "ampere", "ampere", "hopper", "hopper", "hopper"]
    with pytest.raises(KeyError, match="no preset for sm_75; the oldest is sm_80"):
        preset({"sm_80": 1}, "sm_75")


def test_names():
    assert [arch_name(*c) for c in ((7, 5), (8, 9), (9, 0), (12, 0))] == [
        "sm_75", "sm_89", "sm_90a", "sm_120a"]
    assert full_arch(" SM_90 ") == full_arch("sm_90a") == "sm_90a"
    assert full_arch("sm_100") == "sm_100a"
    with pytest.raises(ValueError, match="sm_70: no such architecture; one of: sm_75, sm_80"):
        full_arch("sm_70")
    assert len(SHARED_BYTES) == 7


@pytest.mark.gpu
def test_the_limit_is_the_gpus_own(gpu):
    facts = torch.cuda.get_device_properties(0)
    assert gpu.shared_bytes == facts.shared_memory_per_block_optin
    if gpu.arch in SHARED_BYTES:
        assert gpu.shared_bytes == SHARED_BYTES[gpu.arch]
    assert 0 < gpu.memory_bytes <= facts.total_memory


@pytest.mark.gpu
def test_the_memory_is_what_is_free_on_a_gpu(gpu):
    torch.cuda.empty_cache()
    before = select("cuda").memory_bytes
    held = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    assert before - 1.5 * held.nbytes < select("cuda").memory_bytes < before - held.nbytes / 2
