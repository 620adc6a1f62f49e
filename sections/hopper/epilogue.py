"""C = GELU(A @ B + bias) for Hopper: tensor cores go from one warpgroup to the other and back."""

import tilelang
import tilelang.language as T

from sections.common.ladder import Step
from sections.fused_epilogue import gelu


@tilelang.jit
def fused_epilogue_hopper(A, B, bias, block_M: int = 128, block_N: int = 128, block_K: int = 64,
                          num_stages: int = 6, swizzle: int = 16, blocks: int = 132,
                          tanh: bool = False, dtype=T.float16):
    """The same C as fused_epilogue. Needs sm_90a (wgmma), and N and K in multiples of 8: rows of
    whole 16-byte pieces (TMA).

    blocks  how many are started: one a multiprocessor; each computes one tile of C after another
    """
    M, N, K = T.const("M N K")
    A: T.Tensor[[M, K], dtype]
    B: T.Tensor[[K, N], dtype]
    bias: T.Tensor[[N], dtype]
    C = T.empty((M, N), dtype)
    T.annotate_pass_configs({"tl.enable_fast_math": True})
    rows, columns, steps = T.ceildiv(M, block_M), T.ceildiv(N, block_N), T.ceildiv(K, block_K)
    order = T.PersistentTileScheduler(rows, columns, blocks, swizzle_size=swizzle, stateful=False)
    with T.Kernel(blocks, threads=384) as block:
        A_shared = T.alloc_shared((num_stages, block_M, block_K), dtype)
        B_shared = T.alloc_shared((num_stages, block_K, block_N), dtype)
        full = T.alloc_barrier([32] * num_stages)  # stage s is here
        empty = T.alloc_barrier([1] * num_stages)  # stage s has been multiplied
        turn = T.alloc_barrier([1] * 2)  # New: the tensor cores are yours
        thread = T.get_thread_binding()
        if thread < 32:  # one warp copies, as far ahead as stages are empty
            T.set_max_nreg(24, 0)
            # How many tiles a block has differs by one. A loop of 0 or 1 turns, by T.serial, runs
            # once in TileLang 0.1.15; here that would be to wait for ever.
            tile = T.alloc_var(T.int32, init=0)
            while tile * blocks + block < rows * columns:
                by, bx = order.coord(tile * blocks + block)
                m, n = by * block_M, bx * block_N
                for k in T.serial(steps):
                    use = tile * steps + k
                    stage = use % num_stages
                    T.mbarrier_wait_parity(empty[stage], (use // num_stages + 1) % 2)
                    T.tma_copy(A[m : m + block_M, k * block_K : (k + 1) * block_K],
                               A_shared[stage, :, :], barrier=full[stage])
                    T.tma_copy(B[k * block_K : (k + 1) * block_K, n : n + block_N],
                               B_shared[stage, :, :], barrier=full[stage])
                    T.mbarrier_arrive(full[stage])
                tile += 1
        elif thread < 128:
            T.set_max_nreg(24, 0)
        elif thread < 256:  # New: this warpgroup computes tiles 0, 2, 4, ...
            every_second_tile(0, A_shared, B_shared, bias, C, full, empty, turn, order,
                              rows * columns, steps, block, blocks, tanh)
        else:  # and this one tiles 1, 3, 5, ...
            every_second_tile(1, A_shared, B_shared, bias, C, full, empty, turn, order,
                              rows * columns, steps, block, blocks, tanh)
    return C


@T.macro
def every_second_tile(which, A_shared, B_shared, bias, C, full, empty, turn, order, total, steps,
                      block, blocks, tanh):
    """What a warpgroup does: it multiplies in its turn, and finishes its tile in the other's."""
    num_stages, block_K, block_N = B_shared.shape
    block_M, part = A_shared.shape[1], 32  # columns of C that are stored at a time
    C_shared = T.alloc_shared((2, block_M, part), C.dtype)
    C_local = T.alloc_fragment((block_M, block_N), T.float32)
    bias_local = T.alloc_fragment((block_N,), C.dtype)
    leader = T.get_thread_binding() % 128 == 0
    T.set_max_nreg(240, 1)
    tile = T.alloc_var(T.int32, init=which)
    while tile * blocks + block < total:
        by, bx = order.coord(tile * blocks + block)
        T.clear(C_local)
        T.mbarrier_wait_parity(turn[which], (tile // 2 + 1 - which) % 2)  # the first turn is free
        for k in T.serial(steps):
            use = tile * steps + k
            stage = use % num_stages
            T.mbarrier_wait_parity(full[stage], use // num_stages % 2)
            T.wgmma_gemm(A_shared[stage, :, :], B_shared[stage, :, :], C_local,
                         policy=T.GemmWarpPolicy.FullRow)
            T.wait_wgmma(1)  # this one is under way: wait for the one before
            if leader and k > 0:
                T.mbarrier_arrive(empty[(use - 1) % num_stages])
        if leader:
            T.mbarrier_arrive(turn[1 - which])  # all is ordered: the other one may begin
        T.copy(bias[bx * block_N], bias_local)
        T.wait_wgmma(0)
        if leader:
            T.mbarrier_arrive(empty[(tile * steps + steps - 1) % num_stages])
        for i, j in T.Parallel(block_M, block_N):
            C_local[i, j] += bias_local[j]
            C_local[i, j] = gelu(C_local[i, j], tanh, fast=True)
        for i in T.unroll(block_N // part):  # a part is written while the one before is stored
            T.tma_store_wait(1)
            T.copy(C_local[:, i * part : (i + 1) * part], C_shared[i % 2, :, :])
            T.fence_proxy_async()
            T.tma_copy(C_shared[i % 2, :, :],
                       C[by * block_M : (by + 1) * block_M,
                         bx * block_N + i * part : bx * block_N + (i + 1) * part])
        tile += 2
    T.tma_store_wait(0)


def step(blocks: int) -> Step:
    """The row of the ladder, with its schedule."""
    schedule = {"block_M": 128, "block_N": 128, "block_K": 64, "num_stages": 6, "swizzle": 16,
                "blocks": blocks}
    return Step("fused_epilogue_hopper", schedule,
                "one tile is finished while the next is multiplied", fused_epilogue_hopper)
