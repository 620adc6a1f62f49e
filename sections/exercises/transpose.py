"""Mend: tiles that land in the wrong place

Y = X^T, tile by tile: a block reads a tile of X, turns it round, and writes it into Y. The fault is
one that a glance at a few numbers does not find. Check the file as it is, and work it out as the
debugging section does: in which tile is the first wrong element, which tiles are right, and what do
those have in common?
"""

import tilelang
import tilelang.language as T


@tilelang.jit
def transpose(X, block: int = 32, threads: int = 128):
    """Y = X^T. X: (M, N) float32; returns Y: (N, M) float32."""
    M, N = T.const("M N")
    X: T.Tensor[[M, N], T.float32]
    Y = T.empty((N, M), T.float32)
    with T.Kernel(T.ceildiv(N, block), T.ceildiv(M, block), threads=threads) as (bx, by):
        tile = T.alloc_shared((block, block), T.float32)
        turned = T.alloc_shared((block, block), T.float32)
        T.copy(X[by * block, bx * block], tile)
        for i, j in T.Parallel(block, block):
            turned[j, i] = tile[i, j]
        # skeleton:
        # T.copy(turned, Y[by * block, bx * block])
        # solution:
        T.copy(turned, Y[bx * block, by * block])
        # end
    return Y


# check: nothing below is copied into the learner's file

HINTS = (
    """Tiles are 32 wide. The first tile of Y is right, the one to its right is not. So nothing is
    wrong with how a block turns its tile round.""",
    """Only tiles on the diagonal are right, where bx = by. So bx and by are used the wrong way
    round somewhere.""",
    """The tile of X at (by, bx) belongs into Y at (bx, by).""",
)


def run(page):
    import torch

    from sections.exercises.checking import draw, try_shapes

    shapes = [{"M": M, "N": N} for M, N in ((32, 32), (50, 70))]
    try_shapes(page, page.yours.transpose, shapes, "{M}x{N} float32".format_map,
               lambda shape: (draw(page, shape["M"], shape["N"], dtype=torch.float32),),
               lambda X: X.T.contiguous())
