"""Softmax: a row stays on the chip, and its threads agree on one maximum and one sum

y[j] = exp(x[j] - max x) / sum of exp(x - max x), for every row. Each element is needed three times:
for the maximum, for the sum, for the result. Registers hold a row that is not too long, so it is
read from global memory once and written once, and the kernel is as fast as a copy. A longer row
comes in tiles: online softmax keeps a running maximum and a running sum, and corrects the sum
whenever the maximum grows. What shared memory has room for is kept there for the result; the rest
of the row is read a second time. FlashAttention is built on this.
"""

import math

import tilelang
import tilelang.language as T
import torch

from sections.common.build import cores
from sections.common.measure import Work
from sections.common.page import kilobytes

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


@T.macro
def take_in(tile, x, top, new_top, total, tile_total, threads):
    """Each thread goes on with 8 more values: a running maximum and a running sum of its own."""
    for t, v in T.Parallel(threads, 8):
        x[t, v] = tile[t, v]
    T.copy(top, new_top)
    T.reduce_max(x, new_top, dim=1, clear=False)  # inside a thread
    for t, v in T.Parallel(threads, 8):
        x[t, v] = T.exp2((x[t, v] - new_top[t]) * LOG2E)
    T.reduce_sum(x, tile_total, dim=1)
    for t in T.Parallel(threads):
        # The sum so far stands on the old maximum; rescale it to the new one.
        total[t] = total[t] * T.exp2((top[t] - new_top[t]) * LOG2E) + tile_total[t]
        top[t] = new_top[t]


@T.macro
def agree(top, total, row_top, row_total, threads):
    """All threads' maxima and sums become the row's: the only exchange, once a row."""
    T.reduce_max(top, row_top)
    for t in T.Parallel(threads):
        total[t] *= T.exp2((top[t] - row_top[0]) * LOG2E)
    T.reduce_sum(total, row_total)
    row_total[0] = 1 / row_total[0]


@tilelang.jit
def online_softmax(X, kept: int = 0, threads: int = 1024, blocks: int = 1, dtype=T.float16):
    """Y = softmax of each row of X, as above, for rows of any length, 8 columns a thread at a time.

    kept    so many columns, the first ones, wait in shared memory for the second pass
    blocks  how many blocks an SM should have room for: that limits the registers of a thread

    Source: Milakov and Gimelshein, "Online normalizer calculation for softmax" (arXiv:1805.02867).
    """
    M, N = T.const("M N")
    X: T.Tensor[[M, N], dtype]
    Y = T.empty((M, N), dtype)
    T.annotate_pass_configs({"tl.enable_fast_math": True})  # exp2 is then one instruction
    width = 8 * threads  # of a tile
    with T.Kernel(M, threads=threads) as row:
        T.annotate_min_blocks_per_sm(blocks)
        row_shared = T.alloc_shared((max(kept, 8),), dtype)
        tile = T.alloc_fragment((threads, 8), dtype)  # New: a tile of the row, as it came
        x = T.alloc_fragment((threads, 8), T.float32)
        top, new_top, total, tile_total = [  # New: each thread's own
            T.alloc_fragment((threads,), T.float32) for _ in range(4)]
        row_top, row_total = [T.alloc_fragment((1,), T.float32) for _ in range(2)]
        T.fill(top, LOWEST)  # New: finite, since -inf - (-inf) would be NaN for a thread of -inf
        T.clear(total)
        for k in T.unroll(T.ceildiv(N, width), unroll_factor=4):  # New: for maximum and sum
            for t, v in T.Parallel(threads, 8):
                j = k * width + t * 8 + v
                tile[t, v] = T.if_then_else(j < N, X[row, j], -T.infinity(dtype))
            if k * width < kept:
                for t, v in T.Parallel(threads, 8):
                    row_shared[k * width + t * 8 + v] = tile[t, v]
            take_in(tile, x, top, new_top, total, tile_total, threads)
        agree(top, total, row_top, row_total, threads)
        for k in T.unroll(T.ceildiv(N, width), unroll_factor=4):  # New: again, for the result
            if k * width < kept:
                for t, v in T.Parallel(threads, 8):
                    tile[t, v] = row_shared[k * width + t * 8 + v]
            else:
                for t, v in T.Parallel(threads, 8):
                    tile[t, v] = X[row, k * width + t * 8 + v]
            for t, v in T.Parallel(threads, 8):
                y = T.exp2((tile[t, v] - row_top[0]) * LOG2E) * row_total[0]
                Y[row, k * width + t * 8 + v] = y
    return Y


def reference(X):
    """torch.softmax in float32."""
    return torch.softmax(X.float(), dim=1)


# How many values a thread keeps in registers when a block holds a whole row, and how many columns
# of longer rows an SM keeps in shared memory.
SCHEDULE = {"values": 32, "kept": 0}
MOST_THREADS = 512  # that share a whole row in registers
TILE = 8 * 1024  # columns of a tile of the online kernel
SHOWN = (65536, 4096)  # rows and columns of the code that is read


def schedule_for(device) -> dict:
    """The schedule that uses the device's shared memory, but for 8 KB: threads meet there too."""
    return {**SCHEDULE, "kept": (device.shared_bytes - 8192) // 2 // TILE * TILE}


def choose(N: int, schedule: dict) -> tuple:
    """Which of the kernels for any GPU takes rows of N columns, and its schedule."""
    threads = 32
    while threads * schedule["values"] < N:
        threads *= 2
    if threads <= MOST_THREADS:
        return softmax, {"threads": threads}
    row = -(-N // TILE) * TILE  # whole tiles
    return online_softmax, {"kept": min(row, schedule["kept"]), "threads": TILE // 8,
                            "blocks": 2 if schedule["kept"] >= 2 * row else 1}


def kernel_for(device, N: int, schedule: dict) -> tuple:
    """The kernel to take for rows of N columns, and its schedule.

    Hopper's own is for rows that fill an SM: of shorter ones an SM has two, one is read while the
    other is written, and nothing is left to gain.
    """
    from sections.hopper import softmax as hopper  # which takes its steps from here

    kernel, chosen = choose(N, schedule)
    fills = kernel is online_softmax and chosen["kept"] and chosen["blocks"] == 1
    if fills and hopper.takes(device, N):
        return hopper.softmax_hopper, hopper.schedule(N)
    return kernel, chosen


def job(M: int, N: int, schedule: dict) -> tuple:
    """The kernel for M rows of N columns with its arguments, to be built."""
    kernel, chosen = choose(N, schedule)
    return kernel, {"M": M, "N": N, **chosen}


def variant(kernel) -> str:
    """A built kernel's schedule in words."""
    arguments = kernel.arguments
    threads = f"{arguments['threads']} threads"
    if kernel.jit is softmax:
        return f"whole row, {threads}"
    if "held" in arguments:
        return f"hopper, {arguments['kept']} tiles kept, {arguments['held']} held, {threads}"
    return f"online, {min(arguments['kept'], arguments['N'])} columns kept, {threads}"


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
    half = min(N // 2, 2 * TILE)  # in a long row these are whole tiles
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
    schedule = page.schedule(schedule_for(page.device))
    longest = schedule["values"] * MOST_THREADS
    page.say(f"""Longer rows. At most {MOST_THREADS} threads share a row and keep
    {schedule["values"]} values each: {longest} columns. From {longest + 1} on the tour takes the
    next kernel. "New" marks what differs. Each thread has its own maximum and sum, of the columns
    it has seen; only at the end do threads exchange anything, as before. The first `kept` columns
    stay in shared memory, 2 bytes each: on {page.device.arch} an SM has room for
    {schedule["kept"]}, in whole tiles. A row that fits there is read once; of a longer one the rest
    is read again, at best from the L2 cache.""")
    for part in (take_in, agree, online_softmax):
        page.show(part)
    introduce_hopper(page)

    shapes = shapes_here(page)
    odd = 4099, longest + 3621  # columns: no tile and no vector load divides them
    wanted = [(kernel, {"M": M, "N": N, **chosen}) for M, N in shapes
              for kernel, chosen in [kernel_for(page.device, N, schedule)]]
    wanted += [job(12, N, schedule) for N in odd]
    climbs = page.device.is_gpu and not page.spare
    if climbs:
        wanted += [job(*shapes[-1], {**schedule, "kept": 0}), job(*shapes[-1], schedule)]
    kernels = page.build(wanted, torch_compile=True)
    even, odd_kernels = kernels[: len(shapes)], kernels[len(shapes) :][: len(odd)]
    good = [check(page, case(*shape), kernel, inputs(page, *shape))
            for shape, kernel in zip(shapes, even, strict=True)]
    for N, kernel in zip(odd, odd_kernels, strict=True):
        check(page, f"odd rows of {case(12, N)}", kernel, odd_rows(page, N))
    page.say("""Sums: each row must sum up to 1. "Odd rows": some are -inf throughout (NaN, as in
    torch), in whole tiles or in all columns but one, some lie around -60000, or are all equal.""")

    rows = []
    if climbs:
        step_by_step(page, shapes[-1], [*kernels[-2:], even[-1]])
    elif page.spare:
        page.say(f"Left out in quick mode with {cores()} cores: a long row, step by step.")
    if page.device.is_gpu:
        for shape, kernel, passed in zip(shapes, even, good, strict=True):
            rows += timed(page, shape, kernel) if passed else []
        page.say("""Bytes: read X once, write Y once, 2 x rows x columns x 2. What is read again
        is free only where the L2 cache still has it. The L2 cache is flushed before every call;
        the copy moves as many bytes.""")
        page.timings(rows)
    M, N = shapes[0] if page.device.is_gpu else SHOWN
    explain(page, page.code(even[0], M=M, N=N, **choose(N, schedule)[1]), N)
    conclude(page, rows)


def introduce_hopper(page) -> None:
    """The kernel that only Hopper can run."""
    if page.device.arch != "sm_90a":
        page.say(f"""For sm_90a there is a kernel more, for rows that fill an SM: the copy engine
        brings a row without any registers. On {page.device.arch} the kernels above are used; on any
        machine --device cpu --arch sm_90a shows it.""")
        return
    from sections.hopper import softmax as hopper

    page.say(f"""A step further, for sm_90a alone. When a row fills an SM's shared memory, there is
    no second block that reads while this one writes: the SM waits for memory. Each load needs a
    register until it arrives, and so few are under way at a time. The copy engine needs none. It is
    told of all tiles at once, and a barrier a tile says when it is there. What does not fit waits
    in registers, 2 bytes a column. Up to {hopper.MOST * hopper.TILE} columns are so read once.""")
    page.show(hopper.softmax_hopper)


def shapes_here(page) -> tuple:
    """(rows, columns), the first for the kernel with whole rows in registers, longer rows behind.

    As many elements as memory has room for.
    """
    if not page.device.is_gpu:
        return (200, 1000), (4, 20000)
    elements = 1 << (26 if page.quick else 28)
    while 16 * elements > page.device.memory_bytes // 2:  # X, Y, torch's Y, and both in float32
        elements //= 2
    shapes = (elements // 4096, 4096), (elements // 2 // 32768, 32768), (elements >> 17, 1 << 17)
    return shapes[:2] if page.quick else shapes


def step_by_step(page, shape: tuple, kernels: list) -> None:
    """What each step buys for a long row: read twice, kept, and on Hopper brought by TMA."""
    X = inputs(page, *shape)
    cells = []
    for change, why, kernel in zip(
        ("read twice", "+ kept in shared memory", "hopper"),
        ("the second time from the L2 cache, where it is still there",
         "less is read again, or nothing", "the copy engine brings all tiles at once"),
        kernels if "held" in getattr(kernels[-1], "arguments", {}) else kernels[:-1],
        strict=False,
    ):
        if not check(page, f"{case(*shape)}, {change}", kernel, X):
            continue
        (m,) = page.measure(case(*shape), variant(kernel), kernel, (X,),
                            {"torch.softmax": lambda: torch.softmax(X, dim=1)},
                            Work(bytes_moved=2 * X.nbytes), rounds=3)
        cells.append([change, kilobytes(kernel.code.shared_bytes), f"{m['ms']:.3f}",
                      f"{m['value']:.0f}", f"{m['ratio']:.2f}x", why])
    page.say(f"Step by step, {case(*shape)}:")
    page.table(["step", "shared", "ms", "GB/s", "vs torch.softmax", "why"], cells,
               right=("shared", "ms", "GB/s", "vs torch.softmax"))


def check(page, name: str, kernel, X) -> bool:
    """Check a kernel against torch in float32, and that each row sums up to 1."""
    expected, N = reference(X), X.shape[1]
    right = page.check(name, kernel, (X,), expected, reduction=N)
    if isinstance(kernel, BaseException):  # then there is nothing to sum up
        return False

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
    a warp and are shuffles from register to register. This happens twice a row, in either
    kernel.""")


def conclude(page, rows: list[dict]) -> None:
    """The lesson with this run's numbers, and one thing to try."""
    by_case = {}
    for row in rows:
        by_case.setdefault(row["case"], {})[row["baseline"]] = row
    if by_case:
        texts = []
        for found in by_case.values():
            m, copy = found["torch.softmax"], found["copy ceiling"]
            texts.append(f"{m['case']} ({m['variant']}) {m['ms']:.3f} ms, {m['value']:.0f} GB/s, "
                         f"{m['ratio']:.2f}x torch.softmax, {copy['ratio']:.2f}x a plain copy")
        page.lesson(f"""a row that stays on the chip is read once. {"; ".join(texts)}.""")
        page.limit("""memory. What is missing to a copy: a row is read whole before any of it can be
        written, long rows leave an SM no room for another one meanwhile, and the last rows leave
        part of the SMs without work.""")
    else:
        page.lesson("""a softmax is as fast as its row is read: once, where registers or shared
        memory hold the row, twice where they do not. Threads exchange one number each for the
        maximum and one for the sum.""")
    page.try_this("""python -m sections.softmax values=128 (columns a thread): 32 threads share a
    row of 4096, every exchange is a shuffle and shared memory is gone; on a GPU see whether one
    warp's loads are enough to keep the memory busy.""")


if __name__ == "__main__":
    from sections.common.alone import run_alone

    raise SystemExit(run_alone(__file__))
