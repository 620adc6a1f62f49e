"""Runs a course: sections in order, one worker at a time, whatever happens in one of them."""

import os
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from sections.course import Course
from sections.runner.arguments import Options
from sections.runner.environment import Probe, cache_folder
from sections.runner.install import Outcome
from sections.runner.link import Ended, Worker, whole
from sections.runner.screen import Screen

START_SECONDS = 300.0  # limit for importing torch and tilelang and compiling one tiny kernel
OUTPUT_LIMIT = 400_000  # characters of one section's output that are passed on


@dataclass
class Row:
    """One section's line in the summary and its entry in the results."""

    name: str
    status: str = "NOT RUN"
    seconds: float = 0.0
    note: str = ""
    lesson: str = ""
    checks: list[dict] = field(default_factory=list)
    measurements: list[dict] = field(default_factory=list)
    data: dict = field(default_factory=dict)


@dataclass
class Record:
    """Everything a tour found out.

    probe    what the first worker found that could run sections, or the last that could not
    changed  the course's files that were changed meanwhile
    """

    rows: list[Row]
    probe: Probe | None = None
    ceilings: dict = field(default_factory=dict)
    seconds: float = 0.0
    compile_seconds: float = 0.0
    interrupted: bool = False
    changed: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """0 when nothing failed and something passed, 130 when interrupted, else 1."""
        statuses = {row.status for row in self.rows}
        if self.interrupted:
            return 130
        return 0 if "PASS" in statuses and statuses <= {"PASS", "SKIP"} else 1


class Tour:
    """One run of a course.

    begin       called with the Probe once the first worker is ready; prints what the machine is
    make_usable called once, with the Probe, when TileLang is not usable; tells how that ended
    """

    def __init__(
        self,
        course: Course,
        options: Options,
        environment: dict[str, str],
        screen: Screen,
        begin: Callable[[Probe], None] = lambda probe: None,
        make_usable: Callable[[Probe], Outcome] = Outcome,
    ):
        self.course = course
        self.options = options
        self.screen = screen
        self.begin = begin
        self.make_usable = make_usable
        self.record = Record([Row(name) for name in options.names])
        self._folder = tempfile.mkdtemp(prefix="tilelang-tour-")
        # Compilers take TMPDIR as it is; Python has found a folder with room.
        self.environment = {**environment, "TMPDIR": os.path.dirname(self._folder)}
        if course.needs_tilelang and cache_folder(environment)["cache_refusal"]:
            self.environment["TILELANG_CACHE_DIR"] = os.path.join(self._folder, "cache")
        self._follow: _Follow | None = None
        self._begun = self._mended = False
        self._ahead = True  # the first worker may compile all kernels before the first section

    def run(self) -> Record:
        """Run all sections; the record is true also after an interruption."""
        start = time.monotonic()
        left = [row.name for row in self.record.rows]
        try:
            while left:
                left = self._one_worker(left)
        except (KeyboardInterrupt, BrokenPipeError) as error:
            self.record.interrupted = True
            if self._follow:
                self._follow.interrupted()
            self.not_run("interrupted before it began")
            if isinstance(error, KeyboardInterrupt):  # else whoever read the output has gone
                self.screen.line("interrupted")
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
            self.screen.clear()
        self.record.seconds = time.monotonic() - start
        return self.record

    def probe(self) -> Probe:
        """Start a worker only to see what it finds."""
        follow = _Follow(self, self._worker([]))
        try:
            follow.start_up()
        finally:
            follow.worker.stop()
            shutil.rmtree(self._folder, ignore_errors=True)
        return follow.probe

    def _one_worker(self, left: list[str]) -> list[str]:
        """Run sections until all are done or the worker is; returns the ones still to run."""
        try:
            worker = self._worker(left)
        except OSError as error:  # too many processes, too little memory
            self.not_run(f"no process can be started: {error}")
            return []
        self._follow = follow = _Follow(self, worker)
        try:
            usable = follow.start_up()
            if not self._begun:
                self.record.probe = follow.probe
            if not usable:
                follow.worker.stop()
                return self._mend(follow.probe, left)
            if not self._begun:
                self._begun = True
                self.begin(follow.probe)
            self._ahead = False
            return follow.sections(left)
        finally:
            follow.worker.stop()
            self.record.compile_seconds += follow.compile_seconds

    def _mend(self, probe: Probe, left: list[str]) -> list[str]:
        """Have TileLang made usable, once; returns the sections to run then."""
        outcome = Outcome(probe)
        if probe.culprit != "start" and not self._begun and not self._mended:
            self._mended = True
            outcome = self.make_usable(probe)
            self.record.probe = outcome.probe
        if outcome.usable:
            return left
        self.not_run(outcome.cause)
        return []

    def _worker(self, names: list[str]) -> Worker:
        os.makedirs(self._folder, exist_ok=True)  # a section may have removed it
        return Worker(self._job(names), self._folder, self.environment)

    def _job(self, names: list[str]) -> dict:
        order = [row.name for row in self.record.rows]
        return {
            "package": self.course.package,
            "needs_tilelang": self.course.needs_tilelang,
            "sections": names,
            "positions": {name: order.index(name) + 1 for name in names},
            "total": len(order),
            "device": self.options.device,
            "arch": self.options.arch,
            "quick": self.options.quick,
            "ahead": self._ahead,
            "learner": self.options.learner,
            "ceilings": self.record.ceilings,
        }

    def row(self, name: str) -> Row | None:
        return next((row for row in self.record.rows if row.name == name), None)

    def not_run(self, reason: str) -> None:
        """Say why the sections that are left were not run, unless it is known already."""
        for row in self.record.rows:
            if row.status == "NOT RUN":
                row.note = row.note or reason


class _Follow:
    """Follows one worker: passes on what it prints, fills rows with what it tells."""

    def __init__(self, tour: Tour, worker: Worker):
        self.tour = tour
        self.worker = worker
        self.probe = Probe()
        self.compile_seconds = 0.0
        self._items: deque = deque()  # what has come and has not been looked at
        self._row: Row | None = None
        self._doing = "starting"
        self._since = time.monotonic()
        self._printed = 0
        self._progressed = False  # whether any section was begun: else a new worker would not help
        self._ahead = False  # whether all sections' kernels were being compiled before the first

    # Before the first section

    def start_up(self) -> bool:
        """Follow the worker until it can run sections; False when it cannot."""
        self._begin("looking at this machine")
        while not self.probe.ready:
            item = self._next()
            if isinstance(item, str):
                self.probe.output = (self.probe.output + item)[-20_000:]
            elif isinstance(item, Ended):
                self.probe.died = None if self.probe.error else item.how
                break
            elif item:
                self.probe.ready = item["event"] == "ready"
                self.probe.see(item)
                self._doing = f"looking at this machine: {item.get('step', '')}"
            if time.monotonic() - self._since > START_SECONDS:
                self.probe.died = f"no answer within {START_SECONDS:.0f} s"
                break
        return self.probe.usable

    # Sections

    def sections(self, left: list[str]) -> list[str]:
        """Follow the worker through its sections; returns the ones that need another worker."""
        left = list(left)
        self._begin("")
        while True:
            item = self._next()
            if isinstance(item, str):
                self._text(item)
            elif isinstance(item, Ended):
                return self._ended(left, "CRASH", item.sentence)
            elif item:
                if item["event"] == "done":
                    self.tour.not_run("what became of it was not heard")
                    return []
                self._event(item, left)
            if time.monotonic() - self._since > self.tour.options.timeout:
                limit = f"over the limit of {self.tour.options.timeout:g} s (--timeout)"
                return self._ended(left, "TIMEOUT", limit)

    def _ended(self, left: list[str], status: str, why: str) -> list[str]:
        """This worker runs no more sections: returns the ones for another, unless that is vain."""
        if self._row:
            self._close(left, status, f"{why} while {self._doing}")
        elif self._ahead and not self._progressed:
            self.tour.screen.line(f"compiling everything first did not work ({why} while "
                                  f"{self._doing}): each section compiles its own")
        elif not self._progressed:
            self.tour.not_run(f"{why} before it began a section")
            return []
        return left

    def _event(self, event: dict, left: list[str]) -> None:
        kind = event["event"]
        if kind == "ahead":
            self._ahead = True
            self._begin("compiling ahead")
        elif kind == "section_start":
            self._row = self.tour.row(event["name"])
            self._progressed = True
            self._begin("running")
        elif kind == "progress":
            self._doing = event["text"]
        elif kind == "ceilings":
            self.tour.record.ceilings.update(_payload(event))
        elif self._row is None:
            return
        elif kind == "check":
            self._row.checks.append(_payload(event))
        elif kind == "measurement":
            self._row.measurements.append(_payload(event))
        elif kind == "data":
            self._row.data[event["name"]] = event["value"]
        elif kind == "headline":
            for measurement in self._row.measurements:
                measurement["headline"] = measurement == _payload(event)
        elif kind == "lesson":
            self._row.lesson = event["text"]
        elif kind == "section_end" and event["name"] == self._row.name:
            self.compile_seconds = event["compile_seconds"]
            self._close(left, event["status"], event["note"], event["seconds"])

    def _close(self, left, status: str, note: str, seconds: float | None = None) -> None:
        """Complete the current row."""
        row, self._row = self._row, None
        row.status, row.note = status, note
        row.seconds = time.monotonic() - self._since if seconds is None else seconds
        if row.name in left:
            left.remove(row.name)
        screen = self.tour.screen
        if self._printed > OUTPUT_LIMIT:
            screen.line(f"  ({self._printed - OUTPUT_LIMIT} more characters of output left out)")
        if status not in ("PASS", "SKIP"):
            screen.line(f"  {row.name}: {status}: {row.note}")
        self._begin("")

    def interrupted(self) -> None:
        """The tour was cut short: the current section keeps its seconds and is NOT RUN."""
        if self._row:
            self._row.seconds = time.monotonic() - self._since
            self._row.note = f"interrupted while {self._doing}"

    def _text(self, text: str) -> None:
        room = max(OUTPUT_LIMIT - self._printed, 0)
        self._printed += len(text)
        start = time.monotonic()
        self.tour.screen.write(text[:room])
        self._since += time.monotonic() - start  # a slow reader's time is not the section's

    def _begin(self, doing: str) -> None:
        self._since, self._doing, self._printed = time.monotonic(), doing, 0

    def _next(self) -> str | dict | Ended | None:
        """What the worker said next; None when it was silent for a moment."""
        if not self._items:
            start = time.monotonic()
            self._items.extend(self.worker.poll(0.25))
            lost = time.monotonic() - start - 0.25
            if lost > 5:  # this process was stopped (Ctrl-Z): that time is not the section's
                self._since += lost
        if self._items:
            item = self._items.popleft()
            return f"{item}\n" if isinstance(item, dict) and not whole(item) else item
        seconds = time.monotonic() - self._since
        name = f"{self._row.name}: " if self._row else ""
        self.tour.screen.live(f"{name}{self._doing or 'working'} ({seconds:.0f} s)")
        return None


def _payload(event: dict) -> dict:
    return {key: value for key, value in event.items() if key != "event"}

