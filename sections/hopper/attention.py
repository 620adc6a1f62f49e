"""Attention for Hopper: what the compiler makes of flash_attention's T.Pipelined, written out."""

import math

import tilelang
import tilelang.language as T

from sections.common.ladder import Step

LACKS = """O is scaled down in every step, though its maxima seldom grow after the first tiles, and
the maximum of a row is a chain of as many dependent instructions as a thread has scores in it."""
LOG2E = math.log2(math.e)


@tilelang.jit
def attention_hopper(Q, K, V, scale: float, causal: bool = False, block_M: int = 128,
                     block_N: int = 128, num_stages: int = 2, in_turn: bool = False,
                     store_shared: bool = True, together: int = 8, blocks: int = 132,
                     dtype=T.float16):
    """O as flash_attention, with the roles of Hopper's warps written out. Needs sm_90a (wgmma).

    block_M   64 rows for each warpgroup that computes; head sizes up to 128
    in_turn   warpgroups order their multiplications one after the other
    together  how many heads are worked on at a time: their K and V share the L2 cache
    blocks    how many are started: one a multiprocessor; each computes one tile of O after another
    """
    B, Sq, Skv, H, D = T.const("B Sq Skv H D")
    Q: T.Tensor[[B, Sq, H, D], dtype]
    K: T.Tensor[[B, Skv, H, D], dtype]
    V: T.Tensor[[B, Skv, H, D], dtype]
    O = T.empty((B, Sq, H, D), dtype)  # noqa: E741
    T.annotate_pass_configs({"tl.enable_fast_math": True})
    rows = T.GemmWarpPolicy.FullRow
    groups = block_M // 64  # warpgroups that compute
    tiles, all_steps = T.ceildiv(Sq, block_M), T.ceildiv(Skv, block_N)
    order = T.PersistentTileScheduler(tiles, B * H, blocks, swizzle_size=together, stateful=False)
    with T.Kernel(blocks, threads=128 + 128 * groups) as block:
        Q_shared = T.alloc_shared((block_M, D), dtype)
        K_shared = T.alloc_shared((num_stages, block_N, D), dtype)
        V_shared = T.alloc_shared((num_stages, block_N, D), dtype)
        O_shared = T.alloc_shared((block_M, D), dtype)
        scores = T.alloc_fragment((block_M, block_N), T.float32)
        weights = T.alloc_fragment((block_M, block_N), dtype)
        O_local = T.alloc_fragment((block_M, D), T.float32)
        top = T.alloc_fragment((block_M,), T.float32)
        old_top = T.alloc_fragment((block_M,), T.float32)
        shrink = T.alloc_fragment((block_M,), T.float32)
        tile_total = T.alloc_fragment((block_M,), T.float32)
        total = T.alloc_fragment((block_M,), T.float32)
        Q_full = T.alloc_barrier([32])  # full: the copying warp says that a tile is here
        K_full = T.alloc_barrier([32] * num_stages)
        V_full = T.alloc_barrier([32] * num_stages)
        Q_empty = T.alloc_barrier([groups])  # empty: every warpgroup says that it is done with it
        K_empty = T.alloc_barrier([groups] * num_stages)
        V_empty = T.alloc_barrier([groups] * num_stages)
        turn = T.alloc_barrier([1] * groups)
        thread = T.get_thread_binding()
        group = thread // 128 - 1
        done = T.alloc_var(T.int32, init=0)  # tiles of O so far
        used = T.alloc_var(T.int32, init=0)  # tiles of K so far: they count on from tile to tile
        item = T.alloc_var(T.int32, init=0)  # the tile of O in hand
        item = block
        if thread < 32:  # one warp copies, as far ahead as there is room
            T.set_max_nreg(24, 0)
            while item < tiles * B * H:
                tile, pair = order.coord(item)
                batch, head = pair // H, pair % H
                first = (tiles - 1 - tile if causal else tile) * block_M
                steps = walk(first + Skv - Sq + block_M, all_steps, block_N, causal)
                T.mbarrier_wait_parity(Q_empty[0], (done + 1) % 2)
                T.tma_copy(Q[batch, first : first + block_M, head, :], Q_shared, barrier=Q_full[0])
                T.mbarrier_arrive(Q_full[0])
                for j in T.serial(steps):  # from the last keys, on the diagonal, to the first
                    k = (steps - 1 - j) * block_N
                    stage, again = (used + j) % num_stages, (used + j) // num_stages
                    T.mbarrier_wait_parity(K_empty[stage], (again + 1) % 2)
                    T.tma_copy(K[batch, k : k + block_N, head, :], K_shared[stage, :, :],
                               barrier=K_full[stage])
                    T.mbarrier_arrive(K_full[stage])
                    T.mbarrier_wait_parity(V_empty[stage], (again + 1) % 2)
                    T.tma_copy(V[batch, k : k + block_N, head, :], V_shared[stage, :, :],
                               barrier=V_full[stage])
                    T.mbarrier_arrive(V_full[stage])
                used += steps
                done += 1
                item = dealt(done, block, blocks)
        elif thread < 128:  # registers belong to warpgroups: the other three warps give theirs back
            T.set_max_nreg(24, 0)
        else:
            T.set_max_nreg(240 if groups == 2 else 160, 1)
            while item < tiles * B * H:
                tile, pair = order.coord(item)
                batch, head = pair // H, pair % H
                first = (tiles - 1 - tile if causal else tile) * block_M
                seen = first + Skv - Sq + 1 if causal else Skv
                steps = walk(first + Skv - Sq + block_M, all_steps, block_N, causal)
                T.clear(O_local)
                T.clear(total)
                T.fill(top, -1e30)
                T.mbarrier_wait_parity(Q_full[0], done % 2)
                T.mbarrier_wait_parity(K_full[used % num_stages], used // num_stages % 2)
                T.wgmma_gemm(Q_shared, K_shared[used % num_stages, :, :], scores,
                             transpose_B=True, policy=rows, clear_accum=True)
                T.wait_wgmma(0)
                release(K_empty, used % num_stages, thread)
                if causal or Skv % block_N != 0:
                    hide(scores, steps - 1, seen, causal)
                online_softmax(scores, top, old_top, shrink, tile_total, total, scale)
                T.copy(scores, weights)
                for j in T.serial(1, steps):
                    now, before = used + j, used + j - 1  # tiles of K, and of V
                    if in_turn:
                        T.mbarrier_wait_parity(
                            turn[group], (now - done + T.if_then_else(group == 0, 0, 1)) % 2)
                    # Both multiplications are ordered: the new scores, and the old weights by V.
                    T.mbarrier_wait_parity(K_full[now % num_stages], now // num_stages % 2)
                    T.wgmma_gemm(Q_shared, K_shared[now % num_stages, :, :], scores,
                                 transpose_B=True, policy=rows, clear_accum=True)
                    T.mbarrier_wait_parity(V_full[before % num_stages], before // num_stages % 2)
                    T.wgmma_gemm(weights, V_shared[before % num_stages, :, :], O_local, policy=rows)
                    if in_turn:
                        release(turn, (group + 1) % groups, thread)
                    T.wait_wgmma(1)  # the scores are here; their softmax runs beside the second
                    release(K_empty, now % num_stages, thread)
                    if causal and (block_M != block_N or (Skv - Sq) % block_N != 0):
                        if (steps - j) * block_N > seen:
                            hide(scores, steps - 1 - j, seen, causal)
                    online_softmax(scores, top, old_top, shrink, tile_total, total, scale)
                    T.wait_wgmma(0)
                    release(V_empty, before % num_stages, thread)
                    for i, d in T.Parallel(block_M, D):
                        O_local[i, d] *= shrink[i]
                    T.copy(scores, weights)
                release(Q_empty, 0, thread)
                used += steps
                last = used - 1
                T.mbarrier_wait_parity(V_full[last % num_stages], last // num_stages % 2)
                T.wgmma_gemm(weights, V_shared[last % num_stages, :, :], O_local, policy=rows)
                T.wait_wgmma(0)
                release(V_empty, last % num_stages, thread)
                for i, d in T.Parallel(block_M, D):
                    O_local[i, d] /= T.max(total[i], 1e-30)
                if store_shared:  # nobody waits for the store before the next one
                    T.tma_store_wait(0)
                    T.copy(O_local, O_shared)
                    T.fence_proxy_async()
                    T.tma_copy(O_shared, O[batch, first : first + block_M, head, :])
                else:
                    T.copy(O_local, O[batch, first : first + block_M, head, :])
                done += 1
                item = dealt(done, block, blocks)
            T.tma_store_wait(0)
    return O


@T.macro
def release(barrier, stage, thread):
    """One thread of a warpgroup says that all of it is done with a stage."""
    if thread % 128 == 0:
        T.mbarrier_arrive(barrier[stage])


def walk(seen, steps, block_N: int, causal: bool):
    """Tiles of keys to walk along: all; causal, up to the last one with a key that is seen."""
    return T.max(1, T.min(steps, T.ceildiv(seen, block_N))) if causal else steps


def dealt(done, block, blocks: int):
    """The next tile of O for a block: they are dealt out like cards, there and back."""
    return done * blocks + T.if_then_else(done % 2 == 0, block, blocks - 1 - block)


@T.macro
def hide(scores, k, seen, causal):
    """-inf for the keys of tile `k` that a query must not see; the first query sees `seen` keys."""
    block_M, block_N = scores.shape
    for i, j in T.Parallel(block_M, block_N):
        visible = k * block_N + j < (seen + i if causal else seen)
        scores[i, j] = T.if_then_else(visible, scores[i, j], -T.infinity(T.float32))


@T.macro
def online_softmax(scores, top, old_top, shrink, tile_total, total, scale):
    """Scores become weights against the largest score so far; `shrink` is for what came before."""
    block_M, block_N = scores.shape
    T.copy(top, old_top)
    T.reduce_max(scores, top, dim=1, clear=False)  # goes on from the tiles before
    for i in T.Parallel(block_M):
        shrink[i] = T.exp2((old_top[i] - top[i]) * (scale * LOG2E))
    for i, j in T.Parallel(block_M, block_N):  # one multiply-add and one exp2
        scores[i, j] = T.exp2(scores[i, j] * (scale * LOG2E) - top[i] * (scale * LOG2E))
    T.reduce_sum(scores, tile_total, dim=1)
    for i in T.Parallel(block_M):
        total[i] = total[i] * shrink[i] + tile_total[i]


def takes(device, size: int) -> bool:
    """Whether attention_hopper can be had: on Hopper, for head sizes that are tested."""
    return device.mode == "gpu" and device.arch == "sm_90a" and size in (64, 96, 128)


def step(case, blocks: int) -> Step:
    """The row of the ladder, with its schedule for a flash_attention.Case."""
    narrow = case.size <= 64
    # Narrow heads leave registers for a third warpgroup. Short causal ones have so few steps that
    # what a larger tile computes beyond the diagonal costs more than it saves.
    three = narrow and not (case.causal and case.queries <= 1024)
    block_M = 192 if three else 128
    block_N = 128 if narrow or case.causal else 176
    schedule = {
        "block_M": block_M, "block_N": block_N, "num_stages": 2, "in_turn": three,
        "store_shared": block_N == 128,  # else K and V leave no room for O
        "together": evenly(case, block_M, block_N, blocks), "blocks": blocks,
    }
    return Step("attention_hopper", schedule, "multiplies while it computes weights",
                attention_hopper)


def steps_of(case, block_M: int, block_N: int) -> list[int]:
    """How many tiles of keys each tile of queries walks along."""
    everything = math.ceil(case.keys / block_N)
    if not case.causal:
        return [everything] * math.ceil(case.queries / block_M)
    ends = range(block_M, case.queries + block_M, block_M)
    return [max(1, min(everything, math.ceil((end + case.keys - case.queries) / block_N)))
            for end in ends]


def evenly(case, block_M: int, block_N: int, blocks: int) -> int:
    """How many heads to work on together: the fewest that deal out work within 2 % of the best.

    Causal tiles of O take from one step to many. Dealt out in panels of the wrong number of heads,
    some blocks get long ones every time.
    """
    if not case.causal:
        return 8
    heads, lengths = case.batch * case.heads, steps_of(case, block_M, block_N)[::-1]
    longest = {}
    for together in range(1, min(heads, 64) + 1):
        work, item = [0] * blocks, 0
        for panel in range(0, heads, together):
            for length in lengths:
                for _ in range(min(together, heads - panel)):
                    done, place = divmod(item, blocks)
                    work[place if done % 2 == 0 else blocks - 1 - place] += length + 1  # to start
                    item += 1
        longest[together] = max(work)
    return next(n for n in longest if longest[n] <= 1.02 * min(longest.values()))
