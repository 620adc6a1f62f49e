"""sections/debugging.py"""

import contextlib
import inspect
import io
import os
import re
import subprocess
import sys
import types

import pytest
import tilelang
import torch

from sections import debugging
from sections.common import codegen
from sections.common.build import build
from sections.common.device import ARCHITECTURES, SHARED_BYTES, Device, select
from sections.common.page import Page
from sections.common.verify import compare
from sections.debugging import SCHEDULE, SHAPE, counted, first_read, holder, layouts
from tests.command import ROOT
from tests.made_results import DATA
from tests.mutations import MUTATIONS, events, rehearsal_device, run_section

ARGUMENTS = {**SHAPE, **SCHEDULE}
LINES = 36  # what T.print may print at most
READ = ("sm_75", "sm_80", "sm_90a", "sm_120a")


def code(kernel, arch, **more):
    return codegen.generate(kernel, arch, **ARGUMENTS, **more)


@pytest.fixture(scope="module")
def story():
    """The page and the text of one rehearsal."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        page = run_section("debugging", rehearsal_device())
    return page, text.getvalue()


# The planted bug


def test_the_bug_is_found_step_by_step(story):
    page, text = story
    assert page.failures == []
    assert [event["passed"] for event in events(page, "check")] == [True]
    assert events(page, "measurement") == []
    told = " ".join(text.split())
    assert "elements wrong, the first at 64: " in told
    assert "(row 0, column 64). That is the first element of block bx=1, by=0" in told
    assert "by=1 WRONG right WRONG" in told
    where, what, why = (told.index(f"Step {n}, {w}.") for n, w in
                        ((1, "where"), (2, "what"), (3, "why")))
    checked = told.index("checked 192x192x128 float16")
    assert where < what < why < checked < told.index("Landmarks in the CUDA")
    assert "debug_print_var(\"A_shared[0, 0]\"" in told[what:why]
    assert "(blockIdx.x * 64)" in told[why:checked] and "(blockIdx.y * 64)" in told[why:checked]


def test_the_two_kernels_differ_in_one_line():
    def lines(kernel):
        source = inspect.getsource(kernel.func.orig_func).splitlines()
        return [line.strip() for line in source if "T.copy" in line or "T.gemm" in line]

    pairs = zip(lines(debugging.product), lines(debugging.mended), strict=True)
    assert [pair for pair in pairs if pair[0] != pair[1]] == [
        ("T.copy(A[bx * block_M, k * block_K], A_shared)",
         "T.copy(A[by * block_M, k * block_K], A_shared)")]


def test_a_bug_that_does_not_show_fails_the_section(rehearsal, monkeypatch, capsys):
    monkeypatch.setattr(debugging, "product", debugging.mended)
    monkeypatch.setattr(debugging, "ask", lambda *arguments: None)
    monkeypatch.setattr(debugging, "read", lambda page, code: "")
    page = run_section("debugging", rehearsal, quick=True)
    assert any("the planted bug does not show" in failure for failure in page.failures)


@pytest.mark.parametrize("name", MUTATIONS)
def test_wrong_results_fail(rehearsal, name, monkeypatch, capsys):
    monkeypatch.setattr(debugging, "read", lambda page, code: "")  # no check in it, but nvcc
    page = run_section("debugging", rehearsal, mutate=MUTATIONS[name], quick=True)
    assert [event["passed"] for event in events(page, "check")] == [False]
    assert page.failures


@pytest.mark.parametrize("seed", [0, 1])
def test_the_mended_kernel_multiplies_any_shape(rehearsal, seed):
    shapes = [(1, 1, 1), (77, 77, 77), (100, 130, 33), (65, 200, 31)]
    jobs = [(debugging.mended, {**dict(zip("MNK", shape, strict=True)), **SCHEDULE})
            for shape in shapes]
    generator = torch.Generator().manual_seed(seed)
    for (M, N, K), kernel in zip(shapes, build(rehearsal, jobs), strict=True):
        A, B = (torch.randn(side, generator=generator).half() for side in ((M, K), (K, N)))
        verdict = compare(kernel(A, B), A.float() @ B.float(), torch.float16, reduction=K)
        assert verdict.passed, f"{M}x{N}x{K}: {verdict.problem}"


# What is read in the generated code


@pytest.mark.parametrize("arch", READ)
def test_the_line_that_reads_A_shows_the_bug(arch):
    wrong, right = (first_read(code(kernel, arch), "A")
                    for kernel in (debugging.product, debugging.mended))
    assert "blockIdx.x" in wrong and "blockIdx.y" not in wrong
    assert "blockIdx.y" in right and "blockIdx.x" not in right
    assert wrong.replace("blockIdx.x", "blockIdx.y") == right


@pytest.mark.parametrize("arch", READ)
@pytest.mark.parametrize("kernel", [debugging.product, debugging.mended])
def test_one_thread_of_one_block_prints(arch, kernel):
    """No print stands outside a guard, and none is left without `watch`."""
    lines = [line for _, line in codegen.body(code(kernel, arch, watch=True))]
    prints = [n for n, line in enumerate(lines) if "debug_print" in line]
    assert 1 <= len(prints) <= 2
    for n in prints:
        guard = lines[n - 1]
        assert "blockIdx.x" in guard and "blockIdx.y" in guard and "threadIdx.x" in guard
        assert guard.count("==") >= 3
    assert "debug_print" not in code(kernel, arch).source
    assert SHAPE["K"] // SCHEDULE["block_K"] + 1 <= LINES


@pytest.mark.parametrize("arch", READ)
def test_what_the_prose_says_of_the_mended_kernel(arch):
    marks = {mark.name: mark.meaning for mark in codegen.landmarks(code(debugging.mended, arch))}
    assert "stores 4 bytes" in marks["vector store"]  # two neighbours of float16
    assert ("wgmma" in marks) == (arch == "sm_90a") != ("ldmatrix" in marks)
    assert ("TMA load" in marks) == (arch in ("sm_90a", "sm_120a"))
    assert ("cp.async" in marks) == (arch == "sm_80")
    without = {mark.name for mark in codegen.landmarks(codegen.generate(
        debugging.mended, arch, **{**ARGUMENTS, "num_stages": 0}))}
    assert not without & {"TMA load", "cp.async", "mbarrier wait"}  # what "Try" says is gone
    assert {"vector load", "block barrier"} <= without


# Instructions and registers


@pytest.mark.parametrize("arch", READ)
def test_every_purpose_is_found_in_PTX(arch):
    ptx = codegen.assembly(code(debugging.mended, arch)).ptx
    found = {purpose: counted(patterns, ptx) for purpose, _, patterns, _ in debugging.LEVELS}
    matrices = found.pop("load matrices")
    assert (matrices is None) == (arch == "sm_90a")
    assert all(found.values()), found
    expected = {"sm_75": ("ld.global", "mma.m16n8k8"), "sm_80": ("cp.async.cg", "mma.m16n8k16"),
                "sm_90a": ("cp.async.bulk.tensor.2d", "wgmma.mma_async.m64n64k16"),
                "sm_120a": ("cp.async.bulk.tensor.2d", "mma.m16n8k16")}[arch]
    assert expected[0] in found["fetch a tile"] and expected[1] in found["multiply"]


SASS = """
        /*0270*/              @!P0 LDG.E.128.CONSTANT.SYS R4, [R2] ;
        /*0280*/                   LDGSTS.E.BYPASS.128 [R5], [R2.64] ;
        /*0290*/                   LDGDEPBAR ;
        /*0300*/                   DEPBAR.LE SB0, 0x1 ;
        /*0310*/                   BAR.SYNC 0x0 ;
        /*0320*/                   LDSM.16.M88.4 R8, [R7] ;
        /*0330*/                   HMMA.16816.F32 R8, R4, R6, R8 ;
        /*0340*/                   HMMA.16816.F32 R8, R4, R6, R8 ;
        /*0350*/                   STG.E [R2.64], R8 ;
"""


def test_instructions_are_counted_in_SASS():
    found = {purpose: counted(patterns, SASS) for purpose, _, _, patterns in debugging.LEVELS}
    assert found == {"fetch a tile": "1 x LDGSTS.E.BYPASS.128", "wait for it": "1 x DEPBAR.LE",
                     "load matrices": "1 x LDSM.16.M88.4", "multiply": "2 x HMMA.16816.F32",
                     "store the result": "1 x STG.E"}
    hopper = SASS.replace("HMMA.16816", "HGMMA.64x64x16").replace("LDGSTS", "UTMALDG.2D; LDGSTS")
    assert counted(debugging.LEVELS[3][3], hopper) == "2 x HGMMA.64x64x16.F32"
    assert counted(debugging.LEVELS[0][3], hopper) == "1 x UTMALDG.2D"
    assert counted(("HGMMA",), SASS) is None


def test_cuobjdump_is_used_where_it_is(rehearsal, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    tool = tmp_path / "cuobjdump"
    tool.write_text(f"#!/bin/sh\ntest \"$1\" = -sass && test -s \"$2\" && cat <<END\n{SASS}END\n")
    tool.chmod(0o755)
    page = run_section("debugging", rehearsal, quick=True)
    text = capsys.readouterr().out
    assert page.failures == []
    assert "2 x HMMA.16816.F32" in text and "SASS is missing" not in text


def test_without_nvcc_one_line_says_so(rehearsal, monkeypatch, capsys):
    monkeypatch.setattr(codegen, "nvcc_path", lambda: None)
    page = run_section("debugging", rehearsal, quick=True)
    text = capsys.readouterr().out
    assert page.failures == []
    assert "nvcc is not here" in text and "PTX  " not in text and "registers a thread" not in text


def test_registers_and_what_fits_an_SM(story):
    _, text = story
    told = " ".join(text.split())
    assert "reports 240 registers a thread (at the start; reg_dealloc and reg_alloc" in told
    assert "nothing spilled" in told
    assert "room for 1 block of 256 threads" in told


def takes(kernel, arch, **more):
    found = codegen.resources(code(kernel, arch, **more))
    assert found is not None, "nvcc is needed"
    assert found.spill_bytes == 0
    assert code(kernel, arch, **more).shared_bytes <= SHARED_BYTES[arch]


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_nvcc_takes_the_mended_kernel(arch):
    takes(debugging.mended, arch)


@pytest.mark.parametrize("arch", [
    pytest.param(arch, marks=[] if arch in ("sm_75", "sm_90a") else pytest.mark.slow)
    for arch in ARCHITECTURES])
@pytest.mark.parametrize("kernel", [debugging.product, debugging.mended])
def test_nvcc_takes_what_prints(arch, kernel):
    takes(kernel, arch, watch=True)


# Who holds what


@pytest.mark.parametrize("arch", READ)
def test_every_element_is_held_once(arch):
    layout = layouts(debugging.mended, arch, ARGUMENTS)["C_local"]
    places = {holder(layout, row, column) for row in range(64) for column in range(64)}
    assert places == {(thread, register) for thread in range(128) for register in range(32)}
    # The C fragment of mma.m16n8 and of wgmma, as PTX defines it.
    for row in range(16):
        for column in range(8):
            assert holder(layout, row, column) == (
                row % 8 * 4 + column // 2, row // 8 * 2 + column % 2)
    assert int(layout.thread_range.min) == (0 if arch in ("sm_75", "sm_80") else 128)


def test_the_layout_is_told(story):
    _, text = story
    told = " ".join(text.split())
    assert "9 t4.r2 t4.r3 t5.r2 t5.r3 t6.r2" in told
    assert "A row lies in 4 threads" in told and "Add 128 to the thread" in told
    assert "C_local[9, 3] is in register 3 of thread 133." in told


def test_layouts_are_kept_for_pictures(story):
    page, _ = story
    kept = {event["name"]: event["value"] for event in events(page, "data")}
    assert kept == DATA["debugging"]  # the pictures' tests draw the real thing


@pytest.mark.parametrize("arch", READ)
@pytest.mark.parametrize("change", [{"num_stages": 0}, {"block_N": 32}])
def test_swizzled_pieces_lie_side_by_side_and_in_all_banks(arch, change):
    arguments = {**ARGUMENTS, **change}
    layout = layouts(debugging.mended, arch, arguments)["B_shared"]
    rows = debugging.swizzle_facts(layout, arch, arguments)["pieces"]
    pieces = [[int(piece) for piece in row.split()] for row in rows]
    assert sorted(sum(pieces, [])) == list(range(arguments["block_N"]))  # 8 rows of block_N / 8
    assert all(len({row[column] % 8 for row in pieces}) == 8 for column in range(len(pieces[0])))


def test_the_picture_is_of_the_same_layout(rehearsal, monkeypatch, capsys):
    drawn = []
    matplotlib = types.ModuleType("matplotlib")
    matplotlib.use = drawn.append
    matplotlib.pyplot = types.SimpleNamespace(close=drawn.append)
    monkeypatch.setitem(sys.modules, "matplotlib", matplotlib)
    monkeypatch.setattr(tilelang.tools, "plot_layout", lambda *arguments, **options: (
        print("Saved"), drawn.append((arguments, options))))
    layout = layouts(debugging.mended, "sm_80", ARGUMENTS)["C_local"]
    debugging.picture(Page(rehearsal), layout)
    (corner, folder, name), options = drawn[1]
    assert drawn[0] == "Agg" and drawn[2] == "all" and options == {"formats": "png"}
    assert all(holder(corner, row, column) == holder(layout, row, column)
               for row in range(16) for column in range(8))
    text = capsys.readouterr().out
    assert f"{folder}/{name}.png" in text and "Saved" not in text


def test_without_matplotlib_one_line_says_so(rehearsal, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    debugging.picture(Page(rehearsal), None)
    assert capsys.readouterr().out.count("matplotlib is not here") == 1


def test_another_architecture_is_read(capsys):
    page = run_section("debugging", rehearsal_device("sm_75"), quick=True)
    text = capsys.readouterr().out
    assert page.failures == []
    assert "mma.m16n8k8" in text and "wgmma" not in text and "Add 128" not in text


# On a GPU


class Built(Exception):
    """Stands for what a section does after its build."""


@pytest.mark.parametrize("cores, quick, compiled", [(8, False, 5), (2, False, 3), (8, True, 3)])
def test_few_cores_and_quick_compile_less(monkeypatch, cores, quick, compiled):
    page = Page(Device("gpu", "sm_75", SHARED_BYTES["sm_75"], "Tesla T4", "sm_75", 40), quick)

    def build(jobs, read):
        raise Built(len(jobs))

    monkeypatch.setattr(debugging, "cores", lambda: cores)
    monkeypatch.setattr(page, "build", build)
    with pytest.raises(Built, match=str(compiled)):
        debugging.run(page)


def printed_on_a_gpu(*options):
    """The section in a process of its own, through a pipe: its text, and what T.print printed."""
    result = subprocess.run([sys.executable, "-m", "sections.debugging", *options],
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert result.returncode == 0, result.stdout[-3000:]
    return result.stdout, re.findall(
        r"^msg='(.*)' BlockIdx=\((\d+), (\d+), 0\), ThreadIdx=\((\d+), 0, 0\): "
        r"dtype=\w+ value=(.*)$", result.stdout, re.MULTILINE)


@pytest.mark.gpu
def test_print_prints_a_few_lines_in_place(gpu):
    text, printed = printed_on_a_gpu()
    steps = SHAPE["K"] // SCHEDULE["block_K"]
    assert text.count("msg='") == len(printed) == steps + 1 <= LINES
    assert text.index("Step 2, what") < text.index("msg='A_shared") < text.index("Step 3, why")
    assert text.rindex("msg='A_shared") < text.index("Block by=0 should hold row 0")
    assert text.index("T.print proves it") < text.index("msg='C_local") < text.index("Lesson:")
    A, B = debugging.inputs(types.SimpleNamespace(device=gpu), **SHAPE)
    held = [float(value) for *_, value in printed]
    assert held[:steps] == pytest.approx([A[64, 32 * k].item() for k in range(steps)], abs=1e-6)
    assert held[steps] == pytest.approx((A.float() @ B.float())[9, 3].item(), abs=1e-2)
    layout = layouts(debugging.mended, gpu.arch, ARGUMENTS)["C_local"]
    first = int(layout.thread_range.min)
    assert {tuple(map(int, line[1:4])) for line in printed[:steps]} == {(1, 0, first)}
    assert tuple(map(int, printed[steps][1:4])) == (0, 0, first + holder(layout, 9, 3)[0])


@pytest.mark.gpu
def test_print_ends_before_the_next_section(tmp_path):
    """Through the tour's own command, and through a pipe."""
    done = subprocess.run([sys.executable, ROOT / "tilelang_tour.py", "--quick", "--no-install",
                           "--only", "debugging,architectures"], cwd=tmp_path,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
    section = done.stdout[: done.stdout.index("] architectures: ")]
    told = section[section.index("Step 2, what") : section.index("Step 3, why")]
    assert 1 <= told.count("msg='") == done.stdout.count("msg='") <= LINES


@pytest.mark.gpu
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_89"])
def test_older_code_prints_the_same(gpu, arch):
    printed = printed_on_a_gpu("--quick", "--arch", arch)[1]
    native = printed_on_a_gpu("--quick")[1]
    assert [line[-1] for line in printed] == [line[-1] for line in native]
    assert len(printed) == SHAPE["K"] // SCHEDULE["block_K"]


@pytest.mark.gpu
@pytest.mark.parametrize("cores, cases", [
    (8, ["192x192x128 float16", "4096x4096x4096 float16"]), (2, ["192x192x128 float16"]),
])
def test_measured_on_a_gpu(gpu, monkeypatch, capsys, cores, cases):
    monkeypatch.setattr(debugging, "cores", lambda: cores)
    page = run_section("debugging", gpu)
    assert page.failures == []
    assert [event["case"] for event in events(page, "measurement")] == cases
    text = capsys.readouterr().out
    assert "the tour's timer" in text
    assert ("Left out with 2 cores" in text) == (cores == 2)


@pytest.mark.gpu
@pytest.mark.parametrize("name", MUTATIONS)
def test_wrong_results_fail_on_a_gpu(gpu, name, capsys):
    page = run_section("debugging", gpu, mutate=MUTATIONS[name], quick=True)
    assert page.failures
    assert events(page, "measurement") == []


@pytest.mark.gpu
def test_shapes_on_a_gpu(gpu):
    shapes = [(1, 1, 1), (77, 77, 77), (100, 130, 33), (129, 257, 65), (512, 768, 1024)]
    for device in (gpu, select("cuda", "sm_75"), select("cuda", "sm_80")):
        jobs = [(debugging.mended, {**dict(zip("MNK", shape, strict=True)), **SCHEDULE})
                for shape in shapes]
        for (M, N, K), kernel in zip(shapes, build(device, jobs), strict=True):
            A, B = (torch.randn(side, device="cuda").half() for side in ((M, K), (K, N)))
            first = kernel(A, B)
            verdict = compare(first, debugging.reference(A, B), torch.float16, reduction=K)
            assert verdict.passed, f"{device.arch} {M}x{N}x{K}: {verdict.problem}"
            assert all(torch.equal(kernel(A, B), first) for _ in range(50))
