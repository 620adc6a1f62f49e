"""sections/vector_add.py"""

import pytest
import torch

from sections import vector_add
from sections.common import codegen
from sections.common.build import build
from sections.common.device import ARCHITECTURES
from sections.common.verify import compare
from tests.mutations import MUTATIONS, events, run_section

SIZES = [1, 3, 1023, 1024, 1025, 5000]


def add(device, size, dtype, seed=0):
    """The kernel's result and the reference for random vectors."""
    (kernel,) = build(device, [(vector_add.vector_add, {
        "N": size, "dtype": vector_add.tile_dtype(dtype), **vector_add.SCHEDULE,
    })])
    generator = torch.Generator(device.torch_device).manual_seed(seed)
    A, B = (torch.randn(size, generator=generator, device=device.torch_device).to(dtype)
            for _ in range(2))
    return kernel(A, B), vector_add.reference(A, B)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_sizes_that_no_tile_divides(rehearsal, dtype):
    for size in SIZES:
        for seed in (0, 1):
            result = compare(*add(rehearsal, size, dtype, seed), dtype)
            assert result.passed, f"{size}: {result.problem}"


def test_run_passes_and_times_nothing_in_rehearsal(rehearsal, capsys):
    page = run_section("vector_add", rehearsal)
    assert page.failures == []
    assert len(events(page, "check")) == 4
    assert events(page, "measurement") == []
    text = capsys.readouterr().out
    assert "268435456" in text and "16 bytes" in text, "code for a GPU's size is shown"


@pytest.mark.parametrize("name", [name for name in MUTATIONS if name != "transposed"])
def test_wrong_results_fail(rehearsal, name, capsys):
    page = run_section("vector_add", rehearsal, mutate=MUTATIONS[name])
    failed = {event["case"] for event in events(page, "check") if not event["passed"]}
    assert len(failed) == 4, f"{name} was caught only in {failed}"
    assert len(page.failures) == 4


def test_the_guard_stands_where_the_tile_does_not_divide(rehearsal):
    for size, guarded in ((1 << 28, False), ((1 << 26) + 3, True)):
        code = codegen.generate(vector_add.vector_add, "sm_90a", N=size, **vector_add.SCHEDULE)
        names = {mark.name for mark in codegen.landmarks(code)}
        assert ("bounds guard" in names) == guarded
        assert ("vector load" in names) == (not guarded)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_nvcc_takes_the_kernel(arch):
    code = codegen.generate(vector_add.vector_add, arch, N=1 << 28, **vector_add.SCHEDULE)
    found = codegen.resources(code)
    assert found is not None, "nvcc is needed"
    assert found.spill_bytes == 0
    assert code.shared_bytes == 0


def test_what_to_try_does_what_the_text_says():
    narrow = codegen.generate(vector_add.vector_add, "sm_90a", N=1 << 28, block_N=128, threads=128)
    names = {mark.name for mark in codegen.landmarks(narrow)}
    assert "vector load" not in names


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_sizes_on_a_gpu(gpu, dtype):
    for size in [*SIZES, (1 << 24) + 3]:
        result = compare(*add(gpu, size, dtype), dtype)
        assert result.passed, f"{size}: {result.problem}"


@pytest.mark.gpu
def test_the_same_bits_fifty_times(gpu):
    first, _ = add(gpu, (1 << 24) + 3, torch.float32)
    assert all(torch.equal(add(gpu, (1 << 24) + 3, torch.float32)[0], first) for _ in range(50))


@pytest.mark.gpu
def test_speed_on_a_gpu(gpu):
    page = run_section("vector_add", gpu)
    assert page.failures == []
    for entry in events(page, "measurement"):
        assert entry["ratio"] >= 0.95, entry
        assert entry["of_ceiling"] < 1.08, "more than the memory can do: the cache was not flushed"
