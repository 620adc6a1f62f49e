"""Fill in: how many blocks

C = A + B for vectors of any length N. Each block adds block_N elements: block 0 the first ones,
block 1 the next. N need not be a multiple of block_N, so the last block may have little to do. How
many blocks must the kernel start? (T.copy never reads or writes outside a tensor, so a block that
reaches beyond the end does no harm.)
"""

import tilelang
import tilelang.language as T


@tilelang.jit
def add(A, B, block_N: int = 256, threads: int = 128):
    """C = A + B. A, B: (N,) float32; returns C: (N,) float32. Any N >= 1."""
    N = T.const("N")
    A: T.Tensor[[N], T.float32]
    B: T.Tensor[[N], T.float32]
    C = T.empty((N,), T.float32)
    # skeleton:
    # blocks = 1  # TODO: enough for all N elements
    # solution:
    blocks = T.ceildiv(N, block_N)
    # end
    with T.Kernel(blocks, threads=threads) as block:
        a = T.alloc_fragment((block_N,), T.float32)
        b = T.alloc_fragment((block_N,), T.float32)
        T.copy(A[block * block_N], a)
        T.copy(B[block * block_N], b)
        for i in T.Parallel(block_N):
            a[i] += b[i]
        T.copy(a, C[block * block_N])
    return C


# check: nothing below is copied into the learner's file

HINTS = (
    """With block_N = 256, how many blocks do 256 elements need? And 257?""",
    """N // block_N rounds down, and the elements of the last, partial tile are then nobody's. The
    division has to round up.""",
    """TileLang has a division that rounds up: T.ceildiv(a, b).""",
)


def run(page):
    import torch

    from sections.exercises.checking import draw, try_shapes

    def vectors(shape):
        return tuple(draw(page, shape["N"], dtype=torch.float32, seed=seed) for seed in (0, 1))

    try_shapes(page, page.yours.add, [{"N": N} for N in (256, 257, 1000)],
               "{N} float32".format_map, vectors, lambda A, B: A + B)
