"""Debugging: find where a result is wrong, ask the kernel, read what the compiler wrote

A kernel runs in thousands of threads and returns nothing but its result, so a fault is cornered
from both ends. The check says where the first wrong element lies, and that names a block. T.print
lets one thread of that block tell what it holds. The generated CUDA says which instruction put it
there. The same tools show what a kernel costs: its instructions, its registers, who holds what.
"""

import contextlib
import io
import re
import tempfile
from concurrent.futures import ThreadPoolExecutor

import tilelang
import tilelang.language as T
import torch
from tilelang import tvm
from tvm import tirx
from tvm.target import Target

from sections.common import codegen
from sections.common.build import FEW_CORES, cores
from sections.common.ladder import describe
from sections.common.measure import Work
from sections.common.verify import compare


@tilelang.jit
def product(A, B, block_M: int = 64, block_N: int = 64, block_K: int = 32, num_stages: int = 2,
            threads: int = 128, watch: bool = False, dtype=T.float16):
    """C = A @ B, or so it should be; one line is wrong. A: (M, K), B: (K, N), returns C: (M, N)."""
    M, N, K = T.const("M N K")
    A: T.Tensor[[M, K], dtype]
    B: T.Tensor[[K, N], dtype]
    C = T.empty((M, N), dtype)
    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
        A_shared = T.alloc_shared((block_M, block_K), dtype)
        B_shared = T.alloc_shared((block_K, block_N), dtype)
        C_local = T.alloc_fragment((block_M, block_N), T.float32)
        T.clear(C_local)
        for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
            T.copy(A[bx * block_M, k * block_K], A_shared)
            T.copy(B[k * block_K, bx * block_N], B_shared)
            if watch:  # decided while compiling: without it nothing of this is left
                if bx == 1 and by == 0 and T.get_thread_binding() == 0:
                    T.print(A_shared[0, 0], msg="A_shared[0, 0]")
            T.gemm(A_shared, B_shared, C_local)
        T.copy(C_local, C[by * block_M, bx * block_N])
    return C


@tilelang.jit
def mended(A, B, block_M: int = 64, block_N: int = 64, block_K: int = 32, num_stages: int = 2,
           threads: int = 128, watch: bool = False, dtype=T.float16):
    """C = A @ B, summed in float32. A: (M, K), B: (K, N) of dtype; returns C: (M, N) of dtype."""
    M, N, K = T.const("M N K")
    A: T.Tensor[[M, K], dtype]
    B: T.Tensor[[K, N], dtype]
    C = T.empty((M, N), dtype)
    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
        A_shared = T.alloc_shared((block_M, block_K), dtype)
        B_shared = T.alloc_shared((block_K, block_N), dtype)
        C_local = T.alloc_fragment((block_M, block_N), T.float32)
        T.clear(C_local)
        for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
            T.copy(A[by * block_M, k * block_K], A_shared)
            T.copy(B[k * block_K, bx * block_N], B_shared)
            T.gemm(A_shared, B_shared, C_local)
        if watch:
            for i, j in T.Parallel(block_M, block_N):  # each thread visits what it holds
                if bx == 0 and by == 0 and i == 9 and j == 3:
                    T.print(C_local[i, j], msg="C_local[9, 3]")
        T.copy(C_local, C[by * block_M, bx * block_N])
    return C


def reference(A, B):
    """A @ B in float32, TF32 off."""
    torch.backends.cuda.matmul.allow_tf32 = False
    return A.float() @ B.float()


SHAPE = {"M": 192, "N": 192, "K": 128}
LARGE = 4096  # M, N and K of the product that is also timed
REGISTERS = 65536  # of an SM, from sm_75 to sm_120a
SCHEDULE = {"block_M": 64, "block_N": 64, "block_K": 32, "num_stages": 2, "threads": 128}

BESIDE_THE_POINT = {"shared memory", "elected thread", "fewer registers", "more registers",
                    "narrowing"}  # landmarks that are not shown here

# One purpose at each level: landmarks of the CUDA, instructions of PTX and of SASS. The first one
# that occurs is taken.
LEVELS = (
    ("fetch a tile", ("TMA load", "cp.async", "vector load", "single element"),
     (r"cp\.async\.bulk\.tensor\.\dd", r"cp\.async\.c[ag]", r"ld\.global[\w.]*"),
     (r"UTMALDG[\w.]*", r"LDGSTS[\w.]*", r"LDG[\w.]*")),
    ("wait for it", ("mbarrier wait", "cp.async wait", "block barrier"),
     (r"mbarrier\.try_wait", r"cp\.async\.wait_group", r"bar(?:rier)?\.sync"),
     (r"SYNCS\.PHASECHK", r"DEPBAR\.LE", r"BAR\.SYNC")),
    ("load matrices", ("ldmatrix",), (r"ldmatrix[\w.]*?\.x\d",), (r"LDSM[\w.]*",)),
    ("multiply", ("wgmma", "mma.sync"),
     (r"wgmma\.mma_async[\w.]*?\.m\d+n\d+k\d+", r"mma\.sync[\w.]*?\.m\d+n\d+k\d+"),
     (r"HGMMA[\w.]*", r"HMMA[\w.]*")),
    ("store the result", ("TMA store", "vector store", "single element"),
     (r"cp\.async\.bulk\.tensor\.\dd\.global", r"st\.global[\w.]*"),
     (r"UTMASTG[\w.]*", r"STG[\w.]*")),
)


def inputs(page, M: int, N: int, K: int):
    """Random A: (M, K) and B: (K, N), float16."""
    generator = torch.Generator(page.device.torch_device).manual_seed(0)
    return tuple(
        torch.randn(shape, generator=generator, device=page.device.torch_device).half()
        for shape in ((M, K), (K, N))
    )


def run(page):
    schedule = page.schedule(SCHEDULE)
    arguments = {**SHAPE, **schedule}
    spared = page.quick or cores() <= FEW_CORES
    jobs = [(product, arguments), (mended, arguments)]
    if page.device.is_gpu:
        jobs.append((product, {**arguments, "watch": True}))
    if page.device.is_gpu and not spared:
        jobs += [(mended, {**arguments, "watch": True}),
                 (mended, {**dict.fromkeys("MNK", LARGE), **schedule})]
    kernels = page.build(jobs, read=[(mended, arguments)])
    for kernel in kernels:
        if isinstance(kernel, BaseException):
            raise kernel
    wrong, right, *telling = kernels  # on a GPU also what prints, and the large product
    A, B = inputs(page, **SHAPE)

    page.say("""One line of this kernel is wrong. Look for it before you read on.""")
    page.show(product)
    locate(page, wrong, A, B)
    ask(page, telling[0] if telling else None, A, B, arguments)
    explain(page, arguments)
    page.check(f"{A.shape[0]}x{B.shape[1]}x{A.shape[1]} float16", right, (A, B),
               reference(A, B), reduction=A.shape[1])

    facts = [read(page, page.code(right)),
             who_holds_what(page, arguments, telling[1] if telling[1:] else None, A, B)]
    if page.device.is_gpu and not page.failures:  # what failed its check is not timed
        facts.append(two_timers(page, [right, *telling[2:]]))
    if page.device.is_gpu and spared:
        page.say(f"""Left out {"in quick mode" if page.quick else f"with {cores()} cores"}, since
        each is one more kernel to compile: T.print of an element of C_local by the thread that
        holds it, and the timers on a product of {LARGE} x {LARGE}.""")
    told = "T.print told what it held, " if page.device.is_gpu else ""
    page.lesson(f"""the check named the block, {told}the generated CUDA showed the cause: blockIdx.x
    where blockIdx.y belongs. {" ".join(facts)}""")
    if page.device.is_gpu:
        page.limit(f"""this kernel is small to be read, and slow. A tile of {schedule["block_M"]} x
        {schedule["block_N"]} uses what it fetches for few multiplications (gemm's best schedules
        for two to four times as many), {schedule["num_stages"]} stages of {schedule["block_K"]}
        fetch little ahead, and each step waits for its own multiplication.""")
    page.try_this("""python -m sections.debugging num_stages=0: without a pipeline nothing is
    fetched ahead; look for the landmarks that are gone, and for what waits now.""")


# A planted bug, found


def locate(page, kernel, A, B) -> None:
    """Step 1: the check's first wrong element, then right and wrong tile by tile."""
    expected, K = reference(A, B), A.shape[1]
    actual = page.call(kernel, (A, B))
    problem = compare(actual, expected, torch.float16, reduction=K).problem
    block_M, block_N = kernel.arguments["block_M"], kernel.arguments["block_N"]
    right = right_tiles(actual, expected, block_M, block_N, K)
    down, across = len(right), len(right[0])
    if problem is None or any(right[by][bx] != (bx == by) for by in range(down)
                              for bx in range(across)):
        page.fail(f"the planted bug does not show as it should: {problem}, {right}")
        return
    page.say(f"""Step 1, where. The check says: {problem}. That is the first element of block bx=1,
    by=0, since a tile is {block_M} x {block_N}. Now the same check for every tile:""")
    page.table(["", *(f"bx={bx}" for bx in range(across))],
               [[f"by={by}", *("right" if fine else "WRONG" for fine in tiles)]
                for by, tiles in enumerate(right)])
    page.say("""Only the tiles with bx = by are right. So nothing is wrong with the arithmetic: some
    tile is fetched by bx that belongs to by, or the other way round.""")


def right_tiles(actual, expected, block_M: int, block_N: int, K: int) -> list[list[bool]]:
    """Whether each tile passes the check: a row for each by, a column for each bx."""
    return [
        [compare(got, want, torch.float16, reduction=K).passed
         for got, want in zip(lines.split(block_N, 1), wanted.split(block_N, 1), strict=True)]
        for lines, wanted in zip(actual.split(block_M), expected.split(block_M), strict=True)
    ]


def ask(page, kernel, A, B, arguments: dict) -> None:
    """Step 2: T.print, run on a GPU (`kernel`), read in rehearsal."""
    block_M, block_K, K = arguments["block_M"], arguments["block_K"], A.shape[1]
    page.say(f"""Step 2, what. T.print of an expression runs in every thread of every block, and of
    a global tensor it prints all elements in all of them. So it stands behind a guard: one thread
    of block bx=1, by=0, the first of those that compute, compiled with watch=True,
    {-(-K // block_K)} lines in all, one a step of k. It tells the first element of the tile of
    A.""")
    if kernel is None:
        page.text(lines_with(codegen.generate(product, page.device.arch, **arguments, watch=True),
                             r"debug_print_var", before=1, after=1))
        page.say("""On a GPU this prints to C's stdout. Here on the CPU it cannot, but read on: the
        generated code knows the answer, too.""")
        return
    page.call(kernel, (A, B))
    torch.cuda.synchronize()  # a kernel's printf comes out when the GPU is waited for
    helpers = kernel.code.threads - arguments["threads"]
    if helpers:
        page.say(f"""The guard asks for thread 0, the print says {helpers}: the kernel counts the
        threads that compute, and before them the compiler has put {helpers} that only copy.""")
    steps = range(0, K, block_K)
    page.table(
        ["k", *map(str, range(len(steps)))],
        [[f"A[{row}, {block_K} k]", *(f"{A[row, k].item():.6f}" for k in steps)]
         for row in (0, block_M)],
    )
    page.say(f"""Block by=0 should hold row 0 of A. It holds row {block_M}, the first row of the
    second tile.""")


def explain(page, arguments: dict) -> None:
    """Step 3: the line of the generated CUDA that reads A, before and after mending."""
    wrong, right = (codegen.generate(kernel, page.device.arch, **arguments)
                    for kernel in (product, mended))
    page.say("""Step 3, why. kernel.get_kernel_source() returns the generated CUDA. This line reads
    A, and takes its row from blockIdx.x, which is bx:""")
    page.text(first_read(wrong, "A"))
    page.say("The row of a tile of A is by. Mended: T.copy(A[by * block_M, k * block_K], A_shared)")
    page.text(first_read(right, "A"))


def tidy(line: str) -> str:
    """A line of CUDA without casts and without the index arithmetic of shared memory."""
    line = re.sub(r"\(\(int\)(\w+\.[xyz])\)", r"\1", line.strip())
    return re.sub(r"\(&\(\(\(\w+\*\)(\w+)\)\[.*?\]\)\)", r"\1", line)


def first_read(code, tensor: str, width: int = 88) -> str:
    """The first line that reads a tensor in global memory, cut down to where it does."""
    global_access = rf"\b{tensor}(?:_desc,|\[| \+ )"
    number, line = next((number, tidy(line)) for number, line in codegen.body(code)[1:]
                        if re.search(global_access, line))
    if len(line) > width:
        line = "..." + line[re.search(global_access, line).start():]
    return f"{number:4} | {line if len(line) <= width else line[:width - 3] + '...'}"


def lines_with(code, pattern: str, before: int, after: int) -> str:
    """The numbered lines around the first match of `pattern`."""
    lines = codegen.body(code)
    at = next(n for n, (_, line) in enumerate(lines) if re.search(pattern, line))
    return "\n".join(f"{number:4} | {line}" for number, line in lines[at - before : at + after + 1])


# What the compiler wrote


def read(page, code) -> str:
    """Landmarks, the same at the levels of PTX and SASS, registers; a sentence for the lesson."""
    page.say("""Now read the rest that way. Copies, barriers, matrix loads and multiplications leave
    landmarks in the CUDA, worth searching for by name:""")
    names = dict.fromkeys(name for _, name, _ in codegen.LANDMARKS)
    page.landmarks(code, only=tuple(name for name in names if name not in BESIDE_THE_POINT))
    if codegen.nvcc_path() is None:
        page.say("""nvcc is not here, so PTX, SASS and registers cannot be shown; it comes with the
        CUDA toolkit.""")
        return ""
    page.progress(f"asking nvcc about {code.name} for {code.arch}")
    with ThreadPoolExecutor(1) as pool:
        listings = pool.submit(codegen.assembly, code)
        reported = page.resources(code)
        ptx, sass = listings.result().ptx, listings.result().sass
    marks = {mark.name: mark.line for mark in codegen.landmarks(code)}
    rows = []
    for purpose, names, in_ptx, in_sass in LEVELS:
        name = next((name for name in names if name in marks), None)
        rows.append([purpose, name and f"line {marks[name]}: {name}", counted(in_ptx, ptx),
                     counted(in_sass, sass) if sass else None])
    page.say("""One level down: nvcc turns the CUDA into PTX, ptxas turns that into SASS, which is
    what runs (kernel.show_ptx(), kernel.show_sass()). The line is that of the first; how often
    each stands there counts unrolled loops:""")
    page.table(["purpose", "CUDA", "PTX", "SASS"], rows)
    if "wgmma" in marks:
        page.say("wgmma reads shared memory by itself, so no matrix is loaded into registers.")
    if sass is None:
        page.say("SASS is missing: cuobjdump is not here; it comes with the CUDA toolkit.")
    blocks = REGISTERS // (codegen.resources(code).registers * code.threads)
    page.say(f"""nvcc -Xptxas -v reports {reported} (a spilled register lives in slow local memory).
    An SM has {REGISTERS} registers, room for {blocks} block{"s" if blocks > 1 else ""} of
    {code.threads} threads at a time.""")
    return f"It takes {reported}."


def counted(patterns: tuple[str, ...], text: str) -> str | None:
    """How often the first pattern that occurs does, with the instruction found: "8 x HMMA"."""
    for pattern in patterns:
        found = re.findall(rf"(?<![\w.]){pattern}", text)
        if found:
            return f"{len(found)} x {found[0].replace('.sync.aligned', '')}"
    return None


# Who holds what


@tvm.instrument.pass_instrument
class Layouts:
    """Watches a compilation and keeps the layout that was inferred for each tile, by name."""

    def __init__(self):
        self.found = {}

    def run_after_pass(self, module, info):
        if info.name == "tl.LayoutInference":
            for function in module.functions.values():
                tirx.stmt_functor.post_order_visit(function.body, self._visit)

    def _visit(self, node):
        if isinstance(node, tirx.SBlock) and "layout_map" in node.annotations:
            self.found |= {tile.name: layout
                           for tile, layout in node.annotations["layout_map"].items()}


def layouts(kernel, arch: str, arguments: dict) -> dict:
    """The layouts that the compiler chose for a kernel's tiles, by name.

    A fragment's (a T.Fragment) leads to a thread and a register, a shared tile's to an address.
    """
    target = Target({"kind": "cuda", "arch": arch})
    program = codegen.trace(kernel, target, arguments)
    watcher = Layouts()
    with tvm.transform.PassContext(opt_level=3, config=program.pass_configs,
                                   instruments=[watcher]), target:
        tilelang.lower(program.tir, target=target, enable_device_compile=False)
    return watcher.found


def holder(layout, row: int, column: int) -> tuple[int, int]:
    """(thread, register) of one element."""
    return (int(layout.map_forward_thread([row, column])[0]),
            int(layout.map_forward_index([row, column])[0]))


def who_holds_what(page, arguments: dict, kernel, A, B) -> str:
    """The layout of the accumulator as text and as a picture; a sentence for the lesson."""
    found = layouts(mended, page.device.arch, arguments)
    layout = found["C_local"]
    rows, columns = range(10), range(8)
    page.say("""C_local is one tile to the kernel, but each thread holds only some of it, in
    registers. This corner of it says who holds what: t5.r3 is register 3 of thread 5.""")
    page.table(["row", *map(str, columns)],
               [[row, *("t{}.r{}".format(*holder(layout, row, column)) for column in columns)]
                for row in rows])
    sharing = {holder(layout, 0, column)[0] for column in range(arguments["block_N"])}
    first = int(layout.thread_range.min)
    page.say("The compiler's own formula, for row _i and column _j of the tile:")
    page.text(f"thread    {layout.thread}\nregister  {layout.index[0]}")
    page.say(f"""A row lies in {len(sharing)} threads, so its maximum has to cross threads. Two
    neighbours lie in one thread, so one store writes both.""")
    if first:
        page.say(f"Add {first} to the thread: the first {first} threads of a block only copy.")
    if kernel is not None:
        page.say("""T.print proves it. It stands inside T.Parallel, where only the thread that holds
        an element visits it; elsewhere the compiler would have to give the tile another layout.""")
        page.call(kernel, (A, B))
        torch.cuda.synchronize()
        page.say(f"The reference has {reference(A, B)[9, 3].item():.6f} there.")
    page.keep("fragment", fragment_facts(layout, page.device.arch, arguments))
    page.keep("swizzle", swizzle_facts(found["B_shared"], page.device.arch, arguments))
    if not page.quick:
        picture(page, layout)
    thread, register = holder(layout, 9, 3)
    return f"C_local[9, 3] is in register {register} of thread {first + thread}."


def fragment_facts(layout, arch: str, arguments: dict) -> dict:
    """The accumulator's layout for a picture: a corner as "thread.register", all of it by warp."""
    rows, columns = arguments["block_M"], arguments["block_N"]
    return {
        "tile": "C_local", "arch": arch, "rows": rows, "columns": columns,
        "threads": arguments["threads"],
        "sharing": len({holder(layout, 0, column)[0] for column in range(columns)}),
        "corner": [" ".join("{}.{}".format(*holder(layout, row, column)) for column in range(8))
                   for row in range(16)],
        "warps": [" ".join(str(holder(layout, row, column)[0] // 32)
                           for column in range(0, columns, 8)) for row in range(0, rows, 8)],
    }


def swizzle_facts(layout, arch: str, arguments: dict) -> dict:
    """The layout of a shared tile of B for a picture: where the 16-byte pieces of 8 rows lie.

    The layout has a first index for the stage of the pipeline, if there is one.
    """
    shape = [int(extent) for extent in layout.get_output_shape()]
    stage = [0] * (len(layout.get_input_shape()) - 2)

    def piece(row: int, column: int) -> int:
        address = 0
        for index, extent in zip(layout.map_forward_index([*stage, row, column]), shape,
                                 strict=True):
            address = address * extent + int(index)
        return address // 8

    return {
        "tile": "B_shared", "arch": arch, "row_bytes": 2 * arguments["block_N"],
        "pieces": [" ".join(str(piece(row, column))
                            for column in range(0, arguments["block_N"], 8)) for row in range(8)],
    }


def picture(page, layout) -> None:
    """Draw the corner with TileLang's own plotter, where matplotlib is."""
    try:
        import matplotlib
    except ImportError:
        page.say("matplotlib is not here, so the layout is not drawn as a picture.")
        return
    from tilelang.tools import plot_layout

    matplotlib.use("Agg")
    page.progress("drawing the layout")
    corner = T.Fragment([16, 8], forward_fn=lambda i, j: (layout.map_forward_thread([i, j])[0],
                                                          layout.map_forward_index([i, j])[0]))
    folder = tempfile.mkdtemp(prefix="tilelang-tour-layout-")
    with contextlib.redirect_stdout(io.StringIO()):  # plot_layout tells each file it writes
        plot_layout(corner, folder, "C_local", formats="png")
    matplotlib.pyplot.close("all")
    page.say(f"As a picture, a colour for each thread: {folder}/C_local.png")


# Two timers


def two_timers(page, kernels: list) -> str:
    """TileLang's profiler beside the tour's timer, on a GPU; a sentence for the lesson."""
    rows = [["profiler.do_bench()", "mean of all calls, inputs it makes itself"],
            ["  input_tensors=..., return_mode='median'", "median, the tour's inputs"],
            ["  the same, backend='cudagraph'", "many calls a launch, L2 cache warm"],
            ["the tour's timer", "median, in turn with cuBLAS"]]
    for kernel in kernels:
        M, N, K = (kernel.arguments[side] for side in "MNK")
        tensors = inputs(page, M, N, K)
        case = f"{M}x{N}x{K} float16"
        if kernel is not kernels[0]:
            page.check(case, kernel, tensors, reference(*tensors), reduction=K)
        profiler = kernel.function.get_profiler()
        same = {"input_tensors": list(tensors), "return_mode": "median"}
        ours = page.measure(
            case, describe({name: kernel.arguments[name] for name in SCHEDULE}), kernel, tensors,
            {"cuBLAS (torch.matmul)": lambda tensors=tensors: torch.matmul(*tensors)},
            Work(flops=2 * M * N * K), rounds=3,
        )[0]
        times = [profiler.do_bench(), profiler.do_bench(**same),
                 profiler.do_bench(**same, backend="cudagraph"), ours["ms"]]
        for row, ms in zip(rows, times, strict=True):
            row.append(f"{ms:.4f}")
    sizes = [f"{kernel.arguments['M']} wide, ms" for kernel in kernels]
    page.say("""TileLang's profiler is kernel.get_profiler(). It and the tour's timer differ where a
    launch costs as much as the kernel, where the L2 cache is flushed or warm, where some calls are
    slow (a mean feels it, a median does not), and by the inputs: other numbers take other power,
    and so another clock.""")
    page.table(["timer", "what it gives", *sizes], rows, right=tuple(sizes))
    page.say("""Which to believe? For a kernel of 0.01 ms or more any of them, as long as kernels
    are compared by the same one. For a shorter one those that replay a CUDA graph, since a launch
    costs as much as the kernel: the tour's timer does so there.""")
    return f"""The profiler's mean for it is {rows[0][2]} ms, the tour's timer says {rows[3][2]}.
    For {ours["case"]} it reaches {ours["ratio"]:.2f}x cuBLAS."""


if __name__ == "__main__":
    from sections.common.alone import run_alone

    raise SystemExit(run_alone(__file__))
