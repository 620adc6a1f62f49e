"""Variables that bend TileLang, torch or CUDA: left out or told, never a silent change of a verdict
or a number."""

import json
import os
import subprocess
import sys

import pytest

from sections.runner import environment
from sections.runner.environment import (
    FOLDERS,
    LEFT_OUT,
    NAMED,
    PASSED_ON,
    TOLD,
    left_out,
    neutralised,
    variables,
)
from sections.runner.installed import ROOT

# What makes a tour fail, go wrong or take its time, if it comes through: of TileLang, of TVM, of
# nvcc, of torch, of Python.
HOSTILE = {
    "TILELANG_DEFAULT_TARGET": "hip",
    "TILELANG_EXECUTION_BACKEND": "nvrtc",
    "TILELANG_COMPILE_TIMEOUT_SECONDS": "soon",
    "TILELANG_LAYOUT_COST_MODEL": "none such",
    "TILELANG_ENABLE_DATA_RACE_CHECK": "1",
    "TILELANG_VERBOSE": "1",
    "TILELANG_A_LATER_ONE": "1",
    "TL_LOWER_TRACE": "html",
    "TVM_LOG_DEBUG": "DEFAULT=9",
    "SKIP_LOADING_TILELANG_SO": "1",
    "NVCC_APPEND_FLAGS": "--no-such-option",
    "CUDA_LAUNCH_BLOCKING": "1",
    "NVIDIA_TF32_OVERRIDE": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "TRITON_INTERPRET": "1",
    "PYTHONOPTIMIZE": "2",
    "PYTHONWARNINGS": "error",
}


def test_variables_are_named_with_value_and_effect(tmp_path):
    (tmp_path / "tilelang").mkdir()
    environ = {
        "TILELANG_DEFAULT_TARGET": "hip",
        "CUDA_VISIBLE_DEVICES": "1",
        "TILELANG_SOMETHING_NEW": "x" * 60,
        "TL_TEMPLATE_PATH": "/mine",
        "PYTHONPATH": f"/somewhere:{tmp_path}",
        "HOME": "/root",
    }
    where = environment.cut(str(tmp_path), 30)
    assert variables(environ) == [
        "CUDA_VISIBLE_DEVICES=1: which GPUs are seen",
        f"PYTHONPATH={where}: torch or tilelang is taken from there {PASSED_ON}",
        f"TILELANG_DEFAULT_TARGET=hip: what every kernel is compiled for {LEFT_OUT}",
        f"TILELANG_SOMETHING_NEW={'x' * 27}...: a setting of TileLang's {LEFT_OUT}",
        f"TL_TEMPLATE_PATH=/mine: where TileLang's headers come from {PASSED_ON}",
    ]
    assert variables({"PYTHONPATH": "/somewhere"}) == []


@pytest.mark.parametrize("name", [
    *HOSTILE, "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "TILELANG_DISABLE_CACHE",
    "TILELANG_AUTO_TUNING_DISABLE_CACHE", "CUDA_DISABLE_PTX_JIT", "CUBLAS_WORKSPACE_CONFIG",
    "TORCH_BLAS_PREFER_CUBLASLT", "TORCHINDUCTOR_MAX_AUTOTUNE", "TORCH_COMPILE_DEBUG",
])
def test_what_would_change_a_verdict_or_a_number_is_left_out(name):
    assert neutralised({name: "1", "HOME": "/root"}) == {"HOME": "/root"}
    (line,) = variables({name: "1"})
    assert line.startswith(f"{name}=1: ") and line.endswith(LEFT_OUT)


@pytest.mark.parametrize("name", [*NAMED, *TOLD])
def test_what_the_user_wishes_is_passed_on_and_told(name):
    assert neutralised({name: "/1"}) == {name: "/1"}
    (line,) = variables({name: "/1"})
    assert line.endswith(PASSED_ON) == (name in TOLD)


def test_no_variable_of_the_installed_tilelang_is_overlooked():
    """All that its env.py declares: left out, or one of these, the user's wish."""
    from tilelang.env import Environment, EnvVar

    known = {entry.key for entry in vars(Environment).values() if isinstance(entry, EnvVar)}
    assert len(known) > 20
    assert {name for name in known if not left_out(name)} == {
        "TILELANG_CACHE_DIR", "TL_TEMPLATE_PATH", "TL_CUTLASS_PATH", "TVM_LIBRARY_PATH",
        "TVM_IMPORT_PYTHON_PATH", "TILELANG_AUTO_TUNING_CPU_UTILITIES",
        "TILELANG_AUTO_TUNING_CPU_COUNTS", "TILELANG_AUTO_TUNING_MAX_CPU_COUNT",
    } <= {*NAMED, *TOLD}


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_is_the_user_s_wherever_the_worker_lives(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    assert neutralised({name: "mine"}) == {name: str(tmp_path / "mine")}
    assert neutralised({name: "~/mine"}) == {name: "/home/me/mine"}
    assert neutralised({name: ""}) == {}


# The command

SHORT = ("--only", "vector_add,debugging", "--quick", "--device", "cpu")


def tour(folder, *arguments: str, **bent: str) -> tuple[str, dict]:
    """Run the tour with these variables, and nothing else that could bend it: text and results."""
    clean = {name: value for name, value in os.environ.items()
             if not left_out(name) and name not in TOLD}
    done = subprocess.run(
        [sys.executable, ROOT / "tilelang_tour.py", *(arguments or SHORT), "--results", "it.json"],
        cwd=folder, env=clean | bent, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=300,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout, json.loads((folder / "it.json").read_text())


def told_of(results: dict) -> list:
    """What a run found out: all but its times."""
    return [(row["name"], row["status"], row["checks"]) for row in results["sections"]]


def test_a_tour_under_hostile_variables_finds_the_same(tmp_path):
    straight, results = tour(tmp_path)
    bent, others = tour(tmp_path, **HOSTILE)
    assert told_of(others) == told_of(results)
    notes = [line for line in bent.splitlines() if line.endswith(LEFT_OUT)]
    assert [note.removeprefix("note: ").partition("=")[0] for note in notes] == sorted(HOSTILE)
    assert LEFT_OUT not in straight


def test_a_cache_named_by_a_relative_path_is_in_the_user_s_folder(tmp_path):
    tour(tmp_path, "--only", "vector_add", "--quick", "--device", "cpu",
         TILELANG_CACHE_DIR="kernels")
    assert list((tmp_path / "kernels").rglob("*.so"))


# Float32 products on a GPU: TF32 keeps 10 of 23 bits.
ERROR = """
import torch
a, b = (torch.randn(512, 512, device="cuda") for _ in range(2))
exact = a.double() @ b.double()
print(float((a @ b - exact).norm() / exact.norm()))
"""


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"])
def test_a_baseline_in_float32_stays_float32(name):
    """The variable really bends torch, and does not get through to it."""
    def error(environ) -> float:
        done = subprocess.run([sys.executable, "-c", ERROR], env=environ, capture_output=True,
                              text=True, check=True, timeout=120)
        return float(done.stdout)

    bent = {**os.environ, name: "1"}
    assert error(neutralised(bent)) < 1e-5 < 1e-4 < error(bent)


@pytest.mark.gpu
def test_a_tour_on_a_gpu_under_hostile_variables_finds_the_same(tmp_path):
    arguments = ("--only", "vector_add,gemm", "--quick", "--device", "cuda")
    results, bent = (tour(tmp_path, *arguments, **given)[1] for given in ({}, HOSTILE))
    assert told_of(bent) == told_of(results)
    for row, other in zip(results["sections"], bent["sections"], strict=True):
        for here, there in zip(row["measurements"], other["measurements"], strict=True):
            assert (here["case"], here["variant"]) == (there["case"], there["variant"])
            assert there["ms"] == pytest.approx(here["ms"], rel=0.25)
