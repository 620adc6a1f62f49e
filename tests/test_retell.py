"""--from, --pictures and --compare: what is refused, read, printed and written, and exit codes."""

import json
import subprocess
import sys

import pytest

from sections.runner import pictures, results
from sections.runner.results import as_dict, as_record, bests, timed
from tests.command import ROOT, Home
from tests.made_results import made
from tilelang_tour import main


@pytest.fixture
def home(tmp_path):
    """A folder for a test's processes; none may outlive the test."""
    home = Home(tmp_path)
    yield home
    home.clean_up()


@pytest.fixture
def file(tmp_path):
    """Writes results into a file; returns its path."""
    def write(found: dict, name: str = "results.json") -> str:
        (tmp_path / name).write_text(json.dumps(found))
        return str(tmp_path / name)
    return write


@pytest.fixture
def nothing_starts(monkeypatch):
    """What would start a worker fails the test."""
    from sections.runner import conduct

    def start(*arguments):
        raise AssertionError("started")

    monkeypatch.setattr(conduct, "Tour", start)


# What is refused, before anything starts


@pytest.mark.parametrize("option", ["--from", "--compare"])
@pytest.mark.parametrize("content, telling", [
    (None, "cannot be read (No such file or directory)"),
    ("no JSON", "is no results file of the tour: it is no JSON: Expecting value"),
    ("[" * 100_000, "it is no JSON: "),
    ('{"schema": "%s"}' % ("x" * 100_000), "its schema is 'xxx"),
    (b"\xff\xfe", "it is no JSON: "),
    ("[]", 'it has no "schema"'),
    ('{"schema": 2}', "its schema is 2, needed: 1"),
    ('{"schema": 1, "environment": {}}', 'it has no list of "sections"'),
    ('{"schema": 1, "environment": [1], "sections": []}', 'its "environment" is none'),
    ('{"schema": 1, "sections": [{"status": "PASS"}]}', "a section has no name"),
    ('{"schema": 1, "sections": [{"name": "gemm"}]}', 'section gemm has no list of "checks"'),
    ('{"schema": 1, "sections": [{"name": "gemm", "checks": [], "measurements": [{"ms": "1"}]}]}',
     "'1' stands where a number should"),
])
def test_a_file_that_is_none(option, content, telling, tmp_path, capsys, nothing_starts):
    path = tmp_path / "file.json"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert main([option, str(path)]) == 2
    out = capsys.readouterr().out
    assert out.startswith(f"tilelang_tour.py: {option} {path}") and telling in out
    assert content is None or "needed: a file that --results FILE has written" in out


def test_an_environment_of_all_kinds_and_a_number_beyond_all_are_read(tmp_path, file):
    old = made()
    old["environment"].update(gpu=5, driver=["x"])
    old["seconds"] = 10**400
    found = results.read(file(old))
    assert found["environment"]["gpu"] == "5" and found["seconds"] is None
    deep = tmp_path / "deep.json"
    deep.write_text('{"schema": 1, "sections": [], "environment": {"a": %s}}'
                    % ("[" * 900 + "]" * 900))
    assert main(["--from", str(deep)]) in (0, 1, 2)  # Pythons differ in what is too deep


def test_a_file_without_an_end_is_refused(monkeypatch, capsys, nothing_starts):
    monkeypatch.setattr(results, "LARGEST", 1000)
    assert main(["--from", "/dev/zero"]) == 2
    assert "it is larger than 1,000 characters" in capsys.readouterr().out


def test_a_folder_is_no_file(tmp_path, capsys, nothing_starts):
    assert main(["--from", str(tmp_path)]) == 2
    assert "cannot be read (Is a directory)" in capsys.readouterr().out


@pytest.mark.parametrize("words, told", [
    (["--only", "gemm", "--quick"], "--only, --quick"),
    (["--device", "cpu"], "--device"),
    (["--timeout", "5"], "--timeout"),
    (["--results", "x.json"], "--results"),
    (["--no-install"], "--no-install"),
])
def test_a_file_is_read_or_a_tour_is_run(words, told, file, capsys, nothing_starts, tmp_path,
                                         monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["--from", file(made()), *words]) == 2
    assert f"--from reads a file and runs nothing: leave out {told}\n" in capsys.readouterr().out


def test_no_folder_is_not_the_current_one(tmp_path, monkeypatch, capsys, nothing_starts):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kernels.png").write_text("mine")
    assert main(["--pictures", ""]) == 2
    assert "--pictures names no folder" in capsys.readouterr().out
    assert (tmp_path / "kernels.png").read_text() == "mine"


@pytest.mark.parametrize("path", ["file/pictures", "file", "/proc/pictures"])
def test_a_folder_that_cannot_be_written(path, tmp_path, capsys, nothing_starts):
    (tmp_path / "file").write_text("")
    assert main(["--pictures", str(tmp_path / path)]) == 2
    out = capsys.readouterr().out
    assert "no files can be written there" in out and "name another folder" in out


def test_reference_is_the_file_that_comes_with_the_tour(monkeypatch, file, capsys, nothing_starts):
    assert results.REFERENCE == str(ROOT / "sections" / "reference" / "h200.json")
    monkeypatch.setattr(results, "REFERENCE", file(made(gpu="a reference"), "h200.json"))
    assert main(["--from", file(made()), "--compare", "reference"]) == 0
    assert "the other on a reference (reference)" in capsys.readouterr().out


# What is read


def test_a_file_is_read_as_it_was_written(tmp_path):
    path = str(tmp_path / "r.json")
    record = as_record(made())
    results.write(path, as_dict(record, {"mode": "gpu", **made()["environment"]}))
    found = results.read(path)
    for section in found["sections"]:
        for entry in section["measurements"]:
            assert entry.pop("rivals") == {}
    assert found == made()
    assert as_dict(as_record(results.read(path)), {"mode": "gpu", **made()["environment"]}) == \
        results.read(path)


def test_what_an_older_tour_did_not_write_is_unknown(file):
    old = made()
    for section in old["sections"]:
        del section["data"], section["note"]
        for entry in section["measurements"]:
            del entry["shared_bytes"], entry["headline"], entry["of_ceiling"]
    del old["ceilings"], old["environment"]["driver"], old["compile_seconds"]
    found = results.read(file(old))
    assert found["ceilings"] == {"copy_GBps": None, "matmul_TFLOPs": None}
    assert found["environment"]["driver"] is found["compile_seconds"] is None
    assert found["sections"][0]["data"] == {} and found["sections"][0]["note"] == ""
    entry = found["sections"][0]["measurements"][0]
    assert entry["shared_bytes"] is entry["of_ceiling"] is None and entry["headline"] is False
    assert main(["--from", file(old)]) == 0


def test_rivals_are_read(file):
    found = made()
    found["sections"][0]["measurements"][0]["rivals"] = {"by hand": {"ms": 1, "ratio": None}}
    entry = results.read(file(found))["sections"][0]["measurements"][0]
    assert entry["rivals"] == {"by hand": {"ms": 1, "ratio": None}}
    found["sections"][0]["measurements"][0]["rivals"] = {"by hand": 1}
    with pytest.raises(ValueError, match='"rivals"'):
        results.read(file(found))


def test_numbers_that_are_none_are_no_measurements():
    found = made()
    found["sections"][1]["measurements"][0]["ms"] = None
    found["sections"][1]["measurements"][1]["ratio_low"] = None
    assert len(timed(found)) == len(timed(made())) - 2


def test_the_best_of_a_case_is_the_summarys_or_the_strongest():
    found = made()
    gemm = [entries for section, entries in bests(found) if section == "gemm"]
    assert [(len(entries), entries[0]["ratio"]) for entries in gemm] == [(1, 0.99), (1, 1.02)]
    (causal, full) = (entries for section, entries in bests(found) if section == "flash_attention")
    assert causal[0]["ratio"] == 0.97 and [entry["ratio"] for entry in full] == [1.01, 6.5]
    assert "debugging" not in {section for section, _ in bests(found)}, "it has no headline"
    first, *_ = found["sections"][1]["measurements"]
    first["headline"] = True
    found["sections"][1]["measurements"][4]["headline"] = False
    assert next(entries for section, entries in bests(found) if section == "gemm") == [first]


def test_variants_are_compared_by_the_baselines_they_share_and_a_later_measurement_counts():
    found = made()
    section = found["sections"][1]
    first = {**section["measurements"][0], "headline": False, "case": "8x8x8 float16"}
    section["measurements"] += [
        {**first, "variant": "good", "baseline": "torch.add", "ratio": 1.8},
        {**first, "variant": "fair", "baseline": "torch.add", "ratio": 1.6},
        {**first, "variant": "good", "baseline": "torch.add", "ratio": 1.9},
        {**first, "variant": "good", "baseline": "copy ceiling", "ratio": 0.9},
    ]
    ((_, best),) = [each for each in bests(found) if each[1][0]["case"] == "8x8x8 float16"]
    assert [(entry["variant"], entry["ratio"]) for entry in best] == [("good", 1.9), ("good", 0.9)]


# What is printed


def test_the_summary_is_that_of_the_run(file, capsys):
    assert main(["--from", file(made())]) == 0
    first, *_, last = capsys.readouterr().out.strip().splitlines()
    assert first.endswith("NVIDIA H200, tilelang 0.1.15, torch 2.11.0, driver 580.159.04, "
                          "nvcc 13.0.88")
    assert last.startswith("7 passed, 0 failed in 140 s (57 s compiling).")


@pytest.mark.parametrize("change, code", [
    ({}, 0), ({"status": "FAIL"}, 1), ({"status": "CRASH"}, 1), ({"status": "SKIP"}, 0),
    ({"exit_code": 130, "status": "NOT RUN"}, 130),
])
def test_the_exit_code_is_that_of_the_run(change, code, file, capsys):
    found = {**made(), "exit_code": change.get("exit_code", code)}
    found["sections"][0]["status"] = change.get("status", "PASS")
    assert main(["--from", file(found)]) == code


def test_checks_without_numbers_are_shown(file, capsys):
    found = made("rehearsal")
    found["sections"][0]["checks"][0]["rel_error"] = None
    assert main(["--from", file(found)]) == 0
    assert "nan (bound 1.0e-03)" in capsys.readouterr().out


def test_nothing_in_common_is_no_failure(file, capsys):
    rehearsed = file(made("rehearsal"), "cpu.json")
    assert main(["--from", file(made()), "--compare", rehearsed]) == 0
    out = capsys.readouterr().out
    assert "The two runs have no measurement in common: the other timed nothing." in out
    assert out.rstrip().splitlines()[-1].startswith("7 passed, 0 failed")


def test_pictures_of_a_file(file, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "PICTURES", (pictures.kernels, pictures.swizzle))
    monkeypatch.chdir(tmp_path)
    assert main(["--from", file(made()), "--pictures", "new/folder"]) == 0
    assert f"pictures, .png and .svg, in {tmp_path}/new/folder: kernels, swizzle 7 passed" in \
        " ".join(capsys.readouterr().out.split())
    assert len(list((tmp_path / "new/folder").iterdir())) == 4


def test_without_matplotlib_all_else_works(file, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "find_spec", lambda name: None)
    assert main(["--from", file(made()), "--pictures", str(tmp_path / "p"),
                 "--compare", file(made())]) == 0
    out = capsys.readouterr().out
    assert out.count("no pictures are drawn, matplotlib is not here") == 1
    assert "0 worse" in out and list((tmp_path / "p").iterdir()) == []


def test_a_disk_that_is_full_costs_the_pictures_alone(file, capsys, tmp_path, monkeypatch):
    def full(found, folder):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pictures, "draw", full)
    assert main(["--from", file(made()), "--pictures", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert f"--pictures {tmp_path} could not be written: [Errno 28] No space left" in out
    assert out.rstrip().splitlines()[-1].startswith("7 passed, 0 failed")


# After a run


def test_after_a_run(home, file):
    old = made()
    old["sections"] = [{**old["sections"][1], "name": "keeps_data"}]
    old["sections"][0]["measurements"][0].update(variant="invented", ms=0.4)
    path, folder = home.folder / "new.json", home.folder / "drawn"
    done = home.run("--only", "keeps_data", "--results", str(path), "--pictures", str(folder),
                    "--compare", file(old, "old.json"))
    assert done.returncode == 0
    order = ["results: ", "pictures, .png and .svg, in ", "Comparison: this run on ",
             "keeps_data: 4096x4096x4096 float16", "0.200   0.400   2.00x", "1 passed, 0 failed"]
    assert [words for words in order if words not in done.stdout] == [], done.stdout
    places = [done.stdout.rindex(words) for words in order]
    assert places == sorted(places)
    (section,) = json.loads(path.read_text())["sections"]
    assert section["data"] == {"first": {"a": [1, 2]}, "second": 3}
    again = home.run("--from", str(path))
    table = [line for line in done.stdout.splitlines() if line.startswith(("section ", "keeps_d"))]
    assert again.returncode == 0 and again.stdout.splitlines()[2:4] == table[:2]


def test_pictures_that_cannot_be_written_after_a_run_are_told(home):
    (home.folder / "drawn" / "kernels.png").mkdir(parents=True)
    done = home.run("--only", "passes", "--pictures", str(home.folder / "drawn"))
    assert done.returncode == 1
    assert f"--pictures {home.folder}/drawn could not be written: " in done.stdout
    assert done.stdout.rstrip().splitlines()[-1].startswith("1 passed, 0 failed")


@pytest.mark.gpu
def test_a_run_on_a_gpu_is_drawn_and_held_against_itself(tmp_path):
    results_file, folder = str(tmp_path / "r.json"), tmp_path / "pictures"

    def tour(*arguments: str) -> str:
        done = subprocess.run([sys.executable, "tilelang_tour.py", *arguments], cwd=ROOT,
                              capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    told = tour("--quick", "--only", "vector_add,gemm", "--no-install", "--results", results_file,
                "--pictures", str(folder))
    assert "could not be drawn" not in told
    assert {path.stem for path in folder.iterdir()} == {"kernels", "roofline", "gemm_ladder"}
    assert "0 stand better, 0 worse" in tour("--from", results_file, "--compare", results_file)
