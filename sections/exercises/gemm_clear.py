"""Mend: a sum that forgets

C = A @ B, a tile of C a block. The loop over k brings one tile of A and one of B after the other,
and T.gemm adds their product to what C_local holds. One line stands in the wrong place, and most of
the sum is lost. Which one, and where does it belong?
"""

import tilelang
import tilelang.language as T


@tilelang.jit
def gemm(A, B, block_M: int = 64, block_N: int = 64, block_K: int = 32, num_stages: int = 2,
         threads: int = 128):
    """C = A @ B, summed in float32. A: (M, K), B: (K, N) float16; returns C: (M, N) float16."""
    M, N, K = T.const("M N K")
    A: T.Tensor[[M, K], T.float16]
    B: T.Tensor[[K, N], T.float16]
    C = T.empty((M, N), T.float16)
    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
        A_shared = T.alloc_shared((block_M, block_K), T.float16)
        B_shared = T.alloc_shared((block_K, block_N), T.float16)
        C_local = T.alloc_fragment((block_M, block_N), T.float32)
        # skeleton:
        # solution:
        T.clear(C_local)
        # end
        for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
            T.copy(A[by * block_M, k * block_K], A_shared)
            T.copy(B[k * block_K, bx * block_N], B_shared)
            # skeleton:
            # T.clear(C_local)
            # solution:
            # end
            T.gemm(A_shared, B_shared, C_local)
        T.copy(C_local, C[by * block_M, bx * block_N])
    return C


# check: nothing below is copied into the learner's file

HINTS = (
    """With K = 32 the result is right, with K = 70 it is not. What happens in the second round of
    the loop?""",
    """Fragments begin with whatever the registers held, so C_local must be set to zero. How often?
    """,
    """T.clear(C_local) belongs before the loop: once a tile of C, not once a step of k.""",
)


def run(page):
    from sections.exercises.checking import draw, try_shapes

    shapes = [{"M": M, "N": N, "K": K} for M, N, K in ((64, 64, 32), (100, 130, 70))]
    try_shapes(
        page, page.yours.gemm, shapes, "{M}x{N}x{K} float16".format_map,
        lambda shape: (draw(page, shape["M"], shape["K"]), draw(page, shape["K"], shape["N"])),
        lambda A, B: (A.double() @ B.double()).float(), reduction=lambda shape: shape["K"],
    )
