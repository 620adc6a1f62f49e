"""sections/exercises and --exercise: every solution passes, no skeleton does, nothing is lost."""

import ast
import importlib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import sections
from sections.common.build import build
from sections.common.device import SHARED_BYTES, Device
from sections.common.page import Page
from sections.course import Course
from sections.exercises import EXERCISES, ORDER, hints, learners_file, skeleton, source
from sections.runner import arguments
from sections.runner.arguments import Options, UsageError
from sections.runner.exercise import COURSE, verdict
from sections.runner.screen import Screen
from sections.runner.tour import Record, Row, Tour
from sections.worker import learners
from tests.command import ROOT, Home
from tests.fake_tour import FakeCourse
from tests.mutations import MUTATIONS, MutatedPage, rehearsal_device
from tilelang_tour import main

FOLDER = ROOT / "sections" / "exercises"
NO_KERNEL = {"shared_memory"}  # a formula; it is not checked by running anything
ONE_DIMENSION = {"add_tail", "wide_loads"}  # a transposed result is the same
# What a check says of the skeleton: "wrong" is a problem that verify.compare describes.
WRONG = r"\d+ of \d+ elements wrong, the first at \d+: \S+, expected -?\d[\d.e-]*"
SAYS = {
    "gemm_schedule": "asked: at least 2 stages; found: 0",
    "shared_memory": "block_M=64, block_N=64, block_K=32, num_stages=0: 49152 bytes, expected 8192",
    "wide_loads": "asked: a vector load of at least 16 bytes, for 67108864 elements; found: single",
    "fit_t4": "asked: at most 64 KB of shared memory, what a block has on sm_75; found: 144 KB",
}


def as_learned(name: str, text: str, folder: Path):
    """The module that a learner's file with that text is."""
    path = folder / learners_file(name)
    path.write_text(text, "utf-8")
    return learners(str(path))


def checked(name: str, device, yours=None, mutate=None):
    """An exercise's check of a module, its own solution unless given; returns the page."""
    exercise = importlib.import_module(f"sections.exercises.{name}")
    page = MutatedPage(device, mutate=mutate)
    page.yours = yours or exercise
    exercise.run(page)
    page.close()
    return page


# The files


def test_every_section_has_one_to_three_exercises_and_every_file_is_one():
    assert tuple(EXERCISES) == sections.ORDER
    assert all(1 <= len(names) <= 3 for names in EXERCISES.values())
    files = {path.stem for path in FOLDER.glob("*.py")} - {"__init__", "checking"}
    assert len(ORDER) == len(set(ORDER)) and set(ORDER) == files


@pytest.mark.parametrize("name", ORDER)
def test_an_exercise_says_what_to_do(name):
    title, task = COURSE.docstring(name)
    assert re.fullmatch(r"(Fill in|Mend|Beat): .{5,60}[^.]", title)
    assert 3 <= len(task.splitlines()) <= 8
    assert len(hints(source(name))) == 3
    assert all(20 < len(hint) < 250 for hint in hints(source(name)))


@pytest.mark.parametrize("name", ORDER)
def test_a_skeleton_gives_the_task_and_not_the_answer(name):
    text, whole = skeleton(source(name)), source(name)
    assert ast.get_docstring(ast.parse(text)) == ast.get_docstring(ast.parse(whole))
    assert not re.search(r"# (skeleton|solution|end|check)\b", text)
    assert "HINTS" not in text and "def run(" not in text and "sections." not in text
    answers = re.findall(r"# solution:\n(.*?)^ *# end$", whole, re.DOTALL | re.MULTILINE)
    assert any(answers) and not any(f"\n{answer}" in text for answer in answers if answer)
    assert text.count("TODO") == (COURSE.docstring(name)[0].startswith("Fill in"))
    assert text.endswith("\n") and not text.endswith("\n\n")
    assert max(map(len, text.splitlines())) <= 100


def test_a_skeleton_is_made_from_marks():
    text = """one
    # skeleton:
    # # TODO: two
    #     if three:
    # solution:
    TWO
    # end
four  # solution: stays
    # skeleton:
    # solution:
    FIVE
    # end
six

# check: nothing below
seven
"""
    assert skeleton(text) == """one
    # TODO: two
        if three:
four  # solution: stays
six
"""


# The checks


@pytest.mark.parametrize("name", ORDER)
def test_the_solution_passes_and_the_skeleton_does_not(name, rehearsal, tmp_path, capsys):
    assert checked(name, rehearsal).failures == []
    failures = checked(name, rehearsal, as_learned(name, skeleton(source(name)), tmp_path)).failures
    if name in SAYS:
        assert any(failure.startswith(SAYS[name]) for failure in failures)
    else:
        (failure,) = failures
        assert re.search(WRONG, failure), failure


@pytest.mark.parametrize("name", [name for name in ORDER if name not in NO_KERNEL])
def test_wrong_results_fail(name, rehearsal, capsys):
    for mutation, mutate in MUTATIONS.items():
        if mutation != "transposed" or name not in ONE_DIMENSION:
            failures = checked(name, rehearsal, mutate=mutate).failures
            assert failures and failures[0].startswith("check "), mutation


def test_half_a_file_is_not_left(tmp_path, monkeypatch, capsys):
    """A disk that is full while the task is written: the next call must make it anew."""
    monkeypatch.chdir(tmp_path)
    opened = open

    class Full:
        def __init__(self, *arguments, **options):
            self.file = opened(*arguments, **options)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

        def write(self, text):
            self.file.write(text[:10])
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("builtins.open", lambda path, mode="r", *rest, **options: (
        Full if mode == "x" else opened)(path, mode, *rest, **options))
    assert main(["--exercise", "rescale"]) == 2
    assert "No space left on device" in "".join(capsys.readouterr())
    assert list(tmp_path.iterdir()) == []


def test_a_schedule_that_does_not_fit_is_not_run(rehearsal, tmp_path, capsys):
    large = source("gemm_schedule").replace('"num_stages": 3', '"num_stages": 20')
    page = checked("gemm_schedule", rehearsal, as_learned("gemm_schedule", large, tmp_path))
    assert page.failures == ["asked: at most 227 KB of shared memory, what a block has on sm_90a; "
                             "found: 320 KB"]
    assert "checked" not in capsys.readouterr().out


@pytest.mark.parametrize("old, new, told", [
    ("a[i] += b[i]", "a[i] += c[i]", "256 float32 did not compile: NameError: name 'c' is not "
                                     "defined (exercise_add_tail.py, line 27)"),
    ("C[block * block_N]", "C[block * block_N, 0]",
     "did not compile: IndexError: Buffer C is 1-dimensional"),
    ("@tilelang.jit", "", "did not compile: TypeError: add is no kernel: @tilelang.jit does not "
                          "stand above it"),
], ids=["name", "dimensions", "plain function"])
def test_what_does_not_compile_is_told_with_its_line(old, new, told, rehearsal, tmp_path, capsys):
    text = skeleton(source("add_tail")).replace(old, new)
    page = checked("add_tail", rehearsal, as_learned("add_tail", text, tmp_path))
    (failure,) = page.failures
    assert told in failure


def test_a_kernel_that_is_not_there_is_told_by_name(rehearsal, tmp_path):
    text = skeleton(source("add_tail")).replace("def add(", "def plus(")
    with pytest.raises(AttributeError, match="'exercise_add_tail' has no attribute 'add'"):
        checked("add_tail", rehearsal, as_learned("add_tail", text, tmp_path))


class PretendGpu(Device):
    """A GPU in all but where tensors live."""

    torch_device = "cpu"


class PretendPage(Page):
    """A page that takes its kernels from the C backend and its times from thin air."""

    ratio = 1.0

    def build(self, jobs):
        return build(rehearsal_device(), list(jobs))

    def measure(self, case, variant, kernel, inputs, baselines, work):
        return [{"case": case, "variant": variant, "ms": 0.25, "value": 4000.0, "unit": "GB/s",
                 "baseline": name, "baseline_ms": 0.5, "ratio": self.ratio, "ratio_low": 1.0,
                 "ratio_high": 3.0} for name in baselines]


@pytest.mark.parametrize("name, ratio, failures", [
    ("gemm_schedule", 1.3, []),
    ("gemm_schedule", 1.2, ["asked: 1.25 times as fast as the given schedule; found: 1.20 times"]),
    ("wide_loads", 0.5, []),
])
def test_a_gpu_times_what_is_to_be_beaten(name, ratio, failures, monkeypatch, capsys):
    monkeypatch.setattr(importlib.import_module("sections.gemm"), "SHOWN", 100)
    exercise = importlib.import_module(f"sections.exercises.{name}")
    monkeypatch.setattr(exercise, "LARGE", 1 << 13, raising=False)
    page = PretendPage(PretendGpu("gpu", "sm_90a", 227 << 10, "H200", "sm_90a", 132, 140 << 30))
    page.yours, page.ratio = exercise, ratio
    exercise.run(page)
    assert page.failures == failures
    assert f" {ratio:.2f}x " in capsys.readouterr().out


# A learner's file does what it likes, in a process of its own

FILES = {
    "raises": ("\nraise RuntimeError('upside down')\n", "FAIL",
               "RuntimeError: upside down (exercise_x.py, line 2)"),
    "syntax": ("if True:\n    x = (1\n", "FAIL",
               "SyntaxError: '(' was never closed (exercise_x.py, line 2)"),
    "no text": (b"x = '\xff'\n", "FAIL", "SyntaxError: (unicode error) 'utf-8' codec"),
    "exits": ("raise SystemExit(0)\n", "FAIL", "SystemExit: 0 (exercise_x.py, line 1)"),
    "leaves": ("import os; os._exit(0)\n", "CRASH", "the process ended with code 0"),
    "segfaults": ("import ctypes; ctypes.string_at(0)\n", "CRASH", "killed by SIGSEGV"),
    "hangs": ("import time; time.sleep(99)\n", "TIMEOUT", "over the limit of 1 s (--timeout)"),
    "asks": ("input('?')\n", "FAIL", "EOFError"),
    "floods": ("print('x' * 10_000_000)\nraise ValueError('drowned')\n", "FAIL",
               "ValueError: drowned (exercise_x.py, line 2)"),
    "is fine": ("x = 1\n", "PASS", ""),
}


@pytest.mark.parametrize("fault", FILES)
def test_a_fault_in_a_learners_file_is_one_line(fault, tmp_path, monkeypatch, capsys):
    content, status, note = FILES[fault]
    home = Home(tmp_path / "home")
    home.folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(home.folder))
    path = tmp_path / "exercise_x.py"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    before = path.read_bytes()
    options = Options(names=("passes",), learner=str(path),
                      timeout=1 if status == "TIMEOUT" else 30)
    try:
        record = Tour(FakeCourse(), options, home.environment, Screen()).run()
        assert home.all_gone()
    finally:
        home.clean_up()
    (row,) = record.rows
    assert (row.status, record.exit_code) == (status, 0 if status == "PASS" else 1)
    assert row.note.startswith(note) if note.endswith("codec") else note in row.note
    assert len(row.note) < 400 and len(capsys.readouterr().out) < 500_000
    assert path.read_bytes() == before
    assert [found.name for found in tmp_path.iterdir() if found != home.folder] == [path.name]


# The command line


def parse(*words: str) -> Options:
    return arguments.parse(list(words), Course())


@pytest.mark.parametrize("words, found", [
    ((), (None, 0)),
    (("--exercise", "list"), ("list", 0)),
    (("--exercise", "rescale"), ("rescale", 0)),
    (("--exercise", " Rescale "), ("rescale", 0)),
    (("--exercise=rescale",), ("rescale", 0)),
    (("--exercise", "rescale", "hint"), ("rescale", 1)),
    (("--exercise", "rescale", "HINT", "3"), ("rescale", 3)),
])
def test_an_exercise_and_a_hint(words, found):
    options = parse(*words)
    assert (options.exercise, options.hint) == found


def test_what_goes_with_an_exercise():
    options = parse("--exercise", "rescale", "--device", "cpu", "--arch", "sm_80", "--quick",
                    "--timeout", "7", "--no-install")
    assert (options.device, options.arch, options.quick, options.timeout, options.install) == (
        "cpu", "sm_80", True, 7.0, False)


@pytest.mark.parametrize("words, telling", [
    ("rescal", "no such exercise; did you mean rescale? the exercises are: add_tail, row_stride"),
    ("xyzzy", "--exercise xyzzy: no such exercise; the exercises are: add_tail"),
    ("lst", "did you mean list?"),
    ("", "expected at least one argument"),
    ("rescale gemm", "--exercise rescale gemm: not understood"),
    ("rescale hint x", "not understood"),
    ("rescale hint 2 3", "there are hints 1 to 3"),
    ("rescale hint 0", "--exercise rescale hint 0: there are hints 1 to 3"),
    ("rescale hint 4", "there are hints 1 to 3"),
    (f"rescale hint {'9' * 5000}", "not understood"),
    ("list hint", "not understood"),
    ("rescale --only gemm", "--exercise does not go with --only"),
    ("rescale --skip gemm --list", "does not go with --skip, --list"),
    ("rescale --results results.json", "does not go with --results"),
    ("list --check --reference", "does not go with --check, --reference"),
])
def test_what_is_refused(words, telling, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as caught:
        parse("--exercise", *words.split())
    assert telling in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def command(folder: Path, *words: str, **variables) -> subprocess.CompletedProcess:
    """The real command with --exercise, from a learner's folder."""
    return subprocess.run(
        [sys.executable, ROOT / "tilelang_tour.py", "--exercise", *words], cwd=folder, text=True,
        capture_output=True, timeout=300, env={**os.environ, **variables})


@pytest.mark.parametrize("words, code, telling", [
    ("list", 0, "architectures\n  fit_t4"),
    ("rescale", 0, "exercise_rescale.py is now in this folder"),
    ("rescale hint", 0, "Hint 1 of 3: exp(x - new)"),
    ("nosuch", 2, "no such exercise"),
])
def test_simple_answers_need_nothing_installed(words, code, telling, tmp_path):
    (tmp_path / "path").mkdir()
    for module in ("torch", "tilelang", "numpy", "tabulate"):
        (tmp_path / "path" / f"{module}.py").write_text("raise SystemExit('imported')\n")
    done = command(tmp_path, *words.split(), PYTHONPATH=str(tmp_path / "path"))
    assert done.returncode == code and telling in done.stdout and done.stderr == ""


def test_the_list_has_a_line_an_exercise_and_says_which_were_begun(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "exercise_rescale.py").touch()
    assert main(["--exercise", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    told = [line.split()[0] for line in lines[:-1]]
    assert told == [word for section, names in EXERCISES.items() for word in (section, *names)]
    assert [line for line in lines if "is here" in line] == [
        "  rescale        Fill in: the rescale of online softmax  (exercise_rescale.py is here)"]


def test_hints_get_plainer_and_end_at_the_solution(capsys):
    for number, following in ((1, "A plainer one: python tilelang_tour.py --exercise transpose "
                                  "hint 2"), (2, "hint 3"),
                              (3, "The solution is in sections/exercises/transpose.py")):
        assert main(["--exercise", "transpose", "hint", str(number)]) == 0
        told = capsys.readouterr().out
        assert told.startswith(f"Hint {number} of 3: ") and told.rstrip().endswith(following)


def test_a_folder_that_takes_no_file_is_exit_2(monkeypatch, capsys):
    monkeypatch.chdir("/proc")
    assert main(["--exercise", "rescale"]) == 2
    assert "/proc/exercise_rescale.py cannot be written" in capsys.readouterr().out


def test_an_exercise_from_beginning_to_end(tmp_path):
    file = tmp_path / "exercise_row_mask.py"
    made = command(tmp_path, "row_mask")
    assert made.returncode == 0 and made.stderr == ""
    assert "Give the\n  elements from N on a value" in made.stdout
    number = int(re.search(r"Line (\d+) says TODO", made.stdout)[1])
    assert "TODO" in file.read_text().splitlines()[number - 1]
    assert made.stdout.endswith("python tilelang_tour.py --only softmax\n")
    assert file.read_text() == skeleton(source("row_mask"))

    wrong = command(tmp_path, "row_mask", "--device", "cpu")
    assert wrong.returncode == 1 and "CPU rehearsal" in wrong.stdout
    assert re.search(f"FAILED  check 3x333 float32: {WRONG} \\(row 0, column 0\\)\n", wrong.stdout)
    assert "Not solved yet. Change exercise_row_mask.py" in wrong.stdout
    assert "--exercise row_mask hint\n" in wrong.stdout
    assert file.read_text() == skeleton(source("row_mask")), "never over a file that is there"

    solved = "# mine\n" + source("row_mask").partition("\n# check: ")[0]
    file.write_text(solved)
    right = command(tmp_path, "row_mask", "--device", "cpu")
    assert right.returncode == 0, right.stdout
    told = right.stdout[right.stdout.index("Solved.") :].splitlines()
    assert told == ["Solved. The tour's own solution, to compare: sections/exercises/row_mask.py",
                    "Next: python tilelang_tour.py --exercise rms_norm"]
    assert file.read_text() == solved and [path.name for path in tmp_path.iterdir()] == [file.name]


@pytest.mark.slow
def test_all_solutions_pass_as_a_tour(tmp_path, monkeypatch):
    options = Options(names=ORDER, device="cpu")
    record = Tour(COURSE, options, dict(os.environ), Screen()).run()
    assert {row.name: row.status for row in record.rows} == dict.fromkeys(ORDER, "PASS")
    assert record.exit_code == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ORDER)
def test_every_exercise_through_the_command(name, tmp_path):
    assert command(tmp_path, name).returncode == 0
    wrong = command(tmp_path, name, "--device", "cpu")
    assert wrong.returncode == 1 and "Not solved yet." in wrong.stdout, wrong.stdout
    (tmp_path / learners_file(name)).write_text(source(name))
    right = command(tmp_path, name, "--device", "cpu")
    assert right.returncode == 0 and "Solved." in right.stdout, right.stdout


# Other architectures, and a GPU


class _Jobs(BaseException):
    """What an exercise wants compiled."""


class _Asking(MutatedPage):
    def build(self, jobs, read=()):
        raise _Jobs(list(jobs))


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a"])
@pytest.mark.parametrize("name", [name for name in ORDER if name not in NO_KERNEL])
def test_nvcc_takes_solution_and_skeleton(name, arch, tmp_path, capsys):
    from sections.common import codegen

    exercise = importlib.import_module(f"sections.exercises.{name}")
    for yours in (exercise, as_learned(name, skeleton(source(name)), tmp_path)):
        page = _Asking(rehearsal_device(arch))
        page.yours = yours
        if name == "fit_t4" and yours is not exercise:
            continue  # a schedule that does not fit is not compiled
        with pytest.raises(_Jobs) as wanted:
            exercise.run(page)
        for kernel, shape in wanted.value.args[0]:
            code = codegen.generate(kernel, arch, **shape)
            found = codegen.resources(code)
            assert found.spill_bytes == 0
            assert code.shared_bytes + found.static_shared_bytes <= SHARED_BYTES[arch]


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_120a"])
@pytest.mark.parametrize("name", sorted(SAYS))
def test_rules_hold_for_other_architectures(name, arch, tmp_path, capsys):
    device = rehearsal_device(arch)
    assert checked(name, device).failures == []
    assert checked(name, device, as_learned(name, skeleton(source(name)), tmp_path)).failures != []


@pytest.mark.gpu
@pytest.mark.parametrize("name", ORDER)
def test_the_solution_passes_and_the_skeleton_does_not_on_a_gpu(name, gpu, tmp_path, capsys):
    page = checked(name, gpu)
    assert page.failures == [], capsys.readouterr().out
    failures = checked(name, gpu, as_learned(name, skeleton(source(name)), tmp_path)).failures
    assert failures and not any("did not compile" in failure for failure in failures)


def test_a_known_error_is_told_with_its_meaning():
    row = Row("add_tail", "FAIL", note="RuntimeError: No valid warp partition for 100 threads")
    said = verdict(Record([row]))
    assert said.startswith("  That means: the tile of a T.gemm cannot be dealt out evenly")
    assert "Not solved yet. Change exercise_add_tail.py" in said
