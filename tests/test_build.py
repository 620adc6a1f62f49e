"""Parallel compilation: results in order, failures in their place, nothing compiled twice."""

import logging
import os

import pytest
import tilelang
import tilelang.language as T
import torch

from sections.common import build as building
from sections.common import codegen
from sections.common.build import build
from sections.common.device import SHARED_BYTES, Device
from tests.kernels_for_tests import add, gemm, scale, softmax

REHEARSAL = Device("rehearsal", "sm_90a", SHARED_BYTES["sm_90a"])
# Kernels for a GPU compile on a machine without one; they are not called here.
HOPPER = Device("gpu", "sm_90a", SHARED_BYTES["sm_90a"], "H100", "sm_90a", 132, 80 << 30)
TURING_ON_HOPPER = Device("arch", "sm_75", SHARED_BYTES["sm_75"], "H100", "sm_90a", 132, 80 << 30)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def fresh(folder, monkeypatch):
    """A process that has compiled nothing yet; on the disk lies what these tests compiled."""
    monkeypatch.setenv("TILELANG_CACHE_DIR", str(folder))
    monkeypatch.setenv("TILELANG_PRINT_ON_COMPILATION", "0")
    monkeypatch.setattr(building, "_compiled", {})
    monkeypatch.setattr(codegen, "_memory", {})


@pytest.fixture
def compiled(monkeypatch):
    """The names of the kernels that tilelang.compile is asked for."""
    names, original = [], tilelang.compile

    def spy(tir, **options):
        names.append(str(tir.attrs["global_symbol"]))
        return original(tir, **options)

    monkeypatch.setattr(tilelang, "compile", spy)
    return names


def test_kernels_are_right_on_c():
    sizes = [(1, T.float32), (1000, T.float32), (1000, T.float16)]
    jobs = [(add, {"N": size, "dtype": dtype}) for size, dtype in sizes]
    jobs += [(gemm, {"M": 100, "N": 130, "K": 33}), (softmax, {"M": 5, "N": 256})]
    *adds, product, rows = build(REHEARSAL, jobs)
    generator = torch.Generator().manual_seed(0)

    def random(*shape):
        return torch.randn(*shape, generator=generator)

    for kernel, (size, dtype) in zip(adds, sizes, strict=True):
        a, b = (random(size).to(dtype.as_torch()) for _ in range(2))
        assert torch.equal(kernel(a, b), a + b)
    a, b = random(100, 33).half(), random(33, 130).half()
    expected = a.float() @ b.float()
    assert product(a, b).shape == (100, 130) and product(a, b).dtype == torch.float16
    assert (product(a, b).float() - expected).norm() / expected.norm() < 1e-3
    x = random(5, 256).half()
    assert torch.allclose(rows(x).float(), torch.softmax(x.float(), -1), rtol=2e-3, atol=1e-5)


def test_in_rehearsal_the_code_is_cuda_for_the_devices_architecture():
    kernel, for_turing = (
        build(device, [(gemm, {"M": 64, "N": 64, "K": 64, "block_M": 64, "block_N": 64})])[0]
        for device in (REHEARSAL, Device("rehearsal", "sm_75", SHARED_BYTES["sm_75"]))
    )
    assert kernel.code.arch == "sm_90a" and "wgmma" in kernel.code.source
    assert kernel.code.shared_bytes == 3 * 2 * 64 * 32 * 2
    assert for_turing.code.arch == "sm_75" and "mma_sync" in for_turing.code.source
    assert kernel.code is kernel.code


def test_on_a_gpu_the_code_comes_from_the_compile(monkeypatch):
    def refuse(*arguments, **options):
        raise AssertionError("lowered a second time")

    jobs = [(softmax, {"M": 64, "N": 1024})]
    hopper = build(HOPPER, jobs)
    turing = build(TURING_ON_HOPPER, jobs)
    with monkeypatch.context() as patch:
        patch.setattr(tilelang, "lower", refuse)
        codes = [kernel.code for kernel in hopper + turing]
    assert [code.arch for code in codes] == ["sm_90a", "sm_75"]
    assert [kernel.code.source == kernel.function.get_kernel_source()
            for kernel in hopper + turing] == [True, True]
    # What "arch" mode compiles is the very code that is generated for that architecture.
    codegen._memory.clear()
    monkeypatch.setenv("TILELANG_DISABLE_CACHE", "1")
    assert codegen.generate(softmax, "sm_75", M=64, N=1024) == codes[1]


def test_a_failed_job_leaves_its_neighbours_alone():
    odd = {"M": 64, "N": 64, "K": 64, "block_K": 24}
    first, failed, last = build(HOPPER, [(add, {"N": 64}), (gemm, odd), (scale, {"N": 64})])
    assert first.code.name == "add_kernel" and last.code.name == "scale_kernel"
    assert isinstance(failed, Exception) and "block_K (24)" in str(failed)
    assert not isinstance(build(HOPPER, [(add, {"N": 64})])[0], Exception)


def test_a_job_that_cannot_be_traced_is_its_exception():
    calls = []
    unknown, kernel, missing = build(
        REHEARSAL,
        [(add, {"N": 8, "dtype": "float31"}), (add, {"N": 8}), (add, {})],
        lambda done, total: calls.append((done, total)),
    )
    assert isinstance(unknown, Exception) and isinstance(missing, Exception)
    assert kernel(torch.ones(8), torch.ones(8)).tolist() == [2.0] * 8
    assert calls == [(1, 3), (2, 3), (3, 3)]


def test_one_program_is_compiled_once(compiled, capfd, caplog):
    calls = []
    with caplog.at_level(logging.WARNING):
        same, defaults, other = build(
            REHEARSAL,
            [(add, {"N": 64, "block_N": 1024}), (add, {"N": 64}), (add, {"N": 65})],
            lambda done, total: calls.append((done, total)),
        )
        again, new = build(REHEARSAL, [(add, {"N": 64}), (scale, {"N": 64})])
    assert same.function is defaults.function is again.function is not other.function
    assert same.arguments == {"N": 64, "block_N": 1024} and defaults.arguments == {"N": 64}
    assert compiled == ["add", "add", "scale"]
    assert calls[-1] == (3, 3) and calls == sorted(calls)
    assert new(torch.ones(64))[0] == 2.0
    assert capfd.readouterr() == ("", "") and not caplog.records


def test_a_kernel_compiled_before_is_not_taken_for_another_device(compiled):
    for device in (REHEARSAL, HOPPER, TURING_ON_HOPPER):
        (kernel,) = build(device, [(add, {"N": 64})])
        assert kernel.arch == device.arch
    assert compiled == ["add"] * 3


def test_settings_reach_the_compiler(monkeypatch):
    asked = []

    def spy(tir, **options):
        asked.append(options)
        raise RuntimeError("stop")

    monkeypatch.setattr(tilelang, "compile", spy)
    monkeypatch.setattr(add, "pass_configs", {"tl.enable_fast_math": True})
    build(REHEARSAL, [(add, {"N": 64})])
    build(TURING_ON_HOPPER, [(add, {"N": 64})])
    assert asked[0]["target"] == "c" and asked[0]["compile_flags"] == ["-O2"]
    assert asked[0]["pass_configs"] == {"tl.enable_fast_math": True, "tirx.disable_vectorize": True}
    assert asked[1]["target"] == TURING_ON_HOPPER.target and asked[1]["compile_flags"] is None
    assert asked[1]["pass_configs"] == {"tl.enable_fast_math": True}


def test_time_is_added_up():
    before = building.seconds_spent()
    (kernel,) = build(REHEARSAL, [(add, {"N": 77})])
    spent = building.seconds_spent() - before
    assert 0 < kernel.seconds <= spent < 60
    build(REHEARSAL, [(add, {"N": 77})])
    assert building.seconds_spent() - before < 1.5 * spent


def test_no_jobs():
    assert build(REHEARSAL, []) == []


def test_no_more_threads_than_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 5, 7}, raising=False)
    assert building.cores() == 3


def test_host_code_is_compiled_once_a_kernel(monkeypatch):
    """What TileLang has compiled for its disk cache is loaded; there is nothing left to do."""
    from tvm.contrib import cc

    compiled, real = [], cc.create_shared
    monkeypatch.setattr(cc, "create_shared", lambda output, *rest, **options: (
        compiled.append(output), real(output, *rest, **options)))
    (kernel,) = build(HOPPER, [(add, {"N": 4242})])
    assert [os.path.basename(path).split(".")[-1] for path in compiled] == ["so"]
    assert kernel.function.adapter.get_exportable_executable().jit() is not None
    assert len(compiled) == 1


def test_a_rehearsal_leaves_no_files_behind(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (kernel,) = build(REHEARSAL, [(add, {"N": 77})])
    assert list(tmp_path.iterdir()) == []
    x = torch.ones(77)
    assert torch.equal(kernel(x, x), 2 * x)
