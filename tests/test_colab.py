"""Colab as its maintainers published it in August 2026: nothing that is there gives way to what the
tour installs, its CUDA 12.8 takes every kernel, and two cores are not kept busy for too long.

The packages: real pip and the real index, nothing is installed. In place of Colab's packages pip is
offered wheels that only bear their names and versions, so that none of them is downloaded.

The kernels are what the sections themselves ask to build on Colab's GPUs, whose facts are stubbed.
"""

import dataclasses
import importlib
import json
import math
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from sections import ORDER, hopper
from sections.common import ahead, codegen, smoke
from sections.common.device import select
from sections.runner.environment import TESTED, release
from tests import nvrtc
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


# Kernels

GPUS = {  # capability, shared memory in KB, free memory in GB, cores of the machine
    "T4": ((7, 5), 64, 15.6, 2),
    "L4": ((8, 9), 99, 23.4, 12),
    "A100": ((8, 0), 163, 42.0, 12),
}
SIZES = {"M", "N", "K", "B", "H", "Sq", "Skv", "D"}
KINDS = ("dtype", "causal", "tanh")  # arguments that make another kernel of a kernel


@dataclasses.dataclass(frozen=True)
class Job:
    """A kernel that a section asks for, and what it is compiled for."""

    section: str
    kernel: object
    arguments: dict
    arch: str
    target: str

    @property
    def kind(self) -> tuple:
        name = self.kernel.func.orig_func.__name__
        return self.section, name, *(str(self.arguments.get(kind)) for kind in KINDS)

    @property
    def volume(self) -> int:
        return math.prod(self.arguments[name] for name in SIZES & self.arguments.keys())

    @property
    def program(self) -> str:
        """The same for jobs that come to one program."""
        defaults = {name: parameter.default
                    for name, parameter in self.kernel.signature.parameters.items()}
        everything = {**defaults, **self.arguments}
        return repr((id(self.kernel.func.orig_func), self.kernel.pass_configs, self.target,
                     sorted((name, str(value)) for name, value in everything.items())))


@pytest.fixture
def jobs_on(monkeypatch):
    """What the tour compiles on a GPU, and what it only reads: two lists of jobs."""
    def gather(capability, shared_kb, free_gb, cores, arch=None, quick=False):
        facts = SimpleNamespace(
            name="a GPU", major=capability[0], minor=capability[1], multi_processor_count=40,
            shared_memory_per_block_optin=shared_kb * 1024)
        monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(cores)))
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: facts)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (int(free_gb * 1e9), 0))
        device = select("auto", arch)
        compiled = [Job("smoke", smoke.add_one, {"N": 32}, device.arch, str(device.target))]
        read = []
        for section in ORDER:
            wanted, shown = ahead._wanted(device, f"sections.{section}", quick)[:2]
            assert wanted, f"{section} asked for nothing"
            for kernel, arguments, *other in wanted:
                where = other[0] if other else device
                compiled.append(Job(section, kernel, arguments, where.arch, str(where.target)))
            for kernel, arguments, *other in shown:
                name = other[0] if other else device.arch
                read.append(Job(section, kernel, arguments, name, name))
        return compiled, read
    return gather


def refused(jobs) -> list[str]:
    """What Colab's CUDA says to the jobs that it does not take."""
    found, seen = [], set()
    for job in jobs:
        try:
            code = codegen.generate(job.kernel, job.arch, **job.arguments)
        except TypeError as error:  # what TileLang itself cannot compile
            found.append(f"{job}: {error}")
            continue
        if code not in seen:
            seen.add(code)
            try:
                assert nvrtc.cubin(code).startswith(b"\x7fELF")
            except nvrtc.Refused as error:
                found.append(f"{job}: {error}")
    return found


@pytest.mark.parametrize("gpu", GPUS)
def test_its_cuda_takes_one_kernel_of_each_kind(jobs_on, gpu):
    """The largest of each kind, and of those the last, which is the best row of a ladder."""
    compiled, _ = jobs_on(*GPUS[gpu])
    chosen = {}
    for job in compiled:
        if job.kind not in chosen or job.volume >= chosen[job.kind].volume:
            chosen[job.kind] = job
    assert {kind[0] for kind in chosen} == {"smoke", *ORDER} and len(chosen) >= 14
    assert refused(chosen.values()) == []


def forget_sections(monkeypatch) -> None:
    """Have the sections imported anew, for as long as the test runs."""
    names = [*ORDER, *(f"hopper.{module.name}" for module in pkgutil.iter_modules(hopper.__path__))]
    modules = [importlib.import_module(f"sections.{name}") for name in names]
    for package, _, name in (module.__name__.rpartition(".") for module in modules):
        monkeypatch.delattr(sys.modules[package], name)
        monkeypatch.delitem(sys.modules, f"{package}.{name}")


def names_bfloat16(job: Job) -> bool:
    """Whether a job's program has bfloat16 anywhere."""
    return "bfloat16" in codegen.trace(job.kernel, {"kind": "cuda", "arch": job.arch},
                                       job.arguments).text


def test_a_t4_that_claims_bfloat16_is_given_none(jobs_on, monkeypatch):
    """torch says so of a GPU that only emulates it; its compute capability, 7.5, is what counts."""
    forget_sections(monkeypatch)  # a choice may be made while a module is imported
    monkeypatch.setattr(torch.cuda, "is_bf16_supported",
                        lambda including_emulation=True: including_emulation)
    compiled, read = jobs_on(*GPUS["T4"])
    assert torch.cuda.is_bf16_supported() and torch.cuda.get_device_capability() == (7, 5)
    here = [job for job in [*compiled, *read] if job.arch == "sm_75"]
    assert {job.section for job in here} == {"smoke", *ORDER}
    one_of_each_kind = {job.kind: job for job in here}.values()
    assert [job for job in one_of_each_kind if names_bfloat16(job)] == []
    gemm = next(job for job in here if job.section == "gemm")
    claimed = dataclasses.replace(gemm, arguments={**gemm.arguments, "dtype": "bfloat16"})
    assert names_bfloat16(claimed), "it is seen where it is used"


@pytest.mark.slow
@pytest.mark.parametrize("quick", [True, False], ids=["quick", "whole"])
@pytest.mark.parametrize("gpu", GPUS)
def test_its_cuda_takes_every_kernel(jobs_on, gpu, quick):
    compiled, read = jobs_on(*GPUS[gpu], quick=quick)
    assert refused([*compiled, *read]) == []


def test_its_cuda_says_what_it_does_not_take():
    code = codegen.generate(smoke.add_one, "sm_75", N=32)
    assert nvrtc.cubin(code).startswith(b"\x7fELF")
    wrong = dataclasses.replace(code, source=f"{code.source}\nnonsense here;")
    with pytest.raises(nvrtc.Refused, match=r'(?s)add_one.* sm_75: .*"nonsense" is undefined'):
        nvrtc.cubin(wrong)
    with pytest.raises(ImportError, match="type: pip install nvidia-cuda-nvrtc-cu12==12.8.93 "):
        nvrtc.folder("nvidia.cuda_nothing")


@pytest.mark.parametrize("gpu, arch, quick, most", [
    (GPUS["T4"], None, False, 46), (GPUS["T4"], None, True, 24),  # about 45, 8 of them to tune
    (((9, 0), 227, 140.0, 2), "sm_75", False, 48), (((9, 0), 227, 140.0, 2), "sm_75", True, 24),
    (GPUS["L4"], None, False, 60), (GPUS["A100"], None, False, 60),
], ids=["T4", "T4 quick", "its code on an H200", "its code on an H200, quick", "L4", "A100"])
def test_cores_are_not_kept_busy_for_too_long(jobs_on, gpu, arch, quick, most):
    compiled, _ = jobs_on(*gpu, arch=arch, quick=quick)
    assert len({job.program for job in compiled}) <= most
    assert len({job.program for job in compiled if job.section == "flash_attention"}) <= 10
