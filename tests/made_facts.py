"""Facts about machines that are not here, and what a worker would find on them."""

from sections.runner.environment import Probe

SITE = "/usr/lib/python3/site-packages"
H200 = {
    "name": "NVIDIA H200",
    "driver": "580.159",
    "memory_bytes": 143771 << 20,
    "capability": "9.0",
}
T4 = {**H200, "name": "Tesla T4", "memory_bytes": 15360 << 20, "capability": "7.5"}
V100 = {**H200, "name": "Tesla V100-SXM2-16GB", "memory_bytes": 16384 << 20, "capability": "7.0"}


def facts(**changes) -> dict:
    """A healthy Linux machine without a GPU, changed as asked."""
    return {
        "versions": {
            "torch": "2.13.0+cpu",
            "numpy": "2.1.3",
            "tilelang": "0.1.15",
            "apache-tvm-ffi": "0.1.12",
        },
        "needs": {"apache-tvm-ffi": "<0.1.13,>=0.1.11"},
        "shadows": {},
        "nvcc_package": None,
        "site": SITE,
        "venv": True,
        "pip": True,
        "managed": False,
        "system": "Linux",
        "os": "Ubuntu 22.04.5 LTS",
        "processor": "x86_64",
        "wsl": False,
        "glibc": "2.35",
        "gpus": [],
        "driver": None,
        "driver_cuda": None,
        "libcuda": None,
        "gpu_note": "no NVIDIA driver found",
        "cache": "/home/me/.tilelang/cache",
        "cache_refusal": "",
        "cache_free": 50e9,
        "python": "3.13.5",
        "executable": "/usr/bin/python3",
        "command": "python",
        "colab": False,
        "cuda_home": "/usr/local/cuda",
        "cuda_home_from": "PATH",
        "nvcc": "/usr/local/cuda/bin/nvcc",
        "nvcc_version": "12.8.93",
        "compiler": "/usr/bin/g++",
        "compiler_from": "PATH",
        "compiler_version": "11.4.0",
        "install_compiler": "apt-get install -y g++",
        "install_ensurepip": "apt-get install -y python3.13-venv",
        "variables": [],
        **changes,
    }


def gpu_facts(gpu: dict = H200, driver_cuda: str = "13.0", **changes) -> dict:
    """A healthy Linux machine with a GPU, changed as asked."""
    given = {"gpus": [gpu], "driver": gpu["driver"], "driver_cuda": driver_cuda, "gpu_note": ""}
    return facts(**{**given, **changes})


def probe(until: str = "kernel", mode: str = "rehearsal", arch: str = "sm_90a", **changes) -> Probe:
    """What a worker finds up to a step; changes are for the facts of the step `torch`."""
    gpu = None if mode == "rehearsal" else "NVIDIA H200" if arch == "sm_90a" else "Tesla T4"
    torch = {
        "version": "2.13.0+cpu" if gpu is None else "2.11.0+cu128",
        "file": f"{SITE}/torch/__init__.py",
        "cuda_built": None if gpu is None else "12.8",
        "cuda_available": gpu is not None,
        "cuda_warning": None,
        **changes,
    }
    device = {
        "mode": mode,
        "arch": arch,
        "gpu": gpu,
        "gpu_arch": arch if gpu else None,
        "shared_bytes": 232448,
        "multiprocessors": 132 if gpu else 0,
        "memory_bytes": 0,
    }
    steps = {
        "torch": torch,
        "device": device,
        "tilelang": {"version": "0.1.15", "file": f"{SITE}/tilelang/__init__.py"},
        "kernel": {"seconds": 1.1},
    }
    found = Probe()
    found.see({"event": "step_started", "step": "torch"})
    for step, known in steps.items():
        if until == "nothing":
            break
        found.see({"event": "step", "step": step, **known})
        if step == until:
            break
    return found


def failing(found: Probe, error: str | None = None, died: str | None = None) -> Probe:
    """That probe, with the next step failing."""
    if error:
        found.see({"event": "step_failed", "step": found.culprit, "error": error, "detail": ""})
    found.died = died
    return found
