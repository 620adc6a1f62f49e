"""Softmax: a row stays in registers, and its threads agree on one maximum and one sum

y[j] = exp(x[j] - max x) / sum of exp(x - max x), for every row. Each element is needed three times:
for the maximum, for the sum, for the result. Registers hold a row that is not too long, so it is
read from global memory once and written once, and the kernel is as fast as a copy. A longer row
comes in tiles: online softmax keeps a running maximum and a running sum, corrects the sum whenever
the maximum grows, and reads the row a second time for the result. FlashAttention is built on this.
"""

import math

import tilelang
import tilelang.language as T
import torch

from sections.common.measure import Work

LOG2E = math.log2(math.e)  # exp(x) = exp2(x * LOG2E), and exp2 is what the hardware has
LOWEST = torch.finfo(torch.float32).min


@tilelang.jit
def softmax(X, threads: int = 128, dtype=T.float16):
    """Y = softmax of each row of X. X: (M, N) of dtype; returns Y: (M, N) of dtype.

    A block owns a row and keeps it in registers, in float32: N / threads values a thread. A row
    that is -inf throughout gives NaN, as in torch.
    """
    M, N = T.const("M N")
    X: T.Tensor[[M, N], dtype]
    Y = T.empty((M, N), dtype)
    width = T.ceildiv(N, 8 * threads) * 8 * threads  # whole vectors of 8 for every thread
    with T.Kernel(M, threads=threads) as row:
        x = T.alloc_fragment((width,), T.float32)  # the row, spread over the block's threads
        top = T.alloc_fragment((1,), T.float32)  # one value, the same in all threads
        total = T.alloc_fragment((1,), T.float32)
        T.copy(X[row, 0], x)
        for j in T.Parallel(width):  # beyond the row's end the copy gives 0, which is not neutral
            x[j] = T.if_then_else(j < N, x[j], -T.infinity(T.float32))
        T.reduce_max(x, top)
        for j in T.Parallel(width):  # the difference first: large values then keep their digits
            x[j] = T.exp2((x[j] - top[0]) * LOG2E)
        T.reduce_sum(x, total)
        total[0] = 1 / total[0]  # one division a row, not one an element
        for j in T.Parallel(width):
            x[j] *= total[0]
        T.copy(x, Y[row, 0])
    return Y


@tilelang.jit
def online_softmax(X, block_N: int = 16384, threads: int = 512, dtype=T.float16):
    """Y = softmax of each row of X, as above, for rows of any length: block_N columns at a time.

    Source: Milakov and Gimelshein, "Online normalizer calculation for softmax" (arXiv:1805.02867).
    """
    M, N = T.const("M N")
    X: T.Tensor[[M, N], dtype]
    Y = T.empty((M, N), dtype)
    with T.Kernel(M, threads=threads) as row:
        x = T.alloc_fragment((block_N,), T.float32)  # New: a tile of the row
        top = T.alloc_fragment((1,), T.float32)
        total = T.alloc_fragment((1,), T.float32)
        new_top = T.alloc_fragment((1,), T.float32)
        tile_total = T.alloc_fragment((1,), T.float32)
        T.fill(top, LOWEST)  # New: finite, since -inf - (-inf) would be NaN in a tile of -inf
        T.clear(total)
        for k in T.serial(T.ceildiv(N, block_N)):  # New: a pass for the maximum and the sum
            T.copy(X[row, k * block_N], x)
            for j in T.Parallel(block_N):
                x[j] = T.if_then_else(k * block_N + j < N, x[j], -T.infinity(T.float32))
            T.copy(top, new_top)
            T.reduce_max(x, new_top, clear=False)  # New: goes on from the tiles before
            for j in T.Parallel(block_N):
                x[j] = T.exp2((x[j] - new_top[0]) * LOG2E)
            T.reduce_sum(x, tile_total)
            # New: the sum so far stands on the old maximum; rescale it to the new one.
            total[0] = total[0] * T.exp2((top[0] - new_top[0]) * LOG2E) + tile_total[0]
            top[0] = new_top[0]
        total[0] = 1 / total[0]
        for k in T.serial(T.ceildiv(N, block_N)):  # New: a second pass for the result
            T.copy(X[row, k * block_N], x)
            for j in T.Parallel(block_N):
                x[j] = T.exp2((x[j] - top[0]) * LOG2E) * total[0]
            T.copy(x, Y[row, k * block_N])
    return Y


def reference(X):
    """torch.softmax in float32."""
    return torch.softmax(X.float(), dim=1)


# How many values a thread keeps in registers when a block holds a whole row; tiles of longer rows.
SCHEDULE = {"values": 32, "block_N": 16384, "online_threads": 512}
MOST_THREADS = 512  # that share a whole row
SHOWN = (65536, 4096)  # rows and columns of the code that is read


def choose(N: int, schedule: dict) -> tuple:
    """Which kernel takes rows of N columns, and its schedule."""
    threads = 32
    while threads * schedule["values"] < N:
        threads *= 2
    if threads <= MOST_THREADS:
        return softmax, {"threads": threads}
    return online_softmax, {"block_N": schedule["block_N"], "threads": schedule["online_threads"]}


def job(M: int, N: int, schedule: dict) -> tuple:
    """The kernel for M rows of N columns with its arguments, to be built."""
    kernel, chosen = choose(N, schedule)
    return kernel, {"M": M, "N": N, **chosen}


def variant(kernel) -> str:
    """A built kernel's schedule in words."""
    tile = kernel.arguments.get("block_N")
    how = f"online, tiles of {tile}" if tile else "whole row"
    return f"{how}, {kernel.arguments['threads']} threads"


def case(M: int, N: int) -> str:
    """The name of a case, rows x columns."""
    return f"{M}x{N} float16"


def inputs(page, M: int, N: int, seed: int = 0, dtype=torch.float16):
    """Random rows; the last column weighs more than most, so that its loss shows in a long row."""
    generator = torch.Generator(page.device.torch_device).manual_seed(seed)
    X = torch.randn(M, N, generator=generator, device=page.device.torch_device)
    X[:, -1] += 3
    return X.to(dtype)


def odd_rows(page, N: int, seed: int = 0, dtype=torch.float16):
    """12 rows with what attention masks and float16's range bring along; N >= 2."""
    X = inputs(page, 12, N, seed, torch.float32)
    half = min(N // 2, SCHEDULE["block_N"])  # in a long row this is a whole tile
    X[1] = -torch.inf  # NaN, as in torch
    X[2, :half] = -torch.inf
    X[3, half:] = -torch.inf
    X[4, :-1] = -torch.inf
    X[5] = -60000
    X[6] = 100 * X[6] - 60000
    X[7] = 60000 * X[7].sign()
    X[8, 0] = 60000
    X[9] = 0
    return X.to(dtype)


def run(page):
    page.say("""Rows up to a certain length. A block owns one row; x is spread over its threads and
    never leaves their registers. T.reduce_max and T.reduce_sum are the only points at which threads
    exchange anything.""")
    page.show(softmax)
    schedule = page.schedule(SCHEDULE)
    longest = schedule["values"] * MOST_THREADS
    page.say(f"""Longer rows. At most {MOST_THREADS} threads share a row and keep
    {schedule["values"]} values each: {longest} columns. From {longest + 1} on the tour takes the
    next kernel. "New" marks what differs.""")
    page.show(online_softmax)

    even = shapes_here(page)
    odd = 4099, longest + 3621  # columns: no tile and no vector load divides them
    kernels = page.build(
        [job(M, N, schedule) for M, N in even] + [job(12, N, schedule) for N in odd]
    )
    good = [check(page, case(*shape), kernel, inputs(page, *shape))
            for shape, kernel in zip(even, kernels[:2], strict=True)]
    for N, kernel in zip(odd, kernels[2:], strict=True):
        check(page, f"odd rows of {case(12, N)}", kernel, odd_rows(page, N))
    page.say("""Sums: each row must sum up to 1. Odd rows are -inf throughout (NaN, as in torch), in
    a whole tile or in all columns but one, lie around -60000, or are all equal.""")

    rows = []
    if page.device.is_gpu:
        for shape, kernel, passed in zip(even, kernels[:2], good, strict=True):
            rows += timed(page, shape, kernel) if passed else []
        page.say("""Bytes: read X once, write Y once, 2 x rows x columns x 2. The online kernel
        reads X twice, and only what its second pass finds in the L2 cache is free. The L2 cache is
        flushed before every call; the copy moves as many bytes.""")
        page.timings(rows)
    M, N = even[0] if page.device.is_gpu else SHOWN
    explain(page, page.code(kernels[0], M=M, N=N, **choose(N, schedule)[1]), N)
    conclude(page, rows)


def shapes_here(page) -> tuple:
    """(rows, columns) for the whole-row kernel and for the online one; what memory has room for."""
    if not page.device.is_gpu:
        return (200, 1000), (4, 20000)
    elements = 1 << (26 if page.quick else 28)
    while 16 * elements > page.device.memory_bytes // 2:  # X, Y, torch's Y, and both in float32
        elements //= 2
    return (elements // 4096, 4096), (elements // 2 // 32768, 32768)


def check(page, name: str, kernel, X) -> bool:
    """Check a kernel against torch in float32, and that each row sums up to 1."""
    expected, N = reference(X), X.shape[1]
    right = page.check(name, kernel, (X,), expected, reduction=N)

    def row_sums(X):
        return kernel(X).float().sum(1, keepdim=True)

    return page.check(f"sums of {name}", row_sums, (X,), expected.sum(1, keepdim=True),
                      torch.float32, reduction=N, intermediate=X.dtype) and right


def timed(page, shape: tuple, kernel) -> list[dict]:
    """Time a checked kernel in turn with its baselines. Bytes: read X once, write Y once."""
    X = inputs(page, *shape)
    baselines = {"torch.softmax": lambda: torch.softmax(X, dim=1)}
    baselines |= {**page.torch_compiled(lambda: torch.softmax(X, dim=1)), "copy ceiling": None}
    rows = page.measure(case(*shape), variant(kernel), kernel, (X,), baselines,
                        Work(bytes_moved=2 * X.nbytes))
    if shape[1] == SHOWN[1]:
        page.headline(min(rows[:-1], key=lambda row: row["ratio"]))  # the strongest but the copy
    return rows


def explain(page, code, N: int) -> None:
    """The generated reduction: what stays in a thread and what crosses threads."""
    page.say(f"""The generated code for {N} columns. Each thread first reduces its own values in
    registers. What crosses threads is one number a thread, in tl::AllReduce:""")
    page.landmarks(code, only=("vector load", "single element", "AllReduce", "exponential",
                               "block barrier", "narrowing", "vector store"))
    halvings = int(math.log2(code.threads))
    page.say(f"""AllReduce pairs thread t with t xor {code.threads // 2}, then xor half of that, and
    so on down to 1: after {halvings} exchanges all {code.threads} threads hold the result.
    {halvings - 5} of them cross warps and go through shared memory, between barriers; 5 stay inside
    a warp and are shuffles from register to register. This happens twice a row; in the online
    kernel twice a tile.""")


def conclude(page, rows: list[dict]) -> None:
    """The lesson with this run's numbers, and one thing to try."""
    by_case = {}
    for row in rows:
        by_case.setdefault(row["case"], {})[row["baseline"]] = row
    if len(by_case) == 2:
        whole, online = by_case.values()
        a, b = whole["torch.softmax"], online["torch.softmax"]
        page.lesson(f"""a row that stays in registers is read once: {a['case']} takes
        {a['ms']:.3f} ms, {a['value']:.0f} GB/s, {a['ratio']:.2f}x torch.softmax and
        {whole['copy ceiling']['ratio']:.2f}x a plain copy. {b['case']} ({b['variant']}) reaches
        {b['value']:.0f} GB/s, {b['ratio']:.2f}x torch.softmax.""")
    else:
        page.lesson("""a softmax is as fast as its row is read: once, where registers hold the row,
        twice, where it comes in tiles. Threads exchange one number each for the maximum and one for
        the sum.""")
    page.try_this("""python -m sections.softmax values=128: 32 threads share a row of 4096, every
    exchange is a shuffle and shared memory is gone; on a GPU see whether one warp's loads are
    enough to keep the memory busy.""")


if __name__ == "__main__":
    from sections.common.alone import run_alone

    raise SystemExit(run_alone(__file__))
