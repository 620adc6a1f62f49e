"""What stands in the way of the tour, one line each: what was found, what is needed, what to type.

Standard library only, and it imports on Pythons too old for the tour, so that they can be told.
"""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass

from sections.runner.environment import OLDEST_ON_SM_75, TESTED, Probe, cut, release
from sections.runner.installed import ROOT

TORCH_WHEELS = "https://download.pytorch.org/whl"
OLDEST_DRIVER = {11: "450", 12: "525", 13: "580"}  # for a CUDA major version
OLDEST_NVCC = {"sm_100a": "12.8", "sm_103a": "12.9", "sm_120a": "12.8"}  # others: 12.0, for C++20


@dataclass(frozen=True)
class Problem:
    """What was found, what is needed, what to type.

    blocks   no tour can run before this is mended, and installing tilelang does not mend it
    """

    found: str
    needed: str
    type_this: str
    blocks: bool = False

    def __str__(self) -> str:
        return f"{self.found}; needed: {self.needed}; type: {self.type_this}"


def problems(facts: dict, probe: Probe) -> list[Problem]:
    """All that stands in the way of a tour, or of a part of it; what blocks comes first."""
    around = [
        *system_problems(facts),
        *worker_problems(facts, probe),
        *torch_problems(facts, probe),
        *gpu_problems(facts, probe),
        *nvcc_problems(facts, probe),
        *compiler_problems(facts, probe),
        *cache_problems(facts),
    ]
    inside = list(tilelang_problems(facts, probe))
    if probe.culprit == "kernel" and any(problem.blocks for problem in around):
        inside = []  # the kernel fails for that reason
    return sorted([*around, *inside], key=lambda problem: not problem.blocks)


def obstacle(facts: dict, probe: Probe) -> Problem:
    """The one problem that keeps a probe from being usable."""
    first = next(iter(problems(facts, probe)), None)
    if first and first.blocks:
        return first
    steps = (*torch_problems(facts, probe), *tilelang_problems(facts, probe))
    return steps[0] if steps else Problem(probe.cause, "a tilelang that works", reinstall(facts))


def pip_install(facts: dict, *arguments: str) -> str:
    """The command that has pip install something into this Python."""
    if facts["managed"]:
        return in_an_environment(facts)
    first = "" if facts["pip"] else f"{facts['command']} -m ensurepip && "
    return f"{first}{facts['command']} -m pip install {shlex.join(arguments)}"


def in_an_environment(facts: dict) -> str:
    """The command that runs the tour in a virtual environment of its own."""
    environment = "~/tilelang-tour"
    tour = here("tilelang_tour.py")
    return f"{facts['command']} -m venv {environment} && {environment}/bin/python {tour}"


def here(name: str) -> str:
    """A file of the tour as it is typed from the current folder."""
    return name if os.path.exists(name) else shlex.quote(str(ROOT / name))


def rehearse(facts: dict) -> str:
    """The command that runs the tour without a GPU."""
    return f"{facts['command']} {here('tilelang_tour.py')} --device cpu"


def older(version: str, bound: str) -> bool:
    """Whether a version is known and below a bound."""
    return bool(release(version)) and release(version) < release(bound)


# The machine


def system_problems(facts: dict):
    """Python, operating system, C library."""
    if older(facts["python"], "3.10"):
        yield Problem(
            f"Python {facts['python']}",
            "Python 3.10 or newer",
            f"python3.12 {here('tilelang_tour.py')}",
            blocks=True,
        )
    if facts["system"] != "Linux":
        yield Problem(
            f"{facts['os']} has no GPU mode",
            "Linux or WSL; here the CPU rehearsal runs, if TileLang has a wheel for it",
            rehearse(facts),
        )
    elif not facts["glibc"] or older(facts["glibc"], "2.28"):
        library = f"glibc {facts['glibc']}" if facts["glibc"] else "no glibc"
        yield Problem(
            f"{facts['os']} with {library}",
            "glibc 2.28 or newer, for TileLang's wheel",
            "docker run -it python:3.12 bash",
        )


def cache_problems(facts: dict):
    """The folder where TileLang keeps compiled kernels."""
    elsewhere = "export TILELANG_CACHE_DIR=/tmp/tilelang-cache"
    if facts["cache_refusal"]:
        yield Problem(
            f"TileLang's cache {facts['cache']} cannot be written ({facts['cache_refusal']}): "
            "what is compiled is not kept for the next tour",
            "a folder for compiled kernels",
            elsewhere,
        )
    elif facts["cache_free"] < 1e9:
        yield Problem(
            f"{facts['cache_free'] / 1e9:.1f} GB free at {facts['cache']}",
            "1 GB for compiled kernels",
            elsewhere,
        )


def worker_problems(facts: dict, probe: Probe):
    """A process that should run sections and gave no sign of life."""
    if probe.culprit == "start":
        parts = shlex.join(["-c", f"import sys; sys.path.append({str(ROOT)!r}); "
                                  "import sections.worker"])
        needed = "a Python that can import the tour's own files"
        yield Problem(probe.cause, needed, f"{facts['command']} {parts}", blocks=True)


# The GPU, as torch sees it


def torch_problems(facts: dict, probe: Probe):
    """torch itself, and the device it was asked for."""
    version = facts["versions"].get("torch")
    hidden = [name for name in ("torch", "numpy") if name in facts["shadows"]]
    if hidden:
        yield shadow_problem(hidden[0], facts["shadows"][hidden[0]], facts, probe)
    elif probe.missing("torch") and not version:
        yield Problem(
            "torch is not installed",
            "torch, tilelang, numpy and tabulate",
            install_requirements(facts),
        )
    elif probe.culprit == "torch":
        yield Problem(
            f"torch {version or 'of unknown version'} cannot be imported: {probe.how}",
            "a torch that imports",
            pip_install(facts, "--force-reinstall", *same_torch(version)),
            blocks=True,
        )
    elif probe.culprit == "device":
        found, _, rest = probe.how.partition("; needed: ")
        needed, _, command = rest.partition("; type: ")
        yield Problem(
            found, needed or "a device that is here", command or rehearse(facts), blocks=True
        )


def install_requirements(facts: dict) -> str:
    """The command that gets all the tour needs; torch without CUDA where nothing can use that."""
    without_cuda = () if facts["driver"] else ("--extra-index-url", f"{TORCH_WHEELS}/cpu")
    return pip_install(facts, "-r", here("requirements.txt"), *without_cuda)


def same_torch(version: str | None) -> tuple[str, ...]:
    """What to ask pip for to get that torch again; one with a suffix is on PyTorch's own index."""
    if not version:
        return ("torch",)
    suffix = re.search(r"\+(cpu|cu\d+)$", version)
    index = ("--index-url", f"{TORCH_WHEELS}/{suffix[1]}") if suffix else ()
    return (f"torch=={version}", *index)


def gpu_problems(facts: dict, probe: Probe):
    """A GPU that is here and cannot be used; nothing here blocks, since the rehearsal runs."""
    if facts["gpu_note"].startswith("nvidia-smi") and not facts["colab"]:
        yield Problem(
            facts["gpu_note"],
            "an NVIDIA driver that answers, if there is a GPU",
            "nvidia-smi, then restart this machine",
        )
    if not facts["gpus"]:
        if facts["colab"]:
            yield Problem(
                "this Colab session has no GPU",
                "one, to time kernels on; the CPU rehearsal runs",
                "Runtime > Change runtime type > T4 GPU",
            )
        return
    gpu, capabilities = facts["gpus"][0]["name"], [g["capability"] for g in facts["gpus"]]
    if all(capability and older(capability, "7.5") for capability in capabilities):
        yield Problem(
            f"{gpu} is sm_{capabilities[0].replace('.', '')}",
            "sm_75 or newer (T4, RTX 20 and on) for the GPU modes; the CPU rehearsal runs",
            rehearse(facts),
        )
    elif "torch" in probe.done and not probe.fact("torch", "cuda_available"):
        yield unseen_gpu(facts, probe, gpu)


def unseen_gpu(facts: dict, probe: Probe, gpu: str) -> Problem:
    """Why torch does not see a GPU that nvidia-smi does."""
    torch = f"torch {probe.fact('torch', 'version')}"
    built, runs = probe.fact("torch", "cuda_built"), facts["driver_cuda"]
    warning = probe.fact("torch", "cuda_warning") or "it gives no reason"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    other_torch = pip_install(facts, "--force-reinstall", "torch", "--index-url", torch_index(runs))
    if not built:
        return Problem(f"{torch} is built without CUDA, {gpu} stands idle", "CUDA", other_torch)
    if visible is not None and not re.match(r"\s*[0-9GM]", visible):
        return Problem(
            f"CUDA_VISIBLE_DEVICES={visible} hides {gpu}", "a GPU", "unset CUDA_VISIBLE_DEVICES"
        )
    if facts["libcuda"]:
        folder = facts["libcuda"]
        return Problem(
            f"{torch} does not see {gpu}: libcuda.so.1 is in {folder}, where nobody looks for it",
            "that folder on LD_LIBRARY_PATH",
            f"%env LD_LIBRARY_PATH={folder}"
            if facts["colab"]
            else f"export LD_LIBRARY_PATH={folder}:$LD_LIBRARY_PATH",
        )
    if "too old" in warning or (runs and release(runs)[0] < release(built)[0]):
        oldest = OLDEST_DRIVER.get(release(built)[0])
        return Problem(
            f"driver {facts['driver']} (CUDA {runs or 'unknown'}) is too old for {torch}, "
            f"built for CUDA {built}",
            f"driver {oldest or 'of that age'} or newer, or a torch for this driver",
            other_torch,
        )
    return Problem(
        f"{torch} cannot use {gpu}: {cut(warning, 150)}",
        "a driver that works",
        "nvidia-smi, then restart this machine",
    )


def torch_index(cuda: str | None) -> str:
    """PyTorch's wheel index for the newest CUDA that the driver runs."""
    newest = release(cuda or "12.6")
    name = "cu130" if newest >= (13,) else "cu128" if newest >= (12, 8) else "cu126"
    return f"{TORCH_WHEELS}/{name}"


# The compilers


def nvcc_problems(facts: dict, probe: Probe):
    """nvcc: GPU modes need it, the rehearsal only counts registers with it."""
    mode = probe.fact("device", "mode")
    on_gpu = mode in ("gpu", "arch")
    arch = probe.fact("device", "arch") if on_gpu else None
    oldest = OLDEST_NVCC.get(arch, "12.0")
    maybe_gpu = on_gpu or (not mode and facts["gpus"])
    lost = "no GPU kernel can be compiled" if maybe_gpu else "registers are left out, all else runs"
    instead = f", or {rehearse(facts)}" if maybe_gpu else ""  # what works without it
    needed = f"nvcc {oldest} or newer" + (f" for {arch}" if arch in OLDEST_NVCC else "")
    version, runs, source = facts["nvcc_version"], facts["driver_cuda"], facts["cuda_home_from"]
    if not version and source in ("CUDA_HOME", "CUDA_PATH"):
        found = f"{source}={facts['cuda_home']} has no nvcc, and TileLang looks nowhere else"
        yield Problem(f"{found}: {lost}", needed, f"unset {source}{instead}", blocks=on_gpu)
    elif not version or older(version, oldest):
        found = f"nvcc {version} in {facts['cuda_home']}" if version else "no nvcc"
        get = get_nvcc(facts, on_gpu) + instead
        yield Problem(f"{found}: {lost}", needed, get, blocks=on_gpu)
    elif on_gpu and runs and release(version)[:1] > release(runs)[:1]:
        major = release(runs)[0]
        yield Problem(
            f"nvcc {version} is newer than driver {facts['driver']}, which runs CUDA {runs}",
            f"nvcc {major}, or driver {OLDEST_DRIVER.get(release(version)[0], '')} or newer",
            f"export CUDA_HOME=/usr/local/cuda-{major}",
            blocks=probe.culprit == "kernel",
        )


def get_nvcc(facts: dict, on_gpu: bool) -> str:
    """The command that gets an nvcc: TileLang's extra holds CUDA 13, which older drivers refuse."""
    runs = facts["driver_cuda"]
    if on_gpu and runs and older(runs, "13"):
        return f"conda install -c nvidia cuda-toolkit={runs}"
    return pip_install(facts, "tilelang[nvcc]")


def compiler_problems(facts: dict, probe: Probe):
    """The host C++ compiler: every mode needs one, nvcc a newer one."""
    source, version = facts["compiler_from"], facts["compiler_version"]
    lost = "no kernel can be compiled, for a GPU or for the CPU"
    if source in ("CXX", "CC") and not version:
        found = f"{source}={facts['compiler']} does not run"
        yield Problem(f"{found}: {lost}", "a C++ compiler", f"unset {source}", blocks=True)
    elif not facts["compiler"]:
        get = facts["install_compiler"]
        yield Problem(f"no C++ compiler: {lost}", "g++ or clang++", get, blocks=True)
    elif (
        probe.fact("device", "mode") in ("gpu", "arch")
        and "clang" not in facts["compiler"]
        and older(version or "", "10")
    ):
        yield Problem(
            f"g++ {version} knows no C++20: no GPU kernel can be compiled",
            "g++ 10 or newer",
            f"{facts['install_compiler']}, or {rehearse(facts)}",
            blocks=True,
        )


# TileLang


def tilelang_problems(facts: dict, probe: Probe):
    """tilelang missing, hidden, too old, failing at import or at its first kernel."""
    file, version = facts["shadows"].get("tilelang"), facts["versions"].get("tilelang", "")
    tested = pip_install(facts, f"tilelang=={TESTED}")
    if file:
        yield shadow_problem("tilelang", file, facts, probe)
    elif probe.too_old:
        yield Problem(
            f"tilelang {version} on {probe.fact('device', 'gpu')} (sm_75)",
            f"tilelang {OLDEST_ON_SM_75} or newer",
            tested,
        )
    elif probe.missing("tilelang") and not version:
        yield Problem(
            "tilelang is not installed",
            f"tilelang {OLDEST_ON_SM_75} or newer, tested with {TESTED}",
            tested,
        )
    elif probe.culprit == "tilelang" and probe.aborted:
        needs = facts["needs"].get("apache-tvm-ffi", " of the version it was built for")
        yield Problem(aborts(facts, probe), f"apache-tvm-ffi{needs}", reinstall(facts))
    elif probe.culprit == "tilelang":
        found = f"tilelang {version} cannot be imported: {probe.how}"
        yield Problem(found, wrong_ffi(facts) or "a tilelang that imports", reinstall(facts))
    elif probe.culprit == "kernel":
        found = f"tilelang {version} imports but cannot compile and run a kernel: {probe.how}"
        yield Problem(found, wrong_ffi(facts) or "a kernel that runs", reinstall(facts))


def aborts(facts: dict, probe: Probe) -> str:
    """An import that takes the process with it: no `try` in Python can catch that."""
    version = "" if "tilelang" in facts["shadows"] else facts["versions"].get("tilelang", "")
    here = facts["versions"].get("apache-tvm-ffi", "not installed")
    return (
        f"importing tilelang {version} ends the process ({probe.died}), "
        f"usually the fault of apache-tvm-ffi, here {here}"
    ).replace("  ", " ")


def wrong_ffi(facts: dict) -> str | None:
    """Which apache-tvm-ffi tilelang needs, where another one is installed."""
    version, needs = (facts[key].get("apache-tvm-ffi") for key in ("versions", "needs"))
    if not needs or (version and within(version, needs)):
        return None
    return f"apache-tvm-ffi{needs}, here {version or 'not installed'}"


def reinstall(facts: dict) -> str:
    """The command that brings the tested tilelang and its libraries anew, and touches no other."""
    ffi = facts["versions"].get("apache-tvm-ffi")
    if wrong_ffi(facts) or not ffi or facts["versions"].get("tilelang") != TESTED:
        return pip_install(facts, f"tilelang=={TESTED}")
    again = (f"tilelang=={TESTED}", f"apache-tvm-ffi=={ffi}")
    return pip_install(facts, "--force-reinstall", "--no-deps", *again)


def within(version: str, specifiers: str) -> bool:
    """Whether a version meets specifiers such as ">=0.1.11,<0.1.13"."""
    for sign, text in re.findall(r"([<>=!]=?)([\d.]+)", specifiers):
        here, bound = release(version), release(text)
        meets = {
            ">=": here >= bound,
            "<=": here <= bound,
            ">": here > bound,
            "<": here < bound,
            "==": here == bound,
            "!=": here != bound,
        }
        if not meets[sign]:
            return False
    return True


def shadow_problem(module: str, file: str, facts: dict, probe: Probe) -> Problem:
    """A local file or folder that has the name of an installed module and comes before it."""
    found = f"{module} is taken from {file}, which belongs to no installed package"
    if probe.culprit == module == "tilelang" and probe.aborted:
        found = f"{aborts(facts, probe)}, but {found}"
    elif probe.culprit == module:
        found += f", and fails: {probe.how}"
    guilty = probe.culprit in ("torch", module) or f"'{module}'" in (probe.error or "")
    blocks = module != "tilelang" and guilty
    return Problem(found, f"the installed {module}", unshadow(module, file), blocks)


def unshadow(module: str, file: str) -> str:
    """The command after which Python finds the installed module."""
    folder = file if os.path.isdir(file) else os.path.dirname(file)
    local = folder if os.path.basename(folder) == module else file
    on_path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if os.path.dirname(local) in map(os.path.abspath, filter(None, on_path)):
        return "unset PYTHONPATH"
    return f"mv {shlex.quote(local)} {shlex.quote(local + '.away')}"
