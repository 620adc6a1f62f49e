"""sections/common/errors.py"""

import time

import pytest

from sections.common import errors
from tests.kernels_for_tests import nvcc_error

CUDA = "  float a = 1.0f;\n" * 500


class Silent(Exception):
    def __str__(self):
        raise ValueError


@pytest.mark.parametrize("error, cause", [
    (RuntimeError("plain"), "RuntimeError: plain"),
    (RuntimeError(), "RuntimeError"),
    (RuntimeError("  \n \n"), "RuntimeError"),
    (Silent(), "Silent"),
    (SystemExit(0), "SystemExit: 0"),
    (ValueError("first\nsecond"), "ValueError: first"),
    (ValueError("\n".join(map(str, range(40)))), "ValueError: 39"),
    (RuntimeError(CUDA + "Compilation error:\nk.cu(7): error: no such B\n1 error detected."),
     "RuntimeError: k.cu(7): error: no such B"),
    (RuntimeError(CUDA + "k.cu(7): error #20: no such B\n"),
     "RuntimeError: k.cu(7): error #20: no such B"),
    (RuntimeError(CUDA + "k.cu:1:10: fatal error: gemm.h: No such file\nterminated."),
     "RuntimeError: k.cu:1:10: fatal error: gemm.h: No such file"),
    (RuntimeError("nvcc -arch=sm_1\n" + CUDA + "nvcc fatal   : Unsupported gpu architecture"),
     "RuntimeError: nvcc fatal : Unsupported gpu architecture"),
    (RuntimeError("Compilation Failed! ['g++', 'k.cpp']\n" + CUDA + "}"),
     "RuntimeError: Compilation Failed! ['g++', 'k.cpp']"),
    (OSError("/tmp/x/tmpjpvjnz4y.so: undefined symbol: f"),
     "OSError: kernel.so: undefined symbol: f"),
    (RuntimeError("x" * 5000), "RuntimeError: " + "x" * (errors.LONGEST_NOTE - 14)),
])
def test_one_line_names_the_root_cause(error, cause):
    assert errors.root_cause(error) == cause


def test_of_a_real_compilers_error_too():
    error = nvcc_error()
    assert len(str(error)) > 20_000
    assert errors.root_cause(error) == (
        'RuntimeError: tvm_kernels.cu(502): error: identifier "no_such_name" is undefined')
    assert "value_400" in errors.whole(error) and "Traceback" in errors.whole(error)


@pytest.mark.parametrize("word", ["x", "error ", "/tmp"])
def test_a_line_of_megabytes_is_told_at_once(word):
    start = time.process_time()
    cause = errors.root_cause(ValueError(word * 900_000))
    assert time.process_time() - start < 5
    assert cause.startswith("ValueError: ") and len(cause) <= errors.LONGEST_NOTE
