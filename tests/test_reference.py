"""README's table of ratios: a command makes it from a results file."""

import json
import subprocess
import sys

import pytest

from sections.reference.table import ROWS, table
from sections.runner import results
from tests.command import ROOT
from tests.made_results import made, measurement


def cells(found: dict, work: str, against: str) -> list[str]:
    """The last cells of the row of a work and a baseline: ratio, spread, target, verdict."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")]
            for line in table(found).splitlines() if line.startswith("|")]
    (row,) = (row for row in rows if row[:2] == [work, against])
    return row[2:]


def section(found: dict, name: str) -> dict:
    return next(each for each in found["sections"] if each["name"] == name)


def rivals(found: dict) -> dict:
    """With what only a file that was read has."""
    for each in found["sections"]:
        for entry in each["measurements"]:
            entry.setdefault("rivals", {})
    return found


def test_a_row_a_target_and_where_the_run_was():
    lines = table(rivals(made())).splitlines()
    assert lines[0] == ("One run on NVIDIA H200 with tilelang 0.1.15, torch 2.11.0, driver "
                        "580.159.04:")
    assert len([line for line in lines if line.startswith("|")]) == len(ROWS) + 2 == 16
    assert len({line.count("|") for line in lines[2:]}) == 1


@pytest.mark.parametrize("ratio, verdict", [(1.00, "reached"), (0.996, "reached"),
                                            (0.994, "0.01 short"), (0.8, "0.20 short")])
def test_a_target_is_reached_as_it_is_printed(ratio, verdict):
    found = rivals(made())
    best = section(found, "gemm")["measurements"][4]
    best.update(ratio=ratio)
    assert cells(found, "GEMM 4096^3", "cuBLAS") == \
        [f"{ratio:.2f}", "0.98-1.00", "1.00", verdict]


def test_of_several_baselines_the_strongest_counts():
    found = rivals(made())
    found["sections"].append({**section(found, "softmax"), "measurements": [
        {**measurement("4096x32768 float16", "whole row", 0.13, name, ratio, moved=5e8,
                       headline=True), "rivals": {}}
        for name, ratio in (("torch.softmax", 1.9), ("torch.compile", 1.8), ("copy ceiling", 0.9))
    ]})
    assert cells(found, "softmax 4096x32768", "torch.compile")[0] == "1.80"
    assert cells(found, "softmax 65536x4096", "copy ceiling")[0] == "0.96"


def test_autotune_stands_against_the_schedule_made_by_hand():
    found = rivals(made())
    assert cells(found, "autotune, GEMM 4096^3", "by hand") == ["-", "-", "1.00", "not measured"]
    *_, tuned = section(found, "autotune")["measurements"]
    tuned["rivals"] = {"by hand": {"ms": 0.2, "ratio": 1.004}}
    assert cells(found, "autotune, GEMM 4096^3", "the ladder's best") == \
        ["1.00", "-", "1.00", "reached"]


def test_a_gap_has_its_sections_reason():
    found = rivals(made())
    section(found, "gemm")["note"] = "the clock"
    section(found, "vector_add")["note"] = "no row"
    assert table(found).splitlines()[-1] == "- `gemm`: the clock"
    for entry in section(found, "gemm")["measurements"]:
        entry["ratio"] = 1.2
    assert "the clock" not in table(found)


def test_the_command(tmp_path):
    (tmp_path / "r.json").write_text(json.dumps(made()))

    def command(name: str):
        return subprocess.run([sys.executable, "-m", "sections.reference.table",
                               str(tmp_path / name)], cwd=ROOT, capture_output=True, text=True)

    assert command("r.json").stdout == table(rivals(made())) + "\n"
    wrong = command("none.json")
    assert wrong.returncode == 1 and "none.json cannot be taken" in wrong.stderr


def test_readme_has_the_table_of_the_reference_run():
    assert table(results.read(results.REFERENCE)) in (ROOT / "README.md").read_text()
