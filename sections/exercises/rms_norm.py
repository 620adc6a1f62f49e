"""Fill in: a reduction

RMS norm, which stands before every layer of many language models: y[j] = x[j] / sqrt(mean of x^2 +
eps) * w[j], for every row. A block owns a row, spread over its threads. The mean needs the squares
of all of them: write the lines that put their sum into total[0]. T.reduce_sum adds up what all the
threads of the block hold.
"""

import tilelang
import tilelang.language as T


@tilelang.jit
def rms_norm(X, w, eps: float = 1e-5, threads: int = 128):
    """Y[r, j] = X[r, j] / sqrt(mean_j(X[r, j]^2) + eps) * w[j]. X: (M, N), w: (N,) float32."""
    M, N = T.const("M N")
    X: T.Tensor[[M, N], T.float32]
    w: T.Tensor[[N], T.float32]
    Y = T.empty((M, N), T.float32)
    width = T.ceildiv(N, threads) * threads
    with T.Kernel(M, threads=threads) as row:
        x = T.alloc_fragment((width,), T.float32)
        squares = T.alloc_fragment((width,), T.float32)
        weight = T.alloc_fragment((width,), T.float32)
        total = T.alloc_fragment((1,), T.float32)
        T.copy(X[row, 0], x)  # x[j] = 0 for j >= N
        T.copy(w[0], weight)
        # skeleton:
        # T.clear(total)  # TODO: the sum of all x[j] * x[j] instead
        # solution:
        for j in T.Parallel(width):
            squares[j] = x[j] * x[j]
        T.reduce_sum(squares, total)
        # end
        for j in T.Parallel(width):
            x[j] = x[j] * T.rsqrt(total[0] / N + eps) * weight[j]
        T.copy(x, Y[row, 0])
    return Y


# check: nothing below is copied into the learner's file

HINTS = (
    """Two steps: fill squares element by element, then reduce it. sections/softmax.py has a
    T.reduce_sum to look at.""",
    """A loop over all elements of a tile, each thread taking its own: for j in T.Parallel(width):
    """,
    """for j in T.Parallel(width): squares[j] = x[j] * x[j], and after the loop
    T.reduce_sum(squares, total).""",
)


def run(page):
    import torch

    from sections.exercises.checking import draw, try_shapes

    def tensors(shape):
        return (draw(page, shape["M"], shape["N"], dtype=torch.float32),
                draw(page, shape["N"], dtype=torch.float32, seed=1))

    def reference(X, w):
        X = X.double()
        return (X / (X.square().mean(1, keepdim=True) + 1e-5).sqrt() * w).float()

    shapes = [{"M": M, "N": N} for M, N in ((2, 128), (4, 777))]
    try_shapes(page, page.yours.rms_norm, shapes, "{M}x{N} float32".format_map, tensors, reference,
               reduction=lambda shape: shape["N"])
