"""Runs a course: sections in order, one worker at a time, whatever happens in one of them."""

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from sections.course import Course
from sections.runner.arguments import Options
from sections.runner.environment import Probe
from sections.runner.link import Ended, Worker
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


@dataclass
class Record:
    """Everything a tour found out."""

    rows: list[Row]
    probe: Probe | None = None
    ceilings: dict = field(default_factory=dict)
    seconds: float = 0.0
    compile_seconds: float = 0.0
    interrupted: bool = False

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
    make_usable called with the Probe when TileLang is not usable; returns whether to try again
    """

    def __init__(
        self,
        course: Course,
        options: Options,
        environment: dict[str, str],
        screen: Screen,
        begin: Callable[[Probe], None] = lambda probe: None,
        make_usable: Callable[[Probe], bool] = lambda probe: False,
    ):
        self.course = course
        self.options = options
        self.environment = environment
        self.screen = screen
        self.begin = begin
        self.make_usable = make_usable
        self.record = Record([Row(name) for name in options.names])
        self._folder = tempfile.mkdtemp(prefix="tilelang-tour-")
        self._kept: str | None = None
        self._follow: _Follow | None = None

    def run(self) -> Record:
        """Run all sections; the record is true also after an interruption."""
        start = time.monotonic()
        left = [row.name for row in self.record.rows]
        try:
            while left:
                left = self._one_worker(left)
        except KeyboardInterrupt:
            self.record.interrupted = True
            if self._follow:
                self._follow.interrupted()
            self.screen.line("interrupted")
        finally:
            self.screen.clear()
            shutil.rmtree(self._folder, ignore_errors=True)
        self.record.seconds = time.monotonic() - start
        return self.record

    def probe(self) -> Probe:
        """Start a worker only to see what it finds."""
        follow = _Follow(self, Worker(self._job([]), self._folder, self.environment))
        try:
            follow.start_up()
        finally:
            follow.worker.stop()
        return follow.probe

    def _one_worker(self, left: list[str]) -> list[str]:
        """Run sections until all are done or the worker is; returns the ones still to run."""
        self._follow = follow = _Follow(
            self, Worker(self._job(left), self._folder, self.environment)
        )
        try:
            first = self.record.probe is None or not self.record.probe.usable
            usable = follow.start_up()
            if first:
                self.record.probe = follow.probe
            if not usable:
                follow.worker.stop()
                if first and self.make_usable(follow.probe):
                    return left
                for name in left:
                    self.row(name).note = follow.probe.cause
                return []
            if first:
                self.begin(follow.probe)
            return follow.sections(left)
        finally:
            follow.worker.stop()
            self.record.compile_seconds += follow.compile_seconds

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
            "ceilings": self.record.ceilings,
        }

    def row(self, name: str) -> Row:
        return next(row for row in self.record.rows if row.name == name)

    def keep(self, name: str, text: str) -> str | None:
        """Keep a long text in a file that outlives the tour; returns its path."""
        try:
            if self._kept is None:
                self._kept = tempfile.mkdtemp(prefix="tilelang-tour-errors-")
            path = os.path.join(self._kept, f"{name}.txt")
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        except OSError:
            return None
        return path


class _Follow:
    """Follows one worker: passes on what it prints, fills rows with what it tells."""

    def __init__(self, tour: Tour, worker: Worker):
        self.tour = tour
        self.worker = worker
        self.probe = Probe()
        self.compile_seconds = 0.0
        self._row: Row | None = None
        self._doing = "starting"
        self._since = time.monotonic()
        self._printed = 0
        self._progressed = False  # whether any section was begun: else a new worker would not help

    # Before the first section

    def start_up(self) -> bool:
        """Follow the worker until it can run sections; False when it cannot."""
        self._begin("looking at this machine")
        output: list[str] = []
        while True:
            for item in self._poll():
                if isinstance(item, str):
                    output.append(item)
                elif isinstance(item, Ended):
                    self.probe.died = self.probe.died or item.how
                    self.probe.output = "".join(output)[-20_000:]
                    return self.probe.usable
                elif item["event"] == "ready":
                    self.probe.output = "".join(output)[-20_000:]
                    self.probe.ready = True
                    return True
                else:
                    self.probe.see(item)
                    self._doing = f"looking at this machine: {item.get('step', '')}"
            if time.monotonic() - self._since > START_SECONDS:
                self.probe.died = f"no answer within {START_SECONDS:.0f} s"
                self.probe.output = "".join(output)[-20_000:]
                return False

    # Sections

    def sections(self, left: list[str]) -> list[str]:
        """Follow the worker through its sections; returns the ones that need another worker."""
        left = list(left)
        self._begin("")
        while True:
            for item in self._poll():
                if isinstance(item, str):
                    self._text(item)
                elif isinstance(item, Ended):
                    return self._ended(item, left)
                else:
                    self._event(item, left)
                    if item["event"] == "done":
                        return []
            if self._row and time.monotonic() - self._since > self.tour.options.timeout:
                limit = f"{self.tour.options.timeout:g} s"
                self._close(left, "TIMEOUT", f"over --timeout ({limit}) while {self._doing}")
                return left

    def _ended(self, ended: Ended, left: list[str]) -> list[str]:
        if self._row:
            self._close(left, "CRASH", f"the process was {ended.how}" if ended.code < 0
                        else f"the process {ended.how}, while {self._doing}")
        elif not self._progressed:
            for name in left:
                self.tour.row(name).note = f"the worker was {ended.how} before it could run"
            return []
        return left

    def _event(self, event: dict, left: list[str]) -> None:
        kind = event["event"]
        if kind == "section_start":
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
        elif kind == "lesson":
            self._row.lesson = event["text"]
        elif kind == "section_end":
            self.compile_seconds = event["compile_seconds"]
            self._close(left, event["status"], event["note"], event["detail"], event["seconds"])

    def _close(self, left, status: str, note: str, detail: str = "", seconds=None) -> None:
        """Complete the current row."""
        row, self._row = self._row, None
        row.status, row.note = status, note
        row.seconds = time.monotonic() - self._since if seconds is None else seconds
        if row.name in left:
            left.remove(row.name)
        screen = self.tour.screen
        if self._printed > OUTPUT_LIMIT:
            screen.line(f"  ({self._printed - OUTPUT_LIMIT} more characters of output left out)")
        if detail:
            path = self.tour.keep(row.name, detail)
            row.note += f" (whole text: {path})" if path else ""
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
        self.tour.screen.write(text[:room])

    def _begin(self, doing: str) -> None:
        self._since, self._doing, self._printed = time.monotonic(), doing, 0

    def _poll(self) -> list:
        items = self.worker.poll(0.25)
        if not items:
            seconds = time.monotonic() - self._since
            name = f"{self._row.name}: " if self._row else ""
            self.tour.screen.live(f"{name}{self._doing or 'working'} ({seconds:.0f} s)")
        return items


def _payload(event: dict) -> dict:
    return {key: value for key, value in event.items() if key != "event"}

