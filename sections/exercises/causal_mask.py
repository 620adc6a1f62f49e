"""Mend: a mask that is off by one

Causal attention: query i may look at the keys 0 to i, its own position included, and at none after
it. O = softmax(Q K^T * scale, masked) V for every head, a tile of queries a block, the keys in
tiles. One comparison in the mask is off by one. Check the file as it is and look at the first wrong
element: which query is it, and what should it see?
"""

import math

import tilelang
import tilelang.language as T

LOG2E = math.log2(math.e)  # exp(x) = exp2(x * LOG2E)


@tilelang.jit
def causal_attention(Q, K, V, scale: float, block_M: int = 64, block_N: int = 64,
                     threads: int = 128):
    """O = softmax(Q K^T * scale) V, causal. Q, K, V: (H, S, D) float16; returns O: (H, S, D)."""
    H, S, D = T.const("H S D")
    Q: T.Tensor[[H, S, D], T.float16]
    K: T.Tensor[[H, S, D], T.float16]
    V: T.Tensor[[H, S, D], T.float16]
    O = T.empty((H, S, D), T.float16)  # noqa: E741
    rows = T.GemmWarpPolicy.FullRow
    with T.Kernel(T.ceildiv(S, block_M), H, threads=threads) as (block, head):
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
        first = block * block_M  # the first query of this block
        T.copy(Q[head, first : first + block_M, :], Q_shared)
        T.clear(O_local)
        T.clear(total)
        T.fill(top, -1e30)
        for k in T.serial(T.ceildiv(first + block_M, block_N)):
            T.copy(K[head, k * block_N : (k + 1) * block_N, :], K_shared)
            T.copy(V[head, k * block_N : (k + 1) * block_N, :], V_shared)
            T.clear(scores)
            T.gemm(Q_shared, K_shared, scores, transpose_B=True, policy=rows)
            for i, j in T.Parallel(block_M, block_N):
                query, key = first + i, k * block_N + j
                # skeleton:
                # visible = key < query
                # solution:
                visible = key <= query
                # end
                scores[i, j] = T.if_then_else(visible, scores[i, j], -T.infinity(T.float32))
            T.copy(top, old_top)
            T.reduce_max(scores, top, dim=1, clear=False)
            for i in T.Parallel(block_M):
                shrink[i] = T.exp2((old_top[i] - top[i]) * (scale * LOG2E))
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
    """Query 0 has exactly one key to look at. With the mask as it is, how many has it?""",
    """Its own position belongs to what a query sees.""",
    """key <= query, not key < query.""",
)


def run(page):
    import torch

    from sections.exercises.checking import draw

    def reference(Q, K, V, scale):
        Q, K, V = Q.double(), K.double(), V.double()
        hidden = torch.ones(Q.shape[1], Q.shape[1], device=Q.device).triu(1).bool()
        scores = (Q @ K.transpose(1, 2) * scale).masked_fill(hidden, -torch.inf)
        return (scores.softmax(2) @ V).float()

    H, S, D = 2, 100, 64
    scale = D**-0.5
    (kernel,) = page.build(
        [(page.yours.causal_attention, {"H": H, "S": S, "D": D, "scale": scale})])
    tensors = [draw(page, H, S, D, seed=seed) for seed in range(3)]
    page.check(f"{H}x{S}x{D} float16 causal", kernel, tensors, reference(*tensors, scale),
               reduction=S, intermediate=torch.float16)
