"""Architectures: one source, six GPU architectures, and what new instructions buy

T.copy and T.gemm say what happens, not how. For a Turing GPU the compiler writes loads through
registers and small matrix instructions; for Ampere, copies that run in the background; for Hopper,
one thread that orders whole tiles from a copy engine, and matrix instructions of four warps that
read shared memory themselves. The Python stays the same. What does change is the schedule that
suits a chip, and how much shared memory it has room for.
"""

import copy

from sections.common import codegen
from sections.common.build import FEW_CORES, cores
from sections.common.device import EXAMPLE_GPUS, SHARED_BYTES, capability, preset, select
from sections.common.ladder import describe
from sections.common.measure import Work
from sections.common.page import kilobytes, squeeze
from sections.gemm import BEST_STEP, LADDERS, case, gemm, inputs, reference, sizes

SHOWN = ("sm_75", "sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a")
FIRSTS = ("sm_75", "sm_80", "sm_90a")  # the first GPUs with each way to copy or to multiply
SIZE = 4096  # M, N and K of the code that is read and of what is timed

COPIES = {"TMA load": "TMA, one thread", "cp.async": "cp.async, all threads",
          "vector load": "load and store"}
WAITS = {"mbarrier wait": "mbarrier", "cp.async wait": "cp.async.wait", "block barrier": "barrier"}
MULTIPLIES = ("wgmma", "mma.sync")

# On a GPU: one thing new a row, with the compiler told what to leave out.
PATHS = (
    ("sm_75", {}, "load and store, mma 16x8x8"),
    ("sm_80", {"tirx.use_async_copy": False}, "mma 16x8x16"),
    ("sm_80", {}, "cp.async"),
    ("sm_90a", {"tl.disable_wgmma": True}, "TMA"),
    ("sm_90a", {}, "wgmma"),
    ("sm_100a", {}, "TMA"),
    ("sm_120a", {}, "TMA"),
)


def best_schedule(arch: str) -> dict:
    """gemm's best schedule for an architecture."""
    return preset(LADDERS, arch)[preset(BEST_STEP, arch)].schedule


def shape_read(page) -> tuple[int, int, int]:
    """M, N and K of the code that is read; gemm has generated it for this GPU."""
    return (SIZE // 2 if page.quick and page.device.is_gpu else SIZE,) * 3


def shape_here(page) -> tuple[int, int, int]:
    """M, N and K of what is run here."""
    return shape_read(page) if page.device.is_gpu else (150, 280, 70)


SAME = best_schedule("sm_80")  # it fits every architecture's shared memory


def run(page):
    page.schedule({})  # nothing to replace: the schedules are gemm's
    shape, own = shape_here(page), page.device.arch
    page.say(f"""The kernel is section gemm's, unchanged (sections/gemm.py). Here is the CUDA that
    is generated from it for {case(*shape_read(page))} and each architecture, with the schedule that
    gemm takes for it.""")
    paths = (paths_here if page.device.is_gpu else paths_rehearsed)(page)
    archs = [arch for arch in SHOWN if not page.quick or arch in (*FIRSTS, own)]
    measured = [arch for arch in archs if arch == own or (arch in FIRSTS and not page.quick)]
    measured = [] if page.spare else measured
    shown = {arch: {**sizes(*shape_read(page)), **best_schedule(arch)} for arch in archs}
    kernels = page.build(
        [(with_settings(settings), {**sizes(*shape), **schedule}, device)
         for device, _, settings, schedule in paths],
        read=[(gemm, shown[arch], arch) for arch in measured],
    )
    codes = {arch: codegen.generate(gemm, arch, **shown[arch]) for arch in archs}
    registers = {arch: codegen.resources(codes[arch]) for arch in measured}
    side_by_side(page, codes, registers)
    what_became_of_it(page, codes)
    what_fits_where(page, codes)

    rows = try_paths(page, paths, kernels, shape)
    conclude(page, rows)
    page.try_this("""python -m sections.gemm --device cpu --arch sm_80, then sm_75: the same ladder,
    with the landmarks of an A100 and of a T4; on the CPU nothing is timed.""")


# Without a GPU


def side_by_side(page, codes: dict, registers: dict) -> None:
    """One row an architecture: what copies, waits and multiplies, and what a block takes."""
    rows = []
    for arch, code in codes.items():
        marks = {mark.name for mark in codegen.landmarks(code)}
        found = registers.get(arch)
        rows.append([
            arch, EXAMPLE_GPUS[arch], first_of(COPIES, marks), first_of(WAITS, marks),
            next(name for name in MULTIPLIES if name in marks), code.threads,
            f"{kilobytes(code.shared_bytes)} of {kilobytes(SHARED_BYTES[arch])}",
            found and found.registers,
        ])
    page.table(["arch", "GPUs", "copies by", "waits at", "multiplies", "threads", "shared",
                "registers"], rows, right=("threads", "shared", "registers"))
    page.say("""From sm_90a on a block has 128 threads more, one of which orders the copies. wgmma
    is sm_90a's alone: newer chips run mma.sync here, and sm_100a's own tensor-core instructions
    want the sum in its tensor memory (T.alloc_tmem), which is another kernel.""")
    page.say(f"Left out in quick mode with {cores()} cores: registers, and some of the six."
             if page.spare else "Registers are per thread, from nvcc; in quick mode for this "
             "architecture alone, and not all six are shown." if page.quick else
             "Registers are per thread, from nvcc, for the first GPUs with each way to copy or "
             "multiply.")


def first_of(meanings: dict[str, str], marks: set[str]) -> str:
    """The first landmark of `meanings` that was found, in words."""
    return next(words for name, words in meanings.items() if name in marks)


def what_became_of_it(page, codes: dict) -> None:
    """The generated line for one copy and for one multiplication, on each new path."""
    for statement, names in (("T.copy(A[...], A_shared)", tuple(COPIES)),
                             ("T.gemm(A_shared, B_shared, C_local)", MULTIPLIES)):
        rows = []
        for arch in FIRSTS:
            marks = {mark.name: mark for mark in codegen.landmarks(codes[arch], only=names)}
            mark = next(marks[name] for name in names if name in marks)
            line = codes[arch].source.split("\n")[mark.line - 1].strip()
            if mark.code.startswith("..."):  # it stands far to the right
                line = mark.code
            line = squeeze(line.replace("tl::DataType::k", ""), 46)
            rows.append([arch, mark.line, line, mark.meaning])
        page.say(f"What became of {statement}:")
        page.table(["arch", "line", "code", "what it does"], rows, right=("line",))
    page.say("""The inputs are float16, since tensor cores multiply that on all of them. bfloat16
    they multiply from sm_80 on. With dtype=T.bfloat16 this kernel compiles for sm_75, too, but to
    ordinary multiply-adds, and tensor cores stand idle. torch.cuda.is_bf16_supported() is True on
    a T4 all the same, because torch emulates it; ask torch.cuda.get_device_capability() >= (8, 0)
    instead.""")


def what_fits_where(page, codes: dict) -> None:
    """Each architecture's best schedule against the shared memory of all the others."""
    owners = {}  # a schedule's words: the architectures whose best it is
    for arch in codes:
        owners.setdefault(describe(best_schedule(arch)), []).append(arch)
    rows = [["room for a block", "", *(kilobytes(SHARED_BYTES[arch]) for arch in codes)]]
    for archs in owners.values():
        needed = codes[archs[0]].shared_bytes
        rows.append([f"best on {' and '.join(archs)}", kilobytes(needed), *(
            "best" if arch in archs else "fits" if needed <= SHARED_BYTES[arch] else "no"
            for arch in codes)])
    page.say("""The same schedule everywhere? It needs the same shared memory on each of them; only
    the room differs:""")
    page.table(["schedule", "needs", *codes], rows, right=("needs",))


def paths_rehearsed(page) -> list[tuple]:
    """The schedule that fits everywhere, and this architecture's best, for the CPU."""
    best = best_schedule(page.device.arch)
    schedules = [SAME] if best == SAME else [SAME, best]
    return [(page.device, "", {}, schedule) for schedule in schedules]


# On a GPU


def paths_here(page) -> list[tuple]:
    """The code paths that run on this GPU: the same schedule on each, then the GPU's best.

    (device, what is new, settings, schedule) in that order.
    """
    return [(select("cuda", arch), *rest)
            for arch, *rest in spared(page, all_paths(page.device.gpu_arch))]


def all_paths(own: str) -> list[tuple]:
    """All code paths that run on a GPU of architecture `own`, as above, by architecture."""
    paths = [(arch, new, settings, SAME) for arch, settings, new in PATHS  # sm_90a: own chips only
             if arch == own or capability(arch) < min(capability(own), 90)]
    if best_schedule(own) != SAME:
        paths.append((own, "its best schedule", {}, best_schedule(own)))
    return paths


def spared(page, paths: list[tuple]) -> list[tuple]:
    """In quick mode the first and the last path; on few cores those of the compiler's own choice.

    What was new in a path left out is new in the next one.
    """
    if page.quick:
        left_out = range(1, len(paths) - 1)
    else:
        left_out = [number for number, (_, _, settings, _) in enumerate(paths)
                    if settings and cores() <= FEW_CORES]
    kept, news = [], []
    for number, (arch, new, *rest) in enumerate(paths):
        news.append(new)
        if number not in left_out:
            kept.append((arch, ", ".join(news), *rest))
            news = []
    return kept


def try_paths(page, paths: list[tuple], kernels: list, shape: tuple) -> list[tuple]:
    """Check every path and, on a GPU, time it; (architecture, what is new, measurement) each."""
    A, B = inputs(page, *shape)
    expected = reference(A, B)
    rows = []
    for (device, new, _, schedule), kernel in zip(paths, kernels, strict=True):
        passed = page.check(case(*shape), kernel, (A, B), expected, reduction=shape[2])
        if passed and page.device.is_gpu:
            (measurement,) = page.measure(
                case(*shape), f"{device.arch} code, {new}: {describe(schedule)}", kernel, (A, B),
                {"cuBLAS (torch.matmul)": lambda: A @ B},
                Work(flops=2 * shape[0] * shape[1] * shape[2]), rounds=3,
            )
            rows.append((device.arch, new, measurement))
    if rows:
        timed_table(page, rows)
        page.headline(rows[-1][2])
    return rows


def with_settings(settings: dict):
    """gemm, compiled with other pass_configs."""
    kernel = copy.copy(gemm)
    kernel.pass_configs = settings
    return kernel


def timed_table(page, rows: list[tuple]) -> None:
    """All code paths timed on one chip, with what each row gained over the one above it."""
    paths = all_paths(page.device.gpu_arch)
    if len(spared(page, paths)) == len(paths):
        which = "One new kind a row: to leave one out, the compiler was told so (pass_configs)."
    elif page.quick:
        which = "In quick mode there are the first and the last row alone."
    else:
        which = f"""With {cores()} cores fewer rows are compiled, and some have several kinds of new
        instructions at once."""
    page.say(f"""Now on this {page.device.gpu}, with one schedule, {describe(SAME)}. nvcc makes
    PTX for the older architecture, and from that machine code for this chip. These are no times of
    older GPUs: the chip is the same in each row, only the instructions differ. {which} Gain: the
    ratio to cuBLAS over that of the row above, since the clock drifts.""")
    page.table(
        ["code for", "new", "ms", "TFLOP/s", "vs cuBLAS", "gain"],
        [[arch, new, f"{m['ms']:.3f}", f"{m['value']:.0f}", f"{m['ratio']:.2f}x",
          gain and f"{gain:.2f}x"]
         for (arch, new, m), gain in zip(rows, [None, *gains(rows)], strict=True)],
        right=("ms", "TFLOP/s", "vs cuBLAS", "gain"),
    )


def gains(rows: list[tuple]) -> list[float]:
    """What each row gained over the one above it, by the ratio to cuBLAS: the clock drifts."""
    return [m["ratio"] / above["ratio"]
            for (_, _, above), (_, _, m) in zip(rows, rows[1:], strict=False)]


def conclude(page, rows: list[tuple]) -> None:
    """The lesson: what each new instruction bought on this chip, or what changed in the code."""
    if not rows:
        page.lesson("""the Python is one; the instructions are the compiler's choice: load and store
        on sm_75, cp.async from sm_80 on, TMA from sm_90a on, wgmma on sm_90a alone. What you choose
        again for each GPU is the schedule, and shared memory says what fits.""")
        return
    steps = [(new, gain) for (_, new, _), gain in zip(rows[1:], gains(rows), strict=True)]
    lost = [new for new, gain in steps if gain < 0.98]
    first, last = rows[0][2], rows[-1][2]
    page.lesson(f"""on this {page.device.gpu} the same Python went from {first['value']:.0f} TFLOP/s
    with {rows[0][0]} code to {last['value']:.0f}, {last['ratio']:.2f}x cuBLAS. What each step
    brought: {", ".join(f"{new} {gain:.2f}x" for new, gain in steps)}.""" + (f""" In so small a tile
    {" and ".join(lost)} cost more than it saved.""" if lost else "") + ("""
    A block with TMA has 128 threads more, for the copies; with the registers of all 256 one block
    fits an SM where there were two.""" if "TMA" in lost and rows[-1][0] == "sm_90a" else ""))
    page.limit("""instructions alone are not the schedule. The last row changes the tile as well,
    and older code was not tried with that one.""")


if __name__ == "__main__":
    from sections.common.alone import run_alone

    raise SystemExit(run_alone(__file__))
