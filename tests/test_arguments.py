"""The command line: what is asked for is checked before anything is installed or imported."""

import os
import statistics
import subprocess
import sys
import time

import pytest

from sections.runner import arguments
from sections.runner.arguments import Options, UsageError
from tests.command import ROOT
from tilelang_tour import main


class Small:
    """A course of three sections."""

    order = ("vector_add", "gemm", "softmax")

    def docstring(self, name):
        return f"Title of {name}", ""


def parse(*words: str) -> Options:
    return arguments.parse(list(words), Small())


def refused(*words: str) -> str:
    with pytest.raises(UsageError) as caught:
        parse(*words)
    return str(caught.value)


# Selections


@pytest.mark.parametrize("words, names", [
    ((), "vector_add gemm softmax"),
    (("--only", "gemm, softmax"), "gemm softmax"),
    (("--only", "softmax,gemm"), "gemm softmax"),
    (("--only", "GEMM"), "gemm"),
    (("--only", " Gemm "), "gemm"),
    (("--only", "gemm,gemm"), "gemm"),
    (("--only", "gemm,"), "gemm"),
    (("--only", ",,gemm,"), "gemm"),
    (("--only=gemm",), "gemm"),
    (("--only", "softmax", "--only", "vector_add"), "vector_add softmax"),
    (("--only", "softmax", "--only", ","), "softmax"),
    (("--skip", "gemm"), "vector_add softmax"),
    (("--skip", "GEMM, softmax"), "vector_add"),
    (("--skip", "gemm", "--skip", "softmax"), "vector_add"),
    (("--only", "gemm,softmax", "--skip", "gemm"), "softmax"),
    (("--only", "gemm", "--skip", "softmax"), "gemm"),
])
def test_a_selection(words, names):
    assert parse(*words).names == tuple(names.split())


@pytest.mark.parametrize("words, telling", [
    (("--only", ","), "--only names no section"),
    (("--only", ""), "--only names no section"),
    (("--only", " , "), "--only names no section"),
    (("--skip", ","), "--skip names no section"),
    (("--only", "gemm,nosuch"), "--only nosuch: no such section; the sections are"),
    (("--only", "gemm", "--only", "nosuch"), "--only nosuch: no such section"),
    (("--only", "nosuch,other"), "--only nosuch,other: no such section"),
    (("--only", "gem"), "did you mean gemm?"),
    (("--only", "vectoradd,sofmax"), "did you mean softmax, vector_add?"),
    (("--skip", "sofmax"), "--skip sofmax: no such section; did you mean softmax?"),
    (("--only", "gemm", "--skip", "gemm"), "nothing left to run"),
    (("--skip", "gemm,softmax,vector_add"), "nothing left to run"),
])
def test_a_selection_that_is_refused(words, telling):
    message = refused(*words)
    assert telling in message
    assert "the sections are: vector_add, gemm, softmax" in message


# Other values


def test_defaults():
    assert parse() == Options(names=Small.order, device="auto", arch=None, results=None,
                              timeout=600.0, install=True, quick=False, check=False, list=False)


def test_flags():
    options = parse("--quick", "--no-install", "--check", "--list", "--device", "cpu")
    assert options.quick and options.check and options.list and not options.install
    assert options.device == "cpu"


@pytest.mark.parametrize("word, arch", [
    ("sm_75", "sm_75"), ("sm_89", "sm_89"), ("SM_80", "sm_80"), (" sm_86 ", "sm_86"),
    ("sm_90", "sm_90a"), ("sm_90a", "sm_90a"), ("sm_100", "sm_100a"), ("sm_120", "sm_120a"),
])
def test_an_architecture(word, arch):
    assert parse("--arch", word).arch == arch


@pytest.mark.parametrize("word", ["sm_70", "75", "sm_", "", "hopper", "sm_75a", "sm_90aa"])
def test_an_architecture_that_is_refused(word):
    message = refused("--arch", word)
    assert f"--arch {word}: no such architecture" in message
    assert "sm_75, sm_80, sm_86, sm_89, sm_90a, sm_100a, sm_120a" in message


@pytest.mark.parametrize("word, seconds", [("1", 1.0), ("0.5", 0.5), ("1e3", 1000.0)])
def test_a_timeout(word, seconds):
    assert parse("--timeout", word).timeout == seconds


@pytest.mark.parametrize("word", ["0", "-1", "nan", "inf", "-inf", "1e999", "ten", "", "1h"])
def test_a_timeout_that_is_refused(word):
    message = refused(f"--timeout={word}")
    assert message.startswith(("--timeout ", "argument --timeout: "))
    assert "did you mean" not in message


@pytest.mark.parametrize("words, telling", [
    (("--olny", "gemm"), "did you mean --only?"),
    (("--olny=gemm",), "did you mean --only?"),
    (("-only", "gemm"), "did you mean --only?"),
    (("--onl", "gemm"), "did you mean --only?"),  # no abbreviations
    (("--quik",), "did you mean --quick?"),
    (("--no_install",), "did you mean --no-install?"),
    (("--xyzzy",), "unrecognized arguments: --xyzzy"),
    (("gemm",), "unrecognized arguments: gemm"),
    (("--only",), "argument --only: expected one argument"),
    (("--device", "gpu"), "invalid choice: 'gpu'"),
    (("--quick=yes",), "--quick"),
])
def test_a_word_that_is_not_understood(words, telling):
    message = refused(*words)
    assert telling in message
    assert "usage: python tilelang_tour.py" in message


# Results


def test_a_results_path_is_made_absolute_and_leaves_no_trace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert parse("--results", "out.json").results == str(tmp_path / "out.json")
    assert list(tmp_path.iterdir()) == []


def test_a_results_file_that_exists_is_left_as_it_is(tmp_path):
    (tmp_path / "out.json").write_text("old")
    parse("--results", str(tmp_path / "out.json"))
    assert (tmp_path / "out.json").read_text() == "old"


def test_a_link_to_a_results_file_that_is_not_there_yet_stays(tmp_path):
    (tmp_path / "link.json").symlink_to(tmp_path / "out.json")
    parse("--results", str(tmp_path / "link.json"))
    assert (tmp_path / "link.json").is_symlink() and not (tmp_path / "out.json").exists()


def test_a_named_pipe_is_not_opened_before_there_is_something_to_write(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert parse("--results", str(tmp_path / "pipe")).results == str(tmp_path / "pipe")


@pytest.mark.parametrize("path, telling", [
    ("", "Is a directory"),
    (".", "Is a directory"),
    ("nosuch/out.json", "No such file or directory"),
    ("file/out.json", "Not a directory"),
    ("x" * 300, "File name too long"),
])
def test_a_results_path_that_cannot_be_written(path, telling, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    message = refused("--results", path)
    assert telling in message and "cannot be written" in message
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


# The command


@pytest.mark.parametrize("words", [
    ["--olny", "gemm"], ["--only", "nosuch"], ["--only", ","], ["--only", ""], ["--timeout", "0"],
    ["--arch", "sm_70"], ["--results", "/nosuch/out.json"], ["--device", "tpu"],
    ["--skip", "vector_add,gemm,softmax"], ["--list", "--only", "nosuch"],
])
def test_a_wrong_command_line_is_exit_2_and_a_message(words, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "sections.runner.conduct", None)  # nothing is begun
    assert main(words, course=Small()) == 2
    captured = capsys.readouterr()
    assert (captured.out + captured.err).startswith("tilelang_tour.py: ")
    assert "Traceback" not in captured.out + captured.err


def test_list_names_every_section_with_its_title(capsys):
    assert main(["--list"], course=Small()) == 0
    assert [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()] == [
        [name, f"Title of {name}"] for name in Small.order]


def test_help_names_every_option(capsys):
    assert main(["--help"], course=Small()) == 0
    shown = capsys.readouterr().out
    for option in ("--only", "--skip", "--list", "--quick", "--device", "--arch", "--check",
                   "--reference", "--results", "--timeout", "--no-install"):
        assert f"  {option}" in shown
    assert shown.isascii() and max(map(len, shown.splitlines())) <= 100


@pytest.mark.parametrize("words, code, answer", [
    (["--help"], 0, "--only"),
    (["--list"], 0, "gemm"),
    (["--olny"], 2, "did you mean --only?"),
    (["--only", "nosuch"], 2, "no such section"),
])
def test_simple_answers_are_quick_and_need_nothing_installed(words, code, answer, tmp_path):
    for module in ("torch", "tilelang", "numpy", "tabulate"):
        (tmp_path / f"{module}.py").write_text("raise SystemExit('imported')\n")
    def seconds(*command):
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(tmp_path)})
        taken = time.perf_counter() - start
        assert done.returncode == (code if command[0] != "-c" else 0)
        assert command[0] == "-c" or answer in done.stdout + done.stderr
        return taken

    ratios = [seconds("tilelang_tour.py", *words) / seconds("-c", "import asyncio")
              for _ in range(5)]
    assert statistics.median(ratios) < 3, "in times of a Python that imports one module"
