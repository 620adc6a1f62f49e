"""Many tours in one process, as in a notebook that stays open: the last is like the first.

TOUR_SOAK sets how many: 20 rehearsals unless given, 5 on a GPU.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sections import ORDER
from tests.command import ROOT, Home

SECONDS = 900  # limit for one tour
SETTLED = 3  # the tour after which the heap is as large as it gets; then 4 KB a tour, measured

# Prints a line of JSON after each tour: what this process and the machine have then.
TOURS = """
import gc, json, os, sys, threading
from pathlib import Path

sys.path.insert(0, sys.argv[1])
from tilelang_tour import main

def files(folder):  # .nv: the cache of NVIDIA's driver, which keeps its own size
    found = (str(path.relative_to(folder)) for path in Path(folder).rglob("*"))
    return sorted(path for path in found if path.partition("/")[0] != ".nv")

def kilobytes():
    return int(next(line for line in open("/proc/self/status") if "VmRSS" in line).split()[1])

real, told = os.dup(1), os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
for tour in range(int(sys.argv[3])):
    code = main([*sys.argv[4:], "--results", "../results.json"])
    results = json.load(open("../results.json"))
    gc.collect()
    os.write(told, (json.dumps({
        "code": code,
        "verdicts": {row["name"]: [row["status"], row["note"],
                                   [[check["case"], check["passed"]] for check in row["checks"]]]
                     for row in results["sections"]},
        "files": {name: files(folder) for name, folder in (
            ("current", "."), ("home", os.environ["HOME"]), ("temporary", os.environ["TMPDIR"]),
            ("cache", os.environ["TILELANG_CACHE_DIR"]))},
        "kilobytes": kilobytes(),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
    }) + "\\n").encode())
"""


def tours(folder: Path, count: int, *arguments: str) -> list[dict]:
    """Run tours one after the other in one process; what there was after each."""
    for name in ("current", "home", "temporary"):
        (folder / name).mkdir()
    home = Home(folder)
    paths = {"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}
    variables = {"HOME": str(folder / "home"), "TMPDIR": str(folder / "temporary"),
                 "TILELANG_CACHE_DIR": str(folder / "cache"), **paths}
    told = folder / "told.jsonl"
    try:
        done = subprocess.run(
            [sys.executable, "-c", TOURS, str(ROOT), str(told), str(count), *arguments],
            env=home.environment | variables, cwd=folder / "current", capture_output=True,
            text=True, timeout=count * SECONDS)
    finally:
        left = not home.all_gone()
        home.clean_up()
    assert (done.returncode, done.stderr, left) == (0, "", False), done.stdout[-2000:]
    after = [json.loads(line) for line in told.read_text().splitlines()]
    assert len(after) == count
    return after


def nothing_grows(after: list[dict]) -> None:
    """The same verdicts every time; no more files, descriptors, threads, memory than at first."""
    assert len(after) > SETTLED
    first, settled, last = after[0], after[SETTLED - 1], after[-1]
    assert {name: status for name, (status, _, _) in first["verdicts"].items()} == dict.fromkeys(
        ORDER, "PASS")
    for tour, found in enumerate(after, 1):
        assert (found["code"], found["verdicts"]) == (0, first["verdicts"]), f"tour {tour}"
        for place, files in found["files"].items():
            assert set(files) <= set(first["files"][place]), f"tour {tour}: files in {place}"
        for what in ("descriptors", "threads"):
            assert found[what] <= first[what], f"tour {tour}: {what}"
    grown = last["kilobytes"] - settled["kilobytes"]
    assert grown < 50 * (len(after) - SETTLED), f"memory in KB: {[a['kilobytes'] for a in after]}"


@pytest.mark.slow
def test_rehearsals_in_a_row(tmp_path):
    count = int(os.environ.get("TOUR_SOAK", 20))
    nothing_grows(tours(tmp_path, count, "--quick", "--device", "cpu"))


@pytest.mark.gpu
@pytest.mark.slow
def test_tours_of_a_gpu_in_a_row(tmp_path):
    def used() -> list[int]:
        """Megabytes of each GPU's memory that are taken, by whomever."""
        query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        return [int(line) for line in subprocess.check_output(query, text=True).split()]

    before = used()
    nothing_grows(tours(tmp_path, int(os.environ.get("TOUR_SOAK", 5)), "--quick"))
    assert all(now <= then + 50 for then, now in zip(before, used(), strict=True))
