"""Kernels with the mistakes that learners make most; some are in the arguments."""

import tilelang
import tilelang.language as T


@tilelang.jit
def gemm(A, B, block_M=64, block_N=64, block_K=32, threads=128, num_stages=2, dtype=T.float16):
    """C = A @ B, right as it stands: the arguments bring the mistake."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor[[M, K], dtype]
    B: T.Tensor[[K, N], dtype]
    C = T.empty((M, N), dtype)
    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
        A_shared = T.alloc_shared((block_M, block_K), dtype)
        B_shared = T.alloc_shared((block_K, block_N), dtype)
        C_local = T.alloc_fragment((block_M, block_N), T.float32)
        T.clear(C_local)
        for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
            T.copy(A[by * block_M, k * block_K], A_shared)
            T.copy(B[k * block_K, bx * block_N], B_shared)
            T.gemm(A_shared, B_shared, C_local)
        T.copy(C_local, C[by * block_M, bx * block_N])
    return C


@tilelang.jit
def forgets_to_transpose(A, B):
    """B is stored as (N, K), and T.gemm is not told."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor[[M, K], T.float16]
    B: T.Tensor[[N, K], T.float16]
    C = T.empty((M, N), T.float16)
    with T.Kernel(1, threads=128):
        A_shared = T.alloc_shared((64, 32), T.float16)
        B_shared = T.alloc_shared((64, 32), T.float16)
        C_local = T.alloc_fragment((64, 64), T.float32)
        T.copy(A, A_shared)
        T.copy(B, B_shared)
        T.gemm(A_shared, B_shared, C_local)
        T.copy(C_local, C)
    return C


@tilelang.jit
def one_fragment_left_and_right(A):
    """S is the left operand of one product and the right operand of another."""
    N = T.const("N")
    A: T.Tensor[[N, N], T.float16]
    C = T.empty((N, N), T.float16)
    with T.Kernel(1, threads=128):
        A_shared = T.alloc_shared((64, 64), T.float16)
        S = T.alloc_fragment((64, 64), T.float16)
        C_local = T.alloc_fragment((64, 64), T.float32)
        T.copy(A, A_shared)
        T.copy(A_shared, S)
        T.clear(C_local)
        T.gemm(S, A_shared, C_local)
        T.gemm(A_shared, S, C_local)
        T.copy(C_local, C)
    return C


@tilelang.jit
def reads_its_neighbour(A):
    """A fragment is indexed with i and with i + 1."""
    N = T.const("N")
    A: T.Tensor[[N], T.float32]
    B = T.empty((N,), T.float32)
    with T.Kernel(1, threads=128):
        tile = T.alloc_fragment((128,), T.float32)
        T.copy(A, tile)
        for i in T.Parallel(127):
            tile[i] = tile[i] + tile[i + 1]
        T.copy(tile, B)
    return B


@tilelang.jit
def keeps_its_output(A):
    """B is never returned."""
    N = T.const("N")
    A: T.Tensor[[N], T.float32]
    B = T.empty((N,), T.float32)
    with T.Kernel(1, threads=128):
        T.copy(A, B)


@tilelang.jit
def misspells(A):
    """There is no T.alloc_shard."""
    N = T.const("N")
    A: T.Tensor[[N], T.float32]
    B = T.empty((N,), T.float32)
    with T.Kernel(1, threads=128):
        tile = T.alloc_shard((N,), T.float32)
        T.copy(A, tile)
        T.copy(tile, B)
    return B


@tilelang.jit
def calls_what_is_not_there(A):
    """CUDA has no such function."""
    N = T.const("N")
    A: T.Tensor[[N], T.float32]
    B = T.empty((N,), T.float32)
    with T.Kernel(1, threads=128):
        for i in T.Parallel(128):
            B[i] = T.call_extern("float32", "no_such_function", A[i])
    return B


@tilelang.jit
def weighs_what_came_before(A, B, num_stages=2, rows=True):
    """C[i] = sum over the tiles k <= i of (A[i] @ A[k].T) @ B[k]. A, B: (M, 64), tiles of 64.

    rows   both products deal out whole rows to the warps, so that the weights fit both
    """
    M = T.const("M")
    A: T.Tensor[[M, 64], T.float16]
    B: T.Tensor[[M, 64], T.float16]
    C = T.empty((M, 64), T.float16)
    policy = T.GemmWarpPolicy.FullRow if rows else T.GemmWarpPolicy.Square
    with T.Kernel(T.ceildiv(M, 64), threads=128) as bx:
        Q_shared = T.alloc_shared((64, 64), T.float16)
        A_shared = T.alloc_shared((64, 64), T.float16)
        B_shared = T.alloc_shared((64, 64), T.float16)
        scores = T.alloc_fragment((64, 64), T.float32)
        weights = T.alloc_fragment((64, 64), T.float16)
        C_local = T.alloc_fragment((64, 64), T.float32)
        T.copy(A[bx * 64, 0], Q_shared)
        T.clear(C_local)
        for k in T.Pipelined(bx + 1, num_stages=num_stages):
            T.copy(A[k * 64, 0], A_shared)
            T.clear(scores)
            T.gemm(Q_shared, A_shared, scores, transpose_B=True, policy=policy)
            T.copy(scores, weights)
            T.copy(B[k * 64, 0], B_shared)
            T.gemm(weights, B_shared, C_local, policy=policy)
        T.copy(C_local, C[bx * 64, 0])
    return C


@tilelang.jit
def add(A, B):
    """C = A + B, float32."""
    N = T.const("N")
    A: T.Tensor[[N], T.float32]
    B: T.Tensor[[N], T.float32]
    C = T.empty((N,), T.float32)
    with T.Kernel(1, threads=32):
        for i in T.Parallel(N):
            C[i] = A[i] + B[i]
    return C


@tilelang.jit(pass_configs={"tl.disable_safe_memory_legalize": True})
def reads_far_outside(A):
    """B[i] = A[i + 2^40], with TileLang's own guard switched off."""
    N = T.const("N")
    A: T.Tensor[[N], T.float32]
    B = T.empty((N,), T.float32)
    with T.Kernel(1, threads=32):
        for i in T.Parallel(N):
            B[i] = A[T.cast(i, "int64") + T.int64(1 << 40)]
    return B


def in_no_file(size: int):
    """A kernel whose source Python cannot find."""
    names = {"T": T, "tilelang": tilelang}
    exec(
        "@tilelang.jit\n"
        "def copy(A):\n"
        "    A: T.Tensor[[8], T.float32]\n"
        "    B = T.empty((8,), T.float32)\n"
        "    with T.Kernel(1, threads=32): T.copy(A, B)\n"
        "    return B\n",
        names,
    )
    return names["copy"].get_tir()


@tilelang.jit
def leaves_the_second_half(A):
    """C = A, or so it should be; what lies in C's second half is what was there before."""
    N = T.const("N")
    A: T.Tensor[[N], T.float32]
    C = T.empty((N,), T.float32)
    with T.Kernel(N // 2 // 128, threads=128) as block:
        for i in T.Parallel(128):
            C[block * 128 + i] = A[block * 128 + i]
    return C
