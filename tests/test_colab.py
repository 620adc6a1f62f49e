"""Colab as its maintainers published it in August 2026: TileLang and what it needs go there, and
nothing that is there has to give way.

Real pip and the real index, nothing is installed. In place of Colab's packages pip is offered
wheels that only bear their names and versions, so that none of them is downloaded.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sections.runner.environment import TESTED, release
from tests.made_wheels import make_wheel

ROOT = Path(__file__).resolve().parents[1]
PYTHON = "3.13"
THERE = {
    "torch": "2.11.0+cu128",
    "triton": "3.6.0",
    "numpy": "2.1.3",
    "ml-dtypes": "0.6.0",
    "tabulate": "0.9.0",
    "matplotlib": "3.10.0",
    "psutil": "5.9.5",
    "tqdm": "4.67.3",
    "cloudpickle": "3.1.2",
    "typing-extensions": "4.16.0",
}
NEW = {"tilelang", "apache-tvm-ffi", "torch-c-dlpack-ext", "z3-solver"}


@pytest.fixture(scope="module")
def colab(tmp_path_factory) -> list[str]:
    """Options that make pip resolve as on Colab, with every package held that is there."""
    folder = tmp_path_factory.mktemp("colab")
    held = []
    for name, version in THERE.items():
        version += "" if "+" in version else "+colab"  # the index has no such build
        make_wheel(folder / "wheels", name, version)
        held.append(f"{name}=={version}\n")
    (folder / "held.txt").write_text("".join(held))
    return ["--python-version", PYTHON, "--only-binary=:all:", "--target", str(folder / "nothing"),
            "--find-links", str(folder / "wheels"), "--constraint", str(folder / "held.txt")]


def resolve(colab: list[str], *arguments: str) -> subprocess.CompletedProcess:
    """What pip would do there; it does nothing."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--report", "-"]
    return subprocess.run([*command, *colab, *arguments], cwd=ROOT,
                          capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("arguments", [
    ("-r", "requirements.txt"), ("-U", "tilelang"), (f"tilelang=={TESTED}",),
], ids=" ".join)
def test_nothing_there_gives_way(colab, arguments):
    done = resolve(colab, *arguments)
    assert done.returncode == 0, done.stderr
    packages = (entry["metadata"] for entry in json.loads(done.stdout)["install"])
    found = {re.sub("[-_.]+", "-", each["name"]).lower(): each["version"] for each in packages}
    assert found.keys() - THERE.keys() == NEW, "what comes beside the packages that are there"
    assert found["torch"] == THERE["torch"]
    assert release(found["tilelang"]) >= release(TESTED), "no older one only because it fits"


def test_a_package_that_would_have_to_give_way_is_seen(colab):
    done = resolve(colab, f"tilelang=={TESTED}", "numpy>=2.2")
    assert done.returncode == 1 and "ResolutionImpossible" in done.stderr
    assert "numpy" in done.stderr
