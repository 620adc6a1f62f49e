"""sections/fused_epilogue.py"""

import json
import re

import pytest
import torch
import torch.nn.functional as F

from sections import fused_epilogue as section
from sections.common import codegen
from sections.common.build import build
from sections.common.device import ARCHITECTURES, SHARED_BYTES, Device, preset
from sections.common.page import Page
from sections.common.verify import compare
from sections.hopper import epilogue as hopper
from tests.made_results import DATA
from tests.mutations import MUTATIONS, events, rehearsal_device, run_section

# Every shape with the exact form, the telling ones with tanh as well.
ERF = [(1, 1, 1), (77, 77, 77), (100, 130, 33), (129, 257, 65), (64, 8, 300), (1, 200, 5)]
TANH = [(77, 77, 77), (64, 8, 300)]
CASES = [(shape, False) for shape in ERF] + [(shape, True) for shape in TANH]


def results(device, cases, seed=0, **overrides):
    """(shape, tanh, result, inputs) of the architecture's own schedule for every case."""
    page, schedule = Page(device), {**device.preset(section.SCHEDULES), **overrides}
    kernels = build(device, [section.job(*which, schedule) for which in cases])
    for (shape, tanh), kernel in zip(cases, kernels, strict=True):
        tensors = section.inputs(page, *shape, seed)
        yield shape, tanh, kernel(*tensors), tensors


def verdict(result, tensors, tanh):
    return compare(result, section.reference(*tensors, tanh), torch.float16,
                   reduction=tensors[0].shape[1])


@pytest.mark.parametrize("seed", [0, 1])
def test_shapes_that_no_tile_divides(rehearsal, seed):
    for shape, tanh, result, tensors in results(rehearsal, CASES, seed):
        assert verdict(result, tensors, tanh).passed, (shape, tanh)


def test_without_fewer_instructions(rehearsal):
    cases = [((77, 77, 77), False), ((77, 77, 77), True)]
    for shape, tanh, result, tensors in results(rehearsal, cases, fast=False):
        assert verdict(result, tensors, tanh).passed, (shape, tanh)


@pytest.fixture
def on_tensors(monkeypatch):
    """The section's formulas compute with tensors instead of TileLang's expressions."""
    for name, function in (("exp2", torch.exp2), ("max", torch.maximum), ("tanh", torch.tanh)):
        monkeypatch.setattr(section.T, name, function)


def test_the_fast_tail_of_the_normal_distribution(on_tensors):
    """As the docstring says: at most 7.5e-8 off, from 0 to far."""
    size = torch.linspace(0, 9, 90001, dtype=torch.float64)
    worst = (section.tail(size) - torch.erfc(size * 0.5**0.5) / 2).abs().max()
    assert 2e-8 < worst <= 7.5e-8


def test_what_is_not_finite_follows_the_formula(on_tensors):
    """x (1 + erf) / 2: infinity stays, -infinity times 0 is NaN."""
    x = torch.tensor([float("inf"), -float("inf"), float("nan"), 3e4, -3e4, 0.0])
    expected = torch.tensor([float("inf"), float("nan"), float("nan"), 3e4, 0.0, 0.0])
    for tanh in section.FORMS:
        found = section.gelu(x, tanh, fast=True)
        assert torch.equal(found.nan_to_num(-1), expected.nan_to_num(-1)), tanh


def test_the_reference_is_what_torch_says():
    A, B, bias = (torch.randn(*shape, dtype=torch.float64) for shape in ((5, 7), (7, 3), (3,)))
    for tanh, approximate in ((False, "none"), (True, "tanh")):
        expected = F.gelu(A @ B + bias, approximate=approximate)
        assert torch.allclose(section.reference(A, B, bias, tanh).double(), expected, atol=1e-5)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_each_form_fails_against_the_other(rehearsal, seed):
    cases = [((150, 280, 70), False), ((100, 130, 70), True)]
    for _, tanh, result, tensors in results(rehearsal, cases, seed):
        assert verdict(result, tensors, tanh).passed
        confused = verdict(result, tensors, not tanh)
        assert not confused.passed
        # In hundreds of elements, though the relative error of the whole shows nothing.
        assert int(confused.problem.split()[0]) > 100
        assert confused.rel_error < confused.bound


def test_a_kernel_of_the_other_form_makes_the_section_fail(rehearsal, monkeypatch, capsys):
    monkeypatch.setattr(section, "APPROXIMATE", {False: "tanh", True: "none"})
    page = run_section("fused_epilogue", rehearsal)
    failed = {event["case"] for event in events(page, "check") if not event["passed"]}
    assert {"150x280x70 float16 erf", "150x280x70 float16 tanh"} <= failed


def test_a_loose_check_makes_the_section_fail(rehearsal, monkeypatch, capsys):
    def loose(actual, expected, dtype, **bounds):
        return compare(actual, actual.float(), dtype)

    monkeypatch.setattr(section, "compare", loose)
    page = run_section("fused_epilogue", rehearsal)
    assert ["too loose" in failure for failure in page.failures] == [True, True]


def test_run_passes_in_rehearsal(rehearsal, capsys):
    page = run_section("fused_epilogue", rehearsal)
    assert page.failures == []
    assert events(page, "measurement") == []
    assert len(events(page, "check")) == 2 + 2 + len(section.AWKWARD)  # 2 steps
    text = " ".join(capsys.readouterr().out.split())
    assert "erff(" in text and "wgmma" in text
    assert "the erf result fails, as it should" in text and "warpgroup_reg_alloc" in text
    assert "185.60" in text, "the ledger of a GPU's shape"
    (kept,) = events(page, "data")
    assert kept["name"] == "ledger" and json.loads(json.dumps(kept["value"])) == \
        DATA["fused_epilogue"]["ledger"]


@pytest.mark.parametrize("name", MUTATIONS)
def test_wrong_results_fail(rehearsal, name, capsys):
    page = run_section("fused_epilogue", rehearsal, mutate=MUTATIONS[name])
    missed = {event["case"] for event in events(page, "check") if event["passed"]}
    # A single element is its own transpose.
    assert missed <= ({"1x1x1 float16 tanh"} if name == "transposed" else set())
    assert page.failures


def test_the_ledger_counts_every_byte_once():
    M, N, K = 16384, 1024, 512
    fused, two, three = section.totals((M, N, K))
    assert fused == 2 * (M * K + K * N + N + M * N)
    assert two == fused + 2 * 2 * M * N
    assert three == fused + 4 * 2 * M * N


class PretendGpu(Device):
    """A GPU in all but where tensors live."""

    torch_device = "cpu"


class PretendPage(Page):
    """A page that takes its kernels from the C backend and its times from thin air.

    It runs what only a GPU runs otherwise: baselines once, tables, the lesson.
    """

    def build(self, jobs, read=(), torch_compile=False):
        return build(rehearsal_device(), list(jobs))

    def measure(self, case, variant, kernel, inputs, baselines, work, rounds=5):
        found = []
        for number, (name, function) in enumerate(baselines.items(), 1):
            assert function().shape == kernel(*inputs).shape
            found.append({"case": case, "variant": variant, "ms": 0.2, "value": 9.0,
                          "unit": "TFLOP/s", "baseline": name, "baseline_ms": 0.2 * number,
                          "ratio": float(number),
                          "ratio_low": 1.0, "ratio_high": 1.5})
        self.measured = [*getattr(self, "measured", []), *found]
        return found


@pytest.fixture
def pretend(rehearsal, monkeypatch):
    """A page of a pretended A100 with ceilings that make mental arithmetic easy."""
    device = PretendGpu("gpu", "sm_80", SHARED_BYTES["sm_80"], "A100", "sm_80", 108, 40 << 30)
    monkeypatch.setattr(section, "shapes_here", lambda page: ((64, 64, 80), (128, 48, 16)))
    ceilings = {"copy_GBps": 0.001, "matmul_TFLOPs": 1e-6}
    return PretendPage(device, quick=True, ceilings=ceilings)


def test_what_a_gpu_would_print(pretend, capsys, monkeypatch):
    monkeypatch.setattr(section, "library", lambda A, B, bias: ({}, "no library"))
    told = []
    monkeypatch.setattr(pretend, "headline", told.append)
    section.run(pretend)
    assert pretend.failures == []
    (headline,) = told
    assert (headline["case"], headline["baseline"]) == ("64x64x80 float16 erf", section.THREE)
    text = " ".join(capsys.readouterr().out.split())
    assert "gain of fusing, measured - 2.00x 1.00x" in text
    assert "64x64x80 float16 erf 0.200 ms, 1.00x eager, 1.00x torch eager" in text
    assert "Step by step, 128x48x16 float16 tanh" in text and "vs torch.addmm" in text
    assert "which sm_80 has not" in text


def test_the_predicted_gain(pretend):
    row = {"ms": 1.0, "baseline_ms": 2.0, "ratio": 2.0}
    lines = dict((line[0], line[1:]) for line in section.gains(pretend, (64, 64, 80), row, row))
    fused, two, three = section.totals((64, 64, 80))
    move, multiply = fused / 1e6 * 1e3, 2 * 64 * 64 * 80 / 1e6 * 1e3
    assert lines["ms to multiply, at the matmul ceiling"] == [f"{multiply:.3f}"] * 3
    assert lines["ms to move, at the copy ceiling"][0] == f"{move:.3f}"
    assert lines["gain of fusing, predicted"] == [
        None, f"{(multiply + two / 1e3) / (multiply + move):.2f}x",
        f"{(multiply + three / 1e3) / (multiply + move):.2f}x"]


def test_the_librarys_epilogue_must_be_the_tanh_form(pretend, monkeypatch):
    A, B, bias = section.inputs(pretend, 64, 64, 80)
    for tanh, taken in ((True, True), (False, False)):
        monkeypatch.setattr(
            torch, "_addmm_activation",
            lambda bias, A, B, use_gelu, tanh=tanh: section.reference(A, B, bias, tanh).half(),
        )
        found, sentence = section.library(A, B, bias)
        assert bool(found) == taken and "off the tanh" in sentence
    monkeypatch.delattr(torch, "_addmm_activation")
    assert section.library(A, B, bias) == (
        {}, "torch._addmm_activation is left out: AttributeError: module 'torch' has no attribute "
        "'_addmm_activation'")


# On 132 SMs no tile for most blocks, one or none, one or two, and seven or eight.
HOPPER_SHAPES = [(1, 8, 8), (129, 264, 72), (1000, 1000, 200), (300, 2000, 4096), (5, 4104, 64),
                 (2048, 2048, 2048), (4096, 4096, 200)]


def test_which_kernel_is_taken():
    def taken(arch, shape, mode="gpu", tanh=True):
        device = Device(mode, arch, SHARED_BYTES[arch], "a GPU", arch, 78, 80 << 30)
        return section.kernel_for(device, shape, tanh)

    kernel, arguments = taken("sm_90a", (100, 8, 24))
    assert kernel is hopper.fused_epilogue_hopper
    assert arguments == {"M": 100, "N": 8, "K": 24, "tanh": True, **hopper.step(78).schedule}
    assert arguments["blocks"] == 78
    assert taken("sm_90a", (64, 8, 4096), tanh=False)[0] is hopper.fused_epilogue_hopper
    for arch, shape, mode in (("sm_90a", (64, 12, 8), "gpu"), ("sm_90a", (64, 8, 12), "gpu"),
                              ("sm_90a", (64, 8, 8), "rehearsal"), ("sm_80", (64, 8, 8), "gpu"),
                              ("sm_100a", (64, 8, 8), "gpu")):
        assert taken(arch, shape, mode)[0] is section.fused_epilogue, (arch, shape, mode)


@pytest.mark.parametrize("shape, tanh", [
    (section.COMPUTE_BOUND, False), (section.BANDWIDTH_BOUND, True), ((129, 264, 72), True),
    ((2048, 2048, 2048), True),
])
def test_nvcc_takes_hoppers_kernel(shape, tanh):
    M, N, K = shape
    code = codegen.generate(hopper.fused_epilogue_hopper, "sm_90a", M=M, N=N, K=K, tanh=tanh)
    found = codegen.resources(code)
    assert found.spill_bytes == 0
    assert code.shared_bytes + found.static_shared_bytes <= SHARED_BYTES["sm_90a"]
    # The warp that copies and the warpgroups that compute meet at no barrier of the whole block,
    # and the warpgroups' pieces of C not in shared memory: else they wait for each other, or for
    # ever.
    begin = next(number for number, line in codegen.body(code) if "warpgroup_reg_dealloc" in line)
    behind = [line for number, line in codegen.body(code) if number > begin]
    assert not any("__syncthreads" in line for line in behind)
    waits = {line.strip() for line in behind if "sync_thread_partial" in line}
    assert waits == {f"tl::__sync_thread_partial({number}, 128);" for number in (3, 4)}
    starts = [int(at) for at in re.findall(r"C_shared\w* = .*buf_dyn_shmem \+ (\d+)", code.source)]
    assert abs(starts[0] - starts[1]) == 2 * 128 * 32 * 2
    # Each role asks whether there is a tile left, also where no block has two.
    assert sum("break;" in line for line in behind) == 3


def takes(arch, shape, tanh, most_spilled=0):
    """nvcc compiles the architecture's schedule, bytes spilled and shared memory within limits."""
    kernel, arguments = section.job(shape, tanh, preset(section.SCHEDULES, arch))
    code = codegen.generate(kernel, arch, **arguments)
    found = codegen.resources(code)
    assert found is not None, "nvcc is needed"
    assert found.spill_bytes <= most_spilled
    assert code.shared_bytes + found.static_shared_bytes <= SHARED_BYTES[arch]
    return code


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_nvcc_takes_the_schedule(arch):
    code = takes(arch, section.COMPUTE_BOUND, False)
    names = {mark.name for mark in codegen.landmarks(code)}
    assert ("wgmma" in names) == (arch == "sm_90a")


@pytest.mark.parametrize("arch", ["sm_75", "sm_90a"])
def test_nvcc_takes_tanh(arch):
    takes(arch, section.BANDWIDTH_BOUND, True)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_nvcc_takes_everything(arch):
    for tanh in section.FORMS:
        for shape in (section.COMPUTE_BOUND, section.BANDWIDTH_BOUND):
            takes(arch, shape, tanh)
        for shape in ERF:  # bounds guards need a few registers more than there are
            takes(arch, shape, tanh, most_spilled=32)


def test_hopper_with_one_operand_of_odd_rows():
    takes("sm_90a", (512, 300, 512), False)


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90a", "sm_120a"])
def test_the_epilogue_stands_between_product_and_store(arch, capsys):
    kernel, arguments = section.job(section.COMPUTE_BOUND, False,
                                    {**preset(section.SCHEDULES, arch), "fast": False})
    code = codegen.generate(kernel, arch, **arguments)
    marks = {mark.name: mark.line for mark in codegen.landmarks(code)}
    product = marks.get("wgmma") or marks["mma.sync"]
    store = marks.get("stmatrix") or marks["narrowing"]
    (gelu,) = [number for number, line in codegen.body(code) if "erff(" in line]
    assert product < gelu < store


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90a", "sm_120a"])
def test_what_to_try_does_what_the_text_says(arch):
    schedule = preset(section.SCHEDULES, arch)
    marks = []
    for store_shared in (False, True):
        kernel, arguments = section.job(section.COMPUTE_BOUND, False,
                                        {**schedule, "store_shared": store_shared})
        code = codegen.generate(kernel, arch, **arguments)
        assert code.shared_bytes <= SHARED_BYTES[arch]
        marks.append({(mark.name, mark.meaning) for mark in codegen.landmarks(code)
                      if "store" in mark.name or mark.name == "stmatrix"})
    assert marks[0] != marks[1]


@pytest.mark.gpu
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_shapes_on_a_gpu(gpu, seed):
    shapes = [*ERF, (512, 768, 1024), (300, 1000, 4096), (512, 300, 512)]
    cases = [(shape, tanh) for shape in shapes for tanh in section.FORMS]
    for shape, tanh, result, tensors in results(gpu, cases, seed):
        assert verdict(result, tensors, tanh).passed, (shape, tanh)


@pytest.mark.gpu
def test_hoppers_kernel_on_a_gpu(gpu):
    cases = [(shape, tanh) for shape in HOPPER_SHAPES for tanh in section.FORMS]
    own = hopper.step(gpu.multiprocessors)
    kernels = build(gpu, [(own.kernel, {**section.sizes(*which), **own.schedule})
                          for which in cases])
    for (shape, tanh), kernel in zip(cases, kernels, strict=True):
        for seed in (0, 1):
            tensors = section.inputs(Page(gpu), *shape, seed)
            first = kernel(*tensors)
            assert verdict(first, tensors, tanh).passed, (shape, tanh)
        assert all(torch.equal(kernel(*tensors), first) for _ in range(50)), (shape, tanh)


@pytest.mark.gpu
def test_forms_are_told_apart_at_full_size(gpu):
    shapes = section.COMPUTE_BOUND, section.BANDWIDTH_BOUND
    cases = [(shape, tanh) for shape in shapes for tanh in section.FORMS]
    kernels = build(gpu, [section.kernel_for(gpu, *which) for which in cases])
    for (shape, tanh), kernel in zip(cases, kernels, strict=True):
        tensors = section.inputs(Page(gpu), *shape)
        result = kernel(*tensors)
        assert verdict(result, tensors, tanh).passed
        assert not verdict(result, tensors, not tanh).passed


@pytest.mark.gpu
def test_the_same_bits_fifty_times(gpu):
    kernel, = build(gpu, [section.job((1000, 1000, 1000), False, gpu.preset(section.SCHEDULES))])
    tensors = section.inputs(Page(gpu), 1000, 1000, 1000)
    first = kernel(*tensors)
    assert all(torch.equal(kernel(*tensors), first) for _ in range(50))


@pytest.mark.gpu
def test_speed_on_a_gpu(gpu):
    page = run_section("fused_epilogue", gpu)
    assert page.failures == []
    ratios = {(entry["case"], entry["baseline"]): entry["ratio"]
              for entry in events(page, "measurement")}
    for shape in section.shapes_here(page):
        assert ratios[section.case(shape, False), section.THREE] > 1
    if gpu.mode == "gpu" and gpu.arch == "sm_90a":
        assert ratios["4096x4096x4096 float16 erf", section.THREE] >= 1.18
        cublaslt = "cuBLASLt (torch._addmm_activation)"
        assert ratios["16384x1024x512 float16 tanh", cublaslt] >= 1.05
