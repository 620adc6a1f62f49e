"""Vector add: one tile per block, and the compiler spreads it over the threads

C = A + B, the "hello world" of GPUs. A kernel is written for one block: which tile of the data it
owns, and what happens to every element of that tile. T.Parallel says "these iterations are
independent"; the compiler then chooses which thread takes which element, how many bytes one load
fetches, and where a bounds check is needed. Nothing is reused, so the only question is how close
the kernel comes to the speed at which this GPU can move bytes.
"""

import tilelang
import tilelang.language as T
import torch

from sections.common.build import cores
from sections.common.measure import Work

SCHEDULE = {"block_N": 1024, "threads": 128}
SHOWN = 1 << 28  # the size whose code is read in rehearsal


@tilelang.jit
def vector_add(A, B, block_N: int = 1024, threads: int = 128, dtype=T.float32):
    """C[i] = A[i] + B[i]. A, B: (N,) of dtype; returns C: (N,) of dtype. Any N >= 1."""
    N = T.const("N")  # read from A's shape; a constant while the kernel is compiled
    A: T.Tensor[[N], dtype]
    B: T.Tensor[[N], dtype]
    C = T.empty((N,), dtype)
    with T.Kernel(T.ceildiv(N, block_N), threads=threads) as block:
        A_local = T.alloc_fragment((block_N,), dtype)  # a tile in registers, over all threads
        B_local = T.alloc_fragment((block_N,), dtype)
        T.copy(A[block * block_N], A_local)  # global memory -> registers
        T.copy(B[block * block_N], B_local)
        for i in T.Parallel(block_N):
            A_local[i] += B_local[i]
        T.copy(A_local, C[block * block_N])  # registers -> global memory, inside bounds only
    return C


def reference(A, B):
    """A + B as torch computes it in float32."""
    return A.float() + B.float()


def inputs(page, size: int, dtype: torch.dtype, seed: int = 0):
    """Two vectors of `size` random elements."""
    generator = torch.Generator(page.device.torch_device).manual_seed(seed)
    return tuple(
        torch.randn(size, generator=generator, device=page.device.torch_device).to(dtype)
        for _ in range(2)
    )


def name_of(dtype: torch.dtype) -> str:
    """ "float16" for torch.float16."""
    return str(dtype).removeprefix("torch.")


def tile_dtype(dtype: torch.dtype):
    """TileLang's name for a torch dtype."""
    return getattr(T, name_of(dtype))


def work(size: int, dtype: torch.dtype) -> Work:
    """Read A, read B, write C: three times the size of one vector."""
    return Work(bytes_moved=3 * size * dtype.itemsize)


def largest(page) -> int:
    """Elements a vector: far more than the L2 cache holds, and an eighth of the memory at most."""
    if not page.device.is_gpu:
        return 1 << 16
    size = SHOWN >> 4 if page.quick else SHOWN
    while 4 * 4 * size > page.device.memory_bytes // 2:
        size //= 2
    return size


def run(page):
    schedule = page.schedule(SCHEDULE)
    block = schedule["block_N"]
    even = largest(page)
    ragged = even // 4 + 3  # the last tile has 3 elements: no tile and no vector load divides it
    cases = [
        (even, torch.float32), (ragged, torch.float32), (even, torch.float16), (1, torch.float32),
    ][: 2 if page.spare else None]
    kernels = page.build(
        (vector_add, {"N": size, "dtype": tile_dtype(dtype), **schedule}) for size, dtype in cases
    )

    page.say(f"""The kernel. `block` is this block's number; it owns the {block} elements from
    block * {block} on. A fragment is a tile held in registers, spread over the block's threads.
    T.copy(A[block * block_N], A_local) names the corner of a tile in A; how much is copied follows
    from A_local. How large a tile is and how many threads share it is called the schedule; here it
    is block_N={block}, threads={schedule["threads"]} (SCHEDULE in sections/vector_add.py).""")
    page.show(vector_add)
    page.say("""In your own code call it like a function, C = vector_add(A, B), with CUDA tensors:
    the first call compiles it for that size and dtype, the next ones only run.""")

    good = []
    for (size, dtype), kernel in zip(cases, kernels, strict=True):
        tensors = inputs(page, size, dtype)
        if page.check(f"{size} {name_of(dtype)}", kernel, tensors, reference(*tensors)):
            good.append(((size, dtype), kernel))
    if page.spare:
        page.say(f"Left out in quick mode with {cores()} cores: float16, and a single element.")

    rows = []
    if page.device.is_gpu:
        rows = measured(page, [(case, kernel) for case, kernel in good if case[0] == even])

    large, tail = (even, ragged) if page.device.is_gpu else (SHOWN, SHOWN // 4 + 3)
    code = page.code(kernels[0], N=large)
    page.say(f"What the compiler made of it, for N = {large}." + ("" if large % block else f"""
    Tiles of {block} divide that, so there is no bounds check: the compiler has proved that every
    index is inside. Where a thread's share is wide enough, one instruction moves several
    elements."""))
    page.listing(code)
    page.landmarks(code)
    page.say(f"""For N = {tail} the last tile is cut short. The same Python source now gets a guard
    around every access to global memory, and one element a load, since a wider one could cross the
    end.""")
    page.landmarks(page.code(kernels[1], N=tail))

    conclude(page, rows)


def measured(page, pairs: list[tuple]) -> list[dict]:
    """Time the large sizes against torch.add and against a copy of as many bytes; print a table."""
    rows = []
    for (size, dtype), kernel in pairs:
        tensors = inputs(page, size, dtype)
        out = torch.empty_like(tensors[0])
        rows += page.measure(
            f"{size} {name_of(dtype)}",
            f"block_N={kernel.arguments['block_N']}, {kernel.arguments['threads']} threads",
            kernel,
            tensors,
            {
                "torch.add": lambda tensors=tensors, out=out: torch.add(*tensors, out=out),
                "copy ceiling": None,
            },
            work(size, dtype),
        )
    if rows:
        page.headline(rows[0])
    page.say("""Bytes moved: read A, read B, write C, 3 x N x element size. The L2 cache is flushed
    before every call. The copy ceiling is a device-to-device copy that moves as many bytes.""")
    page.timings(rows)
    return rows


def conclude(page, rows: list[dict]) -> None:
    """The lesson with this run's numbers, and one thing to try."""
    if rows:
        add, copy = rows[0], rows[1]
        page.lesson(f"""on this {page.device.gpu} {add['case']} elements take {add['ms']:.3f} ms,
        {add['value']:.0f} GB/s: {add['ratio']:.2f}x torch.add, {copy['ratio']:.2f}x a plain copy (a
        copy writes half of its bytes, this only a third, and reading is a little faster).""")
        page.limit("""memory. Every byte is moved once, at the speed of a copy. No cleverer
        arithmetic can help, only moving fewer bytes can.""")
    else:
        page.lesson("""a kernel says what happens to a tile; the compiler decides which thread does
        it, and adds a bounds check only where the size demands one.""")
    page.try_this("""python -m sections.vector_add block_N=128 threads=128: one element a thread, so
    the 16-byte loads are gone from the generated code; on a GPU the bandwidth drops with them.""")


if __name__ == "__main__":
    from sections.common.alone import run_alone

    raise SystemExit(run_alone(__file__))
