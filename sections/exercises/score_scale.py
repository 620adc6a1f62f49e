"""Mend: a maximum without its scale

Attention: O = softmax(Q K^T * scale) V for every head, a tile of queries a block, the keys in
tiles. The scores come out of T.gemm unscaled, and so does their maximum; the scale is applied
inside exp2, together with LOG2E, since exp(x) = exp2(x * LOG2E). In one place it was forgotten.
While all keys lie in one tile the result is right all the same; with a second tile it is not.
"""

import math

import tilelang
import tilelang.language as T

LOG2E = math.log2(math.e)


@tilelang.jit
def attention(Q, K, V, scale: float, block_M: int = 64, block_N: int = 64, threads: int = 128):
    """O = softmax(Q K^T * scale) V. Q: (H, Sq, D), K, V: (H, Skv, D) float16; returns O like Q.

    Skv must be a multiple of block_N.
    """
    H, Sq, Skv, D = T.const("H Sq Skv D")
    Q: T.Tensor[[H, Sq, D], T.float16]
    K: T.Tensor[[H, Skv, D], T.float16]
    V: T.Tensor[[H, Skv, D], T.float16]
    O = T.empty((H, Sq, D), T.float16)  # noqa: E741
    rows = T.GemmWarpPolicy.FullRow
    with T.Kernel(T.ceildiv(Sq, block_M), H, threads=threads) as (block, head):
        Q_shared = T.alloc_shared((block_M, D), T.float16)
        K_shared = T.alloc_shared((block_N, D), T.float16)
        V_shared = T.alloc_shared((block_N, D), T.float16)
        scores = T.alloc_fragment((block_M, block_N), T.float32)
        weights = T.alloc_fragment((block_M, block_N), T.float16)
        O_local = T.alloc_fragment((block_M, D), T.float32)
        top = T.alloc_fragment((block_M,), T.float32)
        old_top = T.alloc_fragment((block_M,), T.float32)
        shrink = T.alloc_fragment((block_M,), T.float32)
        tile_total = T.alloc_fragment((block_M,), T.float32)
        total = T.alloc_fragment((block_M,), T.float32)
        first = block * block_M
        T.copy(Q[head, first : first + block_M, :], Q_shared)
        T.clear(O_local)
        T.clear(total)
        T.fill(top, -1e30)
        for k in T.serial(Skv // block_N):
            T.copy(K[head, k * block_N : (k + 1) * block_N, :], K_shared)
            T.copy(V[head, k * block_N : (k + 1) * block_N, :], V_shared)
            T.clear(scores)
            T.gemm(Q_shared, K_shared, scores, transpose_B=True, policy=rows)
            T.copy(top, old_top)
            T.reduce_max(scores, top, dim=1, clear=False)
            for i in T.Parallel(block_M):
                # skeleton:
                # shrink[i] = T.exp2((old_top[i] - top[i]) * LOG2E)
                # solution:
                shrink[i] = T.exp2((old_top[i] - top[i]) * (scale * LOG2E))
                # end
            for i, j in T.Parallel(block_M, block_N):
                scores[i, j] = T.exp2((scores[i, j] - top[i]) * (scale * LOG2E))
            T.reduce_sum(scores, tile_total, dim=1)
            for i in T.Parallel(block_M):
                total[i] = total[i] * shrink[i] + tile_total[i]
            for i, j in T.Parallel(block_M, D):
                O_local[i, j] *= shrink[i]
            T.copy(scores, weights)
            T.gemm(weights, V_shared, O_local, policy=rows)
        for i, j in T.Parallel(block_M, D):
            O_local[i, j] /= total[i]
        T.copy(O_local, O[head, first : first + block_M, :])
    return O


# check: nothing below is copied into the learner's file

HINTS = (
    """What matters only from the second tile on? In the first one there is nothing yet to shrink:
    total and O_local are zero.""",
    """Two lines call T.exp2. Compare what becomes of top[i] in them.""",
    """What was summed up so far is exp((score - old_top) * scale) and must become exp((score - top)
    * scale): the factor is exp2((old_top - top) * scale * LOG2E).""",
)


def run(page):
    import torch

    from sections.exercises.checking import draw

    def reference(Q, K, V, scale):
        Q, K, V = Q.double(), K.double(), V.double()
        return ((Q @ K.transpose(1, 2) * scale).softmax(2) @ V).float()

    shapes = [(1, 64, 64, 64), (2, 50, 192, 64)]
    kernels = page.build(
        (page.yours.attention, {"H": H, "Sq": Sq, "Skv": Skv, "D": D, "scale": D**-0.5})
        for H, Sq, Skv, D in shapes)
    for (H, Sq, Skv, D), kernel in zip(shapes, kernels, strict=True):
        Q, K, V = (draw(page, H, length, D, seed=seed)
                   for seed, length in enumerate((Sq, Skv, Skv)))
        if not page.check(f"{H}x{Sq}x{D} float16 on {Skv} keys", kernel, (Q, K, V),
                          reference(Q, K, V, D**-0.5), reduction=Skv, intermediate=torch.float16):
            return
