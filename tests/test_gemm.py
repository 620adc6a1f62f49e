"""sections/gemm.py"""

import re

import pytest
import torch

from sections import gemm
from sections.common import codegen
from sections.common.build import build
from sections.common.device import ARCHITECTURES, SHARED_BYTES, Device, preset, select
from sections.common.page import Page
from sections.common.verify import compare
from sections.hopper import gemm as hopper
from tests.mutations import MUTATIONS, events, rehearsal_device, run_section

SHAPES = [(1, 1, 1), (77, 77, 77), (100, 130, 33), (129, 257, 65), (64, 8, 300), (1, 200, 5)]


def multiply(device, shapes, schedule, seed=0):
    """(shape, verdict) for every shape."""
    jobs = [{**gemm.sizes(*shape), **gemm.fitted(schedule, *shape[1:])} for shape in shapes]
    kernels = build(device, [(gemm.gemm, job) for job in jobs])
    for shape, kernel in zip(shapes, kernels, strict=True):
        generator = torch.Generator(device.torch_device).manual_seed(seed)
        M, N, K = shape
        A, B = (torch.randn(*sides, generator=generator, device=device.torch_device).half()
                for sides in ((M, K), (K, N)))
        yield shape, compare(kernel(A, B), gemm.reference(A, B), torch.float16, reduction=K)


@pytest.mark.parametrize("seed", [0, 1])
def test_shapes_that_no_tile_divides(rehearsal, seed):
    schedule = gemm.best_schedule(rehearsal)
    for shape, verdict in multiply(rehearsal, SHAPES, schedule, seed):
        assert verdict.passed, f"{shape}: {verdict.problem}"


def test_block_K_24_is_refused_or_right(rehearsal):
    schedule = {**gemm.ONE_TILE, "block_K": 24}
    for arch in ("sm_80", "sm_90a", "sm_120a"):
        with pytest.raises(AssertionError, match=r"block_K \(24\) must be a multiple"):
            codegen.generate(gemm.gemm, arch, **gemm.sizes(100, 130, 33), **schedule)
    # Turing's tensor cores take 8 wide slices of K, so that 24 is three of them.
    turing = codegen.generate(gemm.gemm, "sm_75", **gemm.sizes(100, 130, 33), **schedule)
    assert "ki < 3" in turing.source
    for shape, verdict in multiply(rehearsal, [(100, 130, 33)], schedule):
        assert verdict.passed, f"{shape}: {verdict.problem}"


def test_run_passes_in_rehearsal(rehearsal, capsys):
    page = run_section("gemm", rehearsal)
    assert page.failures == []
    assert events(page, "measurement") == []
    text = capsys.readouterr().out
    assert "left out: 240 KB is over sm_90a's 227 KB" in text
    assert "TMA load" in text and "wgmma" in text
    assert "registers a thread" in text
    assert "not run here; a finished tile is stored" in text and "def multiply(" in text
    # Every row that fits was run and checked, and the awkward shapes.
    assert len(events(page, "check")) == len(gemm.LADDERS["sm_90a"]) - 1 + len(gemm.AWKWARD)


def test_quick_has_two_rows(rehearsal, capsys):
    page = run_section("gemm", rehearsal, quick=True)
    assert page.failures == []
    assert len(events(page, "check")) == 2 + len(gemm.AWKWARD)


def test_a_row_of_ones_own(rehearsal, capsys):
    page = run_section("gemm", rehearsal, quick=True, overrides={"num_stages": 2})
    assert page.failures == []
    assert "yours" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="unknown name stages; this section has: block_M="):
        run_section("gemm", rehearsal, overrides={"stages": 2})


@pytest.mark.parametrize("name", MUTATIONS)
def test_wrong_results_fail(rehearsal, name, capsys):
    page = run_section("gemm", rehearsal, mutate=MUTATIONS[name], quick=True)
    missed = {event["case"] for event in events(page, "check") if event["passed"]}
    # A single element is its own transpose.
    assert missed <= ({"1x1x1 float16"} if name == "transposed" else set())
    assert page.failures


def test_every_ladder_changes_one_thing_a_row_and_ends_over_the_limit():
    for arch in ARCHITECTURES:
        ladder = preset(gemm.LADDERS, arch)
        assert len(ladder) >= 6
        for before, after in zip(ladder, ladder[1:], strict=False):
            changed = [k for k in after.schedule if after.schedule[k] != before.schedule[k]]
            assert len(changed) == 1, f"{arch}: {after.change} changes {changed}"


def fits(arch, step):
    """The step's code, and whether its shared memory fits the architecture."""
    code = codegen.generate(gemm.gemm, arch, **gemm.sizes(4096, 4096, 4096), **step.schedule)
    return code, code.shared_bytes <= SHARED_BYTES[arch]


def test_one_schedule_of_each_ladder_is_left_out():
    for arch in ARCHITECTURES:
        ladder = preset(gemm.LADDERS, arch)
        assert fits(arch, ladder[preset(gemm.BEST_STEP, arch)])[1], arch
        assert not fits(arch, ladder[-1])[1], arch


ALL_ROWS = ("sm_75", "sm_80", "sm_90a", "sm_120a")


def rows(every: bool):
    """(architecture, row): all rows of the first four, else the best one alone."""
    for arch in ARCHITECTURES:
        ladder = preset(gemm.LADDERS, arch)
        best = preset(gemm.BEST_STEP, arch)
        for number in range(len(ladder)):
            chosen = arch in ALL_ROWS or number == best
            if chosen != every:
                yield pytest.param(arch, number, id=f"{arch}-{number + 1}")


def takes(arch, number):
    step = preset(gemm.LADDERS, arch)[number]
    code, fitting = fits(arch, step)
    found = codegen.resources(code)
    assert found is not None, "nvcc is needed"
    # What is left out is never run; one row on Turing is there to show what spilling costs.
    if fitting and number == preset(gemm.BEST_STEP, arch):
        assert found.spill_bytes == 0, step.change


@pytest.mark.parametrize("arch, number", [*rows(every=False)])
def test_nvcc_takes_the_ladder(arch, number):
    takes(arch, number)


@pytest.mark.slow
@pytest.mark.parametrize("arch, number", [*rows(every=True)])
def test_nvcc_takes_every_row_everywhere(arch, number):
    takes(arch, number)


@pytest.mark.parametrize("shape", [(64, 8, 300), (512, 300, 512)], ids=str)
def test_hopper_with_one_operand_of_odd_rows(shape):
    schedule = preset(gemm.LADDERS, "sm_90a")[preset(gemm.BEST_STEP, "sm_90a")].schedule
    wide = codegen.generate(gemm.gemm, "sm_90a", **gemm.sizes(*shape), **schedule)
    with pytest.raises(codegen.NvccError, match="Insufficient registers"):
        codegen.resources(wide)
    fitted = gemm.fitted(schedule, *shape[1:])
    narrow = codegen.generate(gemm.gemm, "sm_90a", **gemm.sizes(*shape), **fitted)
    assert codegen.resources(narrow).spill_bytes == 0


HOPPER_SHAPES = [(1, 8, 8), (129, 264, 72), (64, 8, 304), (1000, 4104, 200), (300, 2000, 4096)]


@pytest.mark.parametrize("shape", [(4096, 4096, 4096), (129, 264, 72)], ids=str)
def test_nvcc_takes_hoppers_own_kernel(shape):
    code = codegen.generate(hopper.gemm_hopper, "sm_90a", **gemm.sizes(*shape),
                            **hopper.step(132).schedule)
    found = codegen.resources(code)
    assert found.spill_bytes == 0 and "serialized" not in found.report
    assert code.shared_bytes + found.static_shared_bytes <= SHARED_BYTES["sm_90a"]
    assert code.threads == 384
    # Two warpgroups: each multiplies 64 rows, with one multiplication under way, and stores them.
    assert (codegen.count(code, "wgmma"), codegen.count(code, "TMA store")) == (2, 2)
    assert code.source.count("tl::wait_wgmma<1>") == code.source.count("tl::wait_wgmma<0>") == 2


@pytest.mark.parametrize("shape", [(64, 77, 64), (64, 64, 77)], ids=str)
def test_hoppers_own_kernel_refuses_odd_rows(shape):
    with pytest.raises(Exception, match="TMA is not available"):
        codegen.generate(hopper.gemm_hopper, "sm_90a", **gemm.sizes(*shape))


@pytest.mark.parametrize("mode, arch, N, K, own", [
    ("gpu", "sm_90a", 4096, 4096, True), ("gpu", "sm_90a", 8, 16, True),
    ("gpu", "sm_90a", 77, 64, False), ("gpu", "sm_90a", 64, 77, False),
    ("gpu", "sm_90a", 77, 77, False), ("gpu", "sm_100a", 64, 64, False),
    ("gpu", "sm_80", 64, 64, False), ("rehearsal", "sm_90a", 64, 64, False),
])
def test_hoppers_own_kernel_is_taken_where_it_can_be(mode, arch, N, K, own):
    device = Device(mode, arch, SHARED_BYTES[arch], multiprocessors=78)
    kernel, schedule = gemm.kernel_for(device, 64, N, K)
    assert kernel is (hopper.gemm_hopper if own else gemm.gemm)
    assert not own or schedule["blocks"] == 78
    codegen.trace(kernel, {"kind": "cuda", "arch": arch}, {**gemm.sizes(64, N, K), **schedule})


def test_landmarks_by_architecture():
    expected = {
        "sm_75": {"ldmatrix", "mma.sync"},
        "sm_80": {"cp.async", "ldmatrix", "mma.sync"},
        "sm_90a": {"TMA load", "wgmma"},
        "sm_120a": {"TMA load", "mma.sync"},
    }
    for arch, wanted in expected.items():
        step = preset(gemm.LADDERS, arch)[preset(gemm.BEST_STEP, arch)]
        names = {mark.name for mark in codegen.landmarks(fits(arch, step)[0])}
        assert wanted <= names, arch
        if arch == "sm_75":
            assert "cp.async" not in names


def test_another_architecture_is_read_in_rehearsal(capsys):
    page = run_section("gemm", rehearsal_device("sm_75"), quick=True)
    assert page.failures == []
    text = capsys.readouterr().out
    assert "sm_75" in text and "mma.sync" in text and "tl::wgmma" not in text
    assert "More stages bring little on sm_75" in text and "from sm_75 on" in text


@pytest.mark.gpu
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_shapes_on_a_gpu(gpu, seed):
    shapes = [*SHAPES, (512, 768, 1024), (300, 1000, 4096)]
    for schedule in (gemm.best_schedule(gpu), gemm.ONE_TILE):
        for shape, verdict in multiply(gpu, shapes, schedule, seed):
            assert verdict.passed, f"{shape}: {verdict.problem}"


@pytest.mark.gpu
def test_block_K_24_is_right_where_turings_code_takes_it(gpu):
    turing = select("cuda", "sm_75")
    for shape, verdict in multiply(turing, SHAPES, {**gemm.ONE_TILE, "block_K": 24}):
        assert verdict.passed, f"{shape}: {verdict.problem}"


@pytest.mark.gpu
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_kernel_to_take_on_a_gpu(gpu, seed):
    shapes = [*SHAPES, *HOPPER_SHAPES, (5000, 264, 64)]
    kernels = build(gpu, [(kernel, {**gemm.sizes(*shape), **schedule}) for shape in shapes
                          for kernel, schedule in [gemm.kernel_for(gpu, *shape)]])
    for shape, kernel in zip(shapes, kernels, strict=True):
        A, B = gemm.inputs(Page(gpu), *shape, seed)
        verdict = compare(kernel(A, B), gemm.reference(A, B), torch.float16, reduction=shape[2])
        assert verdict.passed, f"{shape}: {verdict.problem}"


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(1000, 1000, 1000), (2000, 3000, 4096)], ids=str)
def test_the_same_bits_fifty_times(gpu, shape):
    A, B = gemm.inputs(Page(gpu), *shape)
    pairs = [(gemm.gemm, gemm.best_schedule(gpu)), gemm.kernel_for(gpu, *shape)]
    kernels = build(gpu, [(kernel, {**gemm.sizes(*shape), **schedule})
                          for kernel, schedule in pairs])
    for kernel in kernels:
        first = kernel(A, B)
        assert all(torch.equal(kernel(A, B), first) for _ in range(50))


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90a"])
def test_what_to_try_is_over_the_shared_memory(arch, capsys):
    gemm.conclude(Page(Device("rehearsal", arch, SHARED_BYTES[arch])), [], None, None)
    told = " ".join(capsys.readouterr().out.split())
    most = int(re.search(r"num_stages=1, then 2 and (\d+):", told)[1]) - 1
    best = preset(gemm.LADDERS, arch)[preset(gemm.BEST_STEP, arch)].schedule
    needed = [codegen.generate(gemm.gemm, arch, **gemm.sizes(4096, 4096, 4096),
                               **{**best, "num_stages": stages}).shared_bytes
              for stages in (most, most + 1)]
    assert needed[0] <= SHARED_BYTES[arch] < needed[1]
    assert needed[1] == needed[0] // most * (most + 1)
