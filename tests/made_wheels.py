"""Tiny wheels and virtual environments, so that real pip can be watched in seconds."""

import hashlib
import importlib.util
import json
import subprocess
import sys
import venv
import zipfile
from base64 import urlsafe_b64encode
from pathlib import Path

from sections.runner.environment import Probe

ABORTS = "import os; os.abort()"
CANNOT_COMPILE = """
def compile():
    raise AttributeError("module 'tvm' has no attribute 'build'")
"""
WORKS = "def compile(): pass"
# As much of torch as the worker asks for before it imports tilelang.
SMALL_TORCH = """
import numpy
__version__ = version
class version: cuda = None
class cuda:
    def is_available(): return False
"""
# Like the real one: a library of another version takes the process with it.
NEEDS_RIGHT_FFI = """
import os, tvm_ffi
if tvm_ffi.version != "0.1.12":
    os.abort()
def compile(): pass
"""
NOT_LINKED = ("pip", "__pycache__")


def make_wheel(
    folder: Path, name: str, version: str, code: str = "", needs=(), real: Path | None = None
) -> Path:
    """A wheel with one module `name` (hyphens become underscores) in a package folder.

    real   instead of that, the wheel only has Python look into this folder of `real_packages`
    """
    module = module_of(name)
    stem = f"{name.replace('-', '_')}-{version}"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    content = {f"{module}/__init__.py": f'version = "{version}"\n{code}\n'}
    if real:
        content = {f"real_{module}.pth": f"{real}\n"}
    files = {
        **content,
        f"{stem}.dist-info/METADATA": metadata + "".join(f"Requires-Dist: {n}\n" for n in needs),
        f"{stem}.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = f"{stem}.dist-info/RECORD"
    hashes = [f"{path},sha256={_hash(text)},{len(text.encode())}\n" for path, text in files.items()]
    files[record] = "".join([*hashes, f"{record},,\n"])
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return wheel


def module_of(name: str) -> str:
    """The module that a package is imported as."""
    return {"apache-tvm-ffi": "tvm_ffi"}.get(name, name.replace("-", "_"))


def real_packages(folder: Path, apart: tuple[str, ...]) -> dict[str, Path]:
    """Folders of links to the packages that these tests run with, without pip and all metadata.

    One folder for each package in `apart`, and one, under "rest", with all others.
    """
    folders = {name: folder / name / "site-packages" for name in (*apart, "rest")}
    for site in folders.values():
        site.mkdir(parents=True)
    owners = {module_of(name): name for name in apart}
    found = (importlib.util.find_spec(module).submodule_search_locations[0] for module in owners)
    for site in {Path(location).parent for location in found}:
        for entry in site.iterdir():
            if entry.suffix not in (".dist-info", ".pth") and entry.name not in NOT_LINKED:
                (folders[owners.get(entry.name, "rest")] / entry.name).symlink_to(entry)
    return folders


def _hash(text: str) -> str:
    return urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


def make_environment(folder: Path, pip_from: Path | None = None, packages=()) -> Path:
    """A virtual environment with these wheels in it; returns its python.

    pip_from   site-packages folder of an environment whose pip is shared; None for no pip at all
    """
    venv.EnvBuilder(symlinks=True, with_pip=False).create(folder)
    packages_folder = site_packages(folder)
    if pip_from:
        (packages_folder / "shared_pip.pth").write_text(str(pip_from))
    for wheel in packages:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(packages_folder)
    return folder / "bin" / "python"


def site_packages(folder: Path) -> Path:
    """Where a virtual environment keeps its packages."""
    return Path(folder, "lib", f"python3.{sys.version_info.minor}", "site-packages")


WORKER = """
import json, sys
def tell(**event): print("@" + json.dumps(event), flush=True)
def step(name, action):
    try:
        action()
    except BaseException as error:
        tell(event="step_failed", step=name, error=f"{type(error).__name__}: {error}")
        sys.exit(1)
    module = sys.modules.get(name)
    file, version = getattr(module, "__file__", None), getattr(module, "version", None)
    tell(event="step", step=name, version=version, file=file, seconds=0.1, mode="rehearsal")
step("torch", lambda: __import__("torch"))
step("device", lambda: None)
step("tilelang", lambda: __import__("tilelang"))
step("kernel", lambda: sys.modules["tilelang"].compile())
"""


def probe_with(python: Path) -> Probe:
    """What a worker of that environment would find, in the steps of the real one."""
    done = subprocess.run(
        [python, "-c", f"import sys; sys.path.pop(0)\n{WORKER}"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    probe = Probe()
    for line in done.stdout.splitlines():
        if line.startswith("@"):
            probe.see(json.loads(line[1:]))
    if done.returncode < 0:
        probe.died = "killed by SIGABRT"
    return probe
