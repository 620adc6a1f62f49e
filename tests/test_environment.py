"""What the tour says about machines: each problem in the words a learner reads."""

import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from sections.runner import environment, installed
from sections.runner.check import HEIGHT, WIDTH, report
from sections.runner.environment import (
    Probe,
    cplus_compiler,
    cuda_home,
    gpu_of,
    machine_facts,
    release,
)
from sections.runner.problems import Problem, obstacle, problems, within
from tests import made_facts
from tests.made_facts import H200, T4, V100, facts, failing, gpu_facts, probe


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    """The variables of whoever runs the tests say nothing about a stubbed machine."""
    monkeypatch.chdir(installed.ROOT)
    for name in ("CUDA_VISIBLE_DEVICES", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)


def lines(known, found) -> list[str]:
    return [str(problem) for problem in problems(known, found)]


# The probe


def test_a_probe_is_usable_when_all_steps_are_done():
    assert probe().usable and probe().cause == ""
    assert not probe("tilelang").usable
    assert probe("tilelang").culprit == "kernel"


@pytest.mark.parametrize(
    "found, cause",
    [
        (
            failing(probe("nothing"), "ModuleNotFoundError: No module named 'torch'"),
            "torch is not installed",
        ),
        (
            failing(probe("device"), "ModuleNotFoundError: No module named 'tilelang'"),
            "tilelang is not installed",
        ),
        (
            failing(probe("device"), "ModuleNotFoundError: No module named 'z3'"),
            "tilelang cannot be imported: ModuleNotFoundError: No module named 'z3'",
        ),
        (
            failing(probe("device"), died="killed by SIGABRT"),
            "tilelang cannot be imported: killed by SIGABRT",
        ),
        (
            failing(probe("tilelang"), "AttributeError: no build"),
            "tilelang imports but cannot compile and run a kernel: AttributeError: no build",
        ),
        (
            failing(probe("torch"), "DeviceError: no GPU"),
            "there is no device to run on: no GPU",
        ),
        (
            Probe(died="killed by SIGKILL", output="one\nno memory left\n"),
            "no section can be run, their process did not come up: killed by SIGKILL: "
            "no memory left",
        ),
    ],
)
def test_the_last_step_seen_names_the_culprit(found, cause):
    assert found.cause == cause


def test_an_old_tilelang_is_not_usable_on_a_t4_alone():
    t4, h200 = probe(mode="gpu", arch="sm_75"), probe(mode="gpu", arch="sm_90a")
    for found in (t4, h200):
        found.done["tilelang"]["version"] = "0.1.12"
    assert not t4.usable and h200.usable
    assert lines(gpu_facts(T4), t4) == [
        "tilelang 0.1.15 on Tesla T4 (sm_75); needed: tilelang 0.1.13 or newer; "
        "type: python -m pip install tilelang==0.1.15"
    ]


# Problems


def test_a_healthy_machine_has_none():
    assert lines(facts(), probe()) == []
    assert lines(gpu_facts(), probe(mode="gpu")) == []
    assert lines(gpu_facts(T4, "12.8"), probe(mode="gpu", arch="sm_75")) == []


def test_a_driver_too_old_is_not_a_missing_gpu():
    warning = "CUDA initialization: The NVIDIA driver on your system is too old (found 12020)."
    unseen = {"version": "2.11.0+cu130", "cuda_built": "13.0", "cuda_warning": warning}
    known = gpu_facts({**T4, "driver": "535.104.05"}, "12.2")
    assert lines(known, probe(**unseen)) == [
        "driver 535.104.05 (CUDA 12.2) is too old for torch 2.11.0+cu130, built for CUDA 13.0; "
        "needed: driver 580 or newer, or a torch for this driver; "
        "type: python -m pip install --force-reinstall torch "
        "--index-url https://download.pytorch.org/whl/cu126"
    ]
    assert "no CUDA device" not in report(known, probe(**unseen), [])


def test_a_torch_without_cuda_leaves_a_gpu_idle():
    assert lines(gpu_facts(H200), probe()) == [
        "torch 2.13.0+cpu is built without CUDA, NVIDIA H200 stands idle; needed: CUDA; "
        "type: python -m pip install --force-reinstall torch "
        "--index-url https://download.pytorch.org/whl/cu130"
    ]


def test_a_gpu_that_is_hidden(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert lines(gpu_facts(), probe(cuda_built="12.8", version="2.11.0+cu128")) == [
        "CUDA_VISIBLE_DEVICES=-1 hides NVIDIA H200; needed: a GPU; type: unset CUDA_VISIBLE_DEVICES"
    ]


def test_a_gpu_that_torch_cannot_use_for_its_own_reasons():
    found = probe(cuda_built="12.8", version="2.11.0+cu128", cuda_warning="unknown error 999")
    assert lines(gpu_facts(), found) == [
        "torch 2.11.0+cu128 cannot use NVIDIA H200: unknown error 999; "
        "needed: a driver that works; type: nvidia-smi, then restart this machine"
    ]


def test_a_v100_is_offered_the_rehearsal():
    known = gpu_facts(V100, nvcc_version="13.0.88")
    assert lines(known, probe(cuda_available=True)) == [
        "Tesla V100-SXM2-16GB is sm_70; needed: sm_75 or newer (T4, RTX 20 and on) for the GPU "
        "modes; the CPU rehearsal runs; type: python tilelang_tour.py --device cpu"
    ]
    assert "mode       CPU rehearsal, CUDA code for sm_90a: the GPU is older than sm_75" in report(
        known, probe(cuda_available=True), []
    )


NO_NVCC = {"cuda_home": "", "cuda_home_from": "", "nvcc": "", "nvcc_version": None}


def test_no_nvcc():
    (rehearsing,) = problems(facts(**NO_NVCC), probe())
    assert not rehearsing.blocks
    assert str(rehearsing) == (
        "no nvcc: registers are left out, all else runs; needed: nvcc 12.0 or newer; "
        "type: python -m pip install 'tilelang[nvcc]'"
    )
    (on_gpu,) = problems(gpu_facts(**NO_NVCC), failing(probe("tilelang", "gpu"), "Error: x"))
    assert on_gpu.blocks
    assert str(on_gpu) == (
        "no nvcc: no GPU kernel can be compiled; needed: nvcc 12.0 or newer; "
        "type: python -m pip install 'tilelang[nvcc]', or python tilelang_tour.py --device cpu"
    )


def test_an_old_nvcc():
    known = gpu_facts(T4, "12.4", nvcc_version="11.8.89")
    (problem,) = problems(known, failing(probe("tilelang", "gpu", "sm_75"), "Error: c++20"))
    assert problem.blocks
    assert str(problem) == (
        "nvcc 11.8.89 in /usr/local/cuda: no GPU kernel can be compiled; "
        "needed: nvcc 12.0 or newer; type: conda install -c nvidia cuda-toolkit=12.4, "
        "or python tilelang_tour.py --device cpu"
    )
    assert not problems(facts(nvcc_version="11.8.89"), probe())[0].blocks


def test_an_nvcc_too_old_for_a_newer_gpu_and_one_too_new_for_the_driver():
    blackwell = probe(mode="gpu", arch="sm_120a")
    (problem,) = problems(gpu_facts(nvcc_version="12.4.1"), blackwell)
    assert "needed: nvcc 12.8 or newer for sm_120a" in str(problem)
    known = gpu_facts({**T4, "driver": "550.54"}, "12.4", nvcc_version="13.0.88")
    assert lines(known, probe(mode="gpu", arch="sm_75")) == [
        "nvcc 13.0.88 is newer than driver 550.54, which runs CUDA 12.4; "
        "needed: nvcc 12, or driver 580 or newer; type: export CUDA_HOME=/usr/local/cuda-12"
    ]


def test_an_nvcc_too_new_for_the_driver_is_no_broken_tilelang():
    known = gpu_facts({**T4, "driver": "550.54"}, "12.4", nvcc_version="13.0.88")
    found = failing(probe("tilelang", "gpu", "sm_75"), "RuntimeError: CUDA: invalid device image")
    assert obstacle(known, found).found.startswith("nvcc 13.0.88 is newer than driver 550.54")
    assert len(problems(known, found)) == 1


def test_an_nvcc_older_than_torchs_cuda_or_of_a_later_minor_version_than_the_driver_is_fine():
    torch = {"version": "2.11.0+cu130", "cuda_built": "13.0"}
    assert lines(gpu_facts(nvcc_version="12.8.93"), probe(mode="gpu", **torch)) == []
    known = gpu_facts(T4, "12.4", nvcc_version="12.8.93")
    assert lines(known, probe(mode="gpu", arch="sm_75")) == []


@pytest.mark.parametrize("colab, command", [
    (True, "%env LD_LIBRARY_PATH=/usr/lib64-nvidia"),
    (False, "export LD_LIBRARY_PATH=/usr/lib64-nvidia:$LD_LIBRARY_PATH"),
])
def test_a_libcuda_that_the_loader_does_not_find(colab, command):
    known = gpu_facts(T4, None, libcuda="/usr/lib64-nvidia", colab=colab)
    found = probe(cuda_built="12.8", version="2.11.0+cu128", cuda_warning="no NVIDIA driver")
    assert lines(known, found) == [
        "torch 2.11.0+cu128 does not see Tesla T4: libcuda.so.1 is in /usr/lib64-nvidia, where "
        f"nobody looks for it; needed: that folder on LD_LIBRARY_PATH; type: {command}"
    ]


def test_the_driver_s_library_is_looked_for_where_it_is_not_found(tmp_path, monkeypatch):
    program(tmp_path, "nvidia-smi", "Tesla T4, 550.54, 15360, 7.5")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(environment, "LIBCUDA_FOLDERS", (str(tmp_path / "no"), str(tmp_path)))
    monkeypatch.setattr(environment, "driver_cuda", lambda: None)
    assert environment.nvidia()["libcuda"] is None
    (tmp_path / "libcuda.so.1").touch()
    assert environment.nvidia()["libcuda"] == str(tmp_path)
    monkeypatch.setattr(environment, "driver_cuda", lambda: "12.4")
    assert environment.nvidia()["libcuda"] is None


def test_a_cuda_home_that_points_nowhere():
    known = facts(cuda_home="/nope", cuda_home_from="CUDA_HOME", nvcc_version=None)
    assert lines(known, probe()) == [
        "CUDA_HOME=/nope has no nvcc, and TileLang looks nowhere else: registers are left out, "
        "all else runs; needed: nvcc 12.0 or newer; type: unset CUDA_HOME"
    ]


def test_no_cplus_compiler():
    none = facts(compiler="", compiler_from="", compiler_version=None)
    found = failing(probe("tilelang"), "TypeError: expected str, not NoneType")
    (problem,) = problems(none, found)
    assert problem.blocks
    assert str(problem) == (
        "no C++ compiler: no kernel can be compiled, for a GPU or for the CPU; "
        "needed: g++ or clang++; type: apt-get install -y g++"
    )
    wrong = facts(compiler="/nope/g++", compiler_from="CXX", compiler_version=None)
    assert lines(wrong, found) == [
        "CXX=/nope/g++ does not run: no kernel can be compiled, for a GPU or for the CPU; "
        "needed: a C++ compiler; type: unset CXX"
    ]
    old = gpu_facts(compiler_version="9.4.0")
    assert problems(old, probe(mode="gpu"))[0].found == (
        "g++ 9.4.0 knows no C++20: no GPU kernel can be compiled"
    )
    assert lines(facts(compiler_version="9.4.0"), probe()) == []


def test_a_missing_torch_is_not_a_missing_tilelang():
    no_torch = failing(probe("nothing"), "ModuleNotFoundError: No module named 'torch'")
    assert lines(facts(versions={}), no_torch) == [
        "torch is not installed; needed: torch, tilelang, numpy and tabulate; "
        "type: python -m pip install -r requirements.txt "
        "--extra-index-url https://download.pytorch.org/whl/cpu"
    ]
    no_tilelang = failing(probe("device"), "ModuleNotFoundError: No module named 'tilelang'")
    without = {"torch": "2.13.0+cpu", "numpy": "2.1.3"}
    assert lines(facts(versions=without), no_tilelang) == [
        "tilelang is not installed; needed: tilelang 0.1.13 or newer, tested with 0.1.15; "
        "type: python -m pip install tilelang==0.1.15"
    ]


def test_a_broken_torch_is_left_to_its_owner():
    found = failing(probe("nothing"), "OSError: libcudart.so.13: cannot open shared object file")
    problem = obstacle(facts(), found)
    assert problem.blocks
    assert str(problem) == (
        "torch 2.13.0+cpu cannot be imported: OSError: libcudart.so.13: cannot open shared object "
        "file; needed: a torch that imports; "
        "type: python -m pip install --force-reinstall torch==2.13.0+cpu "
        "--index-url https://download.pytorch.org/whl/cpu"
    )


def test_an_aborting_tilelang_names_the_usual_culprit():
    found = failing(probe("device"), died="killed by SIGABRT")
    wrong = {**facts()["versions"], "apache-tvm-ffi": "0.1.13"}
    assert lines(facts(versions=wrong), found) == [
        "importing tilelang 0.1.15 ends the process (killed by SIGABRT), usually the fault of "
        "apache-tvm-ffi, here 0.1.13; needed: apache-tvm-ffi<0.1.13,>=0.1.11; "
        "type: python -m pip install tilelang==0.1.15"
    ]
    assert problems(facts(), found)[0].type_this == (
        "python -m pip install --force-reinstall --no-deps tilelang==0.1.15 apache-tvm-ffi==0.1.12"
    )


def test_an_exception_at_import_is_told_though_the_process_ended_after_it():
    found = failing(probe("device"), "AttributeError: no x", died="ended with code 0")
    assert lines(facts(), found)[0].startswith(
        "tilelang 0.1.15 cannot be imported: AttributeError: no x; needed: a tilelang that imports"
    )
    wrong = {**facts()["versions"], "apache-tvm-ffi": "0.1.6"}
    assert lines(facts(versions=wrong), found) == [
        "tilelang 0.1.15 cannot be imported: AttributeError: no x; "
        "needed: apache-tvm-ffi<0.1.13,>=0.1.11, here 0.1.6; "
        "type: python -m pip install tilelang==0.1.15"
    ]


def test_commands_name_files_as_seen_from_here(monkeypatch, tmp_path):
    no_torch = failing(probe("nothing"), "ModuleNotFoundError: No module named 'torch'")
    monkeypatch.chdir(tmp_path)
    assert problems(facts(versions={}, driver="580.159"), no_torch)[0].type_this == (
        f"python -m pip install -r {installed.ROOT}/requirements.txt"
    )


def test_a_tilelang_that_imports_but_cannot_compile():
    found = failing(probe("tilelang"), "AttributeError: module 'tvm' has no attribute 'build'")
    (line,) = lines(facts(), found)
    assert line.startswith(
        "tilelang 0.1.15 imports but cannot compile and run a kernel: AttributeError: module 'tvm' "
        "has no attribute 'build'; needed: a kernel that runs; type: python -m pip install "
    )


def test_a_device_that_was_refused():
    refused = "--arch sm_89 is newer than this GPU; needed: one of sm_75, sm_80; type: python x.py"
    problem = obstacle(facts(), failing(probe("torch"), f"DeviceError: {refused}"))
    assert problem.blocks
    assert str(problem) == refused


def test_a_worker_that_never_spoke_says_nothing_about_torch():
    found = Probe(died="ended with code 1", output="ModuleNotFoundError: No module named 'x'\n")
    problem = obstacle(facts(), found)
    assert problem.blocks
    assert str(problem) == (
        f"{found.cause}; needed: a Python that can import the tour's own files; type: python -c "
        f"'import sys; sys.path.append('\"'\"'{installed.ROOT}'\"'\"'); import sections.worker'"
    )
    screen = report(facts(), found, problems(facts(), found)).splitlines()
    assert "torch      2.13.0+cpu, not tried" in screen and "kernel     not tried" in screen
    assert "cannot be imported" not in " ".join(screen)
    assert screen[-2].startswith("mode       none: no section can be run, their process did not")


def test_a_local_file_that_hides_a_package(monkeypatch):
    known = facts(shadows={"tilelang": "/home/me/tilelang.py"})
    found = failing(probe("tilelang"), "AttributeError: module 'tilelang' has no attribute 'jit'")
    assert lines(known, found) == [
        "tilelang is taken from /home/me/tilelang.py, which belongs to no installed package; "
        "needed: the installed tilelang; type: mv /home/me/tilelang.py /home/me/tilelang.py.away"
    ]
    monkeypatch.setenv("PYTHONPATH", "/home/me")
    assert lines(known, found)[0].endswith("type: unset PYTHONPATH")
    torch = facts(shadows={"torch": "/home/me/torch/__init__.py"})
    problem = obstacle(torch, failing(probe("nothing"), "ImportError: x"))
    assert problem.blocks
    assert str(problem) == (
        "torch is taken from /home/me/torch/__init__.py, which belongs to no installed package, "
        "and fails: ImportError: x; needed: the installed torch; type: unset PYTHONPATH"
    )


@pytest.mark.parametrize(
    "change, text",
    [
        (
            {"python": "3.9.18"},
            "Python 3.9.18; needed: Python 3.10 or newer; type: python3.12 tilelang_tour.py",
        ),
        (
            {"system": "Darwin", "os": "macOS"},
            "macOS has no GPU mode; needed: Linux or WSL; here the CPU rehearsal runs, if TileLang "
            "has a wheel for it; type: python tilelang_tour.py --device cpu",
        ),
        (
            {"glibc": "2.17", "os": "CentOS Linux 7"},
            "CentOS Linux 7 with glibc 2.17; needed: glibc 2.28 or newer, for TileLang's wheel; "
            "type: docker run -it python:3.12 bash",
        ),
        ({"glibc": None, "os": "Alpine Linux v3.20"}, "Alpine Linux v3.20 with no glibc; needed: "),
        (
            {"cache_refusal": "Permission denied"},
            "TileLang's cache /home/me/.tilelang/cache cannot be written (Permission denied): what "
            "is compiled is not kept for the next tour; needed: a folder for compiled kernels; "
            "type: export TILELANG_CACHE_DIR=/tmp/tilelang-cache",
        ),
        ({"cache_free": 2e8}, "0.2 GB free at /home/me/.tilelang/cache; needed: 1 GB for "),
        (
            {"gpu_note": "nvidia-smi: Failed to initialize NVML: Driver/library version mismatch"},
            "nvidia-smi: Failed to initialize NVML: Driver/library version mismatch; needed: an ",
        ),
    ],
)
def test_other_problems_with_the_place(change, text):
    (line,) = lines(facts(**change), probe())
    assert line.startswith(text)


def test_what_blocks_comes_first():
    known = gpu_facts(**NO_NVCC, cache_refusal="No space left on device", glibc="2.17")
    found = problems(known, failing(probe("tilelang", "gpu"), "Error: x"))
    assert [problem.blocks for problem in found] == [True, False, False]
    assert obstacle(known, failing(probe("tilelang", "gpu"), "Error: x")).blocks


def test_versions_and_specifiers():
    assert release("2.11.0+cu130") == (2, 11, 0) and release("none") == ()
    assert within("0.1.12", "<0.1.13,>=0.1.11")
    assert not within("0.1.13", "<0.1.13,>=0.1.11")
    assert not within("0.1.9", ">=0.1.11") and within("9", "")
    assert within("1.2", "!=1.3,==1.2,<=1.2") and not within("1.3", ">1.3")


# Facts


def test_nvidia_smi_lines():
    assert gpu_of("NVIDIA H200, 580.159, 143771, 9.0") == H200
    assert gpu_of("NVIDIA GH200 480GB, 580.1, [N/A], 9.0")["memory_bytes"] == 0
    assert gpu_of("NVIDIA-SMI has failed because it couldn't talk, with, the, driver") is None
    assert gpu_of("No devices were found") is None


def program(folder: Path, name: str, prints: str, code: int = 0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{prints}'\nexit {code}\n")
    path.chmod(0o755)
    return path


def test_nvidia_smi_is_asked(tmp_path, monkeypatch):
    program(tmp_path, "nvidia-smi", "Tesla T4, 550.54, 15360, 7.5")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = environment.nvidia()
    assert found["gpus"] == [{**T4, "driver": "550.54"}]
    assert found["driver"] == "550.54" and found["gpu_note"] == ""
    program(tmp_path, "nvidia-smi", "NVIDIA-SMI has failed", code=9)
    found = environment.nvidia()
    assert found["gpus"] == [] and found["gpu_note"] == "nvidia-smi: NVIDIA-SMI has failed"


def test_cuda_home_follows_tilelangs_rules(tmp_path):
    nowhere = {"PATH": str(tmp_path / "empty")}
    assert cuda_home({**nowhere, "CUDA_HOME": "/nope"}, "/package") == ("/nope", "CUDA_HOME")
    assert cuda_home({**nowhere, "CUDA_PATH": "/nope"}, "/package") == ("/nope", "CUDA_PATH")
    program(tmp_path / "toolkit" / "bin", "nvcc", "")
    on_path = {"PATH": str(tmp_path / "toolkit" / "bin"), "CUDA_HOME": ""}
    assert cuda_home(on_path, "/package") == (str(tmp_path / "toolkit"), "PATH")
    (tmp_path / "shim" / "bin").mkdir(parents=True)
    (tmp_path / "shim" / "bin" / "nvcc").symlink_to(tmp_path / "toolkit" / "bin" / "nvcc")
    through_link = {"PATH": str(tmp_path / "shim" / "bin")}
    assert cuda_home(through_link, None) == (str(tmp_path / "toolkit"), "PATH")
    assert cuda_home(nowhere, "/package") == ("/package", "the nvidia-cuda-nvcc package")


def test_cuda_home_agrees_with_the_installed_tilelang():
    """A fact the tour leans on: TileLang's rules are those written down here."""
    code = "from tilelang.env import _find_cuda_home; print('home=' + _find_cuda_home())"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True
    )
    package = installed.installed()["nvcc_package"]
    assert f"home={cuda_home(os.environ, package)[0]}" in done.stdout.splitlines()


def test_the_compiler_follows_tilelangs_rules(tmp_path):
    clang = program(tmp_path, "clang++", "")
    assert cplus_compiler({"PATH": str(tmp_path), "CXX": "/nope"}) == ("/nope", "CXX")
    assert cplus_compiler({"PATH": str(tmp_path), "CC": "gcc"}) == ("gcc", "CC")
    assert cplus_compiler({"PATH": str(tmp_path)}) == (str(clang), "PATH")
    gxx = program(tmp_path, "g++", "")
    assert cplus_compiler({"PATH": str(tmp_path)}) == (str(gxx), "PATH")
    assert cplus_compiler({"PATH": "/nope"}) == ("", "")


@pytest.mark.parametrize(
    "says, version",
    [
        ("g++ (Ubuntu 11.4.0-1ubuntu1~22.04) 11.4.0", "11.4.0"),
        ("Ubuntu clang version 14.0.0-1ubuntu1.1", "14.0.0"),
        ("x86_64-conda-linux-gnu-c++ (conda-forge gcc 13.2.0-7) 13.2.0", "13.2.0"),
        ("some other compiler", "unknown"),
    ],
)
def test_compilers_tell_their_version(tmp_path, monkeypatch, says, version):
    program(tmp_path, "g++", says)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("CC", raising=False)
    assert machine_facts()["compiler_version"] == version


def test_without_a_home_folder_there_is_no_cache_folder(monkeypatch):
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert environment.cache_folder({})["cache_refusal"] == "no home folder is known"


def test_a_cache_folder_that_cannot_be(tmp_path):
    (tmp_path / "file").write_text("")
    inside_a_file = {"TILELANG_CACHE_DIR": str(tmp_path / "file" / "cache")}
    assert environment.cache_folder(inside_a_file)["cache_refusal"] == "Not a directory"
    new = tmp_path / "new" / "cache"
    assert environment.cache_folder({"TILELANG_CACHE_DIR": str(new)})["cache_refusal"] == ""
    assert list(new.iterdir()) == []


def test_colab_is_recognised(monkeypatch):
    monkeypatch.setenv("COLAB_RELEASE_TAG", "release-colab_2026")
    known = machine_facts()
    assert known["colab"]
    screen = report(facts(colab=True), probe(), [])
    assert screen.splitlines()[-1] == (
        "mode       CPU rehearsal, CUDA code for sm_90a: no CUDA device "
        "(see Runtime > Change runtime type)"
    )
    assert "Runtime" not in report(facts(), probe(), [])


def test_python_is_named_as_it_is_typed(tmp_path, monkeypatch):
    mine = program(tmp_path, "python3", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert environment.python_command(str(mine)) == "python3"
    assert environment.python_command("/my env/bin/python") == "'/my env/bin/python'"


# The screen


def test_the_screen_of_a_gpu_machine():
    known = gpu_facts(variables=["CUDA_VISIBLE_DEVICES=1: which GPUs are seen"])
    found = probe(mode="gpu")
    assert report(known, found, problems(known, found)).splitlines() == [
        "What the TileLang tour finds here",
        "Python     3.13.5, /usr/bin/python3",
        "system     Ubuntu 22.04.5 LTS, x86_64, glibc 2.35",
        "GPU        NVIDIA H200, compute capability 9.0, 151 GB",
        "           in use: NVIDIA H200, 132 multiprocessors, 227 KB shared memory per block",
        "driver     580.159, runs CUDA 13.0",
        "torch      2.11.0+cu128, for CUDA 12.8, /usr/lib/python3/site-packages/torch/__init__.py",
        "numpy      2.1.3",
        "tilelang   0.1.15, /usr/lib/python3/site-packages/tilelang/__init__.py",
        "kernel     a tiny one compiled and ran in 1.1 s",
        "nvcc       12.8.93, /usr/local/cuda/bin/nvcc, from PATH",
        "C++        11.4.0, /usr/bin/g++, from PATH",
        "cache      /home/me/.tilelang/cache, 50 GB free",
        "variables  CUDA_VISIBLE_DEVICES=1: which GPUs are seen",
        "problems   none",
        "mode       GPU, sm_90a: torch sees NVIDIA H200",
    ]


def test_the_screen_when_tilelang_aborts():
    known, found = facts(), failing(probe("device"), died="killed by SIGABRT")
    screen = report(known, found, problems(known, found)).splitlines()
    assert "tilelang   0.1.15, cannot be imported: killed by SIGABRT" in screen
    assert "kernel     not tried" in screen
    assert any(line.startswith("problem 1  importing tilelang 0.1.15 ends the") for line in screen)
    assert screen[-1] == "mode       none: tilelang cannot be imported: killed by SIGABRT"


def test_the_other_modes_say_why():
    other = report(gpu_facts(), probe(mode="arch"), [])
    assert other.endswith("mode       the code path of sm_90a, on NVIDIA H200 (sm_90a), as asked")
    asked = report(gpu_facts(), probe(cuda_available=True), [])
    assert asked.endswith("mode       CPU rehearsal, CUDA code for sm_90a: as asked")


def fits(screen: str) -> bool:
    rows = screen.splitlines()
    return len(rows) <= HEIGHT and all(len(row) <= WIDTH and row.isascii() for row in rows)


def test_the_screen_fits_on_this_machine():
    known = machine_facts()
    for found in (probe(), failing(probe("device"), died="killed by SIGABRT"), Probe()):
        assert fits(report(known, found, problems(known, found)))


def test_the_screen_fits_with_all_problems_at_once():
    long = "/a/folder" * 30
    known = gpu_facts(
        {**V100, "name": "A GPU with a long name " * 6},
        python="3.9.1",
        glibc="2.17",
        executable=f"{long}/python",
        command=f"{long}/python",
        shadows={"torch": f"{long}/torch.py", "tilelang": f"{long}/tilelang/__init__.py"},
        cache=long,
        cache_refusal="Permission denied",
        nvcc_version=None,
        cuda_home=long,
        cuda_home_from="CUDA_HOME",
        compiler=long,
        compiler_from="CXX",
        compiler_version=None,
        variables=[f"TILELANG_{n}={'x' * 30}: {'word ' * 20}" for n in range(30)],
    )
    found = failing(probe("device"), "ImportError: " + "x" * 5000)
    everything = problems(known, found)
    assert len(everything) >= 6
    screen = report(known, found, everything)
    assert fits(screen)
    assert "           and 24 more" in screen
    many = [Problem(f"problem {n} " + "word " * 30, "x", "y") for n in range(40)]
    screen = report(known, found, many)
    assert fits(screen) and len(screen.splitlines()) == HEIGHT
    assert "(and more: mend these first, then look again)" in screen
    assert any(line.startswith("mode       none: ") for line in screen.splitlines()[-3:])


# The lookup


def test_what_is_installed_is_seen_with_the_worker_s_eyes(tmp_path, monkeypatch):
    found = installed.installed()
    assert {"torch", "numpy", "tilelang", "apache-tvm-ffi"} <= set(found["versions"])
    assert found["needs"]["apache-tvm-ffi"] and found["shadows"] == {}
    assert all(sign in "<>=!~,.0123456789" for sign in found["needs"]["apache-tvm-ffi"])
    (tmp_path / "tilelang.py").write_text("raise SystemExit('never imported')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert installed.installed()["shadows"] == {"tilelang": str(tmp_path / "tilelang.py")}
    monkeypatch.delenv("PYTHONPATH")
    monkeypatch.chdir(tmp_path)
    assert installed.installed()["shadows"] == {}


def test_a_python_that_does_not_answer_is_no_crash():
    assert installed.installed("/nowhere/python")["versions"] == {}


def test_importing_the_runner_s_part_takes_milliseconds(tmp_path):
    """No more than twice what two modules of the standard library take, some 30 ms."""
    code = (
        "import sys, time; sys.path.insert(0, sys.argv[1]); import sections; "
        "start = time.process_time(); import sections.runner.environment, "
        "sections.runner.problems, sections.runner.check; "
        "ours = time.process_time(); loaded = 'importlib.metadata' in sys.modules; "
        "import asyncio, http.client; "
        "print((ours - start) / (time.process_time() - ours), loaded)"
    )
    command = [sys.executable, "-c", code, str(installed.ROOT)]
    compiled = {**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path)}
    compiled.pop("PYTHONDONTWRITEBYTECODE", None)
    options = {"env": compiled, "capture_output": True, "text": True, "check": True}
    runs = [subprocess.run(command, **options).stdout.split() for _ in range(6)]
    assert statistics.median(float(ratio) for ratio, _ in runs[1:]) < 2
    assert {loaded for _, loaded in runs} == {"False"}


def test_stubbed_facts_are_the_facts_there_are():
    assert set(made_facts.facts()) == set(machine_facts())
