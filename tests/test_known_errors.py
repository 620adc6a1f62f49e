"""Each error that the runner explains is met for real: the text is TileLang's, nvcc's or CUDA's.

What a learner reads of it is what the worker makes of the exception, so that is what is looked up.
"""

import re
import subprocess
import sys

import pytest

from sections.common.errors import root_cause
from sections.course import Course
from sections.runner import known_errors
from sections.runner.arguments import Options
from sections.runner.installed import ROOT
from sections.runner.known_errors import KNOWN, explain
from sections.runner.screen import Screen
from sections.runner.summary import notes
from sections.runner.tour import Tour
from tests.command import Home

SIZES = {"M": 256, "N": 256, "K": 256}


def note_of(action) -> str:
    """The note that a section would get for what an action raises."""
    with pytest.raises(Exception) as raised:
        action()
    return root_cause(raised.value)


def known(says: str) -> str:
    """What the runner adds where an error says that."""
    (one,) = [entry for entry in KNOWN if says in entry.says]
    return f"That means: {one.meaning}. What helps: {one.remedy}."


# A kernel that TileLang refuses, for the architecture that is cheapest to lower where any will do.
REFUSED = {
    "No valid warp partition": ("gemm", "sm_90a", {**SIZES, "threads": 96}),
    "must be divisible by 16, but got": ("gemm", "sm_90a", {**SIZES, "block_M": 40}),
    "must be a multiple of micro_size_k": ("gemm", "sm_80", {**SIZES, "block_K": 24}),
    "T.gemm K shape check failed": (
        "forgets_to_transpose", "sm_90a", {"M": 64, "N": 64, "K": 32}),
    "Get different layout for": ("one_fragment_left_and_right", "sm_90a", {"N": 64}),
    "StructuralEqual()(it->second.indices, indices)": (
        "reads_its_neighbour", "sm_90a", {"N": 128}),
    "Layout infer conflict between": (
        "weighs_what_came_before", "sm_80", {"M": 256, "rows": False}),
    "Downcast from tirx.Sub to ir.IntImm": ("weighs_what_came_before", "sm_80", {"M": 256}),
    "Not all tensor allocated from `T.empty` are returned": (
        "keeps_its_output", "sm_90a", {"N": 128}),
    "Cannot find value for constexpr variable": ("gemm", "sm_90a", {"M": 256}),
    "module 'tilelang.language' has no attribute": ("misspells", "sm_90a", {"N": 128}),
}


@pytest.mark.parametrize("says", REFUSED)
def test_a_kernel_that_tilelang_refuses(says, rehearsal):
    from sections.common import codegen
    from tests import wrong_kernels

    name, arch, arguments = REFUSED[says]
    note = note_of(lambda: codegen.generate(getattr(wrong_kernels, name), arch, **arguments))
    assert says in note and explain(note) == known(says)


HELPED = {
    "threads": ("gemm", "sm_90a", {**SIZES, "threads": 256}),
    "block_K": ("gemm", "sm_80", {**SIZES, "block_K": 16}),
    "num_stages": ("weighs_what_came_before", "sm_80", {"M": 256, "num_stages": 1}),
}


@pytest.mark.parametrize("remedy", HELPED)
def test_what_is_said_to_help_helps(remedy, rehearsal):
    from sections.common import codegen
    from tests import wrong_kernels

    name, arch, arguments = HELPED[remedy]
    assert codegen.generate(getattr(wrong_kernels, name), arch, **arguments).source


def test_a_kernel_in_no_file(rehearsal):
    from tests import wrong_kernels

    note = note_of(lambda: wrong_kernels.in_no_file(8))
    assert explain(note) == known("could not get source code")


def compile_for_cuda(function, **sizes):
    """Compile a kernel with nvcc, as on a GPU."""
    import tilelang
    from tvm.target import Target

    target = {"kind": "cuda", "arch": "sm_90a"}
    with Target(target):
        return tilelang.compile(function.get_tir(**sizes), target=target)


def test_a_name_that_cuda_does_not_know(rehearsal):
    from tests import wrong_kernels

    note = note_of(lambda: compile_for_cuda(wrong_kernels.calls_what_is_not_there, N=128))
    assert 'identifier "no_such_function" is undefined' in note
    assert explain(note) == known('" is undefined')


def test_a_name_that_c_does_not_know(rehearsal):
    from sections.common.build import build
    from tests import wrong_kernels

    (error,) = build(rehearsal, [(wrong_kernels.calls_what_is_not_there, {"N": 128})])
    note = root_cause(error)
    assert note == "OSError: kernel.so: undefined symbol: no_such_function"
    assert explain(note) == known('" is undefined')


@pytest.mark.parametrize("says, home", [
    ("/bin/nvcc'", "/nowhere"), ("Failed to automatically detect CUDA", "")])
def test_no_nvcc_where_tilelang_looks(says, home, rehearsal, tmp_path, monkeypatch):
    from tilelang.contrib import nvcc

    from tests import wrong_kernels

    monkeypatch.setenv("TILELANG_CACHE_DIR", str(tmp_path))  # it must not be compiled already
    monkeypatch.setattr(nvcc, "CUDA_HOME", home)  # what import tilelang makes of the variable
    note = note_of(lambda: compile_for_cuda(wrong_kernels.add, N=32))
    assert says in note and explain(note) == known("/bin/nvcc'")


MISTAKES = {
    "dtype": lambda x: (x.half(), x),
    "shape": lambda x: (x, x[:16].clone()),
    "dimensions": lambda x: (x.reshape(8, 4), x),
    "strides": lambda x: (x.repeat(2)[::2], x),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_tensor_that_the_kernel_was_not_compiled_for(mistake, rehearsal):
    import torch

    from tests import wrong_kernels

    note = note_of(lambda: wrong_kernels.add(*MISTAKES[mistake](torch.ones(32))))
    assert "mismatch for parameter" in note and explain(note) == known("mismatch for parameter")


# A section of a tour

COURSE = {
    "fills": "import os\ndef run(page):\n    with open('/dev/full', 'w') as disk:\n"
             "        disk.write('x')\n",
    "eats": "import os, signal\ndef run(page):\n    os.kill(os.getpid(), signal.SIGKILL)\n",
    "fails": "def run(page):\n    raise ValueError('nobody knows')\n",
    "passes": "def run(page): pass\n",
}


def test_the_summary_says_what_an_error_means_below_it(tmp_path, capsys):
    """... and nothing about one that is not known."""
    package = tmp_path / "course"
    package.mkdir()
    (package / "__init__.py").write_text(f"ORDER = {tuple(COURSE)}\n")
    for name, source in COURSE.items():
        (package / f"{name}.py").write_text(source)
    environment = {**Home(tmp_path).environment, "PYTHONPATH": str(tmp_path)}
    options = Options(names=tuple(COURSE), timeout=30)
    tour = Tour(Course("course", needs_tilelang=False), options, environment, Screen())
    lines = [re.sub(r" \(whole text: .*\)", "", line) for line in notes(tour.run())]
    assert lines == [
        "fills: FAIL: OSError: [Errno 28] No space left on device",
        "  " + known("No space left on device"),
        "eats: CRASH: the process was killed by SIGKILL while running",
        "  " + known("killed by SIGKILL"),
        "fails: FAIL: ValueError: nobody knows",
    ]


def test_a_check_that_failed_is_no_known_error():
    assert explain("check 77x77: dtype torch.float32, expected torch.float16") is None


# What only a GPU says


def told(code: str) -> str:
    """What a process of its own says in the end: its CUDA context may be lost then."""
    setup = (
        "import torch\nfrom sections.common.device import select\n"
        "from sections.common.start import prepare\nfrom sections.common.errors import root_cause\n"
        "device = select('cuda')\nprepare(device)\nfrom tests import wrong_kernels\n"
    )
    body = "".join(f"    {line}\n" for line in code.splitlines())
    ending = "    torch.cuda.synchronize()\nexcept Exception as error: print(root_cause(error))\n"
    done = subprocess.run(
        [sys.executable, "-c", f"{setup}try:\n{body}{ending}"],
        capture_output=True, text=True, cwd=ROOT, timeout=300,
    )
    assert done.stdout.strip(), done.stderr
    return done.stdout.strip().splitlines()[-1]


OTHER_ARCH = """
import tilelang
from tvm.target import Target
target = {"kind": "cuda", "arch": "sm_80" if device.arch == "sm_75" else "sm_75"}
with Target(target):
    kernel = tilelang.compile(wrong_kernels.add.get_tir(N=32), target=target)
kernel(torch.ones(32, device="cuda"), torch.ones(32, device="cuda"))
"""
NEWER_PTX = """
import ctypes
torch.zeros(1, device="cuda")
cuda, module, text = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_char_p()
code = cuda.cuModuleLoadData(ctypes.byref(module), b".version 99.9\\n.target sm_75\\n")
cuda.cuGetErrorString(code, ctypes.byref(text))
raise RuntimeError(text.value.decode())
"""
ON_A_GPU = {
    "an illegal memory access": 'wrong_kernels.reads_far_outside(torch.ones(32, device="cuda"))',
    "CUDA out of memory": 'torch.empty(1 << 50, device="cuda", dtype=torch.int8)',
    "dynamic shared memory size": (
        'x = torch.ones(512, 512, device="cuda", dtype=torch.float16)\n'
        "wrong_kernels.gemm(x, x, block_M=128, block_N=256, block_K=128, num_stages=4)"
    ),
    "no kernel image is available": OTHER_ARCH,
    "unsupported toolchain": NEWER_PTX,
}


@pytest.mark.gpu
@pytest.mark.parametrize("says", ON_A_GPU)
def test_what_cuda_says(says):
    note = told(ON_A_GPU[says])
    assert explain(note) == known(says), note


@pytest.mark.gpu
@pytest.mark.parametrize("mistake", [*MISTAKES, "device"])
def test_a_tensor_that_a_gpu_kernel_was_not_compiled_for(mistake):
    arguments = {
        "dtype": "x.half(), x", "shape": "x, x[:16].clone()", "dimensions": "x.reshape(8, 4), x",
        "strides": "x.repeat(2)[::2], x", "device": "x.cpu(), x",
    }[mistake]
    note = told(f'x = torch.ones(32, device="cuda")\nwrong_kernels.add({arguments})')
    assert explain(note) == known("mismatch for parameter"), note


@pytest.mark.parametrize("note", [  # met on a GPU
    "RuntimeError: add: allocator anchor has the wrong device type; expected: 1, got: 2",
    "RuntimeError: kernel add input B shape[0] violates packed ABI constraint; expected: 16",
    "RuntimeError: kernel add input A ndim mismatch, expected 1; expected: 1, got: 2",
])
def test_what_a_gpu_kernel_says_of_a_wrong_tensor(note):
    assert explain(note) == known("mismatch for parameter")


# The table


def test_every_known_error_is_met_here():
    met = {*REFUSED, *ON_A_GPU, "could not get source code", '" is undefined', "/bin/nvcc'",
           "mismatch for parameter", "No space left on device", "killed by SIGKILL"}
    assert [entry.says for entry in KNOWN if not met & set(entry.says)] == []


def test_no_text_fits_two_errors():
    for entry in KNOWN:
        for says in entry.says:
            assert explain(says) == known(says)


def test_the_readme_holds_the_table():
    section = (ROOT / "README.md").read_text("utf-8").partition("\n## Troubleshooting\n")[2]
    section = section.partition("\n## ")[0]
    assert known_errors.markdown() in section, "python -m sections.runner.known_errors"
