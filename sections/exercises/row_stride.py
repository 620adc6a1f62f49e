"""Mend: rows that lie further apart than they are long

Libraries often pad the rows of a matrix, so that each begins at a convenient address. Here A is
such memory, flat: row r has N elements that count and begins at element r * pitch, and what lies
between its end and the next row is of no interest. The kernel takes the padding out: C[r, j] =
A[r * pitch + j]. One line is wrong. Check the file as it is: where is the first wrong element, and
what does that say?
"""

import tilelang
import tilelang.language as T


@tilelang.jit
def unpad(A, N: int, pitch: int, block_N: int = 128, threads: int = 128):
    """C[r, j] = A[r * pitch + j]. A: (L,) float32; returns C: (L // pitch, N) float32."""
    L = T.const("L")
    A: T.Tensor[[L], T.float32]
    C = T.empty((L // pitch, N), T.float32)
    with T.Kernel(T.ceildiv(N, block_N), L // pitch, threads=threads) as (block, row):
        tile = T.alloc_fragment((block_N,), T.float32)
        # skeleton:
        # T.copy(A[row * N + block * block_N], tile)
        # solution:
        T.copy(A[row * pitch + block * block_N], tile)
        # end
        T.copy(tile, C[row, block * block_N])
    return C


# check: nothing below is copied into the learner's file

HINTS = (
    """Row 0 is right and row 1 is not, from its first element on. So the way from one row to the
    next is wrong.""",
    """The stride of a dimension is how many elements lie between two neighbours along it. In C it
    is N for rows. What is it in A?""",
    """A's rows begin pitch elements apart: the copy has to start at row * pitch.""",
)


def run(page):
    import torch

    from sections.exercises.checking import draw

    shapes = [(3, 100, 128), (5, 130, 133)]
    kernels = page.build((page.yours.unpad, {"L": M * pitch, "N": N, "pitch": pitch})
                         for M, N, pitch in shapes)
    for (M, N, pitch), kernel in zip(shapes, kernels, strict=True):
        A = draw(page, M * pitch, dtype=torch.float32)
        if not page.check(f"{M}x{N} float32, rows {pitch} apart", kernel, (A,),
                          A.reshape(M, pitch)[:, :N].contiguous()):
            return
