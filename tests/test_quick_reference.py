"""sections/runner/quick_reference.py: every snippet runs, and the page fits a terminal."""

import importlib.util
import os
import re
import subprocess
import sys
from functools import partialmethod
from importlib import metadata
from pathlib import Path

import pytest
import tilelang
import torch
from tilelang.autotuner import AutoTuner
from tilelang.env import Environment, EnvVar, _find_cuda_home

from sections.common import codegen
from sections.common.build import build
from sections.common.rehearsal import COMPILE_FLAGS, PASS_CONFIGS
from sections.common.verify import compare
from sections.runner import quick_reference
from sections.runner.environment import TESTED
from sections.runner.quick_reference import REFERENCE, render
from tests.mutations import rehearsal_device

SNIPPETS = [snippet for members in REFERENCE.values() for snippet, *_ in members]
SHAPE = {"M": 128, "N": 256, "K": 96}

HEAD = """
import tilelang
import tilelang.language as T
from tilelang.layout import make_swizzled_layout

"""
# A whole kernel; a line between <> is a snippet.
GEMM = """
<@tilelang.jit>
def gemm(A, B, block_M: int = 64):
    <M, N, K = T.const("M N K")>
    <A: T.Tensor[[M, K], T.float16]>
    B: T.Tensor[[K, N], T.float16]
    <C = T.empty((M, N), T.float16)>
    <tiles = T.ceildiv(N, 64)>
    <with T.Kernel(4, 2, threads=128) as (bx, by):>
        <A_shared = T.alloc_shared((64, 32), T.float16)>
        B_shared = T.alloc_shared((32, 64), T.float16)
        C_local = T.alloc_fragment((64, 64), T.float32)
        <policy = T.GemmWarpPolicy.FullRow>
        <T.use_swizzle(panel_size=8)>
        <T.clear(C_local)>
        <for k in T.Pipelined(K // 32, num_stages=3):>
            <T.copy(A[by * 64, k * 32], A_shared)>
            T.copy(B[k * 32, bx * 64], B_shared)
            if block_M == 64:
                <T.gemm(A_shared, B_shared, C_local)>
            else:
                T.gemm(A_shared, B_shared, C_local, policy=policy)
        <T.copy(C_local, C[by * 64, bx * 64])>
    return C
"""
DYNAMIC = """
@tilelang.jit
def double(A):
    <n = T.dynamic("n")>
    A: T.Tensor[[n], T.float32]
    B = T.empty((n,), T.float32)
    with T.Kernel(T.ceildiv(n, 64), threads=64) as block:
        for i in T.Parallel(64):
            B[block * 64 + i] = A[block * 64 + i] * 2
    return B
"""
TUNED = """
configs = [{"block": 32}, {"block": 64}]

<@tilelang.autotune(configs=configs)>
@tilelang.jit
def double(A, block: int = 16):
    N = T.const("N")
    A: T.Tensor[[N], T.float32]
    B = T.empty((N,), T.float32)
    with T.Kernel(T.ceildiv(N, block), threads=32) as tile:
        for i in T.Parallel(block):
            B[tile * block + i] = A[tile * block + i] * 2
    return B
"""
# A kernel around one snippet.
AROUND = """
@tilelang.jit
def around(X, total):
    X: T.Tensor[[64, 64], T.float32]
    total: T.Tensor[[64], T.float32]
    Y = T.empty((64, 64), T.float32)
    with T.Kernel(1, threads=128) as block:
        A_shared = T.alloc_shared((64, 32), T.float16)
        Q = T.alloc_shared((64, 32), T.float16)
        K = T.alloc_shared((64, 32), T.float16)
        S = T.alloc_fragment((64, 64), T.float32)
        <x = T.alloc_fragment((64, 64), T.float32)>
        row_max = T.alloc_fragment((64,), T.float32)
        row_sum = T.alloc_fragment((64,), T.float32)
        T.copy(X, x)
        for tile in (A_shared, Q, K):
            T.copy(X[0, 0], tile)
        for tile in (S, row_max, row_sum):
            T.clear(tile)
        SNIPPET
        T.copy(row_max, total)
        T.copy(row_sum, total)
        T.copy(A_shared, Y[0, 32])
        T.copy(S, Y)
        T.copy(x, Y)
    return Y
"""
ELEMENT = """for i, j in T.Parallel(64, 64):
            v = x[i, j]
            <{}>
            x[i, j] = y""".format
# The lines around a snippet, and what they add to the CUDA.
ALONE = (
    ("<mine = T.alloc_local((4,), T.float32)>\n        mine[0] = 2.5\n        total[0] = mine[0]",
     "float mine[4]"),
    ("<count = T.alloc_var(T.int32, init=0)>\n        total[count] = 1.0", "int count"),
    ("<T.fill(row_max, -T.infinity(T.float32))>", "-CUDART_INF_F"),
    ("<T.gemm(Q, K, S, transpose_B=True)>", "wgmma_ss"),
    ("<for i, j in T.Parallel(64, 64):>\n            x[i, j] *= 3.25", "3.25"),
    ("<for i in T.serial(8):>\n            total[i] = 1.0", "1.000000e+00"),
    ("<for i in T.unroll(8):>\n            total[i] = 1.0", "#pragma unroll"),
    ("<T.reduce_max(x, row_max, dim=1)>", "tl::MaxOp"),
    ("<T.reduce_sum(x, row_sum, dim=1)>", "tl::SumOp"),
    ("<T.cumsum(A_shared, dim=1)>", "tl::CumSum"),
    ("for i in T.Parallel(64):\n            <T.atomic_add(total[i], row_sum[i])>", "AtomicAdd"),
    (ELEMENT("y = T.exp2(v * 1.44269504)"), "exp2"),
    (ELEMENT("y = T.max(v, 0.0)"), "max("),
    (ELEMENT("y = T.if_then_else(i >= j, v, 0.0)"), "condval = v"),
    (ELEMENT("y = T.cast(v, T.float16)"), "__half22float2"),
    ("<layout = make_swizzled_layout(A_shared)>\n        <T.annotate_layout({A_shared: layout})>",
     "& 63) >> 5"),
    ('<T.print(A_shared[0, 0], msg="tile")>', 'debug_print_var("tile"'),
    ("<who = T.Fragment((8, 8), lambda i, j: (i, j))>", ""),
)


def program(folder, text: str):
    """The module of a program whose snippets are marked by <>."""
    marked = re.findall(r"^ *<(.*)>$", text, re.MULTILINE)
    unknown = [snippet for snippet in marked if snippet not in SNIPPETS]
    assert not unknown, f"not in the reference: {unknown}"
    file = folder / f"program_{abs(hash(text))}.py"
    file.write_text(HEAD + re.sub(r"^( *)<(.*)>$", r"\1\2", text, flags=re.MULTILINE))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(snippet: str, names: dict) -> dict:
    """Execute a host-side snippet; its names afterwards."""
    assert snippet in SNIPPETS
    exec(snippet, names)
    return names


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("programs")


@pytest.fixture(scope="module")
def gemm(folder):
    """The kernel GEMM, for the CPU where it is called."""
    rehearsal_device()
    kernel = program(folder, GEMM).gemm
    kernel.pass_configs, kernel.compile_flags = dict(PASS_CONFIGS), list(COMPILE_FLAGS)
    return kernel


def operands():
    generator = torch.Generator().manual_seed(0)
    return (torch.randn(128, 96, generator=generator).half(),
            torch.randn(96, 256, generator=generator).half())


# Kernels


def test_the_snippets_of_a_gemm_multiply(gemm, rehearsal):
    A, B = operands()
    for block_M in (64, 65):
        (kernel,) = build(rehearsal, [(gemm, {**SHAPE, "block_M": block_M})])
        assert compare(kernel(A, B), A.float() @ B.float(), torch.float16, reduction=96).passed
    source = codegen.generate(gemm, "sm_90a", **SHAPE).source
    assert "rasterization2DRow<8>" in source and "tma_load" in source and "wgmma" in source


def test_a_dynamic_size(folder, rehearsal):
    (kernel,) = build(rehearsal, [(program(folder, DYNAMIC).double, {})])
    for size in (1, 64, 100):
        assert torch.equal(kernel(torch.ones(size)), torch.full((size,), 2.0))


@pytest.mark.parametrize("lines, adds", ALONE, ids=[re.search("<(.*)>", a)[1] for a, _ in ALONE])
def test_a_snippet_alone(folder, lines, adds):
    bare, with_it = (
        codegen.generate(program(folder, AROUND.replace("SNIPPET", text)).around, "sm_90a").source
        for text in ("pass", lines))
    assert not adds or with_it.count(adds) > bare.count(adds)


def test_a_fragment_says_who_holds_what(folder):
    import tilelang.language as T

    who = run("who = T.Fragment((8, 8), lambda i, j: (i, j))", {"T": T})["who"]
    assert [int(place[0]) for place in (who.map_forward_thread([3, 5]),
                                        who.map_forward_index([3, 5]))] == [3, 5]


# Host


def test_call_compile_and_profile(gemm, monkeypatch):
    A, B = operands()
    names = run("C = gemm(A, B, block_M=64)", {"gemm": gemm, "A": A, "B": B})
    assert compare(names["C"], A.float() @ B.float(), torch.float16, reduction=96).passed
    names = run("kernel = gemm.compile(M=128, N=128, K=64)", names)
    assert names["kernel"](A[:, :64].contiguous(), B[:64, :128].contiguous()).shape == (128, 128)
    # Without a GPU the clock on the wall is the only timer.
    timer = tilelang.profiler.do_bench
    monkeypatch.setattr(tilelang.profiler, "do_bench",
                        lambda function, **options: timer(function, **{**options, "rep": 1,
                                                                      "backend": "wall"}))
    assert 0 < run("ms = kernel.get_profiler().do_bench()", names)["ms"] < 10_000


def test_pass_configs_reach_the_compiler(gemm):
    configs = run('pass_configs = {"tl.enable_fast_math": True}', {})["pass_configs"]
    fast = tilelang.jit(pass_configs=configs)(gemm.func.orig_func)
    assert codegen.generate(fast, "sm_90a", **SHAPE).nvcc_flags == "--use_fast_math"


def test_autotune_keeps_the_fastest(rehearsal, tmp_path, monkeypatch, folder):
    monkeypatch.chdir(tmp_path)  # the tuner writes a log there
    monkeypatch.setenv("TILELANG_AUTO_TUNING_DISABLE_CACHE", "1")
    monkeypatch.setattr(AutoTuner, "set_profile_args",
                        partialmethod(AutoTuner.set_profile_args, backend="wall"))
    tuned = program(folder, TUNED).double
    assert torch.equal(tuned(torch.ones(100)), torch.full((100,), 2.0))


def test_reading_the_generated_code(gemm, capsys):
    program_ = codegen.trace(gemm, {"kind": "cuda", "arch": "sm_90a"}, SHAPE)
    kernel = tilelang.compile(program_.tir, target={"kind": "cuda", "arch": "sm_90a"})
    run("print(kernel.get_kernel_source())", {"kernel": kernel})
    assert "tl::wgmma_ss" in capsys.readouterr().out
    run("kernel.show_ptx()", {"kernel": kernel})
    assert "wgmma.mma_async" in capsys.readouterr().out


# Environment


@pytest.mark.parametrize("snippet", [s for s, *_ in REFERENCE["Environment"]])
def test_environment_variables_exist(snippet, monkeypatch, tmp_path):
    name, value = snippet.split("=")
    monkeypatch.setenv(name, value)
    if name == "CUDA_HOME":
        monkeypatch.setenv(name, str(tmp_path))
        assert _find_cuda_home() == str(tmp_path)
        return
    variables = {v.key: v for v in vars(Environment).values() if isinstance(v, EnvVar)}
    assert name in variables and variables[name].get() == value


def test_what_the_variables_do(monkeypatch):
    env = Environment()
    monkeypatch.setenv("TILELANG_DISABLE_CACHE", "1")
    monkeypatch.setenv("TILELANG_PRINT_ON_COMPILATION", "0")
    monkeypatch.setenv("TILELANG_DEFAULT_TARGET", "c")
    assert not env.is_cache_enabled() and not env.is_print_on_compilation_enabled()
    assert env.get_default_target() == "c"


# The page


def test_every_snippet_is_executed_above():
    text = Path(__file__).read_text()
    left = [snippet for snippet in SNIPPETS
            if not any(mark.format(snippet) in text for mark in ("<{}>", '("{}"', "('{}'"))]
    assert left == [snippet for snippet, *_ in REFERENCE["Environment"]]


def test_it_fits_a_terminal():
    lines = render().splitlines()
    assert max(map(len, lines)) <= 110
    assert all(line.isascii() and line == line.rstrip() for line in lines)
    assert 40 <= len(SNIPPETS) == len(set(SNIPPETS)) <= 48
    for group, members in REFERENCE.items():
        start = lines.index(group) + 1
        for line, entry in zip(lines[start:], members, strict=False):
            position = 0
            for cell in entry:
                position = line.index(cell, position) + len(cell)


def test_versions(monkeypatch):
    monkeypatch.setattr(quick_reference.metadata, "version", lambda name: "9.9.9")
    assert render().splitlines()[0] == (
        f"TileLang quick reference, tested with {TESTED}, installed is 9.9.9")

    def nothing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(quick_reference.metadata, "version", nothing)
    assert render().splitlines()[0] == f"TileLang quick reference, tested with {TESTED}"


def test_the_standard_library_is_enough():
    code = ("import sys; from sections.runner.quick_reference import render; render(); "
            "sys.exit(bool({'torch', 'tilelang', 'numpy', 'tabulate'} & set(sys.modules)))")
    subprocess.run([sys.executable, "-S", "-c", code], check=True,
                   env={**os.environ, "PYTHONPATH": os.getcwd()})


@pytest.mark.gpu
def test_profile_on_a_gpu(gpu, folder):
    (kernel,) = build(gpu, [(program(folder, GEMM).gemm, SHAPE)])
    names = run("ms = kernel.get_profiler().do_bench()", {"kernel": kernel.function})
    assert 0 < names["ms"] < 10
