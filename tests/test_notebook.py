"""The launcher notebook: clean as committed, and it runs from a clean kernel, whichever way the
code comes. No GPU is used, also where there is one.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from sections import ORDER
from sections.runner.pictures import PICTURES
from tests.made_results import made

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOK = ROOT / "colab_launcher.ipynb"
FIELD = r"^{}( = )(.+?)(  # @param .*)?$"
BADGE = ("[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]"
         "(https://colab.research.google.com/github/{}/blob/main/colab_launcher.ipynb)")


def read() -> nbformat.NotebookNode:
    """The notebook as it is in the project."""
    return nbformat.read(NOTEBOOK, as_version=4)


def cell(book, name: str):
    """The cell of that id."""
    return next(cell for cell in book.cells if cell.id == name)


def fill(book, name: str, **values) -> None:
    """Fill in form fields of a cell, as a learner does."""
    for field, value in values.items():
        pattern = re.compile(FIELD.format(field), re.MULTILINE)
        assert len(pattern.findall(cell(book, name).source)) == 1, field
        cell(book, name).source = pattern.sub(
            lambda found, field=field, value=value: f"{field} = {value!r}{found[3] or ''}",
            cell(book, name).source,
        )


def field(book, name: str, field: str) -> str:
    """What stands in a form field of a cell."""
    return re.search(FIELD.format(field), cell(book, name).source, re.MULTILINE)[2]


def printed(book, name: str) -> str:
    """What a cell printed."""
    return "".join(output.get("text", "") for output in cell(book, name).outputs)


def execute(book, folder: Path) -> None:
    """Run the notebook's cells in a folder, from a clean kernel."""
    NotebookClient(book, timeout=300, kernel_name="python3",
                   resources={"metadata": {"path": str(folder)}}).execute()


def copy_tour(folder: Path) -> Path:
    """A folder with what a learner gets."""
    folder.mkdir(parents=True)
    shutil.copytree(ROOT / "sections", folder / "sections",
                    ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("tilelang_tour.py", "requirements.txt", NOTEBOOK.name):
        shutil.copy(ROOT / name, folder)
    return folder


def clone_address(folder: Path) -> str:
    """The address of a bare repository that holds the tour."""
    tour = copy_tour(folder / "work")
    git("init", "--quiet", cwd=tour)
    git("add", ".", cwd=tour)
    git("commit", "--quiet", "--message", "The tour", cwd=tour)
    git("clone", "--quiet", "--bare", str(tour), str(folder / "tour.git"), cwd=folder)
    return (folder / "tour.git").as_uri()


def git(*arguments: str, cwd: Path) -> None:
    """Run git as somebody."""
    who = ["-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=no"]
    subprocess.run(["git", *who, *arguments], cwd=cwd, check=True)


def contents(folder: Path) -> dict[str, float]:
    """Every path below a folder and when it was last written."""
    return {str(path.relative_to(folder)): path.stat().st_mtime for path in folder.rglob("*")}


@pytest.fixture(autouse=True)
def no_gpu_and_no_traces(monkeypatch, tmp_path_factory):
    home = tmp_path_factory.mktemp("jupyter")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("IPYTHONDIR", str(home))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(home))


# As committed


def test_valid_and_without_outputs():
    book = read()
    nbformat.validate(book)
    assert [cell.id for cell in book.cells if cell.cell_type == "code"] == \
        ["gpu", "code", "tour", "table", "pictures", "exercise", "alone", "change", "again"]
    for cell in book.cells:
        if cell.cell_type == "code":
            assert cell.outputs == [] and cell.execution_count is None, cell.id


def test_names_the_tours_sections():
    named = re.findall(r"`(\w+)`", cell(read(), "tour-text").source)
    assert tuple(name for name in named if name in ORDER) == ORDER


def test_the_change_fits_the_file():
    source = cell(read(), "change").source
    file, old, new = (eval(re.search(FIELD.format(name), source, re.MULTILINE)[2], {"Path": Path})
                      for name in ("file", "old", "new"))
    assert (ROOT / file).read_text().count(old) == 1
    assert new not in (ROOT / file).read_text()


def test_the_badge_leads_to_the_repository_in_the_form_field():
    address = field(read(), "code", "REPOSITORY").strip("\"'")
    readme = (ROOT / "README.md").read_text()
    if not address.startswith("https://github.com/"):  # not known yet: it would lead nowhere
        assert "colab.research.google.com/github" not in readme
    else:
        name = address.removeprefix("https://github.com/").removesuffix(".git").strip("/")
        assert BADGE.format(name) in readme, f"README.md needs this line:\n{BADGE.format(name)}"


# From a clean kernel


def test_with_the_files_beside_it(tmp_path):
    """All cells, the optional ones too."""
    folder = copy_tour(tmp_path / "tour")
    book = read()
    fill(book, "tour", sections="vector_add", quick=True)
    fill(book, "alone", section="vector_add", options="--quick block_N=256")
    execute(book, folder)

    assert "already here" in printed(book, "code")
    tour = printed(book, "tour")
    assert tour.startswith("python tilelang_tour.py --only=vector_add --quick")
    assert "1 passed, 0 failed" in tour and "Exit code 0: nothing failed." in tour
    assert (folder / "results.json").is_file()
    table = printed(book, "table").splitlines()
    assert table[0].split() == ["section", "case", "rel_error", "bound", "passed"]
    assert table[1].split()[:2] == ["vector_add", "65536"] and len(table) == 5
    assert "kernels is left out: nothing was timed in this run" in printed(book, "pictures")
    assert printed(book, "exercise").startswith("vector_add\n  add_tail ")
    assert "it owns the 256 elements" in printed(book, "alone")
    assert '"block_N": 1024 became "block_N": 128' in printed(book, "change")
    assert '"block_N": 128' in (folder / "sections/vector_add.py").read_text()
    again = printed(book, "again")
    assert "it owns the 1024 elements" in tour and "it owns the 128 elements" in again
    assert "(float4*)" in tour and "(float4*)" not in again
    assert "1 passed, 0 failed" in again


def test_from_an_address_to_clone(tmp_path):
    here = tmp_path / "empty"
    here.mkdir()
    book = read()
    address = clone_address(tmp_path)
    fill(book, "code", REPOSITORY=address)
    fill(book, "tour", sections="vector_add", quick=True, results="mine.json")
    last = next(at for at, cell in enumerate(book.cells) if cell.id == "tour")
    book.cells = book.cells[: last + 1]
    execute(book, here)

    assert f"cloned from {address}" in printed(book, "code")
    assert "Exit code 0" in printed(book, "tour")
    assert [path.name for path in here.iterdir()] == ["tilelang-tour"]
    assert (here / "tilelang-tour/mine.json").is_file()


def test_without_any_code_the_run_stops_with_what_to_type(tmp_path):
    book = read()
    with pytest.raises(CellExecutionError):
        execute(book, tmp_path)
    (error,) = (output for output in cell(book, "code").outputs if output.output_type == "error")
    shown = "\n".join(error.traceback)
    assert "Write the repository's address into REPOSITORY" in shown
    assert "REPOSITORY is empty" in shown and f"there is no zip in {tmp_path}" in shown
    assert "upload a zip" in shown
    assert "line" not in shown, "no traceback"
    assert cell(book, "tour").outputs == []
    assert list(tmp_path.iterdir()) == []


# Pictures and exercises


def test_the_pictures_of_a_run_are_shown(tmp_path):
    (tmp_path / "r.json").write_text(json.dumps(made()))
    before = "from pathlib import Path\nfrom tilelang_tour import main\nresults = 'r.json'\n"
    result = python(before + cell(read(), "pictures").source, cwd=tmp_path, PYTHONPATH=str(ROOT))
    assert result.stdout.count("<IPython.core.display.Image object>") == len(PICTURES), result
    assert len(list((tmp_path / "pictures").glob("*.svg"))) == len(PICTURES)


def test_an_exercise_is_begun_and_hinted_at(tmp_path):
    book = read()
    source = "from tilelang_tour import main\n"
    for words in ("add_tail", "add_tail hint"):
        fill(book, "exercise", exercise=words)
        source += cell(book, "exercise").source + "\n"
    result = python(source + "print(code)", cwd=tmp_path, PYTHONPATH=str(ROOT))
    (path,) = tmp_path.iterdir()
    assert path.name in result.stdout and "hint" in result.stdout.lower(), result
    assert result.stdout.endswith("\n0\n")


# The fields of the third cell


@pytest.mark.parametrize(("sections", "code", "words"), [
    ("gemm, nosuch", 2, "a field holds what the tour does not know"),
    (" ", 0, "nothing failed"),
    ("gemm", 1, "something failed"),
    ("gemm", 130, "interrupted"),
])
def test_the_exit_code_in_words(sections, code, words, tmp_path):
    book = read()
    fill(book, "tour", sections=sections, results="")
    if code != 2:  # a tour that comes to this end
        (tmp_path / "tilelang_tour.py").write_text(
            f"def main(arguments):\n    print(len(arguments), 'options')\n    return {code}\n")
    path = tmp_path if code != 2 else ROOT
    result = python(cell(book, "tour").source, cwd=tmp_path, PYTHONPATH=str(path))
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1].startswith(f"Exit code {code}: {words}")
    if code == 2:
        assert "nosuch" in result.stdout
    else:
        assert f"{1 if sections.strip() else 0} options" in result.stdout


# The first two cells, in a process of their own


def python(source: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess:
    """Run source in a fresh Python."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **variables}
    return subprocess.run([sys.executable, "-c", source], cwd=cwd, env=environment,
                          capture_output=True, text=True, timeout=60)


def get_code(here: Path, address: str = "", times: int = 1) -> subprocess.CompletedProcess:
    """Run the second cell so many times in a row, then start the tour's command."""
    book = read()
    fill(book, "code", REPOSITORY=address)
    source = "\n".join([cell(book, "code").source] * times)
    return python(f"{source}\nfrom tilelang_tour import main\nprint(main(['--list']), Path.cwd())",
                  cwd=here)


def test_shows_the_gpu(tmp_path):
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho Tesla T4\n")
    smi.chmod(0o755)
    result = python(cell(read(), "gpu").source, cwd=tmp_path, PATH=f"{tmp_path}:{os.defpath}")
    assert result.stdout.strip() == "Tesla T4"


@pytest.mark.parametrize("broken", [False, True])
def test_without_a_gpu_names_the_menu(tmp_path, broken):
    if broken:  # a driver without a device
        smi = tmp_path / "nvidia-smi"
        smi.write_text("#!/bin/sh\necho no devices were found\nexit 6\n")
        smi.chmod(0o755)
    result = python(cell(read(), "gpu").source, cwd=tmp_path, PATH=str(tmp_path))
    assert "rehearses on the CPU" in result.stdout
    assert "Runtime > Change runtime type" in result.stdout
    assert result.returncode == 0


@pytest.mark.parametrize("top", ["tour-main", ""], ids=["in a folder", "flat"])
def test_from_a_zip(tmp_path, top):
    copy_tour(tmp_path / "made" / "tour-main")
    shutil.make_archive(str(tmp_path / "here" / "tour"), "zip",
                        tmp_path / "made" / ("" if top else "tour-main"))
    here = tmp_path / "here"
    (here / "broken.zip").write_bytes((here / "tour.zip").read_bytes()[:5000])
    shutil.make_archive(str(here / "holiday"), "zip", ROOT / "tests", "fake_course")
    result = get_code(here, times=2)
    assert f"The tour is in {here}/tilelang-tour (unpacked from tour.zip)." in result.stdout
    assert f"The tour is in {here}/tilelang-tour (already here" in result.stdout
    assert result.stdout.endswith(f"0 {here}/tilelang-tour\n"), result.stderr
    assert sorted(path.name for path in here.iterdir()) == \
        ["broken.zip", "holiday.zip", "tilelang-tour", "tour.zip"]


def test_twice_changes_nothing(tmp_path):
    address = clone_address(tmp_path)
    here = tmp_path / "here"
    here.mkdir()
    first = get_code(here, address)
    assert "cloned from" in first.stdout, first.stderr
    before = contents(here)
    second = get_code(here, address)  # after a restart the folder is the notebook's again
    third = get_code(here / "tilelang-tour", address, times=2)
    assert contents(here) == before
    for result in (second, third):
        assert f"The tour is in {here}/tilelang-tour (already here" in result.stdout
        assert result.stdout.endswith(f"0 {here}/tilelang-tour\n")


def test_an_address_that_fails_is_told_and_a_zip_taken(tmp_path):
    copy_tour(tmp_path / "made" / "tour")
    here = tmp_path / "here"
    here.mkdir()
    nowhere = (tmp_path / "nowhere").as_uri()
    result = get_code(here, nowhere)
    assert result.returncode == 1
    assert f"{nowhere}: fatal: " in result.stderr and "there is no zip" in result.stderr
    assert "https://github.com/OWNER/NAME" in result.stderr
    shutil.make_archive(str(here / "tour"), "zip", tmp_path / "made")
    assert "unpacked from tour.zip" in get_code(here, nowhere).stdout


def test_an_address_of_something_else(tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "README.md").write_text("Something else.\n")
    git("init", "--quiet", cwd=other)
    git("add", ".", cwd=other)
    git("commit", "--quiet", "--message", "Something else", cwd=other)
    here = tmp_path / "here"
    here.mkdir()
    result = get_code(here, other.as_uri())
    assert "holds no tilelang_tour.py" in result.stderr and result.returncode == 1
    assert list(here.iterdir()) == [], "the next attempt finds nothing in its way"


def test_a_folder_in_the_way_is_left_alone(tmp_path):
    (tmp_path / "tilelang-tour").mkdir()
    (tmp_path / "tilelang-tour" / "notes.txt").write_text("mine")
    result = get_code(tmp_path, "https://example.invalid/tour")
    assert result.returncode == 1 and "Rename it (!mv " in result.stderr
    assert (tmp_path / "tilelang-tour" / "notes.txt").read_text() == "mine"


def test_without_git(tmp_path):
    source = cell(read(), "code").source.replace('REPOSITORY = ""', 'REPOSITORY = "file:///x"')
    result = python(source, cwd=tmp_path, PATH=str(tmp_path))
    assert "No such file or directory: 'git'" in result.stderr
    assert "upload a zip" in result.stderr
