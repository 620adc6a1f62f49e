"""The quick reference: TileLang on a page, with the Triton and the CUDA word beside it.

Standard library only: the parent prints it. tests/test_quick_reference.py runs every snippet.
"""

from importlib import metadata

from sections.runner.environment import TESTED

# By group: snippet, what it does, the Triton word, the CUDA word.
REFERENCE = {
    "Kernel launch": (
        ("@tilelang.jit", "what follows is a kernel", "@triton.jit", "__global__"),
        ('M, N, K = T.const("M N K")', "sizes, fixed while compiling", "tl.constexpr", "template"),
        ('n = T.dynamic("n")', "a size known at run time", "an argument", "an argument"),
        ("A: T.Tensor[[M, K], T.float16]", "a tensor argument", "a pointer", "__restrict__"),
        ("C = T.empty((M, N), T.float16)", "the result: return C", "torch.empty", "cudaMalloc"),
        ("with T.Kernel(4, 2, threads=128) as (bx, by):", "a grid; which block this is",
         "tl.program_id", "<<<grid, 128>>>"),
    ),
    "Memory": (
        ("A_shared = T.alloc_shared((64, 32), T.float16)", "a tile the whole block sees", "",
         "__shared__"),
        ("x = T.alloc_fragment((64, 64), T.float32)", "a tile in their registers", "a tensor",
         "registers"),
        ("mine = T.alloc_local((4,), T.float32)", "an array for each thread", "", "float mine[4]"),
        ("count = T.alloc_var(T.int32, init=0)", "a variable for each thread", "", "int count"),
    ),
    "Copy": (
        ("T.copy(A[by * 64, k * 32], A_shared)", "fetch a tile, zeros outside", "tl.load",
         "cp.async, TMA"),
        ("T.copy(C_local, C[by * 64, bx * 64])", "store a tile, inside only", "tl.store",
         "st.global"),
        ("T.clear(C_local)", "zeros", "tl.zeros", ""),
        ("T.fill(row_max, -T.infinity(T.float32))", "one value everywhere", "tl.full", ""),
    ),
    "Gemm": (
        ("T.gemm(A_shared, B_shared, C_local)", "adds a product to C_local", "tl.dot",
         "mma, wgmma"),
        ("T.gemm(Q, K, S, transpose_B=True)", "the same with K transposed", "tl.trans", ""),
        ("policy = T.GemmWarpPolicy.FullRow", "for T.gemm: a warp owns rows", "", ""),
    ),
    "Pipelines": (
        ("for k in T.Pipelined(K // 32, num_stages=3):", "copies run ahead, 3 tiles",
         "num_stages=3", "cuda::pipeline"),
    ),
    "Loops": (
        ("for i, j in T.Parallel(64, 64):", "independent, over threads", "whole tensors",
         "threadIdx"),
        ("for i in T.serial(8):", "one after the other", "range", "for"),
        ("for i in T.unroll(8):", "written out", "tl.static_range", "#pragma unroll"),
    ),
    "Reductions": (
        ("T.reduce_max(x, row_max, dim=1)", "a maximum for each row", "tl.max", "__shfl_xor_sync"),
        ("T.reduce_sum(x, row_sum, dim=1)", "a sum for each row", "tl.sum", "__shfl_xor_sync"),
        ("T.cumsum(A_shared, dim=1)", "running sums along rows", "tl.cumsum", "cub::BlockScan"),
        ("T.atomic_add(total[i], row_sum[i])", "add while others add, too", "tl.atomic_add",
         "atomicAdd"),
    ),
    "Math": (
        ("y = T.exp2(v * 1.44269504)", "e to the power of v", "tl.exp2", "exp2f"),
        ("y = T.max(v, 0.0)", "the larger one", "tl.maximum", "fmaxf"),
        ("y = T.if_then_else(i >= j, v, 0.0)", "a choice for each element", "tl.where", "?:"),
        ("y = T.cast(v, T.float16)", "another dtype", ".to(tl.float16)", "__float2half"),
        ("tiles = T.ceildiv(N, 64)", "how many tiles cover N", "tl.cdiv", ""),
    ),
    "Layout": (
        ("T.annotate_layout({A_shared: layout})", "places elements by hand", "", "by hand"),
        ("who = T.Fragment((8, 8), lambda i, j: (i, j))", "thread i holds row i", "", "by hand"),
    ),
    "Swizzle": (
        ("T.use_swizzle(panel_size=8)", "blocks nearby share the L2", "tl.swizzle2d", "by hand"),
        ("layout = make_swizzled_layout(A_shared)", "spreads rows over banks", "", "by hand"),
    ),
    "Jit": (
        ("C = gemm(A, B, block_M=64)", "compiles once a shape, runs", "gemm[grid](...)",
         "<<<...>>>(...)"),
        ("kernel = gemm.compile(M=128, N=128, K=64)", "compiles only", "gemm.warmup", "nvcc"),
        ('pass_configs = {"tl.enable_fast_math": True}', "for @tilelang.jit", "",
         "--use_fast_math"),
    ),
    "Autotune": (
        ("@tilelang.autotune(configs=configs)", "tries all, keeps the fastest",
         "@triton.autotune", ""),
    ),
    "Profiler": (
        ("ms = kernel.get_profiler().do_bench()", "mean time, inputs made up", "do_bench",
         "cudaEvent"),
    ),
    "Debugging": (
        ('T.print(A_shared[0, 0], msg="tile")', "in each thread: guard it", "tl.device_print",
         "printf"),
        ("print(kernel.get_kernel_source())", "the generated CUDA", '.asm["ttgir"]', ""),
        ("kernel.show_ptx()", "and show_sass()", '.asm["ptx"]', "nvcc -ptx"),
    ),
    "Environment": (
        ("TILELANG_CACHE_DIR=/tmp/kernels", "where kernels are kept", "TRITON_CACHE_DIR",
         "CUDA_CACHE_PATH"),
        ("TILELANG_DISABLE_CACHE=1", "compile anew each time", "", ""),
        ("TILELANG_PRINT_ON_COMPILATION=0", "compile quietly", "", ""),
        ("TILELANG_DEFAULT_TARGET=c", "C for the CPU; no tiles", "", ""),
        ("CUDA_HOME=/usr/local/cuda", "whose nvcc is taken", "", ""),
    ),
}
HEADINGS = ("TileLang", "what it does", "Triton", "CUDA")


def render() -> str:
    """The reference as text, at most 110 columns wide, stamped with versions."""
    entries = [entry for group in REFERENCE.values() for entry in group]
    widths = [max(map(len, column)) for column in zip(HEADINGS, *entries, strict=True)]

    def line(cells) -> str:
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        return ("  " + " ".join(padded)).rstrip()

    lines = [f"TileLang quick reference, tested with {TESTED}{installed()}",
             "T is tilelang.language; names as in sections/gemm.py", "", line(HEADINGS)]
    for group, members in REFERENCE.items():
        lines += [group, *map(line, members)]
    return "\n".join(lines)


def installed() -> str:
    """The version that is installed, in words; empty where none is or it is the tested one."""
    try:
        version = metadata.version("tilelang")
    except metadata.PackageNotFoundError:
        return ""
    return "" if version == TESTED else f", installed is {version}"
