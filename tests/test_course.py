"""Registry, files, README and --list agree."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sections import ORDER
from sections.course import Course

ROOT = Path(__file__).resolve().parents[1]
# Modules in sections/ that are no sections.
SUPPORT = {"__init__", "course", "worker"}


def test_every_section_has_a_file_and_every_file_is_registered():
    files = {path.stem for path in (ROOT / "sections").glob("*.py")} - SUPPORT
    assert files == set(ORDER)


def test_every_section_has_its_tests():
    for name in ORDER:
        assert (ROOT / "tests" / f"test_{name}.py").is_file(), name


@pytest.mark.parametrize("name", ORDER)
def test_a_section_opens_with_a_title_and_an_introduction(name):
    title, introduction = Course().docstring(name)
    assert re.match(r"[^:]+: .+", title), "Title: the one idea"
    assert len(title) < 100 and not title.endswith(".")
    assert 3 <= len(introduction.splitlines()) <= 12


@pytest.mark.parametrize("name", ORDER)
def test_a_section_imports_no_other(name):
    allowed = {"autotune": {"gemm"}, "architectures": {"gemm"}}.get(name, set())
    text = (ROOT / "sections" / f"{name}.py").read_text("utf-8")
    tree = ast.parse(text)
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "sections":
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sections."):
            imported.add(node.module.split(".")[1])
    assert imported & set(ORDER) <= allowed
    assert "from __future__ import annotations" not in text, "kernels need real annotations"


@pytest.mark.parametrize("name", ORDER)
def test_a_section_runs_alone(name):
    text = (ROOT / "sections" / f"{name}.py").read_text("utf-8")
    assert "run_alone(__file__)" in text
    functions = {node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}
    assert "run" in functions


def test_list_names_every_section_in_order():
    done = subprocess.run([sys.executable, ROOT / "tilelang_tour.py", "--list"],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(ORDER)


def test_readme_names_every_section_and_every_option():
    readme = (ROOT / "README.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\w+)` \|", readme, re.MULTILINE)
    assert rows == list(ORDER)
    done = subprocess.run([sys.executable, ROOT / "tilelang_tour.py", "--help"],
                          capture_output=True, text=True, timeout=60)
    options = set(re.findall(r"^  (--[\w-]+)", done.stdout, re.MULTILINE))
    told = set(re.findall(r"`(--[\w-]+)", readme))
    assert options <= told, options - told


def test_requirements_name_the_four_packages():
    lines = (ROOT / "requirements.txt").read_text("utf-8").splitlines()
    names = {re.match(r"[\w-]+", line)[0] for line in lines if line and not line.startswith("#")}
    assert names == {"tilelang", "torch", "numpy", "tabulate"}


def test_no_kernel_or_text_speaks_of_this_machine():
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    for name in tracked.stdout.split():
        path = ROOT / name
        if path.suffix in {".py", ".md", ".toml", ".txt", ".ipynb"} and path.is_file():
            text = path.read_text("utf-8")
            for word in ("/wo" + "rk/", "/tmp/d" + "ev"):
                assert word not in text, f"{name} names {word}"


def test_what_runs_before_a_change_lands_is_the_readme_s_test_command():
    readme, ci = ((ROOT / name).read_text("utf-8") for name in ("README.md", ".ci/run"))
    install, _, run = next(line for line in readme.splitlines() if "-m pytest -n" in line
                           ).partition(" && python ")
    assert install == "pip install -r tests/requirements.txt"
    assert f"\"$python\" -m {install}" in ci.replace("install -q", "install")
    assert f'"$python" {run}' in ci
