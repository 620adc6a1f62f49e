"""sections/architectures.py"""

import contextlib
import io
import re
from dataclasses import replace

import pytest

from sections import architectures
from sections.architectures import PATHS, SAME, SHOWN, SIZE, best_schedule
from sections.common import codegen
from sections.common.build import Kernel
from sections.common.device import SHARED_BYTES, Device, capability, select
from sections.gemm import gemm, sizes
from tests.mutations import MUTATIONS, MutatedPage, events, rehearsal_device, run_section

GPUS = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a")


def code(arch, schedule=None, settings=None):
    kernel = architectures.with_settings(settings or {})
    return codegen.generate(kernel, arch, **sizes(SIZE, SIZE, SIZE),
                            **(schedule or best_schedule(arch)))


def marks(generated):
    return {mark.name: mark.meaning for mark in codegen.landmarks(generated)}


@pytest.fixture(scope="module")
def story():
    """The page and the text of one rehearsal."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        page = run_section("architectures", rehearsal_device())
    return page, text.getvalue()


def row(text: str, start: str) -> str:
    """The first line that starts so, single-spaced."""
    line = re.search(rf"^ *{re.escape(start)} .*$", text, re.MULTILINE)[0]
    return " ".join(line.split())


# Without a GPU


def test_run_passes_in_rehearsal(story):
    page, _ = story
    assert page.failures == []
    assert [event["passed"] for event in events(page, "check")] == [True, True]
    assert events(page, "measurement") == []


def test_side_by_side_is_what_was_generated(story):
    _, text = story
    kinds = {"sm_75": ("load and store barrier", "mma.sync"),
             "sm_80": ("cp.async, all threads cp.async.wait", "mma.sync"),
             "sm_89": ("cp.async, all threads cp.async.wait", "mma.sync"),
             "sm_90a": ("TMA, one thread mbarrier", "wgmma"),
             "sm_100a": ("TMA, one thread mbarrier", "mma.sync"),
             "sm_120a": ("TMA, one thread mbarrier", "mma.sync")}
    assert tuple(kinds) == SHOWN
    for arch, (copies, multiplies) in kinds.items():
        generated = code(arch)
        told = row(text, arch)
        assert f"{copies} {multiplies} {generated.threads} " in told
        needed = generated.shared_bytes / 1024
        assert f" {needed:g} KB of {SHARED_BYTES[arch] // 1024} KB " in told
        assert generated.shared_bytes <= SHARED_BYTES[arch]
        # "From sm_90a on a block has 128 threads more, which only order copies."
        asked = best_schedule(arch)["threads"]
        assert generated.threads == asked + (128 if capability(arch) >= 90 else 0)
        assert ("warp roles" in marks(generated)) == (capability(arch) >= 90)


def test_registers_are_nvccs(story):
    _, text = story
    for arch in architectures.FIRSTS:
        found = codegen.resources(code(arch))
        assert row(text, arch).endswith(f" {found.registers}") and found.spill_bytes == 0
    assert row(text, "sm_120a").endswith(" -")


def test_what_became_of_the_two_statements(story):
    _, text = story
    copies, multiplies = text.split("What became of")[1:3]
    assert "loads 16 bytes a thread" in row(copies, "sm_75")
    assert "copies 16 bytes global to shared memory in the background" in row(copies, "sm_80")
    assert "tma_load" in row(copies, "sm_90a")
    assert "one warp multiplies 16x8 by 8x8" in row(multiplies, "sm_75")
    assert "one warp multiplies 16x16 by 16x8" in row(multiplies, "sm_80")
    assert "4 warps multiply" in row(multiplies, "sm_90a")


def test_what_is_said_of_bfloat16(story):
    """What torch says of a T4 is no reason to take bfloat16 there."""
    from tilelang import language as T

    told = " ".join(story[1].split())
    assert "bfloat16 they multiply from sm_80 on." in told
    for arch, multiplies in (("sm_75", False), ("sm_80", True)):
        generated = code(arch, {**SAME, "dtype": T.bfloat16})
        assert ("mma.sync" in marks(generated)) == multiplies
        assert "mma.sync" in marks(code(arch))


@pytest.mark.parametrize("owner, archs", [
    ("sm_80", ("sm_75", "sm_80", "sm_90a", "sm_120a")),
    ("sm_90a", ("sm_80", "sm_90a", "sm_120a")),
    *(pytest.param(owner, SHOWN, marks=pytest.mark.slow) for owner in SHOWN),
])
def test_a_schedule_needs_the_same_shared_memory_everywhere(owner, archs):
    schedule = best_schedule(owner)
    assert len({code(arch, schedule).shared_bytes for arch in archs}) == 1
    assert code("sm_80", SAME).shared_bytes <= min(SHARED_BYTES.values())


def test_what_fits_where(story):
    _, text = story
    table = text.split("The same schedule everywhere?")[1]
    room = row(table, "room for a block").removeprefix("room for a block ").split(" KB")[:-1]
    assert [int(kb) * 1024 for kb in room] == [SHARED_BYTES[arch] for arch in SHOWN]
    verdicts = [line.split(" KB  ")[1].split() for line in table.splitlines()
                if line.strip().startswith("best on ")]
    assert [sum(verdict[n] == "best" for verdict in verdicts) for n in range(6)] == [1] * 6
    for verdict in verdicts:
        needed = code(SHOWN[verdict.index("best")]).shared_bytes
        assert [word != "no" for word in verdict] == [
            needed <= SHARED_BYTES[arch] for arch in SHOWN]


@pytest.mark.parametrize("name", MUTATIONS)
def test_wrong_results_fail(rehearsal, name, capsys):
    page = run_section("architectures", rehearsal, mutate=MUTATIONS[name])
    assert [event["passed"] for event in events(page, "check")] == [False, False]
    assert page.failures


def test_without_nvcc_registers_are_left_open(rehearsal, monkeypatch, capsys):
    monkeypatch.setattr(codegen, "nvcc_path", lambda: None)
    page = run_section("architectures", rehearsal)
    assert page.failures == []
    assert row(capsys.readouterr().out, "sm_90a").endswith(" -")


def test_another_architecture_in_rehearsal(capsys):
    page = run_section("architectures", rehearsal_device("sm_89"))
    assert page.failures == []
    assert not row(capsys.readouterr().out, "sm_89").endswith(" -")  # its own registers


# The code paths that a GPU runs


def test_each_path_adds_what_it_says():
    found = {(arch, new): marks(code(arch, SAME, settings)) for arch, settings, new in PATHS}
    old, larger, asynchronous, tma, wgmma, *newer = found.values()
    for path in found.values():
        kinds = {"wgmma", "TMA load", "cp.async", "vector load"} & set(path)
        assert kinds in ({"vector load"}, {"cp.async"}, {"TMA load"}, {"TMA load", "wgmma"})
    assert "vector load" in old and "16x8 by 8x8" in old["mma.sync"]
    assert "vector load" in larger and "16x16 by 16x8" in larger["mma.sync"]
    assert "cp.async" in asynchronous and "16x16 by 16x8" in asynchronous["mma.sync"]
    assert "TMA load" in tma and "16x16 by 16x8" in tma["mma.sync"]
    assert "TMA load" in wgmma and "mma.sync" not in wgmma
    assert all("TMA load" in path and "wgmma" not in path for path in newer)
    assert gemm.pass_configs is None  # nothing of this reached the section gemm


@pytest.mark.parametrize("arch, settings, new", PATHS)
def test_nvcc_takes_each_path(arch, settings, new):
    found = codegen.resources(code(arch, SAME, settings))
    assert found is not None, "nvcc is needed"
    assert found.spill_bytes == 0


class Standing(Device):
    """A GPU that is not there: its kernels are C."""

    is_gpu = True
    torch_device = "cpu"


@pytest.fixture
def standing(monkeypatch):
    """The section's GPU part on a GPU that is not there, timings made up: page and jobs."""
    def run(own, arch=None, failing=None, cores=8, quick=False):
        monkeypatch.setattr(architectures, "cores", lambda: cores)
        device = Standing("arch" if arch else "gpu", arch or own, SHARED_BYTES[own],
                          gpu="NVIDIA Standing", gpu_arch=own)
        monkeypatch.setattr(architectures, "select", lambda mode, arch: replace(device, arch=arch))
        monkeypatch.setattr(architectures, "SIZE", 64)
        times = iter(range(100, 0, -10))
        monkeypatch.setattr(
            "sections.common.page.Page.measure",
            lambda page, case, variant, kernel, inputs, baselines, work, rounds: [
                {"ms": (ms := next(times)), "value": 1000 / ms, "ratio": 100 / ms,
                 "variant": variant}])
        told = []
        page = MutatedPage(device, quick, mutate=failing, emit=told.append)
        page.events = told
        paths = architectures.paths_here(page)
        kernels = [Kernel(gemm, {**sizes(64, 64, 64), **schedule}, where.arch,
                          lambda A, B: A @ B, 0.0) for where, _, _, schedule in paths]
        rows = architectures.try_paths(page, paths, kernels, architectures.shape_here(page))
        architectures.conclude(page, rows)
        return page, [(where.arch, *rest) for where, *rest in paths]
    return run


@pytest.mark.parametrize("own, paths", [
    ("sm_75", ["sm_75", "sm_75"]),
    ("sm_80", ["sm_75", "sm_80", "sm_80"]),
    ("sm_86", ["sm_75", "sm_80", "sm_80"]),
    ("sm_89", ["sm_75", "sm_80", "sm_80"]),
    ("sm_90a", ["sm_75", "sm_80", "sm_80", "sm_90a", "sm_90a", "sm_90a"]),
    ("sm_100a", ["sm_75", "sm_80", "sm_80", "sm_100a", "sm_100a"]),
    ("sm_120a", ["sm_75", "sm_80", "sm_80", "sm_120a", "sm_120a"]),
])
def test_the_paths_that_run_on_a_gpu(standing, capsys, own, paths):
    page, jobs = standing(own)
    assert page.failures == []
    assert [arch for arch, *_ in jobs] == paths
    assert all(arch == own or not arch.endswith("a") for arch in paths)
    assert jobs[-1][3] == best_schedule(own)
    (headline,) = events(page, "headline")
    assert headline["ms"] == 100 - 10 * (len(paths) - 1)
    told = " ".join(capsys.readouterr().out.split())
    assert "Lesson: on this NVIDIA Standing the same Python went from 10 TFLOP/s with sm_75" in told
    assert "100.000 10 1.00x -" in told and "90.000 11 1.11x 1.11x" in told


FEWER, ENDS = "With 2 cores fewer rows are compiled", "In quick mode there are the first and the"


@pytest.mark.parametrize("own, arch, cores, quick, says, paths", [
    ("sm_75", None, 2, False, "One new kind a row",
     ["load and store, mma 16x8x8", "its best schedule"]),
    ("sm_80", None, 2, False, FEWER, ["load and store, mma 16x8x8", "mma 16x8x16, cp.async"]),
    ("sm_90a", "sm_75", 2, False, FEWER, ["load and store, mma 16x8x8", "mma 16x8x16, cp.async",
                                          "TMA, wgmma", "its best schedule"]),
    ("sm_90a", "sm_75", 2, True, ENDS, ["load and store, mma 16x8x8",
                                        "mma 16x8x16, cp.async, TMA, wgmma, its best schedule"]),
    ("sm_75", None, 8, True, "One new kind a row",
     ["load and store, mma 16x8x8", "its best schedule"]),
])
def test_few_cores_and_quick_leave_rows_out(standing, capsys, own, arch, cores, quick, says, paths):
    page, jobs = standing(own, arch, cores=cores, quick=quick)
    assert [new for _, new, *_ in jobs] == paths
    assert not any(settings for _, _, settings, _ in jobs)
    assert page.failures == [] and len(events(page, "check")) == len(paths)
    told = " ".join(capsys.readouterr().out.split())
    assert f"only the instructions differ. {says}" in told


def test_quick_reads_the_first_of_each_kind(capsys):
    page = run_section("architectures", rehearsal_device(), quick=True)
    assert page.failures == []
    table = capsys.readouterr().out.split("What became of")[0]
    assert [arch for arch in SHOWN if re.search(rf"^ *{arch} ", table, re.MULTILINE)] == [
        *architectures.FIRSTS]
    assert [row(table, arch).split()[-1].isdigit() for arch in architectures.FIRSTS] == [
        False, False, True]


def test_a_wrong_path_is_not_timed(standing, capsys):
    page, _ = standing("sm_90a", failing=MUTATIONS["scaled"])
    assert len(page.failures) == 6
    assert "TFLOP/s with" not in capsys.readouterr().out


def test_tma_leaves_an_sm_room_for_one_block_where_there_were_two():
    """As the lesson says where TMA costs more than it saves."""
    blocks = []
    for arch, settings, new in architectures.PATHS[2:4]:
        assert new == ("cp.async", "TMA")[len(blocks)]
        code = codegen.generate(architectures.with_settings(settings), arch,
                                **sizes(4096, 4096, 4096), **architectures.SAME)
        found = codegen.resources(code)
        blocks.append(65536 // (found.registers * code.threads))
        assert blocks[-1] <= 233472 // (code.shared_bytes + 1024), "else memory is the limit"
    assert blocks == [2, 1]


@pytest.mark.gpu
def test_run_on_a_gpu(gpu, capsys):
    page = run_section("architectures", gpu)
    assert page.failures == []
    measured = events(page, "measurement")
    assert len(measured) == len(events(page, "check"))
    (headline,) = events(page, "headline")
    assert headline["variant"] == measured[-1]["variant"]
    assert measured[-1]["variant"].startswith(f"{gpu.arch} code")
    assert measured[-1]["ms"] < measured[0]["ms"]


@pytest.mark.gpu
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_89"])
def test_run_with_an_older_arch_on_a_gpu(gpu, arch, capsys):
    page = run_section("architectures", select("cuda", arch), quick=True)
    assert page.failures == []
    assert events(page, "measurement")[-1]["variant"].startswith(gpu.arch)
