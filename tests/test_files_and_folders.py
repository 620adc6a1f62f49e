"""Folders that refuse, disks that are full, caches that are damaged or shared, files that change:
the tour runs all the same, or says in one line what is missing."""

import errno
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from sections.course import Course
from sections.runner import tour as tour_module
from sections.runner.arguments import Options
from sections.runner.installed import ROOT
from sections.runner.screen import Screen
from sections.runner.tour import Tour
from tests.command import statuses
from tests.fake_tour import FakeCourse
from tests.test_install_command import obey_permissions
from tilelang_tour import main

SHORT = ("--only", "vector_add", "--quick", "--device", "cpu", "--no-install")
REFUSED = (
    "TileLang's cache {} cannot be written ({}): what is compiled is not kept for the next tour; "
    "needed: a folder for compiled kernels; type: export TILELANG_CACHE_DIR=/tmp/tilelang-cache"
)


def start(folder: Path, *arguments: str, **variables: str):
    """Start the tour in a folder; root is stopped by permissions as any other user is."""
    environ = {**os.environ, **variables}
    return subprocess.Popen(
        [sys.executable, ROOT / "tilelang_tour.py", *SHORT, *arguments], cwd=folder,
        env={name: value for name, value in environ.items() if value},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        preexec_fn=obey_permissions,
    )


def passed(process) -> str:
    """What a tour printed that ended well."""
    text, _ = process.communicate(timeout=200)
    assert process.returncode == 0 and statuses(text) == {"vector_add": "PASS"}, text
    return text


# Folders that refuse


def test_a_home_and_a_current_folder_that_are_read_only(tmp_path):
    """Kernels are compiled into a temporary folder, and nothing is left of it."""
    home, temporary = tmp_path / "home", tmp_path / "tmp"
    home.mkdir(), temporary.mkdir()
    home.chmod(0o555)
    text = passed(start(home, HOME=str(home), TILELANG_CACHE_DIR="", TMPDIR=str(temporary)))
    refused = REFUSED.format(home / ".tilelang/cache", "Permission denied")
    assert f"note: {refused}" in text.splitlines()
    assert "Errno" not in text
    assert list(home.iterdir()) == []
    assert not list(temporary.glob("tilelang-tour-*"))


def small_files() -> None:
    """A disk with room for files of less than a megabyte."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (900_000, 900_000))


def test_a_disk_without_room_for_the_cache_is_seen(tmp_path):
    ask = f"from sections.runner.environment import refusal; print(refusal({str(tmp_path)!r}))"
    for before, says in ((small_files, "File too large"), (None, "")):
        done = subprocess.run([sys.executable, "-c", ask], cwd=ROOT, preexec_fn=before,
                              capture_output=True, text=True)
        assert (done.stdout.strip(), done.stderr) == (says, "")
    assert list(tmp_path.iterdir()) == []


def test_where_the_cache_refuses_the_tour_has_one_of_its_own(tmp_path):
    (tmp_path / "file").write_text("")
    for name, refused in (("file/cache", True), ("cache", False)):
        environ = {"TILELANG_CACHE_DIR": str(tmp_path / name)}
        tour = Tour(Course(), Options(names=("gemm",)), environ, Screen())
        there = Path(tour.environment["TILELANG_CACHE_DIR"])
        assert (there != tmp_path / name) == refused
        assert not refused or there.parent.name.startswith("tilelang-tour-")
        shutil.rmtree(tour._folder)


def test_a_cache_that_is_a_file_is_checked(tmp_path):
    cache = tmp_path / "cache"
    cache.write_text("mine")
    process = start(tmp_path, "--check", TILELANG_CACHE_DIR=str(cache))
    text, _ = process.communicate(timeout=100)
    told = " ".join(text.split())
    assert f"problem 1 {REFUSED.format(cache, 'File exists')} mode CPU rehearsal" in told
    assert process.returncode == 0 and cache.read_text() == "mine"


def test_a_folder_for_temporary_files_that_refuses_is_not_the_compilers_either(
    tmp_path, monkeypatch
):
    """Python takes the next one that works; so do g++ and nvcc, which only know TMPDIR."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "not there"))
    environ = {"TMPDIR": str(tmp_path / "not there")}
    tour = Tour(FakeCourse(), Options(names=("passes",)), environ, Screen())
    tour.run()
    assert tour.environment["TMPDIR"] == tempfile.gettempdir() != environ["TMPDIR"]


def test_no_folder_for_temporary_files_at_all(monkeypatch, capsys):
    """Python's own words for it, and what to type."""
    def refuse(**_):
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tour_module.tempfile, "mkdtemp", refuse)
    assert main(["--only", "passes"], course=FakeCourse()) == 1
    assert capsys.readouterr().out == (
        "No usable temporary directory found in ['/tmp']; needed: a folder for temporary files "
        "with room in it; type: export TMPDIR=~\n"
    )


# The cache


def checks(results: Path) -> list:
    """What a tour checked, and how it came out."""
    return [row["checks"] for row in json.loads(results.read_text())["sections"]]


DAMAGE = (
    lambda file: file.write_bytes(b""),
    lambda file: file.write_bytes(os.urandom(500)),
    lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
    lambda file: file.unlink(),
)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_cache_that_two_tours_share_and_one_that_is_damaged(tmp_path, device):
    """Two begin at once with an empty one; then every file in it is damaged in turn."""
    cache = tmp_path / "cache"
    cold = [start(tmp_path, "--device", device, "--results", f"{number}.json",
                  TILELANG_CACHE_DIR=str(cache)) for number in range(2)]
    for process in cold:
        passed(process)
    files = sorted(file for file in cache.rglob("*") if file.is_file())
    assert len(files) > 10 and {".so", ".json"} <= {file.suffix for file in files}
    for number, file in enumerate(files):
        DAMAGE[number % len(DAMAGE)](file)
    passed(start(tmp_path, "--device", device, "--results", "2.json",
                 TILELANG_CACHE_DIR=str(cache)))
    found = [checks(tmp_path / f"{number}.json") for number in range(3)]
    assert found[0] == found[1] == found[2] != [[]]


# Files of the tour, and the folder it was started in

MEDDLING = {
    "first": "from pathlib import Path\n"
             "def run(page):\n"
             "    here = Path(__file__)\n"
             "    here.write_text(here.read_text() + '# a word more')\n"
             "    here.with_name('second.py').write_text('def run(page:')\n",
    "second": "def run(page): pass\n",
    "third": "def run(page): pass\n",
}


def write_course(folder: Path, **sections: str) -> dict[str, str]:
    """Write a course of these sections; returns the variables with which Python finds it."""
    (folder / "course").mkdir()
    (folder / "course" / "__init__.py").write_text(f"ORDER = {tuple(sections)}\n")
    for name, source in sections.items():
        (folder / "course" / f"{name}.py").write_text(source)
    return {"PYTHONPATH": str(folder)}


def test_sources_that_are_changed_while_the_tour_runs(tmp_path, monkeypatch, capsys):
    """What comes later is what is there by then; the summary says that it changed."""
    for name, value in write_course(tmp_path, **MEDDLING).items():
        monkeypatch.setenv(name, value)
    monkeypatch.syspath_prepend(tmp_path)
    assert main([], course=Course("course", needs_tilelang=False)) == 1
    text = capsys.readouterr().out
    assert statuses(text) == {"first": "PASS", "second": "FAIL", "third": "PASS"}
    assert "second: FAIL: SyntaxError: " in text
    assert ("\nchanged while the tour ran: course/first.py, course/second.py; old and new may be "
            "mixed above: run it again\n") in text


@pytest.mark.parametrize("arguments, code, last", [
    (("--list",), 0, "architectures "),
    (("--results", "it.json"), 2, "tilelang_tour.py: the current folder is gone; "),
])
def test_a_current_folder_that_is_gone(arguments, code, last, tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    tour = [sys.executable, str(ROOT / "tilelang_tour.py"), *arguments]
    done = subprocess.run(["sh", "-c", 'rmdir "$PWD"; exec "$@"', "sh", *tour], cwd=gone,
                          capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (code, "")
    assert done.stdout.splitlines()[-1].startswith(last)
