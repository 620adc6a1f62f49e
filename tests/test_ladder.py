"""sections/common/ladder.py"""

import pytest

from sections.common.ladder import (
    Problem,
    Rung,
    Step,
    best,
    climb,
    describe,
    losses,
    selected,
    show,
    steps,
)
from sections.common.measure import Work
from sections.common.page import Page
from sections.gemm import gemm, inputs, reference, sizes
from tests.kernels_for_tests import nvcc_error
from tests.mutations import rehearsal_device

SCHEDULE = {"block_M": 64, "block_N": 64, "block_K": 32, "num_stages": 0, "threads": 128}
LADDER = steps(("first", SCHEDULE, "slow"), ("+ 2 stages", {"num_stages": 2}, "better"),
               ("+ 3 stages", {"num_stages": 3}, "best"), ("+ 40 stages", {"num_stages": 40}, "no"))
OWN = Step("own", {**SCHEDULE, "num_stages": 1}, "new instructions", gemm)


def test_steps_build_on_each_other():
    assert [step.schedule["num_stages"] for step in LADDER] == [0, 2, 3, 40]
    assert all({**step.schedule, "num_stages": 0} == SCHEDULE for step in LADDER)


@pytest.mark.parametrize("quick, overrides, rows", [
    (False, {}, ["first", "+ 2 stages", "+ 3 stages", "+ 40 stages", "own"]),
    (True, {}, ["first", "the best row"]),
    (True, {"num_stages": 4}, ["first", "the best row", "yours"]),
    (False, {"num_stages": 4},
     ["first", "+ 2 stages", "+ 3 stages", "+ 40 stages", "own", "yours"]),
])
def test_selected(quick, overrides, rows):
    page = Page(rehearsal_device(), quick, overrides)
    found = selected(page, LADDER, LADDER[2].schedule, [OWN])
    assert [step.change for step in found] == rows
    assert not overrides or found[-1].schedule == {**SCHEDULE, "num_stages": 4}
    assert not quick or found[1].schedule == LADDER[2].schedule


def test_a_row_that_cannot_run_is_read_and_says_so(rehearsal, capsys):
    page = Page(rehearsal, emit=(told := []).append)
    A, B = inputs(page, 40, 50, 60)
    problem = Problem("40x50x60", sizes(40, 50, 60), sizes(512, 512, 512), (A, B), reference(A, B),
                      {"reduction": 60}, ("", None), Work(flops=1))
    faulty = Step("broken", SCHEDULE, "why", fault="a known fault")
    rungs = climb(page, gemm, [LADDER[0], faulty, LADDER[3], OWN], problem)
    assert [rung.left_out for rung in rungs] == [
        "", "left out: a known fault", "left out: 320 KB is over sm_90a's 227 KB",
        "not run here; new instructions"]
    assert [event["case"] for event in told if event["event"] == "check"] == ["40x50x60"]
    assert rungs[1].code is None and rungs[3].kernel is None and "wgmma" in rungs[3].code.source
    assert best(rungs) is None and page.failures == []
    show(page, rungs, "cuBLAS")
    text = " ".join(capsys.readouterr().out.split())
    assert "1 first 8 KB 128 plain loads wgmma slow" in text
    assert "2 broken - - - - left out: a known fault" in text


def test_a_row_that_lost_says_so():
    """A row that was not timed is passed over; a difference that the clock makes is none."""
    rungs = [Rung(step, measurement=ratio and {"ratio": ratio}) for step, ratio in zip(
        [*LADDER, OWN], [0.5, 0.4, None, 0.395, 0.38], strict=True)]
    assert losses(rungs) == [False, True, False, False, True]


def test_describe_and_variant():
    assert describe(SCHEDULE) == "64x64x32, 0 stages, 128 threads"
    assert describe({"num_stages": 1, "swizzle": 8, "wide": True, "deep": False}) == \
        "1 stage, swizzle=8, wide"
    assert LADDER[0].variant == describe(SCHEDULE)
    assert OWN.variant == "own, 64x64x32, 1 stage, 128 threads"


def test_a_row_that_does_not_compile_is_one_line(rehearsal, monkeypatch, capsys):
    """The next row is climbed all the same."""
    page = Page(rehearsal)
    kernel, *_ = page.build([(gemm, {**sizes(40, 50, 60), **SCHEDULE})])
    monkeypatch.setattr(page, "build", lambda jobs: [nvcc_error(), kernel])
    A, B = inputs(page, 40, 50, 60)
    problem = Problem("40x50x60", sizes(40, 50, 60), sizes(512, 512, 512), (A, B), reference(A, B),
                      {"reduction": 60}, ("", None), Work(flops=1))
    rungs = climb(page, gemm, LADDER[:2], problem)
    assert [rung.left_out for rung in rungs] == ["did not compile", ""]
    (failure,) = page.failures
    assert failure.startswith("first did not compile: RuntimeError: ")
    assert failure.endswith('error: identifier "no_such_name" is undefined')
    assert "value_400" in page.details[0]
    text = capsys.readouterr().out
    assert failure in text and "value_" not in text


def test_a_row_that_only_cuda_refuses_costs_that_row(rehearsal, capsys):
    """C takes it; so may a kernel for one architecture be refused that is only read here."""
    A, B = inputs(Page(rehearsal), 40, 50, 60)
    problem = Problem("40x50x60", sizes(40, 50, 60), sizes(512, 512, 512), (A, B), reference(A, B),
                      {"reduction": 60}, ("", None), Work(flops=1))
    uneven = Step("uneven", {**SCHEDULE, "block_M": 100}, "why")
    own = Step("own", {**SCHEDULE, "threads": 100}, "why", gemm)
    page = Page(rehearsal)
    rungs = climb(page, gemm, [uneven, LADDER[0], own], problem)
    assert [rung.left_out for rung in rungs] == ["did not compile", "", "did not compile"]
    assert [failure.partition(" did not compile: ")[0] for failure in page.failures] == [
        "uneven", "own"]
    assert "M must be divisible by 16, but got 100" in page.failures[0]
