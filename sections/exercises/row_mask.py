"""Fill in: what lies beyond the end of a row

y = softmax(x) for every row, a block a row. The row is copied into a tile that is a little wider,
so that every thread gets as much as the others, and the copy fills the rest with zeros. A zero is
not nothing, though: it may be the largest value, and exp(0 - max) counts in the sum. Give the
elements from N on a value that leaves both alone.
"""

import math

import tilelang
import tilelang.language as T

LOG2E = math.log2(math.e)  # exp(x) = exp2(x * LOG2E)


@tilelang.jit
def softmax(X, threads: int = 32):
    """Y = softmax of each row of X. X: (M, N) float32; returns Y: (M, N) float32."""
    M, N = T.const("M N")
    X: T.Tensor[[M, N], T.float32]
    Y = T.empty((M, N), T.float32)
    width = T.ceildiv(N, threads) * threads
    with T.Kernel(M, threads=threads) as row:
        x = T.alloc_fragment((width,), T.float32)
        top = T.alloc_fragment((1,), T.float32)
        total = T.alloc_fragment((1,), T.float32)
        T.copy(X[row, 0], x)  # x[j] = 0 for j >= N
        for j in T.Parallel(width):
            # skeleton:
            # x[j] = x[j]  # TODO: for j >= N something else
            # solution:
            x[j] = T.if_then_else(j < N, x[j], -T.infinity(T.float32))
            # end
        T.reduce_max(x, top)
        for j in T.Parallel(width):
            x[j] = T.exp2((x[j] - top[0]) * LOG2E)
        T.reduce_sum(x, total)
        for j in T.Parallel(width):
            x[j] /= total[0]
        T.copy(x, Y[row, 0])
    return Y


# check: nothing below is copied into the learner's file

HINTS = (
    """Which value v leaves every maximum as it is, and gives exp(v - max) = 0?""",
    """-T.infinity(T.float32) does both.""",
    """T.if_then_else(condition, this, that) chooses inside an expression: for j < N the element
    itself, else minus infinity.""",
)


def run(page):
    import torch

    from sections.exercises.checking import draw, try_shapes

    shapes = [{"M": M, "N": N} for M, N in ((2, 64), (3, 333))]
    try_shapes(
        page, page.yours.softmax, shapes, "{M}x{N} float32".format_map,
        lambda shape: (draw(page, shape["M"], shape["N"], dtype=torch.float32) - 2,),
        lambda X: X.double().softmax(1).float(), reduction=lambda shape: shape["N"],
    )
