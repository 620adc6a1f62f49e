"""C = A @ B for Hopper: what the compiler makes of gemm's T.Pipelined, written out."""

import tilelang
import tilelang.language as T

from sections.common.ladder import Step

LACKS = """a tile of C goes to shared memory in pieces of 4 bytes, where stmatrix would move 16, and
each SM fetches its own tile of B, where two in a cluster could share one."""


@tilelang.jit
def gemm_hopper(A, B, block_M: int = 128, block_N: int = 256, block_K: int = 64,
                num_stages: int = 4, swizzle: int = 8, blocks: int = 132, dtype=T.float16):
    """C = A @ B as gemm, with the roles of Hopper's warps written out. Needs sm_90a (wgmma), and N
    and K in multiples of 8: rows of whole 16-byte pieces (TMA).

    blocks  how many are started: one a multiprocessor; each computes one tile of C after another
    """
    M, N, K = T.const("M N K")
    A: T.Tensor[[M, K], dtype]
    B: T.Tensor[[K, N], dtype]
    C = T.empty((M, N), dtype)
    rows, columns, steps = T.ceildiv(M, block_M), T.ceildiv(N, block_N), T.ceildiv(K, block_K)
    order = T.PersistentTileScheduler(rows, columns, blocks, swizzle_size=swizzle, stateful=False)
    with T.Kernel(blocks, threads=384) as block:
        A_shared = T.alloc_shared((num_stages, block_M, block_K), dtype)
        B_shared = T.alloc_shared((num_stages, block_K, block_N), dtype)
        full = T.alloc_barrier([32] * num_stages)  # stage s is here
        empty = T.alloc_barrier([2] * num_stages)  # both warpgroups have multiplied stage s
        thread = T.get_thread_binding()
        # Tiles for this block. A loop of 0 or 1 turns runs once in TileLang 0.1.15: a block without
        # a tile then computes one that lies outside C, of which nothing is stored.
        turns = T.ceildiv(rows * columns - block, blocks)
        if thread < 32:  # one warp copies, as far ahead as stages are empty
            T.set_max_nreg(24, 0)
            for turn in T.serial(turns):
                by, bx = order.coord(turn * blocks + block)
                m, n = by * block_M, bx * block_N
                for k in T.serial(steps):
                    use = turn * steps + k  # goes on from tile to tile, and so do the stages
                    stage = use % num_stages
                    T.mbarrier_wait_parity(empty[stage], (use // num_stages + 1) % 2)
                    T.tma_copy(A[m : m + block_M, k * block_K : (k + 1) * block_K],
                               A_shared[stage, :, :], barrier=full[stage])
                    T.tma_copy(B[k * block_K : (k + 1) * block_K, n : n + block_N],
                               B_shared[stage, :, :], barrier=full[stage])
                    T.mbarrier_arrive(full[stage])
        elif thread < 128:  # registers belong to warpgroups: the other three warps give theirs back
            T.set_max_nreg(24, 0)
        elif thread < 256:  # two warpgroups multiply, half of the rows each, and share a tile of B
            multiply(0, A_shared, B_shared, C, full, empty, order, turns, steps, block, blocks)
        else:
            multiply(1, A_shared, B_shared, C, full, empty, order, turns, steps, block, blocks)
    return C


@T.macro
def multiply(half, A_shared, B_shared, C, full, empty, order, turns, steps, block, blocks):
    """What a warpgroup of gemm_hopper does: `half` 0 or 1 of the rows of each tile of C."""
    num_stages, block_K, block_N = B_shared.shape
    block_M = A_shared.shape[1] // 2
    part = 64  # columns of C that are stored at a time
    C_shared = T.alloc_shared((2, block_M, part), C.dtype)
    C_local = T.alloc_fragment((block_M, block_N), T.float32)
    leader = T.get_thread_binding() % 128 == 0
    T.set_max_nreg(240, 1)
    for turn in T.serial(turns):
        by, bx = order.coord(turn * blocks + block)
        m, n = (2 * by + half) * block_M, bx * block_N
        T.clear(C_local)
        for k in T.serial(steps):
            use = turn * steps + k
            stage = use % num_stages
            T.mbarrier_wait_parity(full[stage], use // num_stages % 2)
            T.wgmma_gemm(A_shared[stage, half * block_M : (half + 1) * block_M, :],
                         B_shared[stage, :, :], C_local)
            T.wait_wgmma(1)  # this one is under way: wait for the one before
            if leader and k > 0:
                T.mbarrier_arrive(empty[(use - 1) % num_stages])
        T.wait_wgmma(0)
        if leader:
            T.mbarrier_arrive(empty[(turn * steps + steps - 1) % num_stages])
        for i in T.unroll(block_N // part):  # a part is written while the one before is stored
            T.tma_store_wait(1)
            T.copy(C_local[:, i * part : (i + 1) * part], C_shared[i % 2, :, :])
            T.fence_proxy_async()
            T.tma_copy(C_shared[i % 2, :, :],
                       C[m : m + block_M, n + i * part : n + (i + 1) * part])
    T.tma_store_wait(0)


def takes(device, N: int, K: int) -> bool:
    """Whether gemm_hopper and fused_epilogue_hopper can be had: on Hopper, rows of whole 16-byte
    pieces."""
    return device.mode == "gpu" and device.arch == "sm_90a" and N % 8 == K % 8 == 0


def step(blocks: int) -> Step:
    """The row of the ladder, with its schedule."""
    schedule = {"block_M": 128, "block_N": 256, "block_K": 64, "num_stages": 4, "swizzle": 8,
                "blocks": blocks}
    return Step("gemm_hopper", schedule, "a finished tile is stored while others multiply",
                gemm_hopper)
