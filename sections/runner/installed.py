"""What Python finds installed, looked up by a fresh interpreter that imports none of it.

A long-running process (a notebook) remembers what was there when it started; a new one does not.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LIBRARIES = ("apache-tvm-ffi", "torch-c-dlpack-ext", "z3-solver")  # tilelang's own, compiled
PACKAGES = ("torch", "numpy", "tilelang", "tabulate", *LIBRARIES)


def installed(python: str = sys.executable) -> dict:
    """Ask a fresh interpreter; empty answers when it gives none.

    versions      {"torch": "2.11.0+cu130", ...}, only what is there
    needs         what the installed tilelang asks of its libraries: {"apache-tvm-ffi": ">=0.1.11"}
    shadows       {"tilelang": file}: taken from a file that belongs to no installed package
    nvcc_package  folder of the nvidia-cuda-nvcc package's toolkit, or None
    site          folder that packages are installed into;  venv  it is a virtual environment's
    pip           pip is there;  managed  it may not install into this Python (PEP 668)
    """
    nothing = {"versions": {}, "needs": {}, "shadows": {}, "nvcc_package": None}
    text = output_of(python, str(Path(__file__).resolve()), timeout=60) or ""
    try:
        return json.loads(text.splitlines()[-1])
    except (ValueError, IndexError):
        return {**nothing, "site": "", "venv": False, "pip": False, "managed": False}


def output_of(*command: str, timeout: float = 15, failing: bool = False) -> str | None:
    """What a command prints; None when it is not there, hangs, or fails.

    failing   take what it says also when it fails
    """
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if failing else subprocess.DEVNULL,
            timeout=timeout,
            cwd=HERE,  # as in the worker, no folder of the learner's: PYTHONPATH may say "."
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "replace") if failing or done.returncode == 0 else None


# In the fresh interpreter


def look_up() -> dict:
    """The facts that `installed` documents, as this interpreter sees them."""
    import importlib.util
    import sysconfig

    found = {name: distribution(name) for name in (*PACKAGES, "nvidia-cuda-nvcc")}
    versions = {name: found[name].version for name in PACKAGES if found[name]}
    shadows = {name: shadow(name, found[name]) for name in ("torch", "numpy", "tilelang")}
    venv = sys.prefix != sys.base_prefix
    marker = Path(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED")
    return {
        "versions": {name: version for name, version in versions.items() if version},
        "needs": needs(found["tilelang"]),
        "shadows": {name: file for name, file in shadows.items() if file},
        "nvcc_package": toolkit(found["nvidia-cuda-nvcc"]),
        "site": sysconfig.get_path("purelib"),
        "venv": venv,
        "pip": importlib.util.find_spec("pip") is not None,
        "managed": not venv and marker.exists(),
    }


def distribution(name: str):
    """An installed package's metadata, or None."""
    from importlib import metadata

    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None


def needs(tilelang) -> dict[str, str]:
    """Which versions of its libraries tilelang asks for: {"z3-solver": "<4.15.5,>=4.13.0"}."""
    wanted = {}
    for line in (tilelang.requires or []) if tilelang else []:
        name, specifiers = re.match(r"([\w.-]+)\s*\(?([^;()]*)", line).groups()
        if name in LIBRARIES:
            wanted[name] = specifiers.replace(" ", "")
    return wanted


def shadow(name: str, package) -> str | None:
    """The file a module would come from, where that file is not the installed package's."""
    import importlib.util

    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        return None
    file = spec.origin or next(iter(spec.submodule_search_locations))
    if {"site-packages", "dist-packages"} & set(Path(file).parts):
        return None
    origin = package.read_text("direct_url.json") if package else None
    editable = re.search(r'"editable":\s*true', origin or "")
    return None if editable else file


def toolkit(package) -> str | None:
    """The folder above the bin folder that holds the package's nvcc."""
    for file in (package.files or []) if package else []:
        if file.name == "nvcc":
            return str(Path(file.locate()).parents[1])
    return None


if __name__ == "__main__":
    sys.path[:] = [path for path in sys.path if path != str(HERE)]  # as in the worker
    print(json.dumps(look_up()))
