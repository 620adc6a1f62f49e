"""GEMM: tiles travel from global to shared memory to registers, and tensor cores multiply them

C = A @ B. Each block computes one tile of C, block_M x block_N. It walks along K: a tile of A and a
tile of B come from global memory into shared memory, tensor cores multiply them, and the sum stays
in a fragment, in registers, until the tile of C is finished. T.copy, T.gemm and T.Pipelined say
what moves and what is multiplied; the compiler writes the instructions, the barriers and the
layouts. How large the tiles are, how many are on their way at once, how many threads share the work
and in which order the blocks run is the schedule, and that is yours to choose. It decides whether a
GPU reaches a tenth or all of what it can do.
"""

import tilelang
import tilelang.language as T
import torch

from sections.common.build import cores
from sections.common.device import capability
from sections.common.ladder import Problem, best, climb, jobs, selected, show, steps
from sections.common.measure import Work
from sections.common.page import kilobytes
from sections.hopper import gemm as hopper


@tilelang.jit
def gemm(A, B, block_M: int = 128, block_N: int = 128, block_K: int = 32, num_stages: int = 3,
         threads: int = 128, swizzle: int = 0, full_row: bool = False, store_shared: bool = False,
         dtype=T.float16):
    """C = A @ B, summed in float32. A: (M, K), B: (K, N) of dtype, row-major; returns C: (M, N).

    Any M, N, K >= 1: what lies outside is read as zero and never written.
    """
    M, N, K = T.const("M N K")
    A: T.Tensor[[M, K], dtype]
    B: T.Tensor[[K, N], dtype]
    C = T.empty((M, N), dtype)
    policy = T.GemmWarpPolicy.FullRow if full_row else T.GemmWarpPolicy.Square
    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
        A_shared = T.alloc_shared((block_M, block_K), dtype)
        B_shared = T.alloc_shared((block_K, block_N), dtype)
        C_local = T.alloc_fragment((block_M, block_N), T.float32)
        T.use_swizzle(panel_size=max(swizzle, 1), enable=swizzle > 0)
        T.clear(C_local)
        for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
            T.copy(A[by * block_M, k * block_K], A_shared)  # (block_M, block_K)
            T.copy(B[k * block_K, bx * block_N], B_shared)  # (block_K, block_N)
            T.gemm(A_shared, B_shared, C_local, policy=policy)
        if store_shared:  # decided while compiling
            C_shared = T.alloc_shared((block_M, block_N), dtype)
            T.copy(C_local, C_shared)
            T.copy(C_shared, C[by * block_M, bx * block_N])
        else:
            T.copy(C_local, C[by * block_M, bx * block_N])
    return C


def reference(A, B):
    """A @ B in float32, TF32 off."""
    torch.backends.cuda.matmul.allow_tf32 = False
    return A.float() @ B.float()


ONE_TILE = {"block_M": 128, "block_N": 128, "block_K": 32, "num_stages": 0, "threads": 128,
            "swizzle": 0, "full_row": False, "store_shared": False}

# One change a row. An architecture that is not named takes the ladder of the newest older one.
LADDERS = {
    "sm_75": steps(
        ("one tile at a time", ONE_TILE, "every copy is waited for"),
        ("+ 2 stages", {"num_stages": 2}, "two tiles in flight; without cp.async little to gain"),
        ("+ swizzle", {"swizzle": 8}, "neighbouring blocks share tiles in the L2 cache"),
        ("+ deeper K: 64", {"block_K": 64}, "half the barriers, but one block fills an SM"),
        ("+ 256 threads", {"threads": 256}, "twice the warps hide latency, fewer registers each"),
        ("+ store via shared", {"store_shared": True}, "16-byte stores in whole rows"),
        ("+ 3 stages", {"num_stages": 3}, "a third tile in flight"),
    ),
    "sm_80": steps(
        ("one tile at a time", ONE_TILE, "every copy is waited for"),
        ("+ 2 stages", {"num_stages": 2}, "cp.async fetches the next tile meanwhile"),
        ("+ 3 stages", {"num_stages": 3}, "two tiles ahead: more latency hidden"),
        ("+ swizzle", {"swizzle": 8}, "neighbouring blocks share tiles in the L2 cache"),
        ("+ store via shared", {"store_shared": True}, "16-byte stores in whole rows"),
        ("+ deeper K: 64", {"block_K": 64}, "half the barriers, but fewer blocks fit an SM"),
        ("+ 6 stages", {"num_stages": 6}, "more tiles in flight than shared memory has room for"),
    ),
    "sm_86": steps(
        ("one tile at a time", ONE_TILE, "every copy is waited for"),
        ("+ 2 stages", {"num_stages": 2}, "cp.async fetches the next tile meanwhile"),
        ("+ 3 stages", {"num_stages": 3}, "two tiles ahead: more latency hidden"),
        ("+ swizzle", {"swizzle": 8}, "neighbouring blocks share tiles in the L2 cache"),
        ("+ store via shared", {"store_shared": True}, "16-byte stores in whole rows"),
        ("+ deeper K: 64", {"block_K": 64}, "half the barriers, but one block fills an SM"),
        ("+ 4 stages", {"num_stages": 4}, "more tiles in flight than shared memory has room for"),
    ),
    "sm_90a": steps(
        ("one tile at a time", ONE_TILE, "every copy is waited for"),
        ("+ 3 stages", {"num_stages": 3}, "the copy engine runs ahead of the tensor cores"),
        ("+ deeper K: 64", {"block_K": 64}, "twice the work a barrier"),
        ("+ 256 threads", {"threads": 256}, "two warpgroups multiply, half the registers each"),
        ("+ wider tile: 256", {"block_N": 256}, "a tile of A is used for twice as many columns"),
        ("+ store via shared", {"store_shared": True}, "the copy engine writes C in whole rows"),
        ("+ swizzle", {"swizzle": 16}, "neighbouring blocks share tiles in the L2 cache"),
        ("+ full rows", {"full_row": True}, "a warpgroup owns rows: one wide wgmma, not two"),
        ("+ 5 stages", {"num_stages": 5}, "more tiles in flight than shared memory has room for"),
    ),
    "sm_100a": steps(
        ("one tile at a time", ONE_TILE, "every copy is waited for"),
        ("+ 3 stages", {"num_stages": 3}, "the copy engine runs ahead of the tensor cores"),
        ("+ deeper K: 64", {"block_K": 64}, "twice the work a barrier"),
        ("+ 256 threads", {"threads": 256}, "twice the warps hide latency, fewer registers each"),
        ("+ store via shared", {"store_shared": True}, "the copy engine writes C in whole rows"),
        ("+ swizzle", {"swizzle": 8}, "neighbouring blocks share tiles in the L2 cache"),
        ("+ 8 stages", {"num_stages": 8}, "more tiles in flight than shared memory has room for"),
    ),
}
AWKWARD = ((100, 130, 33), (64, 8, 300), (1, 1, 1))
SHOWN = 4096  # M, N and K of the code that is read in rehearsal
BEST_STEP = {"sm_75": 2, "sm_80": 4, "sm_86": 4, "sm_90a": 7, "sm_100a": 5}


def best_schedule(device) -> dict:
    """The schedule that is taken for this architecture where nothing can be measured."""
    return device.preset(LADDERS)[device.preset(BEST_STEP)].schedule


def kernel_for(device, M: int, N: int, K: int) -> tuple:
    """The kernel to take for a product, and its schedule: Hopper's own where it can be had."""
    if hopper.takes(device, N, K):
        return hopper.gemm_hopper, hopper.step(device.multiprocessors).schedule
    return gemm, fitted(best_schedule(device), N, K)


def fitted(schedule: dict, N: int, K: int) -> dict:
    """A schedule that compiles for any N and K.

    Hopper's copy engine needs rows of whole 16-byte pieces, 8 elements. Where only one of A and B
    has them, a second group of threads copies the other; 512 threads then leave each too few
    registers for a tile of 256 columns.
    """
    if (N % 8 == 0) != (K % 8 == 0):
        return {**schedule, "block_N": min(schedule["block_N"], 128)}
    return schedule


def inputs(page, M: int, N: int, K: int, seed: int = 0, dtype=torch.float16):
    """Random A: (M, K) and B: (K, N)."""
    generator = torch.Generator(page.device.torch_device).manual_seed(seed)

    def draw(*shape):
        return torch.randn(shape, generator=generator, device=page.device.torch_device).to(dtype)

    return draw(M, K), draw(K, N)


def case(M: int, N: int, K: int) -> str:
    """The name of a case, M x N x K."""
    return f"{M}x{N}x{K} float16"


def problem(page, M: int, N: int, K: int) -> Problem:
    """One product with its reference and baseline; FLOPs: a multiply and an add, 2 x M x N x K."""
    A, B = inputs(page, M, N, K)
    return Problem(
        case=case(M, N, K),
        arguments=sizes(M, N, K),
        shown=sizes(SHOWN, SHOWN, SHOWN),
        inputs=(A, B),
        expected=reference(A, B),
        bounds={"reduction": K},
        baseline=("cuBLAS (torch.matmul)", lambda: torch.matmul(A, B)),
        work=Work(flops=2 * M * N * K),
    )


def run(page):
    page.say("""The kernel, whole. bx and by say which tile of C this block computes. The loop over
    k is a pipeline: with num_stages tiles in flight, copies of later tiles run while this one is
    multiplied. The inputs are float16, which the tensor cores of every GPU from sm_75 on multiply
    (bfloat16 only from sm_80 on, so not a T4's); the sum is kept in float32.""")
    page.show(gemm)

    gpu = page.device.is_gpu
    size = ((2048 if page.quick else 4096),) * 3 if gpu else (150, 280, 70)
    ladder = choose_ladder(page)
    schedule = page.schedule(best_schedule(page.device))
    taken = next(step for step in reversed(ladder) if step.kernel or step.schedule == schedule)
    awkward = [{**sizes(*shape), **fitted(schedule, *shape[1:])}
               for shape in AWKWARD[: 1 if page.spare else None]]
    larger = jobs(page, gemm, [taken], sizes(*(2 * side for side in size)))
    # All together, in parallel; below they are ready.
    read = jobs(page, gemm, [taken], sizes(*size)) if gpu else [
        (gemm, {**sizes(SHOWN, SHOWN, SHOWN), **schedule})]
    page.build([*jobs(page, gemm, ladder, sizes(*size)), *((gemm, job) for job in awkward),
                *(larger if goes_larger(page) else [])], read=[] if page.spare else read)

    check_awkward(page, awkward)
    rungs = climb(page, gemm, ladder, problem(page, *size))
    rows = ("The first and the best row of a ladder" if page.quick else
            "A ladder of schedules, one change a row")
    page.say(f"""{rows}. Shared memory holds num_stages tiles of A and of B, (block_M + block_N) x
    block_K x 2 bytes a stage (with 0 stages one tile, and no pipeline); a tile of C that is stored
    through it takes their place. The figures are the compiler's. Words: a warp is 32 threads, a
    warpgroup 4 warps; shared memory is an SM's and a block's own, the L2 cache is all SMs'; TMA is
    the copy engine that Hopper and newer GPUs have; mma and wgmma are tensor-core instructions of a
    warp and of a warpgroup; an SM is one of the GPU's processors.""")
    if gpu:
        page.say("""FLOPs: one multiplication and one addition for each of M x N x K products. Every
        row was checked before it was timed, in turn with cuBLAS. The chip's clock falls as it gets
        hot, for both alike: compare rows by their ratio, not by their time.""")
    else:
        page.say(f"""Every row of gemm that fits ran here, on the CPU, for {case(*size)}, and was
        checked. What is shown is the code generated from the same source for {page.device.arch} and
        {case(SHOWN, SHOWN, SHOWN)}.""")
    show(page, rungs, "cuBLAS")
    if capability(page.device.arch) < 80:
        page.say(f"""More stages bring little on {page.device.arch}: without cp.async a thread loads
        its part of the next tile into registers and waits for it, before anything is multiplied. A
        second block on the same SM hides that wait, a second tile in shared memory does not. So
        keep the tiles small enough for two blocks: a T4's SM has 64 KB of shared memory for all of
        them.""")
    if capability(page.device.arch) >= 90:
        page.say("""A block with a pipeline has 128 threads more, one of which orders the copies:
        384 threads are 256 that multiply and those 128.""")
    if any(step.kernel for step in ladder):
        introduce_hopper(page)

    chosen = best(rungs)
    readable = [rung for rung in rungs if rung.code]
    if not readable:
        return  # nothing compiled, as has been told
    fitting = [rung for rung in readable if not rung.left_out] or readable
    explained = chosen or next(
        (rung for rung in fitting if rung.step.schedule == schedule), fitting[-1])
    page.say(f"What became of the loop, with {explained.step.variant}:")
    page.landmarks(explained.code)
    resources = None if page.spare else page.resources(explained.code)
    if resources:
        page.say(f"nvcc reports {resources}.")
    larger = None
    if chosen:
        page.headline(chosen.measurement)
        larger = at_twice_the_size(page, taken, size[0])
    conclude(page, rungs, chosen, larger)


def introduce_hopper(page) -> None:
    """Hopper's own kernel: what it is, its source, what it costs and what it still lacks."""
    page.say("""gemm_hopper is a kernel of its own, for Hopper alone (it needs TMA and wgmma): what
    the compiler makes of T.Pipelined in gemm is written out in it. New: A block computes one tile
    of C after another, and the copies for the next tile begin while this one is multiplied. A
    warpgroup orders its next multiplication before the last one is done. And the two warpgroups do
    not wait for each other: while one stores its half of a tile, the tensor cores are the other's.
    Blocks walk over C in panels of `swizzle` tiles (order.coord: which tile is the n-th). Parts of
    C have 32 KB of shared memory of their own.""")
    page.say("""`full` and `empty` are barriers, one of each a stage. A phase of a barrier is over
    when as many threads have arrived as it was made for and, with copies, when their bytes are
    there. It then begins the next phase, and parity, 0 and 1 in turn, tells a phase from the one
    before: mbarrier_wait_parity(b, 0) waits until the first phase of b is over, or the third, the
    fifth. The copying warp waits for the phase before the first, which counts as over: at the start
    all stages are empty.""")
    page.say("""T.macro: a function that is pasted in where it is called. T.set_max_nreg(n, 0 or 1):
    this warpgroup goes down or up to n registers a thread. T.fence_proxy_async: what threads wrote
    to shared memory, the copy engine will see. T.tma_store_wait(n): waits until at most n stores
    still read shared memory.""")
    page.show(hopper.gemm_hopper)
    page.show(hopper.multiply)
    page.say("""What it costs: nobody checks these barriers. A wrong count or a wrong parity is a
    wrong result, or a kernel that never ends.""")


def goes_larger(page) -> bool:
    """Whether memory and time allow a product of 8 times the work."""
    return page.device.memory_bytes > 32e9 and not page.quick


def at_twice_the_size(page, step, side: int) -> dict | None:
    """A step at 8 times the work."""
    if not goes_larger(page):
        return None
    (rung,) = climb(page, gemm, [step], problem(page, 2 * side, 2 * side, 2 * side))
    return rung.measurement


def sizes(M: int, N: int, K: int) -> dict:
    """The kernel's arguments for a product."""
    return {"M": M, "N": N, "K": K}


def choose_ladder(page) -> list:
    """This architecture's ladder; Hopper's ends with a kernel of its own."""
    own = [hopper.step(page.device.multiprocessors or 132)] if page.device.arch == "sm_90a" else []
    return selected(page, page.device.preset(LADDERS), best_schedule(page.device), own)


def check_awkward(page, jobs: list[dict]) -> None:
    """Check shapes that no tile divides."""
    for job, kernel in zip(jobs, page.build((gemm, job) for job in jobs), strict=True):
        shape = job["M"], job["N"], job["K"]
        A, B = inputs(page, *shape)
        page.check(case(*shape), kernel, (A, B), reference(A, B), reduction=shape[2])
    if page.spare:
        page.say(f"""Left out in quick mode with {cores()} cores: other shapes that no tile divides,
        and what nvcc says of registers.""")


def conclude(page, rungs, chosen, larger: dict | None) -> None:
    """The best schedule named, what gave most of it, and one thing to try."""
    name = page.device.arch
    if chosen:
        timed = [rung for rung in rungs if rung.measurement]
        gains = [(after.measurement["ratio"] / before.measurement["ratio"], after.step.change)
                 for before, after in zip(timed, timed[1:], strict=False)]
        gain, change = max(gains, default=(1.0, ""))
        m = chosen.measurement
        step = f"""The largest single step was "{change.lstrip('+ ')}", {gain:.2f}x the ratio of
        the row above it.""" if len(timed) > 2 else ""
        at_larger = f"""For {larger['case']} it reaches {larger['value']:.0f} TFLOP/s,
        {larger['ratio']:.2f}x cuBLAS.""" if larger else ""
        page.lesson(f"""the best schedule for {name} here is {m['variant']}: {m['ms']:.3f} ms,
        {m['value']:.0f} TFLOP/s, {m['ratio']:.2f}x cuBLAS for {m['case']}. {at_larger} {step}""")
        page.limit("tensor cores, at the clock that power and heat allow; the library meets the "
                   "same. What the code lacks: " + (hopper.LACKS if chosen.step.kernel else
                   """a block that stores its tile fetches nothing meanwhile, and tensor cores wait
                   for the first copies of the next."""))
    else:
        page.lesson(f"""gemm's source stayed the same in every row; the schedule alone decides how
        much shared memory {name} needs and which instructions copy and multiply. Which row is
        fastest only a GPU can tell.""")
    best = best_schedule(page.device)
    stage = (best["block_M"] + best["block_N"]) * best["block_K"] * 2
    most = page.device.shared_bytes // stage
    page.try_this(f"""python -m sections.gemm num_stages=1, then 2 and {most + 1}: the ladder ends
    with a row "yours", gemm's best schedule with your value. Each stage takes {kilobytes(stage)}:
    {most + 1} are over {name}'s {kilobytes(page.device.shared_bytes)}, and the row says so. On a
    GPU compare its ratio with the best of the rows above.""")


if __name__ == "__main__":
    from sections.common.alone import run_alone

    raise SystemExit(run_alone(__file__))
