"""The runner on the fake course: whatever a section does costs its own row, and nothing else."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from sections.course import Course
from sections.runner import link
from sections.runner import tour as tour_module
from sections.runner.arguments import Options
from sections.runner.environment import Probe
from sections.runner.install import Outcome
from sections.runner.screen import Screen
from sections.runner.tour import Record, Tour
from tests.command import (
    PATIENCE,
    ROOT,
    Home,
    Terminal,
    screen,
    statuses,
)
from tests.fake_course import ORDER
from tests.fake_tour import FakeCourse
from tests.made_facts import failing, probe

HEALTHY = ("passes", "passes_too", "passes_last")
FAULTS = {
    "raises": ("FAIL", "RuntimeError: the kernel is upside down"),
    "raises_at_import": ("FAIL", "ImportError: this module cannot be had"),
    "raises_pages": ("FAIL", 'error: identifier "B_shared" is undefined'),
    "raises_megabytes": ("FAIL", "RuntimeError: "),
    "raises_the_unprintable": ("FAIL", "Unprintable"),
    "raises_beside_a_child": ("FAIL", "error: with a child beside it"),
    "asserts": ("FAIL", "an assert that does not hold"),
    "exits_0": ("FAIL", "SystemExit: 0"),
    "exits_with_text": ("FAIL", "SystemExit: x"),
    "interrupts_itself": ("FAIL", "KeyboardInterrupt"),
    "asks_for_input": ("FAIL", "EOFError"),
    "fails_checks": ("FAIL", "check 77x77x77: 3 of 5929 elements wrong (and 1 more)"),
    "skips": ("SKIP", "needs sm_90a"),
    "skips_after_a_failure": ("FAIL", "check 1x1: wrong"),
    "raises_after_a_failure": ("FAIL", "1x1 did not compile: no such name (and 1 more)"),
    "os_exits_0": ("CRASH", "the process ended with code 0"),
    "os_exits_3": ("CRASH", "the process ended with code 3"),
    "os_exits_beside_a_child": ("CRASH", "the process ended with code 4"),
    "aborts": ("CRASH", "killed by SIGABRT while thinking of ending it"),
    "segfaults": ("CRASH", "killed by SIGSEGV"),
    "hangs": ("TIMEOUT", "over the limit of 1 s (--timeout) while waiting for a miracle"),
    "hangs_with_the_lock": ("TIMEOUT", "over the limit of 1 s (--timeout)"),
    "prints_forever": ("TIMEOUT", "over the limit of 1 s (--timeout)"),
    "aborts_at_exit": ("PASS", ""),
    "floods": ("PASS", ""),
    "prints_no_utf8": ("PASS", ""),
    "prints_no_newline": ("PASS", ""),
    "prints_in_turn": ("PASS", ""),
    "forges_events": ("PASS", ""),
    "leaves_a_child": ("PASS", ""),
    "leaves_a_distant_child": ("PASS", ""),
    "forks_and_returns": ("PASS", ""),
    "closes_the_output": ("PASS", ""),
    "replaces_the_output": ("PASS", ""),
    "buffers_its_output": ("PASS", ""),
    "goes_away": ("PASS", ""),
}
PLACES = {
    "first": lambda fault: (fault, "passes", "passes_too"),
    "middle": lambda fault: ("passes", fault, "passes_too"),
    "last": lambda fault: ("passes", "passes_too", fault),
}


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A folder for a test's processes; none may outlive the test."""
    home = Home(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield home
    home.clean_up()


def run_tour(home: Home, *names: str, timeout: float = PATIENCE, course=None, **more) -> Record:
    """Run sections of the fake course in this process."""
    variables = {**home.environment, **more.pop("variables", {})}
    options = Options(names=names, timeout=timeout)
    tour = Tour(course or FakeCourse(), options, variables, Screen(), **more)
    return tour.run()


def rows(record: Record) -> dict[str, str]:
    return {row.name: row.status for row in record.rows}


# Faults


def test_every_section_of_the_fake_course_is_tried():
    assert set(ORDER) == {*FAULTS, *HEALTHY, "measures", "keeps_data", "slow"}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_costs_one_row(fault, place, home, capsys):
    status, note = FAULTS[fault]
    names = PLACES[place](fault)
    record = run_tour(home, *names, timeout=1 if status == "TIMEOUT" else PATIENCE)
    assert rows(record) == {name: "PASS" if name != fault else status for name in names}
    assert note in " ".join(next(row.note for row in record.rows if row.name == fault).split())
    assert record.exit_code == (0 if status in ("PASS", "SKIP") else 1)
    assert home.all_gone()
    printed = capsys.readouterr().out
    for name in names:
        assert f"\n[{names.index(name) + 1}/3] {name}: " in printed
        if name in HEALTHY:
            for line in ("prints", "complains", "writes"):
                assert f"{name} {line}" in printed
    assert "Traceback" not in printed
    assert [path.name for path in home.folder.iterdir() if path.suffix != ".txt"] == []


def test_what_fails_is_told_at_once_and_its_whole_text_is_kept(home, capsys):
    record = run_tour(home, "raises_pages", "passes")
    note = record.rows[0].note
    kept = Path(re.search(r"\(whole text: (.+)\)$", note)[1])
    assert len(note) < 500
    assert "value_449" in kept.read_text() and "Traceback" in kept.read_text()
    printed = capsys.readouterr().out
    assert f"raises_pages: FAIL: {note}\n" in printed
    assert printed.index(note) < printed.index("[2/2] passes")
    assert "value_449" not in printed


def test_all_that_a_flood_says_is_counted(home, capsys):
    run_tour(home, "floods", "passes")
    printed = capsys.readouterr().out
    shown = printed.count("x")
    left_out = int(re.search(r"\((\d+) more characters of output left out\)", printed)[1])
    assert 100_000 < len(printed) < 500_000
    assert shown + left_out == pytest.approx(10_000_000, rel=0.02)
    assert printed.index("left out") < printed.index("passes prints")


def test_python_c_and_events_keep_their_order(home, capsys):
    run_tour(home, "prints_in_turn")
    printed = capsys.readouterr().out
    assert re.findall(r"^line (\d+)$", printed, re.MULTILINE) == [f"{n:03}" for n in range(400)]


def test_a_forged_event_is_text(home, capsys):
    run_tour(home, "forges_events")
    printed = capsys.readouterr().out
    assert printed.count('"note": "forged"') == 2
    assert "\x1e0123456789abcdef {" in printed and "\x1e {}\x1e" in printed


def test_bytes_that_are_no_utf8_are_replaced(home, capsys):
    run_tour(home, "prints_no_utf8", "passes")
    printed = capsys.readouterr().out
    assert "ABCDEFG" in printed
    assert printed.count("\N{REPLACEMENT CHARACTER}") >= 128
    assert "\N{SNOWMAN} \\ud800" in printed


def test_a_line_without_an_end_does_not_run_into_the_next_text(home, capsys):
    run_tour(home, "prints_no_newline", "os_exits_3")
    printed = capsys.readouterr().out
    assert "\na line that does not end\n[2/2] os_exits_3" in printed
    assert "\nlast words\n  os_exits_3: CRASH" in printed


def test_the_last_words_of_a_process_are_heard(home, monkeypatch, capsys):
    monkeypatch.setattr(link, "AT_ONCE", 1000)  # far less than what is left in the pipe
    run_tour(home, "os_exits_3")
    printed = capsys.readouterr().out
    assert printed.count("many words") == 20_000 and "last words" in printed


def test_what_a_section_holds_back_comes_before_the_next_heading(home, capsys):
    run_tour(home, "buffers_its_output", "passes")
    printed = capsys.readouterr().out
    assert printed.index("held back by Python") < printed.index("[2/2] passes")


def test_a_module_with_a_syntax_error_fails(home, tmp_path):
    package = tmp_path / "broken_course"
    package.mkdir()
    (package / "__init__.py").write_text("ORDER = ('typo', 'fine')\n")
    (package / "typo.py").write_text("def run(page:\n")
    (package / "fine.py").write_text("def run(page): pass\n")
    record = run_tour(home, "typo", "fine", course=Course("broken_course", needs_tilelang=False),
                      variables={"PYTHONPATH": str(tmp_path)})
    assert rows(record) == {"typo": "FAIL", "fine": "PASS"}
    assert "SyntaxError" in record.rows[0].note


# Workers that cannot start


def put_on_path(folder: Path, **modules: str) -> dict[str, str]:
    """Write modules; returns the variables with which a worker finds them first."""
    for name, source in modules.items():
        (folder / f"{name}.py").write_text(source)
    return {"PYTHONPATH": str(folder)}


DID_NOT_COME_UP = "no section can be run, their process did not come up"
ONLY_IN_A_WORKER = "import os\nif 'TILELANG_TOUR_RUN' in os.environ: "


def count_workers(monkeypatch) -> list:
    """A list that grows by one entry with every worker started."""
    started = []

    class Counted(tour_module.Worker):
        def __init__(self, *arguments):
            started.append(self)
            super().__init__(*arguments)

    monkeypatch.setattr(tour_module, "Worker", Counted)
    return started


def test_a_worker_that_cannot_start_ends_the_tour_with_one_line(home, tmp_path):
    dies = ONLY_IN_A_WORKER + "print('this Python is broken', flush=True); os.abort()"
    names = ("passes", "slow", "passes_too")
    result = home.run("--only", ",".join(names), **put_on_path(tmp_path, sitecustomize=dies))
    assert result.returncode == 1
    assert statuses(result.stdout) == dict.fromkeys(names, "NOT RUN")
    assert result.stdout.count("this Python is broken") == 1
    cause = f"{DID_NOT_COME_UP}: killed by SIGABRT: this Python is broken"
    assert f"\npasses, slow, passes_too: NOT RUN: {cause}\n" in result.stdout


def test_a_worker_that_never_spoke_is_no_reason_to_install(home, tmp_path, monkeypatch, capsys):
    started = count_workers(monkeypatch)
    variables = put_on_path(tmp_path, sitecustomize=ONLY_IN_A_WORKER + "os._exit(7)")
    asked = []
    record = run_tour(home, "passes", variables=variables, course=Course("tests.fake_course"),
                      make_usable=asked.append)
    assert rows(record) == {"passes": "NOT RUN"}
    assert record.rows[0].note == f"{DID_NOT_COME_UP}: ended with code 7"
    assert (len(asked), len(started)) == (0, 1)


def test_a_second_worker_that_cannot_start_ends_the_tour(home, tmp_path, monkeypatch, capsys):
    started = count_workers(monkeypatch)
    once = repr(str(tmp_path / "started"))
    dies = ONLY_IN_A_WORKER + f"os.path.exists({once}) and os._exit(9); open({once}, 'w')"
    record = run_tour(home, "aborts", "passes", "passes_too",
                      variables=put_on_path(tmp_path, sitecustomize=dies))
    assert rows(record) == {"aborts": "CRASH", "passes": "NOT RUN", "passes_too": "NOT RUN"}
    assert record.rows[2].note == f"{DID_NOT_COME_UP}: ended with code 9"
    assert len(started) == 2


@pytest.mark.parametrize("source, error, died", [
    ("raise ImportError('no torch here')", "ImportError: no torch here", None),
    ("import os; os.abort()", None, "killed by SIGABRT"),
    ("import time; time.sleep(100)", None, "no answer within 1 s"),
])
def test_what_ends_a_probe_is_told_and_mended_once(
    source, error, died, home, tmp_path, monkeypatch, capsys
):
    started = count_workers(monkeypatch)
    monkeypatch.setattr(tour_module, "START_SECONDS", 1.0)
    asked = []
    record = run_tour(home, "passes", course=Course("tests.fake_course"),
                      variables=put_on_path(tmp_path, torch=source),
                      make_usable=lambda probe: asked.append(probe) or Outcome(Probe(ready=True)))
    assert [(probe.culprit, probe.error, probe.died) for probe in asked] == [("torch", error, died)]
    assert record.rows[0].status == "NOT RUN" and (error or died) in record.rows[0].note
    assert record.exit_code == 1
    assert len(started) == 2


@pytest.mark.parametrize("restart, note", [
    (False, "tilelang cannot be imported: killed by SIGABRT"), (True, "torch was replaced"),
])
def test_what_an_install_left_behind_is_what_the_summary_tells(
    restart, note, home, tmp_path, capsys
):
    after = failing(probe("device"), died="killed by SIGABRT")
    record = run_tour(home, "passes", course=Course("tests.fake_course"),
                      variables=put_on_path(tmp_path, torch="raise ImportError('no torch here')"),
                      make_usable=lambda probe: Outcome(after, None, "torch was replaced", restart))
    assert (record.rows[0].note, record.probe) == (note, after)


def test_a_process_that_cannot_be_started_at_all_is_told(home, monkeypatch, capsys):
    monkeypatch.setattr(sys, "executable", str(home.folder / "gone"))
    record = run_tour(home, "passes", "slow")
    assert rows(record) == {"passes": "NOT RUN", "slow": "NOT RUN"}
    assert "No such file" in record.rows[0].note


# A scripted worker: what no real one does on purpose


class Scripted:
    """Says what it is told to say, batch by batch; then it is silent."""

    def __init__(self, *batches):
        self.batches = list(batches)

    def poll(self, seconds):
        return self.batches.pop(0) if self.batches else time.sleep(0.01) or []

    def stop(self):
        pass


def end(name, **more) -> dict:
    return {"event": "section_end", "name": name, "status": "PASS", "note": "", "seconds": 1.0,
            "compile_seconds": 2.0, "context_lost": False, **more}


def scripted(monkeypatch, *workers: Scripted) -> None:
    workers = list(workers)
    monkeypatch.setattr(Tour, "_worker", lambda self, names: workers.pop(0))


def test_nothing_is_lost_that_comes_together_with_ready(home, monkeypatch, capsys):
    start = {"event": "section_start", "name": "passes"}
    scripted(monkeypatch, Scripted(
        [{"event": "ready"}, start, "a heading\n", end("passes"), {"event": "done"}]))
    record = run_tour(home, "passes")
    assert rows(record) == {"passes": "PASS"}
    assert record.compile_seconds == 2.0
    assert "a heading" in capsys.readouterr().out


def test_a_worker_that_hangs_between_sections_is_replaced(home, monkeypatch, capsys):
    start = {"event": "section_start", "name": "passes"}
    again = {"event": "section_start", "name": "slow"}
    scripted(
        monkeypatch,
        Scripted([{"event": "ready"}, start, end("passes")]),
        Scripted([{"event": "ready"}, again, end("slow"), {"event": "done"}]),
    )
    assert rows(run_tour(home, "passes", "slow", timeout=0.2)) == {"passes": "PASS", "slow": "PASS"}


def test_a_worker_that_never_begins_a_section_is_not_replaced(home, monkeypatch, capsys):
    scripted(monkeypatch, Scripted([{"event": "ready"}]))
    record = run_tour(home, "passes", "slow", timeout=0.2)
    assert rows(record) == {"passes": "NOT RUN", "slow": "NOT RUN"}
    assert "over the limit of 0.2 s (--timeout) before it began a section" in record.rows[1].note


@pytest.mark.parametrize("timeout, ending, why", [
    (60.0, [tour_module.Ended(-11)], "the process was killed by SIGSEGV"),
    (0.2, [], "over the limit of 0.2 s"),
])
def test_a_worker_lost_while_compiling_ahead_is_replaced_by_one_that_does_not(
    home, monkeypatch, capsys, timeout, ending, why
):
    ahead = [{"event": "ahead"}, {"event": "progress", "text": "compiling, 3 of 9 kernels done"}]
    asked = []
    job = Tour._job
    monkeypatch.setattr(Tour, "_job", lambda self, names: asked.append(job(self, names)))
    first = {"event": "section_start", "name": "passes"}
    workers = [Scripted([{"event": "ready"}, *ahead], ending),
               Scripted([{"event": "ready"}, first, end("passes"), {"event": "done"}])]

    def start(self, names):
        self._job(names)
        return workers.pop(0)

    monkeypatch.setattr(Tour, "_worker", start)
    assert rows(run_tour(home, "passes", timeout=timeout)) == {"passes": "PASS"}
    assert [job["ahead"] for job in asked] == [True, False]
    told = capsys.readouterr().out
    assert f"compiling everything first did not work ({why}" in told
    assert "while compiling, 3 of 9 kernels done): each section compiles its own" in told


def test_a_lost_context_costs_the_worker(home, monkeypatch, capsys):
    first = {"event": "section_start", "name": "passes"}
    lost = end("passes", status="FAIL", note="the CUDA context was lost", context_lost=True)
    second = {"event": "section_start", "name": "slow"}
    scripted(
        monkeypatch,
        Scripted([{"event": "ready"}, first, lost], [tour_module.Ended(0)]),
        Scripted([{"event": "ready"}, second, end("slow"), {"event": "done"}]),
    )
    record = run_tour(home, "passes", "slow")
    assert rows(record) == {"passes": "FAIL", "slow": "PASS"}
    assert record.compile_seconds == 4.0


def test_a_slow_reader_does_not_use_up_a_section_s_time(home, monkeypatch, capsys):
    start = {"event": "section_start", "name": "passes"}
    scripted(monkeypatch, Scripted([{"event": "ready"}, start], ["text\n"], [end("passes")],
                                   [{"event": "done"}]))
    monkeypatch.setattr(Screen, "write", lambda self, text: time.sleep(0.5))
    assert rows(run_tour(home, "passes", timeout=0.2)) == {"passes": "PASS"}


def test_time_in_which_the_tour_was_stopped_is_not_the_section_s(home, monkeypatch, capsys):
    clock = [0.0]

    class Stopped(Scripted):
        def poll(self, seconds):
            found = self.batches.pop(0)
            clock[0] += seconds if found else 60  # Ctrl-Z, and fg after a minute
            return found

    start = {"event": "section_start", "name": "passes"}
    scripted(monkeypatch, Stopped([{"event": "ready"}, start], [], ["text\n"],
                                  [end("passes"), {"event": "done"}]))
    monkeypatch.setattr(tour_module.time, "monotonic", lambda: clock[0])
    assert rows(run_tour(home, "passes", timeout=20)) == {"passes": "PASS"}


# The command


def test_a_healthy_tour(home):
    result = home.run("--only", "passes,passes_too,passes_last")
    assert (result.returncode, result.stderr) == (0, "")
    assert statuses(result.stdout) == dict.fromkeys(HEALTHY, "PASS")
    assert result.stdout.rstrip().splitlines()[-1].startswith("3 passed, 0 failed in ")
    assert "\x1b" not in result.stdout
    assert list(home.folder.iterdir()) == []


def test_all_faults_in_one_tour_and_with_assertions_off(home):
    wanted = {name: FAULTS[name][0] for name in FAULTS} | dict.fromkeys(HEALTHY, "PASS")
    arguments = ("--timeout", "1", "--only", ",".join(wanted), "--results")
    for python in ((), ("-O",)):
        path = home.folder / f"results{''.join(python)}.json"
        result = home.run(*arguments, str(path), python=python)
        assert (result.returncode, result.stderr) == (1, "")
        assert statuses(result.stdout) == wanted
        results = json.loads(path.read_text())
        assert {row["name"]: row["status"] for row in results["sections"]} == wanted
        assert results["exit_code"] == 1
        last = result.stdout.rstrip().splitlines()[-1]
        assert last.startswith("16 passed, 22 failed, 1 skipped in ")
        table = result.stdout[result.stdout.rindex("\nsection ") :].splitlines()
        assert max(map(len, table[: len(wanted) + 2])) < 80


def test_nothing_passed_is_exit_1_and_what_was_skipped_costs_nothing(home):
    for only in ("raises", "skips"):
        assert home.run("--only", only).returncode == 1
    done = home.run("--only", "raises,skips,passes", "--skip", "raises")
    assert done.returncode == 0
    assert "\nskips: SKIP: needs sm_90a\n" in done.stdout


def test_two_tours_at_once(home):
    first = home.start("--only", "leaves_a_child,slow,aborts,passes")
    second = home.start("--only", "leaves_a_distant_child,slow,passes_too")
    outputs = [process.communicate(timeout=PATIENCE)[0].decode() for process in (first, second)]
    assert (first.returncode, second.returncode) == (1, 0)
    assert statuses(outputs[0]) == {
        "leaves_a_child": "PASS", "slow": "PASS", "aborts": "CRASH", "passes": "PASS"}
    assert statuses(outputs[1]) == {
        "leaves_a_distant_child": "PASS", "slow": "PASS", "passes_too": "PASS"}
    assert home.all_gone()


def test_a_look_at_the_machine_leaves_nothing(home):
    tour = Tour(FakeCourse(), Options(names=("passes",)), home.environment, Screen())
    assert tour.probe().usable
    assert home.all_gone() and list(home.folder.iterdir()) == []


def test_twice_in_one_process_and_in_a_notebook(home, tmp_path):
    script = tmp_path / "cell.py"
    script.write_text(
        "import sys, types\n"
        "from tests.fake_tour import FakeCourse\n"
        "from tilelang_tour import main\n"
        "class Cell:  # no fileno, no encoding, no isatty\n"
        "    text = ''\n"
        "    def write(self, text): self.text += text\n"
        "    def flush(self): pass\n"
        "sys.modules['ipykernel'] = types.ModuleType('ipykernel')\n"
        "sys.argv = ['ipykernel_launcher.py', '-f', '/root/kernel-1.json']\n"
        "class Two(FakeCourse):\n"
        "    order = ('passes', 'aborts')\n"
        "real, sys.stdout = sys.stdout, Cell()\n"
        "codes = [main(course=Two()), main(['--only', 'passes'], course=FakeCourse())]\n"
        "codes += [main(['--olny', 'x'], course=FakeCourse()), main(['--help'])]\n"
        "text, sys.stdout = sys.stdout.text, real\n"
        "print(codes)\n"
        "print(text)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, cwd=ROOT,
                          env=home.environment | {"PYTHONPATH": str(ROOT)}, timeout=PATIENCE)
    assert done.stderr == ""
    assert done.stdout.splitlines()[0] == "[1, 0, 2, 0]"
    assert done.stdout.count("passes prints") == 2
    assert "1 passed, 1 failed in" in done.stdout and "did you mean --only?" in done.stdout
    assert home.all_gone()


# Output


def test_each_heading_arrives_before_its_section_s_work(home):
    process = home.start("--only", "passes,slow,passes_last")
    arrived = {}
    for line in process.stdout:  # a slow reader: it takes a line and looks at it for a while
        arrived[line.decode().split(":")[0].strip()] = time.monotonic()
        time.sleep(0.01)
    assert process.wait(PATIENCE) == 0
    end = next(float(line.split()[-1]) for line in arrived if line.startswith("work ends at"))
    assert arrived["[1/3] passes"] < arrived["passes prints"] < arrived["[2/3] slow"]
    assert arrived["[2/3] slow"] < arrived["work begins"] < end - 0.2
    assert arrived["[3/3] passes_last"] >= end


def test_a_reader_that_goes_away_ends_the_tour_without_a_word(home):
    process = home.start("--only", "passes,slow,passes_last")
    assert process.stdout.readline()
    process.stdout.close()
    assert process.wait(PATIENCE) == 130
    assert process.stderr.read() == b""
    assert home.all_gone()


@pytest.mark.parametrize("variables", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C"}])
def test_an_ascii_output_shows_question_marks(variables, home):
    result = home.run("--only", "prints_no_utf8,passes", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0",
                      **variables)
    assert (result.returncode, result.stderr) == (0, "")
    assert statuses(result.stdout) == {"prints_no_utf8": "PASS", "passes": "PASS"}
    if "PYTHONIOENCODING" in variables:
        assert "? \\ud800" in result.stdout and result.stdout.isascii()


def test_the_live_line_of_a_terminal_appears_and_goes(home):
    terminal = Terminal(home, "--only", "slow,hangs,passes", "--timeout", "1")
    assert terminal.read_to_the_end() == 1
    live = re.findall(rb"\r\x1b\[2K([^\r\n\x1b]+ \(\d+ s\))(.{0,5})", terminal.output, re.DOTALL)
    texts, afters = zip(*live, strict=True)
    assert {b"slow: running (0 s)", b"hangs: waiting for a miracle (0 s)"} <= set(texts)
    assert set(afters) == {b"\r\x1b[2K"}  # nothing is printed behind a live line
    shown = screen(terminal.output)
    assert not [line for line in shown if re.search(r"\(\d s\)$", line) and "TIMEOUT" not in line]
    assert shown[-1] == "" and shown[-2].startswith("2 passed, 1 failed")
    assert statuses("\n".join(shown)) == {"slow": "PASS", "hangs": "TIMEOUT", "passes": "PASS"}


def test_the_live_line_stays_away_from_a_line_that_has_not_ended(home):
    terminal = Terminal(home, "--only", "hangs_with_the_lock", "--timeout", "1")
    assert terminal.read_to_the_end() == 1
    assert "  the lock is taken" in screen(terminal.output)
    assert b"running" not in terminal.output.split(b"the lock is taken")[1].split(b"TIMEOUT")[0]


@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_a_terminal_that_wants_no_escapes_gets_none(variables, home):
    terminal = Terminal(home, "--only", "slow,passes", **variables)
    assert terminal.read_to_the_end() == 0
    assert b"passes prints" in terminal.output
    assert b"\x1b" not in terminal.output


# The end


def test_an_interrupted_tour_sums_up(home):
    path = home.folder / "results.json"
    process = home.start("--only", "passes,leaves_a_child,leaves_a_distant_child,hangs,passes_last",
                         "--results", str(path))
    read = b""
    while b"no more words" not in read:
        read += os.read(process.stdout.fileno(), 4096)
    time.sleep(0.3)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    text = (read + out).decode()
    assert (process.returncode, err) == (130, b"")
    assert home.all_gone()
    assert statuses(text) == {
        "passes": "PASS", "leaves_a_child": "PASS", "leaves_a_distant_child": "PASS",
        "hangs": "NOT RUN", "passes_last": "NOT RUN"}
    assert re.search(r"^hangs +NOT RUN +0\.[3-9] ", text, re.MULTILINE)
    assert "\nhangs: NOT RUN: interrupted while waiting for a miracle\n" in text
    assert "\npasses_last: NOT RUN: interrupted before it began\n" in text
    assert re.search(r"3 passed, 0 failed, 2 not run in \d s .*Interrupted\.\n$", text)
    results = json.loads(path.read_text())
    assert results["exit_code"] == 130
    assert 0.3 <= results["sections"][3]["seconds"] < 5


def test_control_c_on_a_terminal(home):
    terminal = Terminal(home, "--only", "passes,hangs,passes_last")
    terminal.read_until(b"hangs: waiting for a miracle (0 s)")
    terminal.type(b"\x03")
    assert terminal.read_to_the_end() == 130
    assert home.all_gone()
    shown = screen(terminal.output)
    assert "hangs: waiting" not in "\n".join(shown)
    assert "interrupted" in shown
    assert shown[-1] == "" and shown[-2].endswith("Interrupted.")


def test_control_c_before_the_first_section(home, tmp_path):
    sleeps = ONLY_IN_A_WORKER + "import time; time.sleep(100)"
    terminal = Terminal(home, "--only", "passes", **put_on_path(tmp_path, sitecustomize=sleeps))
    terminal.read_until(b"looking at this machine")
    terminal.type(b"\x03")
    assert terminal.read_to_the_end() == 130
    assert "passes: NOT RUN: interrupted before it began" in screen(terminal.output)
    assert home.all_gone()


def test_an_impatient_user_presses_control_c_twice(home):
    terminal = Terminal(home, "--only", "passes,hangs")
    terminal.read_until(b"hangs: waiting for a miracle (0 s)")
    terminal.type(b"\x03")
    terminal.type(b"\x03")
    assert terminal.read_to_the_end() == 130
    assert b"Traceback" not in terminal.output
    assert home.all_gone()


def test_a_runner_that_is_killed_takes_everything_with_it(home):
    process = home.start("--only", "leaves_a_child,leaves_a_distant_child,hangs_with_the_lock")
    read = b""
    while b"the lock is taken" not in read:
        read += os.read(process.stdout.fileno(), 4096)
    assert len(home.processes()) >= 4
    process.kill()
    process.wait()
    assert home.all_gone()
