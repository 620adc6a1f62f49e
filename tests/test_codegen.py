"""Generated CUDA without a GPU: exact figures, landmarks, registers, and the cache."""

import json
from dataclasses import replace

import pytest
import tilelang
import tilelang.language as T

from sections.common import codegen
from sections.common.codegen import (
    LANDMARKS,
    NvccError,
    body,
    count,
    generate,
    landmarks,
    resources,
)
from tests import kernels_for_tests
from tests.kernels_for_tests import add, gemm, scale, softmax

SQUARE = {"M": 1024, "N": 1024, "K": 1024}


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """An empty cache: its folder."""
    monkeypatch.setenv("TILELANG_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(codegen, "_memory", {})
    return tmp_path / "tour"


def names(code) -> set[str]:
    return {landmark.name for landmark in landmarks(code)}


def found(code, name: str):
    (landmark,) = landmarks(code, (name,))
    return landmark


# Figures


def test_shared_bytes_and_threads_are_exact():
    stages = [generate(gemm, "sm_90a", **SQUARE, num_stages=n) for n in (2, 3, 4)]
    # A stage holds a 128x32 and a 32x128 tile of float16.
    assert [code.shared_bytes for code in stages] == [32768, 49152, 65536]
    assert {code.threads for code in stages} == {256}  # 128 compute, 128 only copy
    assert {code.name for code in stages} == {"gemm_kernel"}
    assert generate(gemm, "sm_120a", **SQUARE).shared_bytes == 49152


def test_a_kernel_without_shared_memory():
    code = generate(add, "sm_75", N=4096)
    assert (code.shared_bytes, code.threads, code.arch) == (0, 128, "sm_75")


def test_generated_code_equals_a_real_compile(monkeypatch):
    """Same text as tilelang.compile makes, the kernel's own pass_configs included."""
    monkeypatch.setenv("TILELANG_DISABLE_CACHE", "1")
    plain = generate(gemm, "sm_90a", **SQUARE)
    monkeypatch.setattr(gemm, "pass_configs", {
        tilelang.PassConfigKey.TL_DISABLE_WARP_SPECIALIZED: True,
        tilelang.PassConfigKey.TL_ENABLE_FAST_MATH: True,
    })
    code = generate(gemm, "sm_90a", **SQUARE)
    target = {"kind": "cuda", "arch": "sm_90a"}
    program = codegen.trace(gemm, target, SQUARE)
    kernel = tilelang.compile(program.tir, target=target, pass_configs=gemm.pass_configs)
    assert codegen.from_artifact(kernel.artifact, "sm_90a", "--use_fast_math") == code
    assert code.source != plain.source
    assert "warp roles" in names(plain) and "warp roles" not in names(code)
    assert (plain.nvcc_flags, code.nvcc_flags) == ("", "--use_fast_math")


# Landmarks

SEEN = {
    "sm_75": {"vector load", "ldmatrix", "mma.sync"},
    "sm_80": {"cp.async", "cp.async commit", "cp.async wait", "ldmatrix", "mma.sync"},
    "sm_90a": {"TMA load", "mbarrier init", "mbarrier expect", "mbarrier wait", "mbarrier arrive",
               "warp roles", "fewer registers", "more registers", "wgmma", "wgmma commit",
               "wgmma wait"},
    "sm_120a": {"TMA load", "mbarrier wait", "ldmatrix", "mma.sync"},
}


@pytest.mark.parametrize("arch", SEEN)
def test_landmarks_of_each_architecture(arch):
    code = generate(gemm, arch, **SQUARE)
    always = {"shared memory", "block barrier", "narrowing", "vector store"}
    assert names(code) >= SEEN[arch] | always
    marks_of_one = {name for seen in SEEN.values() for name in seen} - {"vector load"}
    newer = {"elected thread", "fewer registers", "more registers", "warp roles"}
    mbarriers = {name for name in marks_of_one if name.startswith("mbarrier")}
    assert names(code) & marks_of_one <= SEEN[arch] | newer | mbarriers
    if arch in ("sm_75", "sm_80"):
        assert not names(code) & (newer | mbarriers)


@pytest.mark.parametrize("arch", SEEN)
def test_line_numbers_hold_the_text(arch):
    lines = generate(gemm, arch, **SQUARE).source.split("\n")
    marks = landmarks(generate(gemm, arch, **SQUARE))
    assert [mark.line for mark in marks] == sorted(mark.line for mark in marks)
    for mark in marks:
        text = mark.code.removeprefix("...").removesuffix("...")
        assert len(text) > 10 and text in lines[mark.line - 1], mark
        assert len(mark.code) <= 70, mark
        assert not lines[mark.line - 1].startswith("#include")


def test_what_the_landmarks_say():
    assert "16x8 by 8x8" in found(generate(gemm, "sm_75", **SQUARE), "mma.sync").meaning
    assert "16x16 by 16x8" in found(generate(gemm, "sm_80", **SQUARE), "mma.sync").meaning
    assert "copies 16 bytes" in found(generate(gemm, "sm_80", **SQUARE), "cp.async").meaning
    code = generate(gemm, "sm_90a", **SQUARE, swizzle=True)
    assert "64x16 by 16x128" in found(code, "wgmma").meaning
    assert "panels of 8" in found(code, "L2 swizzle").meaning
    assert "first 128 threads" in found(code, "warp roles").meaning
    assert "stores 4 bytes" in found(code, "vector store").meaning  # two float16
    assert "L2 swizzle" not in names(generate(gemm, "sm_90a", **SQUARE))


def test_no_meaning_has_an_open_place():
    codes = [generate(gemm, arch, **SQUARE) for arch in SEEN]
    codes += [generate(softmax, "sm_90a", M=64, N=1024, verbose=True)]
    codes += [generate(gemm, "sm_90a", M=200, N=300, K=100), generate(add, "sm_90a", N=1003)]
    marks = [mark for code in codes for mark in landmarks(code)]
    for mark in marks:
        assert "{" not in mark.meaning and "None" not in mark.meaning, mark
        assert mark.meaning.isascii() and len(mark.meaning) < 75, mark
    rare = {"partial barrier", "stmatrix", "TMA store"}  # not made by these kernels
    seen = {mark.name for mark in marks} | rare | {"L2 swizzle"}
    assert seen == {name for _, name, _ in LANDMARKS}


@pytest.mark.parametrize("arch", ["sm_75", "sm_90a"])
def test_guard_for_ragged_sizes_only(arch):
    even, ragged = generate(add, arch, N=4096), generate(add, arch, N=4099)
    assert names(even) == {"vector load", "vector store"}
    assert names(ragged) == {"bounds guard", "single element"}
    guard = found(ragged, "bounds guard")
    assert guard.code.startswith("if (") and "< 4099" in ragged.source.split("\n")[guard.line - 1]


def test_guards_of_a_ragged_gemm():
    code = generate(gemm, "sm_90a", M=200, N=300, K=100)
    assert {"bounds guard", "guarded cp.async"} <= names(code)
    assert not {"bounds guard", "guarded cp.async"} & names(generate(gemm, "sm_90a", **SQUARE))


@pytest.mark.parametrize(
    "dtype, arch, size", [(T.float32, "sm_80", 16), (T.float16, "sm_80", 16),
                          (T.float32, "sm_100a", 32)])
def test_bytes_of_a_vector_load(dtype, arch, size):
    code = generate(add, arch, N=4096, dtype=dtype)
    assert f"loads {size} bytes" in found(code, "vector load").meaning
    assert f"stores {size} bytes" in found(code, "vector store").meaning


def test_reductions_exponentials_and_printing():
    quiet = generate(softmax, "sm_90a", M=64, N=1024)
    loud = generate(softmax, "sm_90a", M=64, N=1024, verbose=True)
    assert names(loud) - names(quiet) == {"print"}
    assert {"AllReduce", "exponential", "narrowing", "vector load"} <= names(quiet)
    assert "(Max)" in found(quiet, "AllReduce").meaning
    assert count(quiet, "AllReduce") == 2 and count(quiet, "wgmma") == 0


def test_only_selects_and_refuses_unknown_names():
    code = generate(gemm, "sm_90a", **SQUARE)
    assert [mark.name for mark in landmarks(code, ("wgmma", "TMA load"))] == ["TMA load", "wgmma"]
    assert landmarks(code, ("cp.async",)) == []
    with pytest.raises(ValueError, match="no landmark is named 'wgma'.*wgmma"):
        landmarks(code, ("wgma",))


def test_body_is_the_definition():
    code = generate(add, "sm_90a", N=4096)
    numbered = body(code)
    lines = code.source.split("\n")
    assert [(number, lines[number - 1]) for number, _ in numbered] == numbered
    assert "__launch_bounds__(128, 1) add_kernel(" in numbered[0][1]
    assert numbered[-1][1] == "}"
    assert sum("__global__" in line for _, line in numbered) == 1


# nvcc


def test_registers_of_a_small_kernel():
    found = resources(generate(add, "sm_90a", N=4096))
    assert 16 <= found.registers <= 255
    assert (found.spill_bytes, found.static_shared_bytes) == (0, 0)


def test_barriers_are_static_shared_memory():
    # Six barriers of 8 bytes; the tiles behind them start at a multiple of 1024.
    assert resources(generate(gemm, "sm_90a", **SQUARE)).static_shared_bytes == 1024


def test_spills_are_counted():
    code = generate(gemm, "sm_90a", M=200, N=300, K=100)  # 128 threads, all of them compute
    source = code.source.replace("__launch_bounds__(128, 1)", "__launch_bounds__(512, 1)")
    starved = resources(replace(code, source=source))
    assert starved.registers <= 128 and starved.spill_bytes > 0


def test_flags_reach_nvcc():
    code = generate(add, "sm_90a", N=4096)
    picky = replace(code, source="#ifndef WANTED\n#error no flag\n#endif\n" + code.source)
    with pytest.raises(NvccError, match="no flag"):
        resources(picky)
    assert resources(replace(picky, nvcc_flags="-DWANTED")).registers > 0


def test_an_error_of_nvcc_is_short_and_names_the_line(fresh):
    code = generate(add, "sm_90a", N=4096)
    lines = code.source.split("\n")
    line = found(code, "vector store").line
    lines[line - 1] += " nonsense = 1;"
    with pytest.raises(NvccError) as error:
        resources(replace(code, source="\n".join(lines)))
    message = str(error.value)
    assert f"kernel.cu({line}): error" in message and "nonsense" in message
    assert "add_kernel for sm_90a" in message and len(message) < 500


def test_an_architecture_nvcc_does_not_know(fresh):
    with pytest.raises(NvccError, match="(?i)unsupported gpu architecture"):
        resources(replace(generate(add, "sm_90a", N=4096), arch="sm_10"))


def test_nvcc_has_a_time_limit(fresh, monkeypatch):
    monkeypatch.setattr(codegen, "NVCC_SECONDS", 0.01)
    with pytest.raises(NvccError, match="not done with add_kernel for sm_90a after 0.01 s"):
        resources(generate(add, "sm_90a", N=4096))


def test_without_nvcc_there_are_no_resources(fresh, monkeypatch):
    monkeypatch.setattr(codegen, "nvcc_path", lambda: None)
    assert resources(generate(add, "sm_90a", N=4096)) is None


def test_nvcc_is_where_tilelang_looks_for_it(tmp_path, monkeypatch):
    assert codegen.nvcc_path() == codegen.nvcc.get_nvcc_compiler()
    monkeypatch.setattr(codegen.nvcc, "CUDA_HOME", str(tmp_path))  # named, and nothing there
    assert codegen.nvcc_path() is None
    monkeypatch.setattr(codegen.nvcc, "CUDA_HOME", "")
    assert codegen.nvcc_path() is None


# The cache


def refuse(*arguments, **options):
    raise AssertionError("this should have come from the cache")


def test_nothing_is_computed_twice(fresh, monkeypatch):
    code = generate(add, "sm_90a", N=4096)
    report = resources(code)
    monkeypatch.setattr(tilelang, "lower", refuse)
    monkeypatch.setattr(codegen, "_ptxas_report", refuse)
    assert generate(add, "sm_90a", N=4096) == code
    codegen._memory.clear()  # as in another process
    assert generate(add, "sm_90a", N=4096) == code
    assert resources(code) == report
    assert len(list(fresh.iterdir())) == 2  # and no temporary file is left
    with pytest.raises(AssertionError, match="cache"):
        generate(add, "sm_90a", N=4097)
    with pytest.raises(AssertionError, match="cache"):
        generate(add, "sm_89", N=4096)


def test_settings_are_part_of_the_key(fresh, monkeypatch):
    generate(add, "sm_90a", N=4099)
    monkeypatch.setattr(tilelang, "lower", refuse)
    monkeypatch.setattr(add, "pass_configs", {"tl.disable_safe_memory_legalize": True})
    with pytest.raises(AssertionError, match="cache"):
        generate(add, "sm_90a", N=4099)


def test_a_changed_constant_behind_a_macro_is_seen(fresh, monkeypatch):
    twice = generate(scale, "sm_90a", N=4096)
    monkeypatch.setattr(kernels_for_tests, "FACTOR", 2.0000002)  # the next float32 after 2
    assert generate(scale, "sm_90a", N=4096).source != twice.source
    monkeypatch.undo()


@pytest.mark.parametrize("damage", [
    b"", b"{", b"null", b"[1, 2]", b"{}", b'{"name": "x"}', b"\xff\xfe\x00", b'{"lines": 1}'])
def test_damaged_files_are_computed_anew(fresh, damage):
    code = generate(add, "sm_90a", N=4096)
    (file,) = fresh.iterdir()
    file.write_bytes(damage)
    codegen._memory.clear()
    assert generate(add, "sm_90a", N=4096) == code
    assert json.loads(file.read_text())["source"] == code.source  # and mended


def test_an_unwritable_folder_is_no_error(fresh, monkeypatch, capfd):
    fresh.write_text("a file where the folder should be")
    code = generate(add, "sm_90a", N=4096)
    monkeypatch.setattr(tilelang, "lower", refuse)
    assert generate(add, "sm_90a", N=4096) == code  # this process still remembers
    assert capfd.readouterr() == ("", "")


def test_a_disabled_cache_is_left_alone(fresh, monkeypatch):
    monkeypatch.setenv("TILELANG_DISABLE_CACHE", "1")
    generate(add, "sm_90a", N=4096)
    assert not fresh.exists()
