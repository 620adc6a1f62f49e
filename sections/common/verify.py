"""Is a kernel's result right? One comparison that every check of the tour rests on."""

import math
from contextlib import contextmanager
from dataclasses import dataclass

import torch

CHUNK = 1 << 24  # elements compared at a time, so that a check needs little memory beside its data


@dataclass(frozen=True)
class Comparison:
    """The verdict on one result.

    rel_error  ||actual - expected|| / ||expected||, dimensionless
    bound      what rel_error may be at most
    problem    one line that says what is wrong, or None where everything held
    """

    rel_error: float
    bound: float
    problem: str | None

    @property
    def passed(self) -> bool:
        return self.problem is None


def unit_roundoff(dtype: torch.dtype) -> float:
    """Half the gap between 1 and the next number: 4.9e-4 for float16, 6.0e-8 for float32."""
    return torch.finfo(dtype).eps / 2


def compare(
    actual: torch.Tensor,
    expected: torch.Tensor,
    dtype: torch.dtype,
    reduction: int = 1,
    intermediate: torch.dtype | None = None,
) -> Comparison:
    """Compare a kernel's result with a reference that is float32 or better.

    actual, expected  tensors of one shape; `actual` must have `dtype`
    reduction         how many products or terms each element sums up in float32
    intermediate      dtype to which intermediate values were rounded on the way, if any

    Two bounds must hold, with u the unit roundoff of `dtype`:
      relative error of the whole     2 u + s
      every single element            |actual - expected| <= 4 u |expected| + s rms(its row)
    where s is what summing costs: u(float32) (8 sqrt(reduction) + reduction / 2), the second term
    for tensor cores, which truncate; plus 4 u(intermediate). Elementwise work has s = 0. A row is
    what the last dimension spans. NaN and infinity must stand exactly where the reference has them.
    """
    unit = unit_roundoff(dtype)
    summing = 0.0
    if reduction > 1:
        summing = unit_roundoff(torch.float32) * (8 * math.sqrt(reduction) + reduction / 2)
    if intermediate is not None:
        summing += 4 * unit_roundoff(intermediate)
    bound = 2 * unit + summing

    def failed(problem: str, rel_error: float = math.inf) -> Comparison:
        return Comparison(rel_error, bound, problem)

    if tuple(actual.shape) != tuple(expected.shape):
        return failed(f"shape {tuple(actual.shape)}, expected {tuple(expected.shape)}")
    if actual.dtype != dtype:
        return failed(f"dtype {actual.dtype}, expected {dtype}")
    if actual.numel() == 0:
        return failed("the result is empty")

    limits = torch.finfo(dtype)
    shape, rows = expected.shape, _rows(expected.shape, summing)
    actual, expected = actual.reshape(rows), expected.reshape(rows)
    error, norm = _norms(actual, expected, limits)
    rel_error = error / norm if norm > 0 else (0.0 if error == 0 else math.inf)
    wrong = _first_wrong(actual, expected, shape, 4 * unit, summing, limits)
    if wrong is not None:
        return failed(wrong, rel_error)
    if not rel_error <= bound:
        return failed(f"relative error {rel_error:.1e} is over {bound:.1e}", rel_error)
    return Comparison(rel_error, bound, None)


def _rows(shape: torch.Size, summing: float) -> tuple[int, int]:
    """Rows and columns to compare by; where rows do not matter, ones of a handy length."""
    size = math.prod(shape)
    columns = shape[-1] if shape and summing else math.gcd(size, CHUNK)
    return size // columns, columns


def _chunks(actual: torch.Tensor, expected: torch.Tensor, limits):
    """Some rows of both in float64, with the first one's number; beyond limits lies infinity."""
    step = max(CHUNK // actual.shape[1], 1)
    for start in range(0, len(actual), step):
        got = actual[start : start + step].double()
        want = expected[start : start + step].double()
        yield start, got, torch.where(want.abs() > limits.max, torch.sign(want) * math.inf, want)


def _norms(actual: torch.Tensor, expected: torch.Tensor, limits) -> tuple[float, float]:
    """||actual - expected|| and ||expected|| over the elements where the reference is finite."""
    error = norm = 0.0
    for _, got, want in _chunks(actual, expected, limits):
        finite = torch.isfinite(want)
        got, want = torch.where(finite, got, 0), torch.where(finite, want, 0)
        error += (got - want).square().sum().item()
        norm += want.square().sum().item()
    return math.sqrt(error) if error >= 0 else math.nan, math.sqrt(norm)


def _first_wrong(
    actual, expected, shape: torch.Size, relative: float, summing: float, limits
) -> str | None:
    """Describe the first element out of bounds and how many there are, or None."""
    first, count = None, 0
    for start, got, want in _chunks(actual, expected, limits):
        finite = torch.isfinite(want)
        rms = torch.where(finite, want, 0).square().mean(1, keepdim=True).sqrt()
        bound = relative * want.abs() + summing * rms + limits.smallest_normal
        same = (got == want) | (got.isnan() & want.isnan())
        bad = ~torch.where(finite, (got - want).abs() <= bound, same)
        count += int(bad.sum())
        if count and first is None:
            row, column = (int(n) for n in bad.nonzero()[0])
            place = (start + row) * want.shape[1] + column
            first = (f"the first at {place}: {got[row, column].item():.6g}, "
                     f"expected {want[row, column].item():.6g}{_indices(place, shape)}")
    return f"{count} of {actual.numel()} elements wrong, {first}" if count else None


def _indices(place: int, shape: torch.Size) -> str:
    """Where that is in a tensor of several dimensions: " (row 0, column 64)"."""
    indices = []
    for extent in reversed(shape):
        place, index = divmod(place, extent)
        indices.insert(0, index)
    if len(indices) == 2:
        return f" (row {indices[0]}, column {indices[1]})"
    return f" (indices {indices})" if len(indices) > 2 else ""


@contextmanager
def unwritten_is_nan():
    """Fill each new output with NaN: what a kernel leaves unwritten could otherwise hold the right
    result of the kernel before it, in memory that was given back."""
    before = torch.are_deterministic_algorithms_enabled(), \
        torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)  # torch.empty fills then
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
