"""The results file: the fixed form, always valid, whole or not there."""

import json
import math
import os
import subprocess
import threading
from types import SimpleNamespace

import pytest

from sections.runner import conduct, results
from sections.runner.tour import Record, Row
from tests.command import PATIENCE, Home
from tests.made_facts import facts

TOP = {"schema", "mode", "exit_code", "seconds", "compile_seconds", "environment", "ceilings",
       "sections"}
ENVIRONMENT = {"gpu", "arch", "driver", "torch", "tilelang", "python", "nvcc"}
SECTION = {"name", "status", "seconds", "note", "checks", "measurements"}
CHECK = {"case", "rel_error", "bound", "passed"}
MEASUREMENT = {"case", "variant", "ms", "baseline", "baseline_ms", "ratio", "ratio_low",
               "ratio_high", "value", "unit"}


@pytest.fixture
def home(tmp_path):
    """A folder for a test's processes; none may outlive the test."""
    home = Home(tmp_path)
    yield home
    home.clean_up()


def refuse(name: str):
    raise AssertionError(f"{name} is no JSON")


def read(text: str) -> dict:
    """Strict JSON: NaN and Infinity are none."""
    return json.loads(text, parse_constant=refuse)


# The form


def test_the_form_after_a_real_run_with_numbers_that_are_not_finite(home):
    path = home.folder / "results.json"
    done = home.run("--only", "measures,fails_checks,aborts", "--results", str(path))
    assert f"results: {path}\n" in done.stdout
    found = read(path.read_text())
    assert set(found) >= TOP and found["schema"] == 1
    assert set(found["environment"]) >= ENVIRONMENT and "mode" not in found["environment"]
    assert found["environment"]["gpu"] is None and found["environment"]["python"]
    assert found["exit_code"] == done.returncode == 1
    assert 0 < found["seconds"] < PATIENCE and found["compile_seconds"] == 0
    assert found["ceilings"] == {"copy_GBps": 4296.0, "matmul_TFLOPs": None}
    measures, fails, aborts = found["sections"]
    for section in found["sections"]:
        assert set(section) >= SECTION and isinstance(section["seconds"], float)
    assert [section["status"] for section in found["sections"]] == ["PASS", "FAIL", "CRASH"]
    assert measures["note"] == "imagination"
    assert "SIGABRT" in aborts["note"] and "77x77x77" in fails["note"]
    assert measures["checks"] == [
        {"case": "case 0", "rel_error": 0.0, "bound": 1e-3, "passed": True},
        {"case": "case 1", "rel_error": 2.5e-4, "bound": 1e-3, "passed": True},
        {"case": "case 2", "rel_error": None, "bound": 1e-3, "passed": False},
        {"case": "case 3", "rel_error": None, "bound": 1e-3, "passed": False},
    ]
    (measured,) = measures["measurements"]
    assert set(measured) >= MEASUREMENT
    assert measured["ms"] == 0.2 and measured["value"] == 680.0 and measured["unit"] == "TFLOP/s"
    assert measured["ratio"] is measured["ratio_high"] is measured["baseline_ms"] is None
    assert measures["lesson"] == "numbers can be invented"
    assert aborts["checks"] == aborts["measurements"] == []


def test_every_key_is_there_where_nothing_is_known():
    row = Row("gemm", checks=[{"case": "a"}], measurements=[{"case": "b", "surplus": 1}])
    found = results.as_dict(Record([row]), {"mode": "rehearsal", "gpu": None})
    assert set(found) >= TOP and found["mode"] == "rehearsal"
    assert found["ceilings"] == {"copy_GBps": None, "matmul_TFLOPs": None}
    assert found["sections"][0]["status"] == "NOT RUN"
    assert found["sections"][0]["checks"] == [dict.fromkeys(CHECK) | {"case": "a"}]
    assert set(found["sections"][0]["measurements"][0]) >= MEASUREMENT
    assert "surplus" not in found["sections"][0]["measurements"][0]


def test_the_environment_is_not_changed_by_telling_it():
    environment = {"mode": "gpu", "gpu": "NVIDIA H200"}
    found = results.as_dict(Record([]), environment)
    assert environment == {"mode": "gpu", "gpu": "NVIDIA H200"}
    assert found["environment"] == {"gpu": "NVIDIA H200"}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_null_wherever_it_stands(value, tmp_path):
    row = Row("gemm", seconds=value, checks=[{"case": "a", "bound": value}],
              measurements=[{"ms": value}])
    record = Record([row], seconds=value, ceilings={"copy_GBps": value})
    results.write(str(tmp_path / "r.json"), results.as_dict(record, {"mode": None, "gpu": value}))
    text = (tmp_path / "r.json").read_text()
    assert read(text)["sections"][0]["checks"][0]["bound"] is None
    assert text.isascii()


# The file


def test_a_file_is_replaced_whole(tmp_path, monkeypatch):
    path = tmp_path / "r.json"
    path.write_text("old")
    seen = []
    real = os.replace

    def replace(source, target):
        seen.append((path.read_text(), read(open(source).read())))
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    results.write(str(path), {"new": 1})
    assert seen == [("old", {"new": 1})]
    assert read(path.read_text()) == {"new": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "r.json"
    path.write_text("old")

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        results.write(str(path), {"new": 1})
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_a_long_name_is_no_obstacle(tmp_path):
    path = tmp_path / ("x" * 250 + ".json")
    results.write(str(path), {"new": 1})
    assert read(path.read_text()) == {"new": 1}


def test_a_link_stays_and_its_target_is_replaced(tmp_path):
    (tmp_path / "there").mkdir()
    link, target = tmp_path / "link.json", tmp_path / "there" / "r.json"
    link.symlink_to(target)
    for number in (1, 2):
        results.write(str(link), {"new": number})
        assert link.is_symlink() and read(target.read_text()) == {"new": number}


def test_a_file_in_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    path = tmp_path / "r.json"
    path.write_text("old and longer than the new one")
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # tests may be run by root
    results.write(str(path), {"new": 1})
    assert read(path.read_text()) == {"new": 1}


def test_a_named_pipe_hears_it_once(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    heard = []
    reader = threading.Thread(target=lambda: heard.append(pipe.read_text()), daemon=True)
    reader.start()
    results.write(str(pipe), {"new": 1})
    reader.join(10)
    assert [read(text) for text in heard] == [{"new": 1}]


@pytest.mark.parametrize("to_a_file", [True, False])
def test_dev_stdout_is_the_output_and_cuts_nothing_off(to_a_file, home):
    path = home.folder / "out.txt"
    with open(path, "wb") as file:
        process = home.start("--only", "passes", "--results", "/dev/stdout",
                             stdout=file if to_a_file else subprocess.PIPE)
        out, err = process.communicate(timeout=PATIENCE)
    text = path.read_text() if to_a_file else out.decode()
    assert (process.returncode, err) == (0, b"")
    assert text.index("passes prints") < text.index("\n{\n") < text.index("1 passed, 0 failed")
    found = read(text[text.index("\n{\n") : text.rindex("\n}\n") + 2])
    assert found["sections"][0]["status"] == "PASS"


def test_a_file_that_cannot_be_written_in_the_end_is_told(home):
    done = home.run("--only", "passes", "--results", "/dev/full")
    assert "--results /dev/full could not be written: " in done.stdout
    assert done.stdout.rstrip().splitlines()[-1].startswith("1 passed, 0 failed")


def test_a_terminal_that_is_gone_does_not_cost_them(tmp_path):
    def line(text: str = "") -> None:
        raise BrokenPipeError

    wanted = tmp_path / "results.json"
    with pytest.raises(BrokenPipeError):
        conduct.end(Record([Row("gemm")]), facts(), SimpleNamespace(results=str(wanted)),
                    SimpleNamespace(line=line), "")
    assert json.loads(wanted.read_text())["sections"][0]["name"] == "gemm"
