"""Beat: a kernel that is right and slow

Y = 2 X for a long vector. The result is right, and no check will ever complain. Read the generated
code, though: each thread fetches one element of 2 bytes at a time, and neighbouring threads fetch
from places far apart. Elements may be dealt out to blocks in any way. Deal them out so that a
thread's share lies side by side: one instruction then moves 16 bytes.
"""

import tilelang
import tilelang.language as T


@tilelang.jit
def double(X, block_N: int = 2048, threads: int = 256):
    """Y = 2 X. X: (N,) float16, N a multiple of block_N; returns Y: (N,) float16."""
    N = T.const("N")
    X: T.Tensor[[N], T.float16]
    Y = T.empty((N,), T.float16)
    blocks = N // block_N
    with T.Kernel(blocks, threads=threads) as block:
        for i in T.Parallel(block_N):
            # skeleton:
            # Y[i * blocks + block] = X[i * blocks + block] * 2
            # solution:
            Y[block * block_N + i] = X[block * block_N + i] * 2
            # end
    return Y


# check: nothing below is copied into the learner's file

HINTS = (
    """Block 0 takes the elements 0, blocks, 2 * blocks, ... What if it took the first block_N
    elements instead?""",
    """Neighbouring i should mean neighbouring elements: i must stand in the index without a factor.
    """,
    """The index is block * block_N + i.""",
)


LARGE = 1 << 26  # elements, whose code is read


def run(page):
    from sections.common.codegen import landmarks
    from sections.common.measure import Work
    from sections.exercises.checking import draw, judge

    size = LARGE if page.device.is_gpu else 1 << 13
    (kernel,) = page.build([(page.yours.double, {"N": size})])
    X = draw(page, size)
    if not page.check(f"{size} float16", kernel, (X,), 2 * X.float()):
        return
    if page.device.is_gpu:
        page.timings(page.measure(f"{size} float16", "yours", kernel, (X,), {"copy ceiling": None},
                                  Work(bytes_moved=2 * 2 * size)))
    code = page.code(kernel, N=LARGE)
    page.landmarks(code)
    marks = {mark.name: mark.meaning for mark in landmarks(code)}
    judge(page, [
        (f"a {name} of at least 16 bytes, for {LARGE} elements", marks.get(name, "single elements"),
         any(f" {size} bytes" in marks.get(name, "") for size in (16, 32)))
        for name in ("vector load", "vector store")
    ])
