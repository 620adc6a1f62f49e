"""What machine this is: facts that need neither torch nor tilelang, and what the worker found.

Standard library only, and it imports on Pythons too old for the tour, so that they can be told.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path

from sections.runner.installed import installed, output_of

TESTED = "0.1.15"
OLDEST_ON_SM_75 = "0.1.13"
STEPS = ("start", "torch", "device", "tilelang", "kernel")


# What the worker found


@dataclass
class Probe:
    """What a fresh worker found on its way to a first kernel.

    done    the facts of each step that succeeded, by step; "start" is the worker's first word
    error   the exception of the step that failed, on one line;  detail  its traceback
    died    how the process ended at a step, in words: "killed by SIGABRT"
    output  what the worker and the libraries printed
    ready   the worker said that it can run sections
    """

    done: dict[str, dict] = field(default_factory=dict)
    error: str | None = None
    detail: str = ""
    died: str | None = None
    output: str = ""
    ready: bool = False

    def see(self, event: dict) -> None:
        """Take in one of the worker's events."""
        self.done.setdefault("start", {})
        if event["event"] == "step":
            self.done[event["step"]] = event
        elif event["event"] == "step_failed":
            self.error = event["error"]
            self.detail = event.get("detail", "")

    def fact(self, step: str, name: str):
        """One fact of a step, None where it is unknown."""
        return self.done.get(step, {}).get(name)

    @property
    def culprit(self) -> str | None:
        """The first step that did not succeed, None when all did."""
        return next((step for step in STEPS if step not in self.done), None)

    @property
    def too_old(self) -> bool:
        """TileLang works here, but what it makes for a T4 (sm_75) came right in a later version."""
        version = self.fact("tilelang", "version")
        on_sm_75 = self.fact("device", "gpu") and self.fact("device", "arch") == "sm_75"
        return bool(on_sm_75 and version and release(version) < release(OLDEST_ON_SM_75))

    @property
    def usable(self) -> bool:
        """Imported, new enough for this GPU, and a tiny kernel compiled."""
        return (self.ready or self.culprit is None) and not self.too_old

    @property
    def aborted(self) -> bool:
        """The process ended without an exception that Python could have told of."""
        return bool(self.died) and self.error is None

    @property
    def how(self) -> str:
        """What the step that failed ended with."""
        how = (self.error or self.died or "no word from it").removeprefix("DeviceError: ")
        if self.culprit == "start":
            how = ": ".join([how, *self.output.strip().splitlines()[-1:]])
        return cut(how, 200)

    @property
    def cause(self) -> str:
        """Why the tour cannot run, in one line; empty when it can."""
        if self.usable:
            return ""
        if self.too_old:
            return f"tilelang {self.fact('tilelang', 'version')} is too old for sm_75"
        if self.missing(self.culprit):
            return f"{self.culprit} is not installed"
        failed = {
            "start": "no section can be run, their process did not come up",
            "torch": "torch cannot be imported",
            "device": "there is no device to run on",
            "tilelang": "tilelang cannot be imported",
            "kernel": "tilelang imports but cannot compile and run a kernel",
        }
        return f"{failed[self.culprit]}: {self.how}"

    def missing(self, module: str) -> bool:
        """Whether the step of that name failed because the module is not installed."""
        return self.culprit == module and f"No module named '{module}'" in (self.error or "")


def release(version: str) -> tuple[int, ...]:
    """The numbers a version starts with: (2, 11, 0) for "2.11.0+cu130"."""
    numbers = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, numbers[0].split("."))) if numbers else ()


def cut(text: str, length: int) -> str:
    """The text on one line, cut to a length."""
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 3] + "..."


# What the machine is


def machine_facts() -> dict:
    """Everything about this machine that needs no import; takes a fraction of a second."""
    found, environ = installed(), neutralised(os.environ)
    home, home_from = cuda_home(environ, found["nvcc_package"])
    nvcc = os.path.join(home, "bin", "nvcc") if home else ""
    compiler, compiler_from = cplus_compiler(environ)
    python = f"python3.{sys.version_info[1]}"
    return {
        **found,
        **operating_system(),
        **nvidia(),
        **cache_folder(environ),
        "python": ".".join(map(str, sys.version_info[:3])),
        "executable": sys.executable,
        "command": python_command(),
        "colab": "COLAB_RELEASE_TAG" in os.environ or "COLAB_GPU" in os.environ,
        "cuda_home": home,
        "cuda_home_from": home_from,
        "nvcc": nvcc,
        "nvcc_version": version_of(nvcc, r"V(\d+\.\d+\.\d+)"),
        "compiler": compiler,
        "compiler_from": compiler_from,
        "compiler_version": version_of(compiler, r"(?:\) |version )(\d+\.\d+(?:\.\d+)?)"),
        "install_compiler": system_install("g++", "gcc-c++", "gxx"),
        "install_ensurepip": system_install(python + "-venv", "python3", "pip"),
        "variables": variables(os.environ),
    }


def python_command(executable: str = sys.executable) -> str:
    """What to type to get this Python: "python" where that is the one, else its path."""
    for name in ("python", "python3"):
        there = shutil.which(name)
        if there and os.path.abspath(there) == os.path.abspath(executable):
            return name
    return shlex.quote(executable)


def operating_system() -> dict:
    """Name, kind ("Linux", "Darwin", "Windows"), processor, WSL or not, the version of glibc."""
    if not hasattr(os, "uname"):
        return {"system": "Windows", "os": "Windows", "processor": "", "wsl": False, "glibc": None}
    uname = os.uname()
    try:
        library = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (OSError, ValueError):
        library = ""
    return {
        "system": uname.sysname,
        "os": distribution_name() or {"Darwin": "macOS"}.get(uname.sysname, uname.sysname),
        "processor": uname.machine,
        "wsl": "microsoft" in uname.release.lower(),
        "glibc": library.split()[-1] if library.startswith("glibc") else None,
    }


def distribution_name() -> str | None:
    """The Linux distribution as it calls itself."""
    try:
        text = Path("/etc/os-release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    name = re.search(r'^PRETTY_NAME="?([^"\n]+)', text, re.MULTILINE)
    return name[1] if name else None


def nvidia() -> dict:
    """The GPUs as the driver tells them, its version, the newest CUDA it runs.

    gpu_note says why there are none.
    """
    command = shutil.which("nvidia-smi") or "/usr/lib/wsl/lib/nvidia-smi"
    query = "--query-gpu=name,driver_version,memory.total,compute_cap"
    text = output_of(command, query, "--format=csv,noheader,nounits", failing=True)
    gpus = [gpu for gpu in map(gpu_of, (text or "").splitlines()) if gpu]
    driver = gpus[0]["driver"] if gpus else kernel_driver()
    note = ""
    if not gpus:
        note = f"nvidia-smi: {cut(text, 70)}" if text else "no NVIDIA driver found"
        if driver and not text:
            note = f"driver {driver} is loaded, but nvidia-smi does not answer"
    runs = driver_cuda() if driver else None
    return {
        "gpus": gpus,
        "driver": driver,
        "driver_cuda": runs,
        "libcuda": lost_libcuda() if driver and not runs else None,
        "gpu_note": note,
    }


def gpu_of(line: str) -> dict | None:
    """One line of nvidia-smi's table: "NVIDIA H200, 580.159, 143771, 9.0"."""
    parts = [part.strip() for part in line.split(",")]
    if len(parts) != 4 or not re.match(r"\d+\.\d+", parts[1]):
        return None
    name, driver, megabytes, capability = parts
    return {
        "name": name,
        "driver": driver,
        "memory_bytes": int(megabytes) << 20 if megabytes.isdigit() else 0,
        "capability": capability if re.fullmatch(r"\d+\.\d+", capability) else None,
    }


def kernel_driver() -> str | None:
    """The version of the NVIDIA driver in the kernel, where nvidia-smi does not tell it."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text(errors="replace")
    except OSError:
        return None
    number = re.search(r"Module.*?\s(\d+\.\d+(?:\.\d+)?)\s", text)
    return number[1] if number else None


def driver_cuda() -> str | None:
    """The newest CUDA the driver runs, "13.0"; asked in a process of its own, in case it dies."""
    ask = (
        "import ctypes; n = ctypes.c_int(); "
        "ctypes.CDLL('libcuda.so.1').cuDriverGetVersion(ctypes.byref(n)); print(n.value)"
    )
    number = int(output_of(sys.executable, "-I", "-c", ask) or 0)
    return f"{number // 1000}.{number % 1000 // 10}" if number else None


LIBCUDA_FOLDERS = (  # Colab, WSL, containers, distributions
    "/usr/lib64-nvidia", "/usr/lib/wsl/lib", "/usr/local/nvidia/lib64", "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu", "/usr/lib64",
)


def lost_libcuda() -> str | None:
    """The folder of the driver's library, which the loader did not find."""
    return next((f for f in LIBCUDA_FOLDERS if os.path.exists(f"{f}/libcuda.so.1")), None)


def cuda_home(environ, nvcc_package: str | None) -> tuple[str, str]:
    """The CUDA toolkit that TileLang will use, and where it learned of it; empty when none.

    TileLang's own rules: CUDA_HOME or CUDA_PATH, even if that folder does not exist; the nvcc on
    PATH; the nvidia-cuda-nvcc package; the usual folders.
    """
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if environ.get(name):
            return environ[name], name
    on_path = shutil.which("nvcc", path=environ.get("PATH"))
    if on_path:
        home = home_of(on_path)
        has_headers = os.path.exists(os.path.join(home, "include", "cuda_runtime.h"))
        return home if has_headers else home_of(os.path.realpath(on_path)), "PATH"
    if nvcc_package:
        return nvcc_package, "the nvidia-cuda-nvcc package"
    for folder in ("/usr/local/cuda", "/opt/nvidia/hpc_sdk/Linux_x86_64"):
        if os.path.exists(folder):
            return folder, folder
    return "", ""


def home_of(nvcc: str) -> str:
    """The toolkit that an nvcc belongs to; NVIDIA's HPC SDK keeps nvcc one level deeper."""
    deeper = "hpc_sdk" in nvcc.lower() and "cuda" not in nvcc.lower()
    return str(Path(nvcc).parents[2 if deeper else 1])


def cplus_compiler(environ) -> tuple[str, str]:
    """The C++ compiler that TileLang will use, and where it learned of it; empty when none."""
    for name in ("CXX", "CC"):
        if environ.get(name):
            return environ[name], name
    for name in ("g++", "clang++", "c++"):
        there = shutil.which(name, path=environ.get("PATH"))
        if there:
            return there, "PATH"
    return "", ""


def version_of(program: str, pattern: str) -> str | None:
    """The version a compiler tells of itself, "unknown" if it tells none; None if it cannot run."""
    text = output_of(program, "--version") if program else None
    if text is None:
        return None
    number = re.search(pattern, text)
    return number[1] if number else "unknown"


def system_install(apt: str, rpm: str, conda: str) -> str:
    """What to type on this machine to install one of its own packages, by the names it may have."""
    sudo = "" if hasattr(os, "geteuid") and os.geteuid() == 0 else "sudo "
    if not os.environ.get("CONDA_PREFIX"):
        for manager, package in (("apt-get", apt), ("dnf", rpm), ("zypper", rpm)):
            if shutil.which(manager):
                return f"{sudo}{manager} install -y {package}"
    return f"conda install -c conda-forge {conda}"


def cache_folder(environ) -> dict:
    """TileLang's cache folder, why nothing can be kept there or "", and the bytes that are free."""
    folder = environ.get("TILELANG_CACHE_DIR") or os.path.expanduser("~/.tilelang/cache")
    homeless = not os.path.isabs(folder)  # without HOME and an entry in passwd "~" stays "~"
    there = os.path.abspath(os.curdir) if homeless else folder
    while not os.path.exists(there):
        there = os.path.dirname(there)
    return {
        "cache": folder,
        "cache_refusal": "no home folder is known" if homeless else refusal(folder),
        "cache_free": shutil.disk_usage(there).free,
    }


def refusal(folder: str) -> str:
    """What the system says where a megabyte cannot be kept in a folder; nothing where it can."""
    import tempfile

    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(1 << 20))
    except OSError as error:
        return error.strerror
    return ""


# Variables that bend TileLang, torch or CUDA

LEFT_OUT = "(the tour leaves it out)"
PASSED_ON = "(passed on)"
# Not passed on to the worker: each would change a verdict or a number.
NEUTRALISED = {
    "TILELANG_DEFAULT_TARGET": "what every kernel is compiled for",
    "TILELANG_EXECUTION_BACKEND": "how kernels are launched",
    "TILELANG_DISABLE_CACHE": "compiles every kernel again",
    "TILELANG_AUTO_TUNING_DISABLE_CACHE": "tunes again every time",
    "TILELANG_LAYOUT_COST_MODEL": "how layouts are chosen",
    "TILELANG_VERBOSE": "prints what the compiler says",
    "TILELANG_PASS_PROFILE": "times each compiler pass",
    "TILELANG_PASS_DIFF": "prints what each compiler pass changes",
    "TL_LOWER_TRACE": "writes down what each compiler pass does",
    "SKIP_LOADING_TILELANG_SO": "leaves TileLang's library out",
    "CUDA_LAUNCH_BLOCKING": "waits after each launch, longer times",
    "CUDA_FORCE_PTX_JIT": "compiles all GPU code again",
    "CUDA_DISABLE_PTX_JIT": "another architecture's code cannot run",
    "CUDA_DEVICE_MAX_CONNECTIONS": "how launches queue, other times",
    "CUDA_DEVICE_WAITS_ON_EXCEPTION": "a fault on the GPU becomes a hang",
    "NVIDIA_TF32_OVERRIDE": "changes float32 accuracy and speed",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "changes float32 accuracy and speed",
    "DISABLE_ADDMM_CUDA_LT": "takes cuBLASLt away from torch",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "allocates anew each time, longer times",
    "TORCHDYNAMO_DISABLE": "switches torch.compile off",
    "TORCH_COMPILE_DISABLE": "switches torch.compile off",
    "PYTHONOPTIMIZE": "switches TileLang's own checks off",
    "PYTHONWARNINGS": "can turn a warning into an error",
}
# These, too, whatever they are called; but for the ones that are named below.
FAMILIES = {
    "TILELANG_": "a setting of TileLang's",
    "TL_": "a setting of TileLang's",
    "TVM_": "a setting of TVM's",
    "NVCC_": "options that nvcc takes unasked",
    "CUBLAS": "how cuBLAS computes",
    "TORCH_BLAS_": "how torch multiplies",
    "TORCH_CUDNN_": "how torch uses cuDNN",
    "PYTORCH_TUNABLEOP_": "which algorithms torch takes",
    "TORCHINDUCTOR_": "how torch.compile compiles",
    "TORCHDYNAMO_": "how torch.compile compiles",
    "TORCH_COMPILE_": "how torch.compile compiles",
    "TRITON_": "how torch.compile compiles",
}
# Passed on, the user's wish; every tour says so, for a verdict or a number may depend on it.
TOLD = {
    "TL_TEMPLATE_PATH": "where TileLang's headers come from",
    "TL_CUTLASS_PATH": "where CUTLASS comes from",
    "TVM_LIBRARY_PATH": "where TVM's libraries come from",
    "TVM_IMPORT_PYTHON_PATH": "where TVM comes from",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "how much of the GPU is given to the tour",
    "CUDA_INJECTION64_PATH": "a tool that watches CUDA, other times",
}
# Passed on, the user's wish: `--check` names them.
NAMED = {
    "TILELANG_CACHE_DIR": "where compiled kernels are kept",
    "TILELANG_AUTO_TUNING_CPU_UTILITIES": "how many cores compile while tuning",
    "TILELANG_AUTO_TUNING_CPU_COUNTS": "how many cores compile while tuning",
    "TILELANG_AUTO_TUNING_MAX_CPU_COUNT": "how many cores compile while tuning",
    "TVM_FFI_CACHE_DIR": "where TVM keeps what it compiles",
    "TORCHINDUCTOR_CACHE_DIR": "where torch.compile keeps what it compiles",
    "TORCHINDUCTOR_COMPILE_THREADS": "how many cores torch.compile takes",
    "TRITON_CACHE_DIR": "where Triton keeps what it compiles",
    "TRITON_LIBCUDA_PATH": "where Triton finds the driver",
    "TRITON_PTXAS_PATH": "where Triton finds its assembler",
    "CUDA_VISIBLE_DEVICES": "which GPUs are seen",
    "CUDA_DEVICE_ORDER": "which GPU is the first",
    "CUDA_HOME": "the CUDA toolkit and its nvcc",
    "CUDA_PATH": "the CUDA toolkit and its nvcc",
    "PYTORCH_CUDA_ALLOC_CONF": "how torch allocates GPU memory",
    "PYTORCH_ALLOC_CONF": "how torch allocates GPU memory",
    "CXX": "the C++ compiler",
    "CC": "the C++ compiler, where CXX is not set",
    "LD_PRELOAD": "a library loaded into every process",
    "PIP_CONSTRAINT": "what pip must keep to",
    "PIP_NO_INDEX": "pip asks no package index",
}
FOLDERS = ("TILELANG_CACHE_DIR", "CUDA_HOME", "CUDA_PATH")


def variables(environ) -> list[str]:
    """The variables that bend TileLang, torch or CUDA: name, value, what each does."""
    lines = []
    for name, value in sorted(environ.items()):
        effect = NAMED.get(name)
        if what := left_out(name):
            effect = f"{what} {LEFT_OUT}"
        elif name == "PYTHONPATH":
            value = hiding_folder(value)
            effect = f"torch or tilelang is taken from there {PASSED_ON}" if value else None
        elif name in TOLD:
            effect = f"{TOLD[name]} {PASSED_ON}"
        if effect:
            lines.append(f"{name}={cut(value, 30)}: {effect}")
    return lines


def left_out(name: str) -> str | None:
    """What a variable does that the worker is spared; None for all others."""
    if name in NEUTRALISED:
        return NEUTRALISED[name]
    if name in NAMED or name in TOLD or name.startswith("TILELANG_TOUR"):
        return None
    return next((effect for family, effect in FAMILIES.items() if name.startswith(family)), None)


def hiding_folder(python_path: str) -> str:
    """The first folder on PYTHONPATH that holds a torch or a tilelang, or nothing."""
    for folder in filter(os.path.isabs, python_path.split(os.pathsep)):  # not the learner's "."
        for module in ("torch", "tilelang"):
            if Path(folder, module).is_dir() or Path(folder, f"{module}.py").is_file():
                return folder
    return ""


def neutralised(environ) -> dict[str, str]:
    """The worker's environment: without the variables that would change a verdict or a number.

    Folders are told from the root: the worker lives in another one than the user. An empty name of
    one counts as none, which TileLang does not do everywhere.
    """
    kept = {name: value for name, value in environ.items() if not left_out(name)}
    for name in FOLDERS:
        folder = kept.pop(name, "")
        if folder:
            kept[name] = os.path.abspath(os.path.expanduser(folder))
    return kept
