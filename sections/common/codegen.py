"""CUDA source for any architecture, without a GPU, and how to read it.

`generate` gives the CUDA text that TileLang generates for a kernel, with its exact shared memory;
`landmarks` finds what is worth reading in it; `resources` asks nvcc for registers and spills.
TileLang does not cache what it lowers, so results are kept in the folder "tour" of its cache.
"""

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import threading
from dataclasses import asdict, dataclass
from pathlib import Path

import tilelang
from tilelang import tvm
from tilelang.contrib import nvcc
from tilelang.env import CUTLASS_INCLUDE_DIR, TILELANG_TEMPLATE_PATH, env
from tilelang.transform.pass_config import normalize_pass_configs
from tvm.target import Target

NVCC_SECONDS = 180  # the slowest kernel takes 10 s on a slow machine

# What a vector type of CUDA holds, in bytes.
VECTOR_BYTES = {
    "ulonglong4": 32, "longlong4": 32,
    "float4": 16, "uint4": 16, "int4": 16,
    "float2": 8, "uint2": 8, "int2": 8,
    "float1": 4, "uint1": 4, "int1": 4,
}
_VECTOR = f"({'|'.join(VECTOR_BYTES)})"

# What is worth finding: a pattern, a name, and what it does. GLOBAL stands for the names of the
# tensors in global memory; {0}, {1}, ... for what the pattern's groups matched.
LANDMARKS = (
    (r"extern __shared__ .*buf_dyn_shmem\[\]", "shared memory",
     "all shared tiles lie in this one piece of memory"),
    (r"tl::rasterization2D\w+<(\d+)>", "L2 swizzle",
     "renumbers blocks in panels of {0}: neighbours share tiles in L2"),
    (r"\]\.init\((\d+)\)", "mbarrier init",
     "a barrier in shared memory; this one waits for {0} arrival(s)"),
    (r"tl::tl_shuffle_elect<", "elected thread",
     "one thread is chosen to do what follows"),
    (r"if \(\(\(int\)threadIdx\.x\) < (\d+)\) \{\n *tl::warpgroup_reg_dealloc", "warp roles",
     "the first {0} threads only copy"),
    (r"tl::warpgroup_reg_dealloc<(\d+)>", "fewer registers",
     "threads that copy keep {0} registers and give the rest back"),
    (r"tl::warpgroup_reg_alloc<(\d+)>", "more registers",
     "threads that compute may now use {0} registers"),
    (r"(?:expect_transaction|arrive_and_expect_tx)\((\d+)\)", "mbarrier expect",
     "tells the barrier that {0} bytes are on their way"),
    (r"tl::tma_load\w*(?:<[^;]*?>)?\(", "TMA load",
     "the copy engine fetches a tile into shared memory by itself"),
    (r"tl::tma_store(?:<[^;]*?>)?\(", "TMA store",
     "the copy engine writes a tile from shared to global memory"),
    (r"\]\.wait\(", "mbarrier wait",
     "waits until the barrier is complete: a tile is there, or free"),
    (r"\]\.arrive\(\)", "mbarrier arrive",
     "one arrival: this thread has ordered its copies, or is done with a tile"),
    (r"tl::cp_async_gs(?:_conditional)?<(\d+)>", "cp.async",
     "copies {0} bytes global to shared memory in the background"),
    (r"tl::cp_async_gs_conditional<", "guarded cp.async",
     "bounds guard of a copy: outside the tensor it writes zeros"),
    (r"tl::cp_async_commit\(", "cp.async commit",
     "the copies started so far become one group to wait for"),
    (r"tl::cp_async_wait<(\d+)>", "cp.async wait",
     "waits until at most {0} group(s) of copies are under way"),
    (r"__syncthreads\(\)", "block barrier",
     "all threads of the block wait for each other"),
    (r"__sync_thread_partial\(\d+, (\d+)\)", "partial barrier",
     "{0} threads of the block wait for each other"),
    (r"tl::ptx_ldmatrix_x(\d)", "ldmatrix",
     "a warp loads {0} tile(s) of 8 x 16 bytes, laid out for tensor cores"),
    (r"tl::ptx_stmatrix\w*?_x(\d)", "stmatrix",
     "a warp stores {0} tile(s) of 8 x 16 bytes to shared memory"),
    (r"tl::mma_sync<[^>]*?, (\d+), (\d+), (\d+)", "mma.sync",
     "tensor cores: one warp multiplies {0}x{2} by {2}x{1}"),
    (r"tl::wgmma_ss<[^>]*?, (\d+), (\d+), (\d+)", "wgmma",
     "tensor cores: 4 warps multiply {0}x{2} by {2}x{1} in shared memory"),
    (r"tl::wgmma_rs<[^>]*?, (\d+), (\d+), (\d+)", "wgmma",
     "tensor cores: 4 warps multiply {0}x{2} (registers) by {2}x{1} (shared)"),
    (r"tl::warpgroup_commit_batch\(", "wgmma commit",
     "the multiplications started so far become one group"),
    (r"tl::(?:warpgroup_wait|wait_wgmma)<(\d+)>", "wgmma wait",
     "waits until at most {0} group(s) of multiplications run"),
    (r"tl::AllReduce<tl::(\w+?)(?:Op)?,", "AllReduce",
     "threads that share a row combine their values ({0})"),
    (r"\b_{0,2}h?exp(?:2|10)?f?\(", "exponential",
     "an exponential, on the special function units"),
    (r"\b__float22(?:half2|bfloat162)_rn|\(\((?:half|bfloat16)_t\)\w", "narrowing",
     "float32 values are rounded to a 16-bit type"),
    (r"^( *)if \(.* < .*\) \{\n(?:\1  .*\n){0,5}?\1  .*\bGLOBAL(?:\[| \+ )", "bounds guard",
     "touches global memory only where the index is inside"),
    (rf"= (?:tl::load_global_256\(&\()?\*\({_VECTOR}\*\)\(GLOBAL \+ ", "vector load",
     "one instruction loads {0} bytes a thread from global memory"),
    (rf"(?:^ *|tl::store_global_256\(&\()\*\({_VECTOR}\*\)\(GLOBAL \+ ", "vector store",
     "one instruction stores {0} bytes a thread to global memory"),
    (r"(?<!&\()\bGLOBAL\[", "single element",
     "each thread moves one element of global memory at a time"),
    (r"\b(?:debug_print_\w+|printf)\(", "print",
     "T.print became a call of the GPU's printf"),
)


@dataclass(frozen=True)
class Code:
    """Generated CUDA.

    name          the kernel function, e.g. "gemm_kernel"
    arch          e.g. "sm_90a"
    source        the whole CUDA text
    shared_bytes  dynamic shared memory a block needs, in bytes, as the kernel is launched with it;
                  static pieces such as barriers are not in it (`Resources` has those: 1 KB in a
                  pipeline with mbarriers, none in most other kernels)
    threads       threads a block, helpers that only copy included
    nvcc_flags    what the kernel's pass_configs and compile_flags ask nvcc for
    """

    name: str
    arch: str
    source: str
    shared_bytes: int
    threads: int
    nvcc_flags: str = ""


@dataclass(frozen=True)
class Landmark:
    """One thing worth knowing in generated CUDA; `line` counts from 1 in `Code.source`."""

    line: int
    code: str
    name: str
    meaning: str


@dataclass(frozen=True)
class Resources:
    """What ptxas reports: registers a thread, bytes spilled (stores and loads), static shared
    memory in bytes, and its own lines."""

    registers: int
    spill_bytes: int
    static_shared_bytes: int
    report: str


@dataclass(frozen=True)
class Assembly:
    """What nvcc and ptxas make of generated CUDA: PTX, and SASS, the GPU's own instructions, which
    is None where cuobjdump is missing."""

    ptx: str
    sass: str | None


class NvccError(Exception):
    """nvcc refused generated CUDA; the message holds its error lines alone."""


# Generating


@dataclass(frozen=True)
class Program:
    """A traced kernel (a TVM PrimFunc) with the settings that decide what it is compiled to."""

    tir: object
    text: str  # taken before anything is lowered: lowering renames variables in `tir`
    pass_configs: dict
    compile_flags: list

    def key(self, target: str) -> str:
        """A key for what this program becomes on `target`, the same in every process.

        The program's text holds all that went into it: arguments, constants, macros.
        """
        settings = sorted(self.pass_configs.items())
        return _key("code", target, self.text, settings, self.compile_flags)

    @property
    def nvcc_flags(self) -> str:
        """The flags TileLang adds to nvcc's command line for this program."""
        flags = [
            *_as_list(self.pass_configs.get("tl.device_compile_flags")),
            *self.tir.attrs.get("tilelang_compile_flags", ()),
            *self.compile_flags,
        ]
        if self.pass_configs.get("tl.enable_fast_math"):
            flags.append("--use_fast_math")
        level = self.pass_configs.get("tl.ptxas_register_usage_level")
        if level is not None:
            flags.append(f"--ptxas-options=--register-usage-level={level}")
        return " ".join(flags)


def trace(kernel, target, arguments: dict) -> Program:
    """Run a @tilelang.jit kernel's Python once, for `target` (as TileLang takes it)."""
    if not hasattr(kernel, "get_tir"):
        name = getattr(kernel, "__name__", repr(kernel))
        raise TypeError(f"{name} is no kernel: @tilelang.jit does not stand above it")
    with Target(target):
        tir = kernel.get_tir(**arguments)
    # As tilelang.compile does it: the decorator's settings override those in the kernel's body.
    configs = {**tir.attrs.get("tilelang_pass_configs", {}), **(kernel.pass_configs or {})}
    return Program(
        tir, tir.script(show_meta=True), normalize_pass_configs(configs),
        _as_list(kernel.compile_flags),
    )


def generate(kernel, arch: str, /, **arguments) -> Code:
    """The CUDA that TileLang generates for `arch` from a @tilelang.jit kernel; needs no GPU."""
    target = Target({"kind": "cuda", "arch": arch})
    program = trace(kernel, target, arguments)
    code = _recall(program.key(arch), Code)
    if code is None:
        with tvm.transform.PassContext(opt_level=3, config=program.pass_configs), target:
            artifact = tilelang.lower(program.tir, target=target, enable_device_compile=False)
        code = remember(program, arch, artifact)
    return code


def remember(program: Program, arch: str, artifact) -> Code:
    """The code in what TileLang compiled; `generate` finds it from now on."""
    code = from_artifact(artifact, arch, program.nvcc_flags)
    _store(program.key(arch), code)
    return code


def from_artifact(artifact, arch: str, nvcc_flags: str = "") -> Code:
    """The code in a CompiledArtifact, as tilelang.lower returns and a fresh JITKernel holds it.

    Raises ValueError where it holds several kernels (a T.Kernel after a T.Kernel).
    """
    (attributes,) = [function.attrs for function in artifact.device_mod.functions.values()]
    extents = attributes["thread_extent"]
    return Code(
        name=str(attributes["global_symbol"]),
        arch=arch,
        source=artifact.kernel_source,
        shared_bytes=int(attributes.get("dyn_shared_memory_buf", 0)),
        threads=int(extents["threadIdx.x"] * extents["threadIdx.y"] * extents["threadIdx.z"]),
        nvcc_flags=nvcc_flags,
    )


def _as_list(flags) -> list:
    return [flags] if isinstance(flags, str) else list(flags or ())


# Reading


def body(code: Code) -> list[tuple[int, str]]:
    """The numbered lines of the kernel function's definition."""
    lines = code.source.split("\n")
    first = next(n for n, line in enumerate(lines) if "__global__" in line and line.endswith("{"))
    last = lines.index("}", first)
    return [(n + 1, lines[n]) for n in range(first, last + 1)]


def landmarks(code: Code, only: tuple[str, ...] = ()) -> list[Landmark]:
    """The first occurrence of each thing worth knowing in the kernel, in the order of lines.

    only  names to look for, all unless given; raises ValueError for a name that does not exist
    """
    names = list(dict.fromkeys(name for _, name, _ in LANDMARKS))
    unknown = [name for name in only if name not in names]
    if unknown:
        raise ValueError(f"no landmark is named {unknown[0]!r}; there are: {', '.join(names)}")
    found = {}
    for name, meaning, match in _matches(code):
        if (not only or name in only) and name not in found:
            found[name] = _landmark(code, name, meaning, match)
    return sorted(found.values(), key=lambda landmark: landmark.line)


def count(code: Code, name: str) -> int:
    """How often a landmark occurs in the kernel's text (a line in a loop counts once)."""
    return sum(name == found for found, _, _ in _matches(code))


def _matches(code: Code):
    """(name, meaning, match) of every landmark's every occurrence in the kernel's body."""
    lines = body(code)
    tensors = re.findall(r"\* __restrict__ (\w+)", lines[0][1])
    tensor = rf"(?:{'|'.join(tensors)})\b" if tensors else "(?!)"  # (?!) matches nothing
    start = sum(len(line) + 1 for line in code.source.split("\n")[: lines[0][0]])
    end = start + sum(len(line) + 1 for _, line in lines[1:])
    for pattern, name, meaning in LANDMARKS:
        regex = re.compile(pattern.replace("GLOBAL", tensor), re.MULTILINE)
        for match in regex.finditer(code.source, start, end):
            yield name, meaning, match


def _landmark(code: Code, name: str, meaning: str, match: re.Match) -> Landmark:
    start = code.source.rfind("\n", 0, match.start()) + 1
    line = code.source[start : code.source.index("\n", start)]
    facts = [VECTOR_BYTES.get(group, group) for group in match.groups()]
    return Landmark(
        line=code.source.count("\n", 0, start) + 1,
        code=_excerpt(line, match.start() - start),
        name=name,
        meaning=meaning.format(*facts),
    )


def _excerpt(line: str, column: int, width: int = 70) -> str:
    """A long line cut down to `width`, from the column on where that lies far to the right."""
    text = line.strip()
    if len(text) > width and column > width // 2:
        text = "..." + line[column:].strip()
    return text if len(text) <= width else text[: width - 3] + "..."


# Registers


def nvcc_path() -> str | None:
    """The nvcc that TileLang would use, None where there is none."""
    try:
        return shutil.which(nvcc.get_nvcc_compiler())
    except RuntimeError:  # TileLang found no CUDA toolkit
        return None


def resources(code: Code) -> Resources | None:
    """Compile `code` with nvcc and read ptxas' report; None where there is no nvcc.

    Raises NvccError where it does not compile.
    """
    compiler = nvcc_path()
    if compiler is None:
        return None
    key = _key("resources", code, compiler, os.stat(compiler).st_mtime_ns)
    found = _recall(key, Resources)
    if found is None:
        found = _read_report(_ptxas_report(code, compiler), code)
        _store(key, found)
    return found


def assembly(code: Code) -> Assembly | None:
    """The PTX and SASS of `code`; None where there is no nvcc."""
    compiler = nvcc_path()
    if compiler is None:
        return None
    places = os.pathsep.join([os.environ.get("PATH", ""), os.path.dirname(compiler)])
    tool = shutil.which("cuobjdump", path=places)
    key = _key("assembly", code, compiler, os.stat(compiler).st_mtime_ns, tool)
    found = _recall(key, Assembly)
    if found is None:
        with tempfile.TemporaryDirectory() as folder:
            cubin = os.path.join(folder, "kernel.cubin")
            options = [*nvcc.default_compile_options([code.nvcc_flags]),
                       "-w", "--keep", f"--keep-dir={folder}"]
            nvcc.compile_cuda(code.source, "cubin", code.arch, options, path_target=cubin)
            (ptx,) = Path(folder).glob("*.ptx")
            sass = tool and subprocess.run(
                [tool, "-sass", cubin], env={**os.environ, "PATH": places}, capture_output=True,
                text=True).stdout
            found = Assembly(ptx.read_text(), sass or None)
        _store(key, found)
    return found


def _ptxas_report(code: Code, compiler: str) -> str:
    """What nvcc and ptxas say about `code`; raises NvccError."""
    command = [
        compiler, "-cubin", "-std=c++20", f"-arch={code.arch}", "-w", "-Xptxas", "-v",
        f"-I{TILELANG_TEMPLATE_PATH}", f"-I{CUTLASS_INCLUDE_DIR}", *shlex.split(code.nvcc_flags),
        "-o", "kernel.cubin", "kernel.cu",
    ]
    host_compiler = nvcc.get_cplus_compiler()
    if host_compiler:
        command.append(f"-ccbin={host_compiler}")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "kernel.cu").write_text(code.source)
        log = Path(folder, "log")
        # A file and no pipe: nvcc's children would hold a pipe open after a timeout.
        with log.open("w") as output:
            try:
                result = subprocess.run(
                    command, cwd=folder, stdin=subprocess.DEVNULL, stdout=output,
                    stderr=subprocess.STDOUT, timeout=NVCC_SECONDS,
                )
            except subprocess.TimeoutExpired:
                raise NvccError(
                    f"nvcc was not done with {code.name} for {code.arch} after {NVCC_SECONDS} s"
                ) from None
        report = log.read_text(errors="replace")
    if result.returncode:
        raise NvccError(f"nvcc refused {code.name} for {code.arch}: {_error_lines(report)}")
    return report


def _error_lines(report: str) -> str:
    lines = [line.strip() for line in report.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\b(error|fatal)\b.*:", line)]
    return "; ".join(line[:200] for line in (errors or lines[-2:])[:3])


def _read_report(report: str, code: Code) -> Resources:
    lines = [line.strip() for line in report.splitlines()]
    text = "\n".join(lines)
    _, found, ours = text.partition(f"Compiling entry function '{code.name}'")
    registers = re.search(r"Used (\d+) registers", ours)
    if not found or not registers:
        raise NvccError(f"ptxas reported nothing about {code.name} for {code.arch}: {text[-200:]}")
    static = re.search(r"(\d+) bytes smem", ours)
    return Resources(
        registers=int(registers[1]),
        spill_bytes=sum(map(int, re.findall(r"(\d+) bytes spill", ours))),
        static_shared_bytes=int(static[1]) if static else 0,
        report=text,
    )


# Remembering: in this process, and in TileLang's cache folder for the next

_memory: dict[str, object] = {}
_reader = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()  # of what reads the results


def _key(*facts) -> str:
    facts = (tilelang.__version__, _reader, *facts)
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def _file(key: str) -> Path:
    return Path(env.TILELANG_CACHE_DIR) / "tour" / f"{key}.json"


def _recall(key: str, kind):
    """What was stored under `key`; None where nothing readable is."""
    if key not in _memory and env.is_cache_enabled():
        try:
            _memory[key] = kind(**json.loads(_file(key).read_text()))
        except (OSError, ValueError, TypeError):
            return None
    return _memory.get(key)


def _store(key: str, value) -> None:
    """Keep a dataclass object; where the folder cannot be written, for this process only."""
    _memory[key] = value
    if not env.is_cache_enabled():
        return
    path = _file(key)
    temporary = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(asdict(value)))
        os.replace(temporary, path)
    except OSError:
        pass
