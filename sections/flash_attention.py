"""FlashAttention: a tile of scores is used up in registers, and no score matrix reaches memory

O = softmax(Q K^T * scale) V for every head. Each query meets each key, so the scores are a matrix
of length x length, far larger than Q, K, V and O together. Written as three operations, it goes to
global memory and comes back, twice. Here a block owns a tile of queries and walks along the keys: a
tile of K makes a tile of scores, online softmax turns it into weights, and with the matching tile
of V they are added to the output. All that stays in registers. The largest score of a row is not
known before its last tile, so a running maximum is kept, and whenever it grows, what has been
summed up so far is scaled down to it.
"""

import math
import re
import warnings
from dataclasses import dataclass, replace

import tilelang
import tilelang.language as T
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from sections.common.build import cores
from sections.common.device import capability
from sections.common.ladder import Problem, Rung, Step, best, climb, jobs, selected, show, steps
from sections.common.measure import Work, time_ms
from sections.hopper import attention as hopper

LOG2E = math.log2(math.e)  # exp(x) = exp2(x * LOG2E), and exp2 is what the hardware has


@tilelang.jit
def flash_attention(Q, K, V, scale: float, causal: bool = False, block_M: int = 64,
                    block_N: int = 64, num_stages: int = 1, threads: int = 128,
                    fast_math: bool = False, longest_first: bool = False,
                    store_shared: bool = False, dtype=T.float16):
    """O = softmax(Q K^T * scale) V. Q: (B, Sq, H, D), K, V: (B, Skv, H, D) of dtype; returns
    O: (B, Sq, H, D). Batch, sequence, heads, head size; scale > 0; any lengths; D a multiple of 16.

    causal: query i sees the keys j <= i + Skv - Sq, so the last query sees all of them (aligned at
    the bottom right, as in FlashAttention 2); a query that sees none gets zeros.
    Source: Dao, "FlashAttention-2" (arXiv:2307.08691).
    """
    B, Sq, Skv, H, D = T.const("B Sq Skv H D")
    Q: T.Tensor[[B, Sq, H, D], dtype]
    K: T.Tensor[[B, Skv, H, D], dtype]
    V: T.Tensor[[B, Skv, H, D], dtype]
    O = T.empty((B, Sq, H, D), dtype)  # noqa: E741
    T.annotate_pass_configs({"tl.enable_fast_math": fast_math})
    rows = T.GemmWarpPolicy.FullRow  # a warp owns whole rows, so a row's sum stays in the warp
    tiles = T.ceildiv(Sq, block_M)
    with T.Kernel(H, tiles, B, threads=threads) as (head, block, batch):
        Q_shared = T.alloc_shared((block_M, D), dtype)
        K_shared = T.alloc_shared((block_N, D), dtype)
        V_shared = T.alloc_shared((block_N, D), dtype)
        scores = T.alloc_fragment((block_M, block_N), T.float32)
        weights = T.alloc_fragment((block_M, block_N), dtype)
        O_local = T.alloc_fragment((block_M, D), T.float32)
        top = T.alloc_fragment((block_M,), T.float32)  # the running maximum of each row
        old_top = T.alloc_fragment((block_M,), T.float32)
        shrink = T.alloc_fragment((block_M,), T.float32)
        tile_total = T.alloc_fragment((block_M,), T.float32)
        total = T.alloc_fragment((block_M,), T.float32)  # the running sum of each row
        if threads == 384:  # Hopper: three warpgroups compute, one copies; 64512 registers in all
            T.annotate_producer_reg_dealloc(24)
            T.annotate_consumer_reg_alloc(160)

        # Causal: the last queries see the most keys, so their blocks take longest.
        first = (tiles - 1 - block if longest_first else block) * block_M  # first query here
        seen = first + Skv - Sq + 1 if causal else Skv  # how many keys it sees
        T.copy(Q[batch, first : first + block_M, head, :], Q_shared)
        T.clear(O_local)
        T.clear(total)
        T.fill(top, -1e30)  # finite: with -inf, a row that has seen nothing would become NaN
        steps = T.ceildiv(Skv, block_N)
        if causal:  # no further than to the diagonal; one step at least, to wait for Q
            steps = T.max(1, T.min(steps, T.ceildiv(seen + block_M - 1, block_N)))
        for k in T.Pipelined(steps, num_stages=num_stages):
            T.copy(K[batch, k * block_N : (k + 1) * block_N, head, :], K_shared)
            T.clear(scores)
            T.gemm(Q_shared, K_shared, scores, transpose_B=True, policy=rows)
            if (k + 1) * block_N > seen:  # this tile has a key that some row must not see
                for i, j in T.Parallel(block_M, block_N):
                    visible = k * block_N + j < (seen + i if causal else seen)
                    scores[i, j] = T.if_then_else(visible, scores[i, j], -T.infinity(T.float32))
            T.copy(top, old_top)
            T.reduce_max(scores, top, dim=1, clear=False)  # goes on from the tiles before
            for i in T.Parallel(block_M):
                shrink[i] = T.exp2((old_top[i] - top[i]) * (scale * LOG2E))
            for i, j in T.Parallel(block_M, block_N):  # one multiply-add and one exp2
                scores[i, j] = T.exp2(scores[i, j] * (scale * LOG2E) - top[i] * (scale * LOG2E))
            T.reduce_sum(scores, tile_total, dim=1)
            for i in T.Parallel(block_M):
                total[i] = total[i] * shrink[i] + tile_total[i]
            for i, j in T.Parallel(block_M, D):
                O_local[i, j] *= shrink[i]
            T.copy(scores, weights)
            T.copy(V[batch, k * block_N : (k + 1) * block_N, head, :], V_shared)
            T.gemm(weights, V_shared, O_local, policy=rows)
        for i, j in T.Parallel(block_M, D):
            O_local[i, j] /= T.max(total[i], 1e-30)  # a row that has seen nothing: 0 / 1e-30
        if store_shared:  # in the place of Q, which nobody needs any more
            T.copy(O_local, Q_shared)
            T.copy(Q_shared, O[batch, first : first + block_M, head, :])
        else:
            T.copy(O_local, O[batch, first : first + block_M, head, :])
    return O


@dataclass(frozen=True)
class Case:
    """One attention: batch, heads, queries, head size; as many keys as queries unless given."""

    batch: int
    heads: int
    queries: int
    size: int
    causal: bool
    keys: int = 0

    def __post_init__(self):
        object.__setattr__(self, "keys", self.keys or self.queries)

    @property
    def name(self) -> str:
        """Batch x heads x length x head size."""
        keys = f" on {self.keys} keys" if self.keys != self.queries else ""
        return (f"{self.batch}x{self.heads}x{self.queries}x{self.size} float16 "
                f"{'causal' if self.causal else 'full'}{keys}")

    @property
    def scale(self) -> float:
        return self.size**-0.5

    @property
    def arguments(self) -> dict:
        """The kernel's arguments beside its schedule."""
        return {"B": self.batch, "H": self.heads, "Sq": self.queries, "Skv": self.keys,
                "D": self.size, "scale": self.scale, "causal": self.causal}

    @property
    def bounds(self) -> dict:
        """For a check: how many terms a sum has, and that weights are rounded to float16."""
        return {"reduction": self.keys, "intermediate": torch.float16}

    @property
    def flops(self) -> int:
        """Two products of 2 x queries x keys x size for each head; causal counts half of it."""
        full = 4 * self.batch * self.heads * self.queries * self.keys * self.size
        return full // 2 if self.causal else full

    @property
    def score_bytes(self) -> int:
        """A score matrix in float16, which the kernel never has."""
        return 2 * self.batch * self.heads * self.queries * self.keys

    @property
    def output_bytes(self) -> int:
        return 2 * self.batch * self.heads * self.queries * self.size


def inputs(page, case: Case, seed: int = 0, dtype=torch.float16):
    """Random Q: (B, Sq, H, D), K and V: (B, Skv, H, D)."""
    generator = torch.Generator(page.device.torch_device).manual_seed(seed)

    def draw(length: int):
        return torch.randn(case.batch, length, case.heads, case.size, generator=generator,
                           device=page.device.torch_device).to(dtype)

    return draw(case.queries), draw(case.keys), draw(case.keys)


def reference(Q, K, V, scale: float, causal: bool):
    """The same in float32, TF32 off, with the mask written out, one head at a time."""
    torch.backends.cuda.matmul.allow_tf32 = False
    queries, keys = Q.shape[1], K.shape[1]
    seen = torch.ones(queries, keys, dtype=torch.bool, device=Q.device)
    if causal:
        seen = seen.tril(keys - queries)  # j <= i + keys - queries
    out = torch.empty(Q.shape, device=Q.device)
    for batch in range(Q.shape[0]):
        for head in range(Q.shape[2]):
            q, k, v = (tensor[batch, :, head].float() for tensor in (Q, K, V))
            weights = (q @ k.T * scale).masked_fill(~seen, -torch.inf).softmax(1)
            out[batch, :, head] = weights.nan_to_num(0) @ v  # NaN: a row that sees no key
    return out


def unfused(Q, K, V, scale: float):
    """Attention as three operations, with the whole score matrix in between."""
    Q, K, V = (tensor.transpose(1, 2) for tensor in (Q, K, V))
    return torch.softmax(Q @ K.transpose(2, 3) * scale, dim=-1) @ V


START = {"block_M": 64, "block_N": 64, "num_stages": 0, "threads": 128, "fast_math": False,
         "longest_first": False, "store_shared": False}
FAST_MATH = ("+ fast math", {"fast_math": True}, "exp2 becomes one instruction")
LONGEST = ("+ longest first", {"longest_first": True}, "short blocks fill the gaps at the end")
LARGER = "each tile of K and V serves twice the queries"

# Causal, head size 128; one change a row, the last row is the one to take. An architecture that is
# not named takes the ladder of the newest older one.
LADDERS = {
    "sm_75": steps(
        ("one tile at a time", START, "every copy is waited for"),
        ("+ 2 stages", {"num_stages": 2}, "two tiles of K and of V in shared memory"),
        ("1 stage instead", {"num_stages": 1}, "the next K is loaded before the softmax"),
        FAST_MATH,
        LONGEST,
    ),
    "sm_80": steps(
        ("one tile at a time", START, "every copy is waited for"),
        ("+ 2 stages", {"num_stages": 2}, "two tiles ahead"),
        ("1 stage instead", {"num_stages": 1}, "cp.async: the next K comes during the softmax"),
        ("+ larger tile: 128x64", {"block_M": 128, "threads": 256}, LARGER),
        FAST_MATH,
        LONGEST,
    ),
    "sm_90a": steps(
        ("one tile at a time", {**START, "store_shared": True}, "every copy is waited for"),
        ("+ 2 stages", {"num_stages": 2}, "the copy engine runs ahead"),
        ("+ larger tile: 192x128", {"block_M": 192, "block_N": 128, "threads": 384},
         "a tile of K and V serves 3 times the queries"),
        FAST_MATH,
        LONGEST,
    ),
    "sm_100a": steps(
        ("one tile at a time", START, "every copy is waited for"),
        ("+ 2 stages", {"num_stages": 2}, "the copy engine runs ahead"),
        ("+ larger tile: 128x64", {"block_M": 128, "threads": 256}, LARGER),
        FAST_MATH,
        LONGEST,
    ),
}
# What differs from the ladder's last row, by (head size, causal).
CHANGES = {
    "sm_75": {},
    "sm_80": {(64, False): {"num_stages": 2}},
    "sm_90a": {},
    "sm_100a": {},
}
SHOWN = Case(4, 16, 4096, 128, True)  # whose code is read in rehearsal
AWKWARD = (Case(1, 2, 65, 64, True, keys=296),)
BACKENDS = {SDPBackend.CUDNN_ATTENTION: "cuDNN", SDPBackend.FLASH_ATTENTION: "flash",
            SDPBackend.EFFICIENT_ATTENTION: "efficient"}
LACKS = "warps that multiply while others compute weights; all of a block do the same at a time."
FAULT = "TileLang 0.1.15 cannot compile it: with cp.async a causal loop takes 1 stage at most"


def schedule_of(device, case: Case) -> dict:
    """The schedule that is taken for a case on this architecture."""
    changes = device.preset(CHANGES).get((case.size, case.causal), {})
    return {**device.preset(LADDERS)[-1].schedule, **changes}


def taken(device, case: Case) -> Step:
    """What is taken for a case: Hopper's own kernel where it can be had, else flash_attention."""
    if hopper.takes(device, case.size):
        return hopper.step(case, device.multiprocessors)
    return Step("flash_attention", schedule_of(device, case), "")


def kernel_for(device, case: Case) -> tuple:
    """The kernel that is taken for a case, and its schedule."""
    step = taken(device, case)
    return step.kernel or flash_attention, step.schedule


def meets_fault(arch: str, schedule: dict) -> bool:
    """Whether TileLang 0.1.15 stops at a causal loop: "Downcast from tirx.Sub to ir.IntImm".

    It cannot count the cp.async groups of a loop whose length depends on the block.
    """
    return 80 <= capability(arch) < 90 and schedule["num_stages"] >= 2


def run(page):
    page.say("""The kernel, whole. Two multiplications stand in the loop; between them a tile of
    scores is masked, its rows' maxima and sums are taken, and it becomes weights in float16, all in
    registers. Only tiles on the diagonal or at the end are masked.""")
    page.show(flash_attention)

    causal, *others = cases(page)
    shown = causal if page.device.is_gpu else SHOWN
    ladder = choose_ladder(page)
    wanted = [(flash_attention, {**case.arguments, **schedule_of(page.device, case)})
              for case in AWKWARD]
    for case in others:
        wanted += jobs(page, flash_attention, [taken(page.device, case)], case.arguments)
    likely = ladder[-1] if page.device.is_gpu else Step("", schedule_of(page.device, causal), "")
    # All together, in parallel; below they are ready.
    page.build([*wanted, *jobs(page, flash_attention, ladder, causal.arguments)],
               read=[] if page.spare else jobs(page, flash_attention, [likely], shown.arguments))
    kernels = dict(zip((*AWKWARD, *others), page.build(wanted), strict=True))
    for case in AWKWARD:
        check(page, case, kernels[case])
    rungs = climb(page, flash_attention, ladder, problem(page, causal, shown))
    introduce(page, causal, shown)
    show(page, rungs, "SDPA")
    if any(step.kernel for step in ladder):
        introduce_hopper(page)

    rows = [best(rungs).measurement] if best(rungs) else []
    for case in others:
        rows += measured(page, case, kernels[case])
    show_rows(page, rows)
    if len(rows) > 1:
        compare_causal(page, causal, best(rungs).step.schedule, rows)
    memory = show_memory(page, others, kernels)
    explain(page, best(rungs) or next(rung for rung in reversed(rungs) if rung.kernel))
    conclude(page, rows, memory)


def cases(page) -> list[Case]:
    """The ladder's case first; on a GPU the same without a mask and with another head size."""
    if not page.device.is_gpu:
        return [Case(2, 2, 200, 64, True)]
    small = page.quick or page.device.memory_bytes < 32e9
    shape = (2, 8, 2048) if small else (SHOWN.batch, SHOWN.heads, SHOWN.queries)
    found = [Case(*shape, size, causal) for size in (128, 64) for causal in (True, False)]
    return found[:2] if page.quick else found


def choose_ladder(page) -> list:
    """This architecture's ladder; what TileLang cannot compile is marked."""
    device, ladder = page.device, page.device.preset(LADDERS)
    case = cases(page)[0] if device.is_gpu else SHOWN
    own = [hopper.step(case, device.multiprocessors or 132)] if device.arch == "sm_90a" else []
    return [replace(step, fault=FAULT) if meets_fault(device.arch, step.schedule) else step
            for step in selected(page, ladder, ladder[-1].schedule, own)]


def problem(page, case: Case, shown: Case) -> Problem:
    """The ladder's case with its reference and baseline."""
    tensors = inputs(page, case)
    return Problem(
        case=case.name,
        arguments=case.arguments,
        shown=shown.arguments,
        inputs=tensors,
        expected=reference(*tensors, case.scale, case.causal),
        bounds=case.bounds,
        baseline=fastest_sdpa(page, tensors, case) if page.device.is_gpu else ("", None),
        work=Work(flops=case.flops),
    )


def check(page, case: Case, kernel) -> bool:
    """Check a kernel against the reference."""
    if isinstance(kernel, BaseException):
        raise kernel
    tensors = inputs(page, case)
    expected = reference(*tensors, case.scale, case.causal)
    return page.check(case.name, kernel, tensors, expected, **case.bounds)


def measured(page, case: Case, kernel) -> list[dict]:
    """Check a kernel, then time it against SDPA, the headline's also against unfused torch."""
    if not check(page, case, kernel):
        return []
    Q, K, V = tensors = inputs(page, case)
    headline = (case.size, case.causal) == (128, False)
    baselines = dict([fastest_sdpa(page, tensors, case)])
    if headline:
        baselines["torch, unfused"] = lambda: unfused(Q, K, V, case.scale)
    rows = page.measure(case.name, taken(page.device, case).variant, kernel, tensors, baselines,
                        Work(flops=case.flops), rounds=3)
    if headline:
        page.headline(rows[0])
    return rows


def fastest_sdpa(page, tensors, case: Case) -> tuple:
    """PyTorch's fastest attention on this GPU, each backend timed briefly: its name, a function.

    It gets its tensors as it likes them, heads before the sequence.
    """
    page.progress("looking for PyTorch's fastest attention")
    tensors = [tensor.transpose(1, 2).contiguous() for tensor in tensors]

    def attend(backend):
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(*tensors, is_causal=case.causal)

    times = {}
    for backend in BACKENDS:
        try:
            with warnings.catch_warnings():  # a backend that is not here says so at length
                warnings.simplefilter("ignore")
                times[backend] = time_ms(lambda backend=backend: attend(backend), 5.0)
        except RuntimeError:
            continue
    backend = min(times, key=times.get, default=SDPBackend.MATH)
    return f"SDPA ({BACKENDS.get(backend, 'math')})", lambda: attend(backend)


def introduce(page, case: Case, shown: Case) -> None:
    """What the ladder's table shows."""
    steps_shown = "its first and its last row" if page.quick else "one idea a row"
    page.say(f"""A ladder of schedules for {shown.name} (batch x heads x length x head size),
    {steps_shown}. Shared memory holds block_M rows of Q, and for each stage block_N rows of K and
    of V. The clock drifts from row to row: compare them by their ratio.""")
    if not page.device.is_gpu:
        page.say(f"""Every row of flash_attention that fits ran here, on the CPU, for {case.name},
        and was checked. What is shown is generated for {page.device.arch}.""")


def introduce_hopper(page) -> None:
    """Hopper's own kernel: what it is, its source, what it costs and what it still lacks."""
    page.say("""attention_hopper is a kernel of its own, for Hopper alone (it needs TMA and wgmma).
    New: Two multiplications are ordered at once, the scores of the next tile and the product of the
    last weights and V; while the second runs, the next weights are computed. A block computes one
    tile of O after another, and what it copies first and stores last hides behind its neighbours.
    Causal tiles differ in length: they are dealt out longest first, there and back like cards, and
    `together` heads at a time, a number chosen so that blocks get nearly the same work. O has a
    place of its own in shared memory. And keys are walked from the last to the first, so that the
    tile on the diagonal, the one to mask, stands before the loop. Barriers are those of the gemm
    section. It calls online_softmax (what stands between the two products above, in registers),
    hide (the mask), walk (how many tiles of keys), dealt (the next tile of O) and release (an
    arrival), all below it in its file.""")
    page.show(hopper.attention_hopper)
    page.say("What it costs: nobody checks these barriers.")


def compare_causal(page, case: Case, schedule: dict, rows: list[dict]) -> None:
    """Why causal attention reaches fewer FLOPs per second than full attention, where it does."""
    causal, full = rows[0], rows[1]
    if causal["value"] >= full["value"]:
        return
    tile = schedule["block_M"], schedule["block_N"]
    steps = hopper.steps_of(case, *tile)
    seen = sum(min(i + 1 + case.keys - case.queries, case.keys) for i in range(case.queries))
    page.say(f"""Causal reaches {causal['value']:.0f} TFLOP/s, full {full['value']:.0f}. On the
    diagonal a tile is computed whole, and about half of it thrown away: with {tile[0]}x{tile[1]}
    tiles {sum(steps) * tile[0] * tile[1] / seen - 1:.0%} more scores than are counted. A tile of
    queries walks along half as many tiles of keys on average, so its first copies and its last
    store, with nothing to hide behind, weigh twice. And the shortest takes {min(steps)}, the
    longest {max(steps)} steps: multiprocessors do not end together.""")


def show_rows(page, rows: list[dict]) -> None:
    """The best schedules against PyTorch, a row a baseline."""
    if not rows:
        return
    page.say("""FLOPs: 4 x batch x heads x queries x keys x head size for the two products; causal
    counts half of that. SDPA is torch's scaled_dot_product_attention with its fastest backend
    here.""")
    page.timings([{**row, "variant": ", ".join(row["variant"].split(", ")[:2])} for row in rows])


def show_memory(page, others: list[Case], kernels: dict) -> str:
    """What attention needs beside Q, K and V: counted, and on a GPU measured; the gist of it."""
    case = others[0] if others else SHOWN
    output, scores = megabytes(case.output_bytes), megabytes(case.score_bytes)
    page.say(f"""Memory beside Q, K and V for {case.name}: O takes {output}, a score matrix would
    take {scores} in float16.""")
    if not others:
        return f"{output} of memory instead of {scores} and more"
    tensors = inputs(page, case)
    fused = megabytes(peak_bytes(lambda: kernels[case](*tensors)))
    apart = megabytes(peak_bytes(lambda: unfused(*tensors, case.scale)))
    page.say(f"Peak, measured: {fused} fused, {apart} as three operations in torch.")
    return f"{fused} of memory instead of {apart}"


def peak_bytes(function) -> int:
    """Bytes of GPU memory that a call needs at most, beyond what is there already."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    function()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def megabytes(count: int) -> str:
    """Bytes in units of 1e6."""
    return f"{count / 1e6:.0f} MB"


def explain(page, rung: Rung) -> None:
    """What the loop became, and what crosses threads in it."""
    from sections.common.codegen import body

    code = rung.code

    def line_of(result: str) -> int:
        """The line of the tensor-core instruction that adds to `result`."""
        multiply = re.compile(rf"tl::(?:wgmma_|mma_sync).*\b{result} \+")
        return next(number for number, text in body(code) if multiply.search(text))

    page.say(f"What became of the loop, with {rung.step.variant}:")
    page.landmarks(code, only=("TMA load", "mbarrier wait", "cp.async", "cp.async wait", "ldmatrix",
                               "wgmma", "mma.sync", "AllReduce", "exponential", "narrowing"))
    sharing = re.search(r"AllReduce<tl::MaxOp, (\d+), ", code.source)[1]
    page.say(f"""Line {line_of("scores")} multiplies Q by K, line {line_of("O_local")} the weights
    by V. A row of scores lies in the registers of {sharing} threads. They exchange its maximum and
    its sum by shuffles; nothing else of the softmax crosses threads. Each thread rounds its own
    scores to float16 and hands them to the second multiplication in registers. Q, K and V come
    through shared memory.""")
    resources = None if page.spare else page.resources(code)
    if resources:
        page.say(f"nvcc reports {resources}.")
    elif page.spare:
        page.say(f"Left out in quick mode with {cores()} cores: what nvcc says of registers.")


def conclude(page, rows: list[dict], memory: str) -> None:
    """The lesson with this run's numbers, and one thing to try."""
    arch, why = page.device.arch, ""
    if meets_fault(arch, {"num_stages": 2}):
        why = f"""The causal schedule for {arch} has 1 stage because TileLang 0.1.15 stops at 2: it
        cannot count cp.async groups in a loop whose length depends on the block."""
    against = [row for row in rows if row["baseline"].startswith("SDPA")][:2]
    if against:
        results = ", ".join(f"{row['case']} {row['ms']:.3f} ms, {row['value']:.0f} TFLOP/s, "
                            f"{row['ratio']:.2f}x {row['baseline']}" for row in against)
        page.lesson(f"""scores that never leave registers cost {memory}: {results}. {why}""")
        page.limit(f"""what stands between two multiplications: an exponential a score, and a
        maximum and a sum a row; with head size 64 as much for half the multiplications. What the
        code lacks: {hopper.LACKS if arch == "sm_90a" else LACKS}""")
    else:
        page.lesson(f"""a tile of scores at a time is used up in registers, and a running maximum
        and sum make the result exact: for {SHOWN.name} {memory}. {why}""")
    page.try_this("""python -m sections.flash_attention block_N=32: the ladder gets a row "yours",
    flash_attention with fewer keys a step, so with more maxima, sums and rescalings of O for the
    same two products. Expect it to be slower than the last row of flash_attention.""")


if __name__ == "__main__":
    from sections.common.alone import run_alone

    raise SystemExit(run_alone(__file__))
