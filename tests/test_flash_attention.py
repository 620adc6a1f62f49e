"""sections/flash_attention.py"""

import re

import pytest
import tilelang.language as T
import torch
import torch.nn.functional as F

from sections import flash_attention as section
from sections.common import codegen
from sections.common.build import build
from sections.common.device import ARCHITECTURES, SHARED_BYTES, Device, preset, select
from sections.common.page import Page
from sections.common.verify import compare
from sections.flash_attention import Case
from sections.hopper import attention as hopper
from tests.mutations import MUTATIONS, events, rehearsal_device, run_section

SIZES = (64, 96, 128)
# Queries and keys: 1, around a tile, no tile divides them, more keys than queries, fewer.
LENGTHS = [(1, 1), (63, 63), (65, 65), (296, 296), (1, 296), (65, 1), (130, 257), (100, 37)]


def verdict(result, tensors, case):
    return compare(result, section.reference(*tensors, case.scale, case.causal), torch.float16,
                   **case.bounds)


def build_one(device, case, **schedule):
    """The kernel for a case, with the architecture's own schedule unless told otherwise."""
    arguments = {**case.arguments, **section.schedule_of(device, case), **schedule}
    (kernel,) = build(device, [(section.flash_attention, arguments)])
    if isinstance(kernel, BaseException):
        raise kernel
    return kernel


@pytest.fixture(scope="module")
def any_length(rehearsal):
    """On C one compile is enough for all shapes of a head size: {(size, causal): kernel}."""
    variable = {name: T.dynamic(name) for name in ("B", "Sq", "Skv", "H")}
    which = [(size, causal) for size in SIZES for causal in (False, True)]
    kernels = build(rehearsal, [
        (section.flash_attention, {**Case(1, 1, 1, *pair).arguments, **section.START, **variable})
        for pair in which
    ])
    return dict(zip(which, kernels, strict=True))


# Results


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("size", SIZES)
def test_lengths_that_no_tile_divides(rehearsal, any_length, size, causal):
    for queries, keys in LENGTHS:
        case = Case(2, 1, queries, size, causal, keys)
        for seed in range(3):
            tensors = section.inputs(Page(rehearsal), case, seed)
            result = verdict(any_length[size, causal](*tensors), tensors, case)
            assert result.passed, f"{case.name}: {result.problem}"


def test_a_length_of_many_tiles(rehearsal, any_length):
    for causal in (False, True):
        case = Case(1, 1, 1000, 64, causal)
        tensors = section.inputs(Page(rehearsal), case)
        assert verdict(any_length[64, causal](*tensors), tensors, case).passed


def weights_of(kernel, queries: int, keys: int, size: int = 64):
    """The weight of each key for each query: with V = 1 for key j in column j, O shows them."""
    Q, K = (torch.randn(1, length, 1, size).half() for length in (queries, keys))
    V = torch.eye(keys, size).half().view(1, keys, 1, size)
    return kernel(Q, K, V)[0, :, 0, :keys]


@pytest.mark.parametrize("queries, keys", [(5, 5), (3, 7), (1, 7), (40, 60)])
def test_the_last_query_sees_every_key(any_length, queries, keys):
    weights = weights_of(any_length[64, True], queries, keys)
    expected = torch.tensor([[j <= i + keys - queries for j in range(keys)]
                             for i in range(queries)])
    assert torch.equal(weights > 0, expected)
    assert torch.allclose(weights.sum(1).float(), torch.ones(queries), atol=2e-3)


def test_a_query_that_sees_no_key_gets_zeros(any_length):
    weights = weights_of(any_length[64, True], 150, 4)  # two tiles of queries see nothing at all
    assert torch.equal((weights > 0).sum(1), torch.tensor([0] * 146 + [1, 2, 3, 4]))
    assert weights[:146].eq(0).all() and not weights.isnan().any()


def test_without_a_mask_every_key_is_seen_and_no_more(any_length):
    weights = weights_of(any_length[64, False], 3, 37)
    assert (weights > 0).all()
    assert torch.allclose(weights.sum(1).float(), torch.ones(3), atol=2e-3)


@pytest.mark.parametrize("slope", [1, -1], ids=["growing", "falling"])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_a_maximum_that_changes_in_every_tile(rehearsal, any_length, causal, slope):
    case = Case(1, 2, 300, 64, causal)
    Q, K, V = section.inputs(Page(rehearsal), case)
    ramp = torch.linspace(1, 5, 300) if slope > 0 else torch.linspace(5, 1, 300)
    K = (K * ramp.view(1, 300, 1, 1)).half()
    assert verdict(any_length[64, causal](Q, K, V), (Q, K, V), case).passed


def test_scores_far_from_zero(rehearsal, any_length):
    case = Case(1, 2, 130, 64, True)
    Q, K, V = section.inputs(Page(rehearsal), case)
    for sign in (1, -1):  # all scores around 800 or -800: exp of them is inf or 0
        tensors = (Q / 10 + 10).half(), (K / 10 + sign * 10).half(), V
        assert verdict(any_length[64, True](*tensors), tensors, case).passed


@pytest.mark.parametrize("queries, keys", [(5, 5), (3, 7)])
@pytest.mark.parametrize("causal", [False, True])
def test_the_reference_is_what_torch_says(rehearsal, queries, keys, causal):
    case = Case(2, 3, queries, 64, causal, keys)
    tensors = section.inputs(Page(rehearsal), case)
    mask = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries) if causal else None
    Q, K, V = (tensor.transpose(1, 2).float() for tensor in tensors)
    expected = F.scaled_dot_product_attention(Q, K, V, mask).transpose(1, 2)
    found = section.reference(*tensors, case.scale, causal)
    assert torch.allclose(found, expected, atol=1e-5)
    assert section.reference(*tensors, case.scale, True).isfinite().all()
    if not causal:
        apart = section.unfused(*(tensor.float() for tensor in tensors), case.scale)
        assert torch.allclose(apart.transpose(1, 2), expected, atol=1e-5)


def test_figures_of_a_case():
    full, causal = Case(4, 16, 4096, 128, False), Case(4, 16, 4096, 128, True)
    assert (full.name, causal.name) == ("4x16x4096x128 float16 full",
                                        "4x16x4096x128 float16 causal")
    assert full.flops == 2 * causal.flops == 4 * 64 * 4096 * 4096 * 128
    assert full.score_bytes == 32 * full.output_bytes == 64 * 4096 * 4096 * 2
    assert Case(1, 2, 65, 64, True, keys=296).name == "1x2x65x64 float16 causal on 296 keys"


# The section


def test_run_passes_in_rehearsal(rehearsal, capsys):
    page = run_section("flash_attention", rehearsal)
    assert page.failures == []
    assert events(page, "measurement") == []
    ladder = section.LADDERS["sm_90a"]
    assert len(events(page, "check")) == len(ladder) + len(section.AWKWARD)
    text = " ".join(capsys.readouterr().out.split())
    assert "generated for sm_90a" in text and "TMA load wgmma" in text
    assert "tl::AllReduce<tl::MaxOp, 4" in text and "exp2f(" in text
    assert "registers of 4 threads" in text and "nothing spilled" in text
    assert "O takes 67 MB, a score matrix would take 2147 MB" in text
    assert "cannot count" not in text  # a fault of other architectures
    assert "not run here; multiplies while it computes weights" in text
    assert "def attention_hopper(" in text


def test_quick_has_two_rows(rehearsal, capsys):
    page = run_section("flash_attention", rehearsal, quick=True)
    assert page.failures == []
    assert len(events(page, "check")) == 2 + len(section.AWKWARD)


def test_a_row_of_ones_own(rehearsal, capsys):
    page = run_section("flash_attention", rehearsal, quick=True, overrides={"block_N": 32})
    assert page.failures == []
    assert "yours" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="unknown name stages; this section has: block_M="):
        run_section("flash_attention", rehearsal, overrides={"stages": 2})


def test_ampere_leaves_the_faulty_row_out_and_says_why(capsys):
    device = rehearsal_device("sm_80")
    page = run_section("flash_attention", device, quick=True, overrides={"num_stages": 2})
    assert page.failures == []
    text = " ".join(capsys.readouterr().out.split())
    assert "3 yours - - - - left out: TileLang 0.1.15 cannot compile it" in text
    assert "The causal schedule for sm_80 has 1 stage because TileLang" in text
    assert "cp.async" in text and "mma.sync" in text


@pytest.mark.slow
@pytest.mark.parametrize("arch, left_out", [
    ("sm_75", "80 KB is over sm_75's 64 KB"), ("sm_80", "TileLang 0.1.15 cannot compile it"),
    ("sm_89", "TileLang 0.1.15 cannot compile it"), ("sm_120a", None),
])
def test_another_architecture_is_read_in_rehearsal(arch, left_out, capsys):
    page = run_section("flash_attention", rehearsal_device(arch))
    assert page.failures == []
    text = " ".join(capsys.readouterr().out.split())
    assert text.count("left out: ") == (1 if left_out else 0)
    assert not left_out or left_out in text


def top_left(result):
    """What torch's is_causal would give: here, query i sees the keys j <= i."""
    wrong = result.clone()
    wrong[:, 0] = wrong[:, -1]
    return wrong


def lost_last_query(result):
    wrong = result.clone()
    wrong[:, -1] = 0
    return wrong


def swapped_heads(result):
    return result.flip(2)


WRONG = {**MUTATIONS, "top_left": top_left, "lost_last_query": lost_last_query,
         "swapped_heads": swapped_heads}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_results_fail(rehearsal, name, capsys):
    page = run_section("flash_attention", rehearsal, mutate=WRONG[name], quick=True)
    checks = events(page, "check")
    assert len(checks) == 2 + len(section.AWKWARD)
    assert not any(event["passed"] for event in checks)
    assert page.failures


def test_a_mask_that_is_off_by_one_fails(rehearsal, any_length):
    for case in (Case(1, 2, 200, 64, True), Case(1, 2, 65, 64, True, 296)):
        Q, K, V = section.inputs(Page(rehearsal), case)
        result = any_length[64, True](Q, K, V)
        later = section.reference(Q, K[:, :-1], V[:, :-1], case.scale, True)
        assert not compare(result, later, torch.float16, **case.bounds).passed


class PretendGpu(Device):
    """A GPU in all but where tensors live."""

    torch_device = "cpu"


class PretendPage(Page):
    """A page that takes its kernels from the C backend and its times from thin air."""

    def build(self, jobs, read=()):
        return build(rehearsal_device(), list(jobs))

    def measure(self, case, variant, kernel, inputs, baselines, work, rounds=3):
        found = []
        for number, (name, function) in enumerate(baselines.items(), 1):
            shape = kernel(*inputs).shape
            assert function().transpose(1, 2).shape == shape
            found.append({"case": case, "variant": variant, "ms": 0.2, "value": 9.0,
                          "baseline": name, "baseline_ms": 0.2 * number, "ratio": float(number),
                          "ratio_low": 1.0, "ratio_high": 1.5, "unit": "TFLOP/s"})
        self.measured = [*getattr(self, "measured", []), *found]
        return found


@pytest.fixture
def pretend(rehearsal, monkeypatch):
    """A page of a pretended B200, small cases and all."""
    monkeypatch.setattr(section, "cases", lambda page: [
        Case(1, 2, 200, 64, True), Case(1, 2, 70, 128, False)])
    monkeypatch.setattr(section, "peak_bytes", lambda function: function().nbytes)
    arch = "sm_100a"
    device = PretendGpu("gpu", arch, SHARED_BYTES[arch], "B200", arch, 148, 180 << 30)
    return PretendPage(device, quick=True)


def test_what_a_gpu_would_print(pretend, monkeypatch, capsys):
    def time_ms(function, budget_ms):
        function()
        return 1.0

    told = []
    monkeypatch.setattr("sections.common.build.cores", lambda: 8)
    monkeypatch.setattr(section, "time_ms", time_ms)
    monkeypatch.setattr(pretend, "headline", told.append)
    section.run(pretend)
    assert pretend.failures == []
    assert [row["baseline"] for row in pretend.measured] == [
        "SDPA (flash)", "SDPA (flash)", "SDPA (flash)", "torch, unfused"]
    (headline,) = told
    assert headline["case"] == "1x2x70x128 float16 full"
    text = " ".join(capsys.readouterr().out.split())
    assert "1x2x200x64 float16 causal 0.200 ms, 9 TFLOP/s, 1.00x SDPA (flash), 1x2x70x128" in text
    assert "Peak, measured: 0 MB fused, 0 MB as three operations" in text
    assert "1x2x200x64 float16 causal 64x64, 0 stages 0.200 9 SDPA (flash)" in text


@pytest.mark.parametrize("available, fastest", [
    (("CUDNN", "FLASH", "EFFICIENT"), "SDPA (cuDNN)"), (("FLASH", "EFFICIENT"), "SDPA (flash)"),
    (("EFFICIENT",), "SDPA (efficient)"), ((), "SDPA (math)"),
])
def test_the_fastest_backend_that_is_here_is_named(pretend, monkeypatch, available, fastest):
    chosen = []

    def attention(Q, K, V, is_causal):
        chosen.append(torch._fused_sdp_choice(Q, K, V, is_causal=is_causal))
        return Q

    class Only:
        def __init__(self, backend):
            self.backend = backend

        def __enter__(self):
            chosen.append(self.backend)
            if self.backend.name.split("_")[0] not in (*available, "MATH"):
                raise RuntimeError("No available kernel. Aborting execution.")

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(section, "sdpa_kernel", Only)
    monkeypatch.setattr(section.F, "scaled_dot_product_attention", attention)

    def time_ms(function, budget_ms):
        function()
        return len(chosen)  # each later one is slower

    monkeypatch.setattr(section, "time_ms", time_ms)
    case = Case(1, 2, 40, 64, True)
    name, function = section.fastest_sdpa(pretend, section.inputs(pretend, case), case)
    assert name == fastest
    assert function().shape == (1, 2, 40, 64)


def test_sizes_follow_the_memory():
    def names(memory, quick=False):
        device = Device("gpu", "sm_75", SHARED_BYTES["sm_75"], "T4", "sm_75", 40, memory)
        return [case.name for case in section.cases(Page(device, quick))]

    assert names(140 << 30) == [f"4x16x4096x{size} float16 {kind}" for size in (128, 64)
                                for kind in ("causal", "full")]
    assert names(15 << 30)[0] == "2x8x2048x128 float16 causal"
    assert len(names(140 << 30, quick=True)) == 2


# Schedules


def jobs(arch):
    """{what it is: (case, schedule)} of an architecture: the four that are taken, and all rows."""
    device = Device("rehearsal", arch, SHARED_BYTES[arch])
    taken = {}
    for size in (128, 64):
        for causal in (True, False):
            case = Case(4, 16, 4096, size, causal)
            taken[f"{size}-{'causal' if causal else 'full'}"] = case, section.schedule_of(
                device, case)
    ladder = preset(section.LADDERS, arch)
    rows = {f"row{number}": (section.SHOWN, step.schedule)
            for number, step in enumerate(ladder[:-1], 1)
            if not section.meets_fault(arch, step.schedule)}
    return {**taken, **rows}


# Lowering for sm_75 to sm_89 takes seconds; the whole matrix is slow.
QUICK = {"sm_75": ("128-causal", "64-full"), "sm_80": ("128-causal", "64-full"),
         "sm_86": ("128-causal",), "sm_89": ("128-causal",), "sm_100a": ("128-causal",),
         "sm_90a": ("128-causal", "128-full", "64-causal", "64-full", "row1"),
         "sm_120a": ("128-causal", "64-full")}
MATRIX = [pytest.param(arch, which, id=f"{arch}-{which}",
                       marks=[] if which in QUICK[arch] else pytest.mark.slow)
          for arch in ARCHITECTURES for which in jobs(arch)]


@pytest.mark.parametrize("arch, which", MATRIX)
def test_nvcc_takes_the_schedule(arch, which):
    case, schedule = jobs(arch)[which]
    code = codegen.generate(section.flash_attention, arch, **case.arguments, **schedule)
    found = codegen.resources(code)
    assert found is not None, "nvcc is needed"
    fits = code.shared_bytes + found.static_shared_bytes <= SHARED_BYTES[arch]
    assert fits == (schedule["num_stages"] < 2 or arch != "sm_75")
    # Hopper's 192x128 tile without a mask spills a little; no tile that does not is as fast.
    assert found.spill_bytes <= (80 if (arch, case.size, case.causal) == ("sm_90a", 128, False)
                                 else 0)
    names = {mark.name for mark in codegen.landmarks(code)}
    assert ("wgmma" in names) == (arch == "sm_90a")
    assert ("exponential" in names) and ("AllReduce" in names)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("case", [Case(1, 2, 65, 96, True, 296), Case(1, 2, 1, 96, False, 1000)],
                         ids=lambda case: case.name)
def test_nvcc_takes_odd_shapes(arch, case):
    device = Device("rehearsal", arch, SHARED_BYTES[arch])
    code = codegen.generate(section.flash_attention, arch, **case.arguments,
                            **section.schedule_of(device, case))
    assert codegen.resources(code).spill_bytes == 0
    assert code.shared_bytes <= SHARED_BYTES[arch]


def test_rows_build_on_each_other_and_none_is_there_twice():
    for arch in ARCHITECTURES:
        ladder = preset(section.LADDERS, arch)
        assert 5 <= len(ladder) <= 6
        assert {**ladder[0].schedule, "store_shared": False} == section.START
        for before, after in zip(ladder, ladder[1:], strict=False):
            changed = {k for k in after.schedule if after.schedule[k] != before.schedule[k]}
            assert len(changed) == 1 or changed <= {"block_M", "block_N", "threads"}, after.change
        assert not section.meets_fault(arch, ladder[-1].schedule)
        built = [step for step in ladder if not section.meets_fault(arch, step.schedule)]
        others = 3 + len(section.AWKWARD)
        own = 1 if arch == "sm_90a" else 0
        assert len(built) + own + others <= 10, "the tour's budget for attention"


@pytest.mark.parametrize("arch", ["sm_80", "sm_89"])
def test_the_fault_is_still_there(arch):
    """Once this fails TileLang is mended: take meets_fault, FAULT and what rests on them away."""
    schedule = {**section.START, "num_stages": 2}
    assert section.meets_fault(arch, schedule)
    with pytest.raises(TypeError, match="Downcast from tirx.Sub to ir.IntImm"):
        codegen.generate(section.flash_attention, arch, **Case(1, 2, 4096, 64, True).arguments,
                         **schedule)


def test_only_tiles_that_need_it_are_masked():
    def masks(case):
        schedule = {**section.START, "num_stages": 2}
        code = codegen.generate(section.flash_attention, "sm_90a", **case.arguments, **schedule)
        return code.source.count("CUDART_INF_F") - 1  # one is where a maximum starts

    assert masks(Case(1, 2, 1024, 64, False)) == 0
    assert masks(Case(1, 2, 1000, 64, False)) == 1
    assert masks(Case(1, 2, 1024, 64, True)) == 1


# Hopper's own kernel


@pytest.mark.parametrize("case", [
    Case(4, 16, 4096, 128, True), Case(4, 16, 4096, 128, False), Case(4, 16, 4096, 64, True),
    pytest.param(Case(4, 16, 4096, 64, False), marks=pytest.mark.slow),
    pytest.param(Case(2, 3, 65, 64, True, 296), marks=pytest.mark.slow),
    pytest.param(Case(2, 3, 1000, 96, True), marks=pytest.mark.slow),
    pytest.param(Case(2, 3, 1000, 96, False), marks=pytest.mark.slow),
    pytest.param(Case(2, 3, 1, 128, False), marks=pytest.mark.slow),
], ids=lambda case: case.name)
def test_nvcc_takes_hoppers_own_kernel(case):
    step = hopper.step(case, 132)
    code = codegen.generate(step.kernel, "sm_90a", **case.arguments, **step.schedule)
    found = codegen.resources(code)
    assert found.spill_bytes == 0 and "serialized" not in found.report
    assert code.shared_bytes + found.static_shared_bytes <= SHARED_BYTES["sm_90a"]
    # Q K^T before the loop, both products in it, the last weights times V after it.
    assert codegen.count(code, "wgmma") == 4
    assert code.threads == 128 + 2 * step.schedule["block_M"]
    registers = re.findall(r"warpgroup_reg_(?:de)?alloc<(\d+)>", code.source)
    assert 128 * int(registers[0]) + (code.threads - 128) * int(registers[-1]) <= 65536


def test_steps_are_those_of_the_tiles():
    assert hopper.steps_of(Case(1, 1, 512, 64, True), 128, 128) == [1, 2, 3, 4]
    assert hopper.steps_of(Case(1, 1, 500, 64, True), 192, 128) == [2, 3, 4]
    assert hopper.steps_of(Case(1, 1, 500, 64, False), 192, 128) == [4, 4, 4]
    assert hopper.steps_of(Case(1, 1, 128, 64, True, keys=256), 64, 64) == [3, 4]
    assert hopper.steps_of(Case(1, 1, 256, 64, True, keys=64), 64, 64) == [1, 1, 1, 1]


@pytest.mark.parametrize("case", [Case(4, 16, 4096, 128, True), Case(16, 16, 1024, 128, True),
                                  Case(1, 16, 16384, 128, True)], ids=lambda case: case.name)
def test_work_is_dealt_out_evenly(case):
    """No multiprocessor gets much more than its share of the steps."""
    together = hopper.step(case, 132).schedule["together"]
    lengths = hopper.steps_of(case, 128, 128)[::-1]
    heads = case.batch * case.heads
    items = [length for first in range(0, heads, together) for length in lengths
             for _ in range(min(together, heads - first))]
    hands = [[] for _ in range(132)]
    for turn in range(0, len(items), 132):
        row = items[turn : turn + 132]
        for place, length in enumerate(row):
            hands[place if turn // 132 % 2 == 0 else 131 - place].append(length)
    assert sum(map(sum, hands)) == sum(lengths) * heads
    assert max(map(sum, hands)) <= 1.1 * sum(items) / 132


@pytest.mark.parametrize("mode, arch, size, own", [
    ("gpu", "sm_90a", 128, True), ("gpu", "sm_90a", 96, True), ("gpu", "sm_90a", 256, False),
    ("gpu", "sm_90a", 16, False), ("gpu", "sm_100a", 128, False), ("arch", "sm_80", 64, False),
    ("rehearsal", "sm_90a", 64, False),
])
def test_hoppers_own_kernel_is_taken_where_it_can_be(mode, arch, size, own):
    device = Device(mode, arch, SHARED_BYTES[arch], multiprocessors=78)
    kernel, schedule = section.kernel_for(device, Case(1, 2, 100, size, False))
    assert kernel is (hopper.attention_hopper if own else section.flash_attention)
    assert not own or schedule["blocks"] == 78


# On a GPU


def take(gpu, case):
    """A job for `build`: the kernel that is taken for a case."""
    kernel, schedule = section.kernel_for(gpu, case)
    return kernel, {**case.arguments, **schedule}


@pytest.mark.gpu
@pytest.mark.parametrize("size", SIZES)
def test_lengths_with_the_kernel_to_take_on_a_gpu(gpu, size):
    lengths = [*LENGTHS, (1000, 1000), (512, 512), (256, 1024), (1, 4096)]
    cases = [Case(2, 3, queries, size, causal, keys) for queries, keys in lengths
             for causal in (False, True)]
    cases.append(Case(3, 50, 300, size, True, 500))  # more tiles than multiprocessors
    for case, kernel in zip(cases, build(gpu, [take(gpu, case) for case in cases]), strict=True):
        for seed in range(3):
            tensors = section.inputs(Page(gpu), case, seed)
            result = verdict(kernel(*tensors), tensors, case)
            assert result.passed, f"{case.name}: {result.problem}"


@pytest.mark.gpu
@pytest.mark.parametrize("size", SIZES)
def test_lengths_on_a_gpu(gpu, size):
    lengths = [*LENGTHS, (1000, 1000), (512, 512), (256, 1024), (1, 4096)]
    cases = [Case(2, 3, queries, size, causal, keys) for queries, keys in lengths
             for causal in (False, True)]
    kernels = build(gpu, [(section.flash_attention,
                           {**case.arguments, **section.schedule_of(gpu, case)})
                          for case in cases])
    for case, kernel in zip(cases, kernels, strict=True):
        for seed in range(3):
            tensors = section.inputs(Page(gpu), case, seed)
            result = verdict(kernel(*tensors), tensors, case)
            assert result.passed, f"{case.name}: {result.problem}"


@pytest.mark.gpu
def test_every_row_on_a_gpu(gpu):
    case = Case(2, 3, 300, 128, True, 700)
    tensors = section.inputs(Page(gpu), case)
    for step in gpu.preset(section.LADDERS):
        result = verdict(build_one(gpu, case, **step.schedule)(*tensors), tensors, case)
        assert result.passed, f"{step.change}: {result.problem}"


@pytest.mark.gpu
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_89"])
def test_another_gpus_code_path(gpu, arch):
    device = select("cuda", arch)
    cases = [Case(2, 3, 65, 64, True, 296), Case(2, 3, 100, 128, True, 37),
             Case(2, 3, 300, 64, False), Case(2, 3, 1, 128, False, 1)]
    kernels = build(device, [(section.flash_attention,
                              {**case.arguments, **section.schedule_of(device, case)})
                             for case in cases])
    for case, kernel in zip(cases, kernels, strict=True):
        tensors = section.inputs(Page(device), case)
        result = verdict(kernel(*tensors), tensors, case)
        assert result.passed, f"{case.name}: {result.problem}"


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("size", [64, 128])
def test_the_same_bits_fifty_times(gpu, size, causal):
    case = Case(4, 16, 1000, size, causal)
    tensors = section.inputs(Page(gpu), case)
    for kernel in (build_one(gpu, case), *build(gpu, [take(gpu, case)])):
        first = kernel(*tensors)
        assert verdict(first, tensors, case).passed
        assert all(torch.equal(kernel(*tensors), first) for _ in range(50))


@pytest.mark.gpu
def test_memory_on_a_gpu(gpu):
    case = Case(1, 8, 2048, 64, False)
    kernel, tensors = build_one(gpu, case), section.inputs(Page(gpu), case)
    kernel(*tensors)
    assert section.peak_bytes(lambda: kernel(*tensors)) < 2 * case.output_bytes
    assert section.peak_bytes(lambda: section.unfused(*tensors, case.scale)) > case.score_bytes


@pytest.mark.gpu
def test_speed_on_a_gpu(gpu):
    page = run_section("flash_attention", gpu)
    assert page.failures == []
    rows = events(page, "measurement")
    assert {row["baseline"].split()[0] for row in rows} == {"SDPA", "torch,"}
    if gpu.arch == "sm_90a":
        for kind in ("full", "causal"):
            ratios = [row["ratio"] for row in rows
                      if row["case"] == f"4x16x4096x128 float16 {kind}"
                      and row["baseline"].startswith("SDPA")]
            assert max(ratios) >= (1.05 if kind == "causal" else 0.97), kind
