"""Fill in: the rescale of online softmax

A row that is too long for registers comes in tiles, so its maximum is not known before the last
one. The kernel keeps a running maximum `top` and a running sum `total` of exp(x - top). When a tile
raises the maximum to new_top, what has been summed up so far stands on the old one. Bring it to the
new one, then add the sum of this tile.
"""

import math

import tilelang
import tilelang.language as T

LOG2E = math.log2(math.e)  # exp(x) = exp2(x * LOG2E)


@tilelang.jit
def online_softmax(X, block_N: int = 64, threads: int = 64):
    """Y = softmax of each row of X. X: (M, N) float32; returns Y: (M, N) float32."""
    M, N = T.const("M N")
    X: T.Tensor[[M, N], T.float32]
    Y = T.empty((M, N), T.float32)
    with T.Kernel(M, threads=threads) as row:
        x = T.alloc_fragment((block_N,), T.float32)
        top = T.alloc_fragment((1,), T.float32)
        new_top = T.alloc_fragment((1,), T.float32)
        total = T.alloc_fragment((1,), T.float32)
        tile_total = T.alloc_fragment((1,), T.float32)
        T.fill(top, -1e30)
        T.clear(total)
        for k in T.serial(T.ceildiv(N, block_N)):
            T.copy(X[row, k * block_N], x)
            for j in T.Parallel(block_N):
                x[j] = T.if_then_else(k * block_N + j < N, x[j], -T.infinity(T.float32))
            T.copy(top, new_top)
            T.reduce_max(x, new_top, clear=False)  # the larger of the old one and this tile's
            for j in T.Parallel(block_N):
                x[j] = T.exp2((x[j] - new_top[0]) * LOG2E)
            T.reduce_sum(x, tile_total)
            # skeleton:
            # total[0] = total[0] + tile_total[0]  # TODO: total[0] stands on top[0], not new_top[0]
            # solution:
            total[0] = total[0] * T.exp2((top[0] - new_top[0]) * LOG2E) + tile_total[0]
            # end
            top[0] = new_top[0]
        for k in T.serial(T.ceildiv(N, block_N)):
            T.copy(X[row, k * block_N], x)
            for j in T.Parallel(block_N):
                x[j] = T.exp2((x[j] - top[0]) * LOG2E) / total[0]
            T.copy(x, Y[row, k * block_N])
    return Y


# check: nothing below is copied into the learner's file

HINTS = (
    """exp(x - new) = exp(x - old) * something. What?""",
    """exp(x - new) = exp(x - old) * exp(old - new): one factor for the whole sum, and it is never
    above 1.""",
    """The factor is T.exp2((top[0] - new_top[0]) * LOG2E); only total[0] takes it, the tile's sum
    stands on new_top[0] already.""",
)


def run(page):
    import torch

    from sections.exercises.checking import draw, try_shapes

    def rows(shape):  # they grow, so that later tiles raise the maximum
        slope = torch.arange(shape["N"], device=page.device.torch_device) / 50
        return (draw(page, shape["M"], shape["N"], dtype=torch.float32) + slope,)

    shapes = [{"M": M, "N": N} for M, N in ((2, 64), (4, 333))]
    try_shapes(
        page, page.yours.online_softmax, shapes, "{M}x{N} float32".format_map, rows,
        lambda X: X.double().softmax(1).float(), reduction=lambda shape: shape["N"],
    )
