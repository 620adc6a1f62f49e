"""sections/common/verify.py: the comparison that every check rests on."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sections.common.verify import CHUNK, compare
from tests.mutations import MUTATIONS


def product(size=64, K=256, dtype=torch.float16):
    generator = torch.Generator().manual_seed(0)
    A, B = (torch.randn(size, K, generator=generator).to(dtype) for _ in range(2))
    return A.float() @ B.float().T


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_a_rounded_result_passes(dtype):
    expected = product()
    result = compare(expected.to(dtype), expected, dtype, reduction=256)
    assert result.passed, result.problem
    assert 0 <= result.rel_error <= result.bound


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("name", MUTATIONS)
def test_mutations_fail(name, dtype):
    expected = product()
    wrong = MUTATIONS[name](expected.to(dtype))
    assert not compare(wrong, expected, dtype, reduction=256).passed


def test_one_wrong_element_in_many_fails_and_is_named():
    expected = torch.ones(CHUNK + 10)
    wrong = expected.clone()
    wrong[CHUNK + 7] = 1.5
    result = compare(wrong, expected, torch.float32)
    assert not result.passed
    assert f"the first at {CHUNK + 7}: 1.5, expected 1" in result.problem
    assert compare(expected, expected, torch.float32).passed


def test_a_wrong_element_is_named_by_its_indices():
    for shape, place, told in [((7,), (5,), "expected 1"),
                               ((3, 5), (1, 2), "expected 1 (row 1, column 2)"),
                               ((2, 3, 5), (1, 0, 4), "expected 1 (indices [1, 0, 4])")]:
        for reduction in (1, 64):  # elementwise work is compared in rows of another length
            wrong = torch.ones(shape)
            wrong[place] = 1.5
            problem = compare(wrong, torch.ones(shape), torch.float32, reduction).problem
            assert problem.startswith("1 of ") and problem.endswith(told)


def test_an_element_is_held_against_its_own_row():
    generator = torch.Generator().manual_seed(0)
    large, small = (torch.randn(1, 128, generator=generator) * size for size in (100.0, 0.01))
    expected = torch.cat([large, small])
    off = torch.cat([large, small + 2e-4])  # far below the large row's rounding
    assert not compare(off, expected, torch.float32, reduction=64).passed
    rounded = torch.cat([large + 2e-4, small])
    assert compare(rounded, expected, torch.float32, reduction=64).passed


def test_shape_and_dtype_are_checked():
    expected = torch.ones(4, 5)
    assert "shape (5, 4), expected (4, 5)" in compare(
        torch.ones(5, 4), expected, torch.float32).problem
    assert "dtype torch.float32, expected torch.float16" in compare(
        expected, expected, torch.float16).problem
    assert compare(torch.ones(0), torch.ones(0), torch.float32).problem == "the result is empty"


def test_infinity_and_nan_must_stand_where_the_reference_has_them():
    expected = torch.tensor([1.0, float("inf"), float("-inf"), float("nan")])
    assert compare(expected.clone(), expected, torch.float32).passed
    for position in range(4):
        wrong = expected.clone()
        wrong[position] = 7.0
        assert not compare(wrong, expected, torch.float32).passed
    wrong = expected.clone()
    wrong[1] = float("-inf")
    assert not compare(wrong, expected, torch.float32).passed


def test_what_float16_cannot_hold_must_be_infinite():
    expected = torch.tensor([1.0, 1e6])
    assert compare(expected.half(), expected, torch.float16).passed
    assert not compare(torch.tensor([1.0, 6e4]).half(), expected, torch.float16).passed


def test_the_bound_grows_with_the_reduction_only():
    expected = product()
    short = compare(expected, expected, torch.float32, reduction=2).bound
    long = compare(expected, expected, torch.float32, reduction=8192).bound
    assert 1.2e-7 < short < long < 1e-3


def test_python_O_changes_no_verdict():
    program = (
        "import torch; from tests.mutations import MUTATIONS;"
        "from tests.test_verify import product;"
        "from sections.common.verify import compare; right = product();"
        "found = [compare(wrong(right.half()), right, torch.float16, reduction=256).passed"
        " for wrong in (torch.clone, *MUTATIONS.values())]; print(__debug__, found)"
    )
    done = subprocess.run([sys.executable, "-O", "-c", program], capture_output=True, text=True,
                          cwd=Path(__file__).parents[1], timeout=120)
    assert done.stdout == f"False {[True] + [False] * len(MUTATIONS)}\n", done.stderr
