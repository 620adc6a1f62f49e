"""Fused epilogue: bias and GELU are applied while the product is still in registers

C = GELU(A @ B + bias), a layer of nearly every transformer. Written as three operations it runs as
three kernels, and each writes its whole result to global memory for the next one to read back.
Here the product stays in its fragment: the bias is added there, GELU is applied there, and C is
written once. What that saves is counted below, byte by byte. How much time it saves depends on the
shape: little where there is much to multiply, more where there is little.
"""

import math
import re

import tilelang
import tilelang.language as T
import torch
import torch.nn.functional as F

from sections.common.build import cores
from sections.common.ladder import Problem, Step, climb, describe, jobs, selected, show
from sections.common.measure import Work
from sections.common.page import squeeze
from sections.common.verify import compare


def gelu(x, tanh: bool, fast: bool):
    """GELU of a float32 expression: x Phi(x), Phi the normal distribution's cumulative function.

    tanh  instead its approximation by Hendrycks and Gimpel (arXiv:1606.08415)
    fast  with fewer instructions; nvcc, allowed to approximate, has one for tanh
    """
    half = 0.5 * x
    if tanh:
        slope = math.sqrt(2 / math.pi)
        return half + half * T.tanh(x * (slope + slope * 0.044715 * x * x))
    if fast:
        size = T.max(x, -x)
        return half + size * (0.5 - tail(size))
    return half + half * T.erf(x * math.sqrt(0.5))


def tail(size):
    """1 - Phi(size), size >= 0, at most 7.5e-8 off (Abramowitz and Stegun, 26.2.17)."""
    t = 1 / (1 + 0.2316419 * size)
    p = 0.0
    for factor in (1.330274429, -1.821255978, 1.781477937, -0.356563782, 0.319381530):
        p = t * (factor / math.sqrt(2 * math.pi) + p)
    return p * T.exp2(-0.5 * math.log2(math.e) * size * size)  # exp2 is what the hardware has


@tilelang.jit
def fused_epilogue(A, B, bias, block_M: int = 128, block_N: int = 128, block_K: int = 32,
                   num_stages: int = 3, threads: int = 128, swizzle: int = 0,
                   full_row: bool = False, store_shared: bool = False, tanh: bool = False,
                   fast: bool = False, dtype=T.float16):
    """C = GELU(A @ B + bias). A: (M, K), B: (K, N), bias: (N,) of dtype; returns C: (M, N).

    Summed, biased and activated in float32, rounded to dtype once. Any M, N, K >= 1.
    """
    M, N, K = T.const("M N K")
    A: T.Tensor[[M, K], dtype]
    B: T.Tensor[[K, N], dtype]
    bias: T.Tensor[[N], dtype]
    C = T.empty((M, N), dtype)
    T.annotate_pass_configs({"tl.enable_fast_math": fast})
    policy = T.GemmWarpPolicy.FullRow if full_row else T.GemmWarpPolicy.Square
    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
        A_shared = T.alloc_shared((block_M, block_K), dtype)
        B_shared = T.alloc_shared((block_K, block_N), dtype)
        C_local = T.alloc_fragment((block_M, block_N), T.float32)
        bias_local = T.alloc_fragment((block_N,), dtype)
        T.use_swizzle(panel_size=max(swizzle, 1), enable=swizzle > 0)
        T.clear(C_local)
        for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
            T.copy(A[by * block_M, k * block_K], A_shared)
            T.copy(B[k * block_K, bx * block_N], B_shared)
            T.gemm(A_shared, B_shared, C_local, policy=policy)
        T.copy(bias[bx * block_N], bias_local)  # New: the tile's part of the bias
        for i, j in T.Parallel(block_M, block_N):  # New: each thread works on its own registers
            C_local[i, j] += bias_local[j]
            C_local[i, j] = gelu(C_local[i, j], tanh, fast)
        if store_shared:
            C_shared = T.alloc_shared((block_M, block_N), dtype)
            T.copy(C_local, C_shared)
            T.copy(C_shared, C[by * block_M, bx * block_N])
        else:
            T.copy(C_local, C[by * block_M, bx * block_N])
    return C


def reference(A, B, bias, tanh: bool):
    """GELU(A @ B + bias) in float32, TF32 off."""
    torch.backends.cuda.matmul.allow_tf32 = False
    return F.gelu(A.float() @ B.float() + bias.float(), approximate=APPROXIMATE[tanh])


# The best rows of the gemm section's ladders.
COMMON = {"block_M": 128, "block_N": 128, "block_K": 64, "num_stages": 3, "threads": 128,
          "swizzle": 8, "full_row": False, "store_shared": True, "fast": True}
SCHEDULES = {
    # GELU needs registers too: 128 threads would spill. With 256 and block_K=32 it takes 1.1 to 1.2
    # times as long, measured with sm_75 code on an H200.
    "sm_75": {**COMMON, "num_stages": 2, "threads": 256, "store_shared": False},
    "sm_80": {**COMMON, "block_K": 32},
    "sm_90a": {**COMMON, "block_N": 256, "threads": 256, "swizzle": 16, "full_row": True},
    "sm_100a": {**COMMON, "threads": 256},
}
FORMS = {False: "erf", True: "tanh"}  # by the kernel's flag
APPROXIMATE = {False: "none", True: "tanh"}  # F.gelu's words for them
COMPUTE_BOUND, BANDWIDTH_BOUND = (4096, 4096, 4096), (16384, 1024, 512)  # M, N, K
AWKWARD = (((129, 257, 65), False), ((1, 1, 1), True))
THREE = "torch eager (A @ B, + bias, F.gelu)"  # so many kernels
TWO = "torch.addmm (+ F.gelu)"


def name_of(shape: tuple) -> str:
    """M x N x K as in a case's name."""
    return "x".join(map(str, shape))


def case(shape: tuple, tanh: bool) -> str:
    """The name of a case."""
    return f"{name_of(shape)} float16 {FORMS[tanh]}"


def sizes(shape: tuple, tanh: bool) -> dict:
    """A kernel's arguments beside its schedule."""
    M, N, K = shape
    return {"M": M, "N": N, "K": K, "tanh": tanh}


def job(shape: tuple, tanh: bool, schedule: dict) -> tuple:
    """The kernel for any GPU with its arguments, to be built.

    Where rows of only one of A and B are whole 16-byte pieces, a tile must be narrow: see `fitted`
    in the gemm section.
    """
    _, N, K = shape
    arguments = {**sizes(shape, tanh), **schedule}
    if (N % 8 == 0) != (K % 8 == 0):
        arguments["block_N"] = min(schedule["block_N"], 128)
    return fused_epilogue, arguments


def hopper_step(device, shape: tuple) -> Step | None:
    """Hopper's own kernel with its schedule, None where it cannot be had."""
    from sections.hopper import epilogue, gemm  # epilogue takes gelu from here

    _, N, K = shape
    return epilogue.step(device.multiprocessors) if gemm.takes(device, N, K) else None


def kernel_for(device, shape: tuple, tanh: bool, schedule: dict | None = None) -> tuple:
    """The kernel to take for a case, with its arguments: Hopper's own where it can be had.

    schedule  of the kernel for any GPU, the architecture's unless given
    """
    own = hopper_step(device, shape)
    if own:
        return own.kernel, {**sizes(shape, tanh), **own.schedule}
    return job(shape, tanh, schedule or device.preset(SCHEDULES))


def choose_ladder(page) -> list[Step]:
    """Two steps of the kernel for any GPU; Hopper's ladder ends with a kernel of its own."""
    from sections.hopper import epilogue

    schedule = page.device.preset(SCHEDULES)
    ladder = [
        Step("bias and GELU in registers", {**schedule, "fast": False}, "no kernel after this one"),
        Step("+ fewer instructions for GELU", schedule, "tensor cores rest while GELU is computed"),
    ]
    own = [epilogue.step(page.device.multiprocessors or 132)]
    return selected(page, ladder, schedule, own if page.device.arch == "sm_90a" else [])


def inputs(page, M: int, N: int, K: int, seed: int = 0, dtype=torch.float16):
    """Random A: (M, K), B: (K, N), bias: (N,), such that A @ B + bias has about unit variance.

    There the two forms of GELU differ most; near 0 and far from it they agree.
    """
    generator = torch.Generator(page.device.torch_device).manual_seed(seed)

    def draw(*shape, scale=1.0):
        numbers = torch.randn(shape, generator=generator, device=page.device.torch_device)
        return (numbers * scale).to(dtype)

    return draw(M, K), draw(K, N, scale=K**-0.5), draw(N, scale=0.5)


def run(page):
    page.say("""The kernel is the gemm section's with two statements more, marked "New". They work
    on C_local, the float32 sums, before anything is stored. GELU has two forms: the exact one with
    the error function, F.gelu's default, and an approximation with tanh. Flags decide between them
    while the kernel is compiled; so does `fast`: fewer instructions, and digits lost that float16
    cannot hold anyway. CUDA's erff and tanhf take dozens, and tensor cores wait for them.""")
    for part in (gelu, tail, fused_epilogue):
        page.show(part)

    shapes = shapes_here(page)
    cases = [(shape, tanh) for shape in shapes for tanh in FORMS]
    ladder = choose_ladder(page)
    schedule = page.schedule(page.device.preset(SCHEDULES))
    awkward = AWKWARD[: 1 if page.spare else None]
    wanted = [job(*which, schedule) for which in awkward]
    wanted += [kernel_for(page.device, *which, schedule) for which in cases]
    wanted += jobs(page, fused_epilogue, ladder, sizes(shapes[-1], True))
    built = page.build(wanted, torch_compile=True)  # all together, in parallel
    kernels = dict(zip([*awkward, *cases], built, strict=False))
    good = [which for which in kernels if check(page, *which, kernels[which])]
    if page.spare:
        page.say(f"Left out in quick mode with {cores()} cores: a square shape, a single element.")
    for tanh in FORMS:
        tell_apart(page, shapes[0], tanh, kernels[shapes[0], tanh])
    explain(page, schedule)
    introduce_hopper(page)
    step_by_step(page, shapes[-1], ladder)

    rows = []
    if page.device.is_gpu:
        for which in cases:
            if which in good:
                own = hopper_step(page.device, which[0])
                rows += timed(page, *which, kernels[which],
                              own.variant if own else describe(schedule), which[0] == shapes[0])
        page.say("""FLOPs: a multiplication and an addition for each of M x N x K products; bias and
        GELU are not counted. Every kernel was checked, then timed in turn with its baselines.""")
        page.timings(rows)
    ledgers(page, shapes, rows)
    conclude(page, shapes, rows)
    page.try_this(f"""python -m sections.fused_epilogue store_shared={not schedule["store_shared"]}:
    same bytes, other instructions for the store of C. Step by step above then has one row more,
    yours: compare it with the row "fewer instructions for GELU".""")


def shapes_here(page) -> tuple:
    """The shapes that are run: on a GPU one bound by arithmetic and one by memory."""
    if not page.device.is_gpu:
        return ((150, 280, 70),)
    if page.quick:
        return ((2048, 2048, 2048), (8192, 1024, 512))[1 if page.spare else 0 :]
    return COMPUTE_BOUND, BANDWIDTH_BOUND


def check(page, shape: tuple, tanh: bool, kernel) -> bool:
    """Check a result against its own form of GELU."""
    tensors = inputs(page, *shape)
    return page.check(case(shape, tanh), kernel, tensors, reference(*tensors, tanh),
                      reduction=shape[2])


def tell_apart(page, shape: tuple, tanh: bool, kernel) -> None:
    """Prove that the check is tight: it must fail against the other form of GELU."""
    tensors = inputs(page, *shape)
    own, other = reference(*tensors, tanh), reference(*tensors, not tanh)
    verdict = compare(page.call(kernel, tensors), other, tensors[0].dtype, reduction=shape[2])
    if verdict.passed:
        page.fail(f"check {case(shape, tanh)} is too loose: it holds for the other form as well")
        return
    page.say(f"""Is the check tight enough to tell the forms apart? They differ by at most
    {(own - other).abs().max():.1e}. Held against the {FORMS[not tanh]} form, the {FORMS[tanh]}
    result fails, as it should: {verdict.problem.partition(",")[0]}.""")


def introduce_hopper(page) -> None:
    """The kernel that only Hopper can run."""
    if page.device.arch != "sm_90a":
        page.say(f"""sm_90a has a kernel of its own, which computes bias and GELU of one tile while
        the next one is multiplied. It needs wgmma and registers that are dealt out anew, which
        {page.device.arch} has not: the kernel above is the one that is used here. On any machine
        --device cpu --arch sm_90a shows it.""")
        return
    from sections.hopper import epilogue

    page.say("""A step further, for sm_90a alone. In the kernel above a block ends with its tile,
    and the next block starts with empty shared memory: while a tile is finished and the next one
    arrives, tensor cores rest. Here, as in gemm_hopper (sections/hopper/gemm.py), one block an SM
    stays and one warp only copies, on into the next tile. New: The two warpgroups do not share a
    tile, they take tiles in turn. One has the tensor cores; the other meanwhile adds the bias,
    computes GELU and stores. A barrier a warpgroup, `turn`, says when to change. It also keeps
    count: a barrier's phases are told apart by parity alone, so a warpgroup may only wait for the
    very next filling of a stage. The price: tiles of 128 x 128, since each warpgroup keeps the sums
    of a whole tile in its registers, and so more copies for as many multiplications.""")
    page.show(epilogue.fused_epilogue_hopper)
    page.show(epilogue.every_second_tile)


def step_by_step(page, shape: tuple, ladder: list[Step]) -> None:
    """What each step buys, where the epilogue weighs most."""
    task = problem(page, shape)
    rungs = climb(page, fused_epilogue, ladder, task)
    page.say(f"Step by step, {case(shape if page.device.is_gpu else BANDWIDTH_BOUND, True)}:")
    show(page, rungs, task.baseline[0].partition(" (")[0])
    own = next((rung.code for rung in rungs if rung.step.kernel), None)
    if own:
        page.landmarks(own, only=("fewer registers", "TMA load", "more registers", "wgmma",
                                   "wgmma wait", "stmatrix", "partial barrier", "TMA store"))


def problem(page, shape: tuple) -> Problem:
    """What the steps compute: the tanh form, for which there is a library's kernel to meet."""
    tensors = inputs(page, *shape)
    M, N, K = shape
    baseline = {TWO: two(*tensors, True)}
    if page.device.is_gpu:
        baseline |= library(*tensors)[0]
    return Problem(
        case=case(shape, True),
        arguments=sizes(shape, True),
        shown=sizes(BANDWIDTH_BOUND, True),
        inputs=tensors,
        expected=reference(*tensors, True),
        bounds={"reduction": K},
        baseline=list(baseline.items())[-1],
        work=Work(flops=2 * M * N * K),
    )


def timed(page, shape: tuple, tanh: bool, kernel, variant: str, first: bool) -> list[dict]:
    """Time one checked kernel in turn with its baselines; the first shape has the headline."""
    A, B, bias = inputs(page, *shape)
    M, N, K = shape
    form = APPROXIMATE[tanh]
    eager = lambda: F.gelu(A @ B + bias, approximate=form)  # noqa: E731
    baselines = {THREE: eager, TWO: two(A, B, bias, tanh)}
    if tanh:
        found, sentence = library(A, B, bias)
        baselines |= found
        if first:
            page.say(sentence)
    else:
        baselines |= page.torch_compiled(eager)
    rows = page.measure(case(shape, tanh), variant, kernel, (A, B, bias), baselines,
                        Work(flops=2 * M * N * K))
    if first and not tanh:
        page.headline(min(rows, key=lambda row: row["ratio"]))  # against the strongest
    return rows


def two(A, B, bias, tanh: bool):
    """torch.addmm and GELU, two kernels."""
    return lambda: F.gelu(torch.addmm(bias, A, B), approximate=APPROXIMATE[tanh])


def library(A, B, bias) -> tuple[dict, str]:
    """cuBLASLt's own fused epilogue as a baseline, where it is there and is the tanh form.

    Beside it a sentence about what was found.
    """
    def epilogue():
        return torch._addmm_activation(bias, A, B, use_gelu=True)

    try:
        result = epilogue()
    except (AttributeError, RuntimeError) as error:
        return {}, f"torch._addmm_activation is left out: {first_line(error)}"
    erf, tanh = (compare(result, reference(A, B, bias, form), A.dtype, reduction=len(B)).rel_error
                 for form in FORMS)
    found = {"cuBLASLt (torch._addmm_activation)": epilogue} if tanh < min(erf, 2e-3) else {}
    return found, f"""torch._addmm_activation, cuBLASLt's fused epilogue, is {tanh:.1e} off the tanh
    form and {erf:.1e} off the erf form (relative error)."""


def first_line(error: Exception) -> str:
    """An error's kind and the first line of its message."""
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"[:200]


def moved(M: int, N: int, K: int) -> list[tuple]:
    """The ledger: (what crosses global memory, bytes in one fused kernel, in two, in three)."""
    A, B, bias, C = (2 * elements for elements in (M * K, K * N, N, M * N))
    return [
        ("read A: M x K", A, A, A),
        ("read B: K x N", B, B, B),
        ("read bias: N", bias, bias, bias),
        ("write A @ B, read it back: 2 x M x N", 0, 0, 2 * C),
        ("write A @ B + bias, read it back: 2 x M x N", 0, 2 * C, 2 * C),
        ("write C: M x N", C, C, C),
    ]


def totals(shape: tuple) -> list[int]:
    """Bytes moved by one fused kernel, by two and by three."""
    _, *columns = zip(*moved(*shape), strict=True)
    return [sum(column) for column in columns]


def megabytes(count: int) -> str | None:
    """Bytes as MB, None for nothing."""
    return f"{count / 1e6:.2f}" if count else None


def ledgers(page, shapes: tuple, rows: list[dict]) -> None:
    """A memory ledger a shape, in rehearsal of the bytes alone."""
    page.say("""The memory ledger, in MB (1e6 bytes), 2 bytes an element. torch.addmm adds the bias
    inside its product, so that F.gelu after it makes two kernels.""")
    shapes = shapes if page.device.is_gpu else (COMPUTE_BOUND, BANDWIDTH_BOUND)
    page.keep("ledger", {f"{name_of(shape)} float16": moved(*shape) for shape in shapes})
    for shape in shapes:
        lines = [[term, *map(megabytes, counts)] for term, *counts in moved(*shape)]
        lines.append(["together", *map(megabytes, totals(shape))])
        times = {row["baseline"]: row for row in rows if row["case"] == case(shape, False)}
        lines += gains(page, shape, times[TWO], times[THREE]) if times else []
        page.table([name_of(shape), "fused", "two kernels", "three kernels"], lines,
                   right=("fused", "two kernels", "three kernels"))
    if page.device.is_gpu:
        page.say("""Predicted: bytes over the copy ceiling plus FLOPs over the matmul ceiling, as if
        they never overlapped, and nothing for starting a kernel, for the first tiles to arrive, or
        for the arithmetic of GELU, which tensor cores cannot do. In a small product those weigh
        most.""")


def gains(page, shape: tuple, two: dict, three: dict) -> list[list]:
    """The ledger's lines in ms, and what fusing gains by prediction and by the clock."""
    ceilings, (M, N, K) = page.ceilings(), shape
    multiply = 2 * M * N * K / ceilings["matmul_TFLOPs"] / 1e9
    move = [count / ceilings["copy_GBps"] / 1e6 for count in totals(shape)]
    measured = (two["ms"], two["baseline_ms"], three["baseline_ms"])
    predicted = [(multiply + ms) / (multiply + move[0]) for ms in move]
    return [
        ["ms to move, at the copy ceiling", *(f"{ms:.3f}" for ms in move)],
        ["ms to multiply, at the matmul ceiling", *[f"{multiply:.3f}"] * 3],
        ["ms measured", *(f"{ms:.3f}" for ms in measured)],
        ["gain of fusing, predicted", None, *(f"{gain:.2f}x" for gain in predicted[1:])],
        ["gain of fusing, measured", None, f"{two['ratio']:.2f}x", f"{three['ratio']:.2f}x"],
    ]


def explain(page, schedule: dict) -> None:
    """Show the epilogue in the generated code, between the product and the store."""
    from sections.common.codegen import body, generate

    kernel, arguments = job(COMPUTE_BOUND, False, {**schedule, "fast": False})
    code = generate(kernel, page.device.arch, **arguments)
    lines = body(code)
    first = next((n for n, (_, line) in enumerate(lines) if "(bias + " in line), len(lines))
    last = next((n for n, (_, line) in enumerate(lines) if "erff(" in line), 0)
    page.say("""The epilogue in the generated CUDA, whole, without `fast`. bias_local and C_local
    are registers, and each thread holds just the values of the bias that its columns need:""")
    for number, line in lines[first : last + 2]:
        # Constants stand there in hexadecimal, with a decimal comment.
        line = re.sub(r"\w+\.?\w*[+-]\d+f/\*(.*?)\*/", lambda found: f"{float(found[1]):g}", line)
        page.text(f"{number:4} | {squeeze(line, 96)}")
    page.say("It stands between the multiplication and the only store of C:")
    page.landmarks(code, only=("mma.sync", "wgmma", "narrowing", "stmatrix", "TMA store",
                               "vector store"))


def conclude(page, shapes: tuple, rows: list[dict]) -> None:
    """The lesson, with this run's numbers."""
    found = [[row for row in rows if row["case"] == case(shape, tanh)]
             for shape in shapes for tanh in FORMS]
    if all(found):
        texts = []
        for against in found:
            eager = next(row for row in against if row["baseline"] == THREE)
            strongest = min(against, key=lambda row: row["ratio"])
            texts.append(f"{eager['case']} {eager['ms']:.3f} ms, {eager['ratio']:.2f}x eager, "
                         f"{strongest['ratio']:.2f}x {strongest['baseline'].partition(' (')[0]}")
        page.lesson(f"""an epilogue in registers spares two kernels and what they write and read
        back. {"; ".join(texts)}.""")
        page.limit("""tensor cores; with few steps of K also the first tiles, which have nothing to
        hide behind. What the code lacks: tiles of 128 x 128 fetch a third more for as many
        multiplications than 128 x 256 would, and the sums of a larger tile in each warpgroup take
        more registers than there are.""" if page.device.arch == "sm_90a" else """tensor cores,
        which rest while a tile is finished. What the code lacks: the library stores one tile while
        the next is multiplied, this kernel does one after the other.""")
    else:
        one, _, three = totals(BANDWIDTH_BOUND)
        page.lesson(f"""what is done to a tile before it is stored costs no traffic. For
        {name_of(BANDWIDTH_BOUND)} one fused kernel moves {megabytes(one)} MB, three kernels
        {megabytes(three)} MB.""")


if __name__ == "__main__":
    from sections.common.alone import run_alone

    raise SystemExit(run_alone(__file__))
