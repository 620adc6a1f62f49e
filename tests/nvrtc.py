"""Colab's CUDA front end without a GPU or a toolkit: NVRTC 12.8, out of three wheels."""

import ctypes
import importlib
import shlex
from functools import cache
from pathlib import Path

from tilelang.env import CUTLASS_INCLUDE_DIR, TILELANG_TEMPLATE_PATH

from sections.common.codegen import Code

VERSION = (12, 8)
INSTALL = ("pip install nvidia-cuda-nvrtc-cu12==12.8.93 nvidia-cuda-runtime-cu12==12.8.90 "
           "nvidia-cuda-cccl-cu12==12.8.90")

# NVRTC has no C++ standard library, as nvcc has: these stand in for what generated code names.
PRELUDE = """#include <tl_templates/cuda/nvrtc_std.h>
#include <cutlass/half.h>
namespace std { using cutlass::platform::numeric_limits; }
"""


class Refused(Exception):
    """NVRTC does not take generated CUDA; the message is its log."""


def folder(module: str) -> Path:
    """Where a wheel's files lie. Raises ImportError that says what to type."""
    try:
        return Path(importlib.import_module(module).__path__[0])
    except ImportError:
        raise ImportError(f"{module} is missing; needed: NVRTC 12.8; type: {INSTALL}") from None


@cache
def library() -> ctypes.CDLL:
    """NVRTC of the version that Colab has. Raises ImportError for another."""
    nvrtc = ctypes.CDLL(str(folder("nvidia.cuda_nvrtc") / "lib" / "libnvrtc.so.12"))
    major, minor = ctypes.c_int(), ctypes.c_int()
    nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    if (major.value, minor.value) != VERSION:
        raise ImportError(f"NVRTC {major.value}.{minor.value}; needed: 12.8; type: {INSTALL}")
    return nvrtc


def cubin(code: Code) -> bytes:
    """Machine code of generated CUDA for its own architecture. Raises Refused."""
    nvrtc, program = library(), ctypes.c_void_p()
    source = PRELUDE + code.source
    folders = (TILELANG_TEMPLATE_PATH, CUTLASS_INCLUDE_DIR,
               folder("nvidia.cuda_runtime") / "include", folder("nvidia.cuda_cccl") / "include")
    options = [f"--gpu-architecture={code.arch}", "--std=c++20", "-default-device",
               *shlex.split(code.nvcc_flags), *(f"-I{path}" for path in folders)]
    words = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None)
    try:
        if nvrtc.nvrtcCompileProgram(program, len(options), words):
            log = outcome(program, "ProgramLog").decode(errors="replace")
            raise Refused(f"{code.name} for {code.arch}: {log}")
        return outcome(program, "CUBIN")
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def outcome(program: ctypes.c_void_p, what: str) -> bytes:
    """What a compilation left: "ProgramLog" or "CUBIN"."""
    size = ctypes.c_size_t()
    getattr(library(), f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    getattr(library(), f"nvrtcGet{what}")(program, buffer)
    return buffer.raw
