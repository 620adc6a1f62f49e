"""The command as a process: closed streams, signals, many open files."""

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.command import ROOT

COMMAND = (sys.executable, str(ROOT / "tilelang_tour.py"))


@pytest.mark.parametrize("arguments, code", [
    ("--list", 0), ("--exercise list", 0), ("--nosuch", 2),
])
@pytest.mark.parametrize("closed", [">&-", ">&- 2>&- <&-"])
def test_closed_streams(arguments, code, closed):
    done = subprocess.run(["sh", "-c", f'exec "$0" "$1" {arguments} {closed}', *COMMAND],
                          stderr=subprocess.PIPE, text=True)
    assert done.returncode == code
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_an_end_from_outside_is_an_interruption(tmp_path, number):
    path = tmp_path / "results.json"
    tour = subprocess.Popen(
        [*COMMAND, "--only", "vector_add,gemm", "--no-install", "--results", str(path)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)})
    for line in tour.stdout:
        if line.startswith("[1/2] vector_add"):
            tour.send_signal(number)
            break
    told = tour.stdout.read()
    assert tour.wait() == 130
    assert "NOT RUN" in told and told.rstrip().endswith("Interrupted.")
    assert json.loads(path.read_text())["exit_code"] == 130
    assert not list(tmp_path.glob("tilelang-tour-*"))


def test_a_process_with_a_thousand_open_files(home_of_files):
    assert home_of_files("--only", "vector_add", "--quick", "--no-install") == 0


@pytest.fixture
def home_of_files(tmp_path):
    """Runs main() where 1100 descriptors are open, as in a notebook that has lived for long."""
    script = tmp_path / "cell.py"
    script.write_text(
        "import os, resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "kept = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]\n"
        "from tilelang_tour import main\n"
        "sys.exit(main(sys.argv[1:]))\n")
    return lambda *arguments: subprocess.run(
        [sys.executable, str(script), *arguments], stdout=subprocess.DEVNULL).returncode


def test_an_output_on_a_full_disk_does_not_cost_the_results(tmp_path):
    path = tmp_path / "results.json"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*COMMAND, "--only", "vector_add", "--no-install", "--results", str(path)],
            stdout=full, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "TMPDIR": str(tmp_path)})
    says = "tilelang_tour.py: the output cannot be written: No space left on device\n"
    assert (done.stderr, done.returncode) == (says, 130)
    assert [row["status"] for row in json.loads(path.read_text())["sections"]] == ["NOT RUN"]


def test_a_reader_that_goes_away_does_not_cost_the_results(tmp_path):
    """As `| head -3`: the section that was under way is NOT RUN."""
    path = tmp_path / "results.json"
    tour = subprocess.Popen(
        [*COMMAND, "--only", "vector_add,softmax", "--no-install", "--results", str(path)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)})
    assert tour.stdout.readline().startswith("TileLang tour: ")
    tour.stdout.close()
    assert (tour.stderr.read(), tour.wait()) == ("", 130)
    tour.stderr.close()
    found = json.loads(path.read_text())
    assert found["exit_code"] == 130
    assert found["sections"][-1]["status"] == "NOT RUN"
