"""sections/common/device.py: modes and limits, the facts of GPUs stubbed."""

from types import SimpleNamespace

import pytest
import torch

from sections.common.device import (
    ARCHITECTURES,
    SHARED_BYTES,
    DeviceError,
    arch_name,
    full_arch,
    preset,
    select,
)


@pytest.fixture
def gpu_of(monkeypatch):
    """Make torch see a GPU of a name, a capability and shared memory."""
    def see(name, major, minor, shared_kb, memory_gb=16):
        facts = SimpleNamespace(
            name=name, major=major, minor=minor, shared_memory_per_block_optin=shared_kb * 1024,
            multi_processor_count=40, total_memory=int(memory_gb * 1e9),
        )
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: facts)
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
    assert device.target == {"kind": "cuda", "arch": "sm_75", "code": ["sm_75", "sm_90"]}
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
