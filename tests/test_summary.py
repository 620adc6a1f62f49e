"""The summary: the table, a line for what went wrong, the verdict, the exit code."""

import builtins
import math
import re

import pytest

from sections.common.table import format_table, indent
from sections.runner import summary
from sections.runner.tour import Record, Row


@pytest.fixture(params=["with tabulate", "without tabulate"])
def tabulate(request, monkeypatch):
    """Every table is made in both ways."""
    if request.param == "with tabulate":
        return pytest.importorskip("tabulate")
    real = builtins.__import__

    def importing(name, *rest):
        if name == "tabulate":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", importing)
    return None


def check(rel_error: float, bound: float = 1e-3) -> dict:
    return {"case": "a case", "rel_error": rel_error, "bound": bound, "passed": rel_error < bound}


def measurement(**more) -> dict:
    return {"case": "4096x4096x4096 float16", "variant": "128x256x64", "ms": 0.2049,
            "baseline": "cuBLAS (torch.matmul)", "baseline_ms": 0.2, "ratio": 0.994,
            "ratio_low": 0.99, "ratio_high": 1.0, "value": 671.3, "unit": "TFLOP/s",
            "of_ceiling": 0.981, "headline": False, **more}


# Tables


def test_columns_are_aligned(tabulate):
    assert format_table(["name", "ms", "why"], [["a", 1.5, "short"], ["longer name", 12, None]],
                        right=("ms",)) == (
        "name          ms  why\n"
        "a            1.5  short\n"
        "longer name   12  -")


@pytest.mark.parametrize("cell", ["1e-3", "007", "1.50", "0x10", "True", "-", "", " 5"])
def test_cells_stay_as_they_were_written(cell, tabulate):
    shown = format_table(["x", "last"], [[cell, "end"]])
    assert shown.splitlines()[1].split("end")[0].strip() == cell.strip()


def test_a_table_without_rows_is_its_headers(tabulate):
    assert format_table(["name", "ms"], [], right=("ms",)).split() == ["name", "ms"]


def test_a_header_wider_than_its_cells(tabulate):
    assert format_table(["wide header", "b"], [["x", "y"]]) == "wide header  b\nx            y"


def test_indent():
    assert indent("a\n\nb", "  ") == "  a\n\n  b"


# The summary table


def record(*rows: Row, **more) -> Record:
    return Record(list(rows), **more)


def test_the_table_of_a_rehearsal(tabulate):
    shown = summary.table(record(
        Row("vector_add", "PASS", 4.06, checks=[check(1e-7), check(2e-4), check(1e-4)]),
        Row("gemm", "FAIL", 12.0, checks=[check(0.5)]),
        Row("softmax"),
    ), timed=False)
    assert shown == (
        "section     status   seconds  checked  worst error\n"
        "vector_add  PASS         4.1  3 cases  2.0e-04 (bound 1.0e-03)\n"
        "gemm        FAIL        12.0  1 case   5.0e-01 (bound 1.0e-03)\n"
        "softmax     NOT RUN        -  -        -")


@pytest.mark.parametrize("worst, shown", [(math.nan, "nan"), (math.inf, "inf")])
@pytest.mark.parametrize("place", range(3))
def test_no_number_is_worse_than_none(worst, shown, place, tabulate):
    checks = [check(1e-4), check(2e-4)]
    checks.insert(place, check(worst))
    row = Row("gemm", "FAIL", checks=checks)
    assert f"{shown} (bound" in summary.table(record(row), timed=False)


def test_the_worst_error_is_the_one_nearest_to_its_bound(tabulate):
    checks = [check(1e-4, 1e-3), check(1e-6, 2e-6)]
    assert "1.0e-06 (bound 2.0e-06)" in summary.table(
        record(Row("gemm", "PASS", checks=checks)), timed=False)


def test_the_table_of_a_gpu(tabulate):
    rows = [
        Row("vector_add", "PASS", 4.06, measurements=[
            measurement(), measurement(ms=0.738, value=4363.2, unit="GB/s", ratio=1.004,
                                       baseline="torch", of_ceiling=1.014, headline=True)]),
        Row("gemm", "PASS", 30.0, measurements=[measurement(headline=True)]),
        Row("softmax", "CRASH", 1.0),
    ]
    shown = summary.table(record(*rows), timed=True)
    assert [re.split(r" {2,}", line) for line in shown.splitlines()] == [
        ["section", "status", "seconds", "checked", "best", "against PyTorch",
         "of this GPU's ceiling"],
        ["vector_add", "PASS", "4.1", "-", "0.738 ms, 4363 GB/s", "1.00x torch", "101 % of copy"],
        ["gemm", "PASS", "30.0", "-", "0.205 ms, 671 TFLOP/s", "0.99x cuBLAS", "98 % of matmul"],
        ["softmax", "CRASH", "1.0", "-", "-", "-", "-"],
    ]


def test_the_table_is_narrow(tabulate):
    rows = [Row("flash_attention", "NOT RUN", 1234.5, note="x" * 300, checks=[check(1e-4)] * 100,
                measurements=[measurement(ms=123.456, baseline="torch.compile (of the whole)",
                                          of_ceiling=1.01, headline=True)])]
    for timed, width in ((False, 80), (True, 115)):
        assert max(map(len, summary.table(record(*rows), timed).splitlines())) <= width


# Notes


def test_what_did_not_pass_has_a_line():
    lines = summary.notes(record(
        Row("vector_add", "PASS", note="ignored"),
        Row("gemm", "FAIL", note="check 1x1x1: wrong"),
        Row("softmax", "SKIP", note="needs sm_90a"),
        Row("autotune", "NOT RUN"),
    ))
    assert lines == ["gemm: FAIL: check 1x1x1: wrong", "softmax: SKIP: needs sm_90a"]


def test_one_root_cause_is_one_line():
    rows = [Row(name, note="torch is not installed") for name in ("vector_add", "gemm", "softmax")]
    assert summary.notes(record(*rows)) == [
        "vector_add, gemm, softmax: NOT RUN: torch is not installed"]


def test_ceilings_have_a_line():
    (line,) = summary.notes(record(ceilings={"copy_GBps": 4296.4, "matmul_TFLOPs": 706.0}))
    assert "4296 GB/s" in line and "706 TFLOP/s" in line


# Verdict and exit code


@pytest.mark.parametrize("statuses, code", [
    ("PASS", 0), ("PASS PASS", 0), ("PASS SKIP", 0), ("SKIP", 1), ("NOT_RUN", 1),
    ("PASS NOT_RUN", 1), ("PASS FAIL", 1), ("CRASH PASS", 1), ("PASS TIMEOUT", 1), ("FAIL", 1),
])
def test_the_exit_code(statuses, code):
    rows = [Row(str(n), status.replace("_", " ")) for n, status in enumerate(statuses.split())]
    assert record(*rows).exit_code == code
    assert record(*rows, interrupted=True).exit_code == 130


def test_the_verdict_counts():
    rows = [Row("a", "PASS"), Row("b", "CRASH"), Row("c", "TIMEOUT"), Row("d", "FAIL"),
            Row("e", "SKIP"), Row("f"), Row("g")]
    line = summary.verdict(record(*rows, seconds=96.4, compile_seconds=71.2))
    assert line.startswith("1 passed, 3 failed, 1 skipped, 2 not run in 96 s (71 s compiling). ")
    assert line.endswith("Next: python -m sections.b")


def test_the_verdict_says_what_to_do_next():
    assert "Next: follow one of the Try lines above." in summary.verdict(record(Row("a", "PASS")))
    assert "tilelang_tour.py --check" in summary.verdict(record(Row("a")))
    assert summary.verdict(record(Row("a", "FAIL"), interrupted=True)).endswith(". Interrupted.")
