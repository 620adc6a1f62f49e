"""Softmax for Hopper: the copy engine brings a whole row, which needs no registers meanwhile."""

import tilelang
import tilelang.language as T

from sections.softmax import LOG2E, LOWEST, agree, take_in

TILE = 8 * 512  # columns
KEPT, MOST = 24, 32  # tiles in shared memory, and together with those in registers


@tilelang.jit
def softmax_hopper(X, kept: int = 8, held: int = 0, threads: int = 512, dtype=T.float16):
    """Y = softmax of each row of X, as above, read once. Needs sm_90a (TMA), and rows that
    are kept + held whole tiles of 8 x threads columns.

    kept  tiles of a row in shared memory;  held  tiles in registers, as they came
    """
    M, N = T.const("M N")
    X: T.Tensor[[M, N], dtype]
    Y = T.empty((M, N), dtype)
    T.annotate_pass_configs({"tl.enable_fast_math": True})
    width = 8 * threads
    with T.Kernel(M, threads=threads) as row:
        row_shared = T.alloc_shared((kept, width), dtype)
        there = T.alloc_barrier([32] * kept)  # New: "tile k is there"
        row_local = T.alloc_fragment((max(held, 1), threads, 8), dtype)
        tile = T.alloc_fragment((threads, 8), dtype)
        x = T.alloc_fragment((threads, 8), T.float32)
        top, new_top, total, tile_total = [
            T.alloc_fragment((threads,), T.float32) for _ in range(4)]
        row_top, row_total = [T.alloc_fragment((1,), T.float32) for _ in range(2)]
        if T.get_thread_binding() < 32:  # New: the copy engine is told of all tiles at once
            for k in T.serial(kept):
                first = (held + k) * width
                T.tma_copy(X[row, first : first + width], row_shared[k, :], barrier=there[k])
                T.mbarrier_arrive(there[k])
        T.fill(top, LOWEST)
        T.clear(total)
        if held:  # New: meanwhile threads load what shared memory has no room for
            for k, t, v in T.Parallel(held, threads, 8):
                row_local[k, t, v] = X[row, k * width + t * 8 + v]
            for k in T.unroll(held):
                for t, v in T.Parallel(threads, 8):
                    tile[t, v] = row_local[k, t, v]
                take_in(tile, x, top, new_top, total, tile_total, threads)
        for k in T.serial(kept):
            T.mbarrier_wait_parity(there[k], 0)
            for t, v in T.Parallel(threads, 8):
                tile[t, v] = row_shared[k, t * 8 + v]
            take_in(tile, x, top, new_top, total, tile_total, threads)
        agree(top, total, row_top, row_total, threads)
        if held:
            for k, t, v in T.Parallel(held, threads, 8):
                y = T.exp2((row_local[k, t, v] - row_top[0]) * LOG2E) * row_total[0]
                Y[row, k * width + t * 8 + v] = y
        for k in T.serial(kept):
            for t, v in T.Parallel(threads, 8):
                y = T.exp2((row_shared[k, t * 8 + v] - row_top[0]) * LOG2E) * row_total[0]
                Y[row, (held + k) * width + t * 8 + v] = y
    return Y


def takes(device, N: int) -> bool:
    """Whether softmax_hopper can be had: on Hopper, for rows of whole tiles and not too many."""
    return (device.mode == "gpu" and device.arch == "sm_90a"
            and N % TILE == 0 and N // TILE <= MOST)


def schedule(N: int) -> dict:
    """Its schedule for rows of N columns."""
    kept = min(N // TILE, KEPT)
    return {"kept": kept, "held": N // TILE - kept, "threads": TILE // 8}
