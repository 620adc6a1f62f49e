"""Small kernels for the tests of the kit: nothing here is teaching material."""

import tilelang
import tilelang.language as T
from tilelang.contrib import nvcc

FACTOR = 2.0


def nvcc_error() -> RuntimeError:
    """What TileLang raises where nvcc refuses what it generated: pages of CUDA, then the error."""
    lines = [f"  float value_{n} = {n}.0f;  // a line of a long kernel" for n in range(500)]
    source = "\n".join(["__global__ void long_kernel() {", *lines, "  no_such_name += 1;", "}"])
    try:
        nvcc.compile_cuda(source, "cubin", "sm_80")
    except RuntimeError as error:
        return error
    raise AssertionError("nvcc took it")


@tilelang.jit
def add(A, B, block_N: int = 1024, threads: int = 128, dtype=T.float32):
    """C = A + B for vectors of any length, through fragments."""
    N = T.const("N")
    A: T.Tensor[[N], dtype]
    B: T.Tensor[[N], dtype]
    C = T.empty((N,), dtype)
    with T.Kernel(T.ceildiv(N, block_N), threads=threads) as block:
        A_local = T.alloc_fragment((block_N,), dtype)
        B_local = T.alloc_fragment((block_N,), dtype)
        T.copy(A[block * block_N], A_local)
        T.copy(B[block * block_N], B_local)
        for i in T.Parallel(block_N):
            A_local[i] += B_local[i]
        T.copy(A_local, C[block * block_N])
    return C


@tilelang.jit
def gemm(A, B, block_M: int = 128, block_N: int = 128, block_K: int = 32, num_stages: int = 3,
         threads: int = 128, swizzle: bool = False, dtype=T.float16):
    """C = A @ B, accumulated in float32."""
    M, N, K = T.const("M N K")
    A: T.Tensor[[M, K], dtype]
    B: T.Tensor[[K, N], dtype]
    C = T.empty((M, N), dtype)
    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
        A_shared = T.alloc_shared((block_M, block_K), dtype)
        B_shared = T.alloc_shared((block_K, block_N), dtype)
        C_local = T.alloc_fragment((block_M, block_N), T.float32)
        T.use_swizzle(panel_size=8, enable=swizzle)
        T.clear(C_local)
        for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
            T.copy(A[by * block_M, k * block_K], A_shared)
            T.copy(B[k * block_K, bx * block_N], B_shared)
            T.gemm(A_shared, B_shared, C_local)
        T.copy(C_local, C[by * block_M, bx * block_N])
    return C


@tilelang.jit
def softmax(X, threads: int = 128, verbose: bool = False, dtype=T.float16):
    """Softmax of each row, one row a block."""
    M, N = T.const("M N")
    X: T.Tensor[[M, N], dtype]
    Y = T.empty((M, N), dtype)
    with T.Kernel(M, threads=threads) as row:
        x = T.alloc_fragment((1, N), T.float32)
        top = T.alloc_fragment((1,), T.float32)
        total = T.alloc_fragment((1,), T.float32)
        T.copy(X[row, 0], x)
        T.reduce_max(x, top, dim=1)
        for i, j in T.Parallel(1, N):
            x[i, j] = T.exp2((x[i, j] - top[i]) * 1.44269504)
        T.reduce_sum(x, total, dim=1)
        if verbose:
            T.print(total)
        for i, j in T.Parallel(1, N):
            x[i, j] = x[i, j] / total[i]
        T.copy(x, Y[row, 0])
    return Y


@T.macro
def scaled(x):
    return x * FACTOR


@tilelang.jit
def scale(A, block_N: int = 256):
    """B = A * FACTOR, through a macro, static shared memory and a loop with an annotation."""
    N = T.const("N")
    A: T.Tensor[[N], T.float32]
    B = T.empty((N,), T.float32)
    with T.Kernel(T.ceildiv(N, block_N), threads=128) as block:
        A_shared = T.alloc_shared((block_N,), T.float32, scope="shared")
        T.copy(A[block * block_N], A_shared)
        for i in T.Parallel(block_N, coalesced_width=T.int32(2)):
            A_shared[i] = scaled(A_shared[i])
        T.copy(A_shared, B[block * block_N])
    return B
