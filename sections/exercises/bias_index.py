"""Mend: the wrong piece of the bias

C = relu(A @ B + bias), with one value of the bias for each column of C. The product of a block is
still in registers when the bias is added to it. Each block of columns has its own piece of the
bias, and this kernel takes the same one everywhere. Mend the index.
"""

import tilelang
import tilelang.language as T


@tilelang.jit
def linear_relu(A, B, bias, block_M: int = 64, block_N: int = 64, block_K: int = 32,
                num_stages: int = 2, threads: int = 128):
    """C = relu(A @ B + bias). A: (M, K), B: (K, N), bias: (N,) float16; returns C: (M, N)."""
    M, N, K = T.const("M N K")
    A: T.Tensor[[M, K], T.float16]
    B: T.Tensor[[K, N], T.float16]
    bias: T.Tensor[[N], T.float16]
    C = T.empty((M, N), T.float16)
    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
        A_shared = T.alloc_shared((block_M, block_K), T.float16)
        B_shared = T.alloc_shared((block_K, block_N), T.float16)
        C_local = T.alloc_fragment((block_M, block_N), T.float32)
        bias_local = T.alloc_fragment((block_N,), T.float16)
        T.clear(C_local)
        for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
            T.copy(A[by * block_M, k * block_K], A_shared)
            T.copy(B[k * block_K, bx * block_N], B_shared)
            T.gemm(A_shared, B_shared, C_local)
        # skeleton:
        # T.copy(bias[0], bias_local)
        # solution:
        T.copy(bias[bx * block_N], bias_local)
        # end
        for i, j in T.Parallel(block_M, block_N):
            C_local[i, j] = T.max(C_local[i, j] + bias_local[j], 0)
        T.copy(C_local, C[by * block_M, bx * block_N])
    return C


# check: nothing below is copied into the learner's file

HINTS = (
    """A tile is 64 columns wide. In which column is the first wrong element, and which block is
    that?""",
    """Column j of this block's tile is a column of C, too. The line that copies the tile into C
    says which one.""",
    """The tile begins at column bx * block_N of C, and so does its piece of the bias.""",
)


def run(page):
    from sections.exercises.checking import draw, try_shapes

    def tensors(shape):
        return (draw(page, shape["M"], shape["K"]), draw(page, shape["K"], shape["N"], seed=1),
                8 * draw(page, shape["N"], seed=2))

    shapes = [{"M": M, "N": N, "K": K} for M, N, K in ((64, 64, 32), (100, 130, 70))]
    try_shapes(
        page, page.yours.linear_relu, shapes, "{M}x{N}x{K} float16".format_map, tensors,
        lambda A, B, bias: (A.double() @ B.double() + bias.double()).relu().float(),
        reduction=lambda shape: shape["K"],
    )
