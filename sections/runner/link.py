"""The link to the worker: starts it, splits its one stream into text and events, ends it."""

import codecs
import json
import os
import secrets
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sections.common.processes import RUN_VARIABLE, kill_run

ROOT = Path(__file__).resolve().parents[2]
LARGEST_EVENT = 4 << 20  # bytes
LARGEST_PIPE = 1 << 20  # bytes
AT_ONCE = 1 << 16  # bytes read at once
STOP_SECONDS = 10.0  # limit for a killed process to go

# What an event must hold to be whole; kinds that are not named need nothing.
FIELDS = {
    "step_started": {"step"},
    "step": {"step"},
    "step_failed": {"step", "error"},
    "section_start": {"name"},
    "progress": {"text"},
    "lesson": {"text"},
    "check": {"case", "rel_error", "bound", "passed"},
    "ceilings": {"copy_GBps", "matmul_TFLOPs"},
    "data": {"name", "value"},
    "section_end": {"name", "status", "note", "seconds", "compile_seconds"},
}
FIELDS["measurement"] = FIELDS["headline"] = {
    "case", "variant", "ms", "baseline", "baseline_ms", "ratio", "value", "unit", "of_ceiling"}

# The tour's folder is the last on the worker's path: a random.py or a torch.py beside the tour
# hides no module. Only the packages of sections are taken from there first.
START = (
    "import sys; sys.path[:] = [{root!r}, *filter(None, sys.path)]; import {packages}; "
    "sys.path.append(sys.path.pop(0)); from sections.worker import main; main()"
)


def whole(event: dict) -> bool:
    """Whether an event holds all that its kind needs; one that was damaged on its way may not."""
    known = event.get("status", "PASS") in ("PASS", "SKIP", "FAIL")
    return known and FIELDS.get(event["event"], set()) <= event.keys()


@dataclass(frozen=True)
class Ended:
    """The worker's process has ended; `code` as subprocess gives it, negative for a signal."""

    code: int

    @property
    def how(self) -> str:
        """In words: "killed by SIGSEGV" or "ended with code 3"."""
        if self.code < 0:
            try:
                return f"killed by {signal.Signals(-self.code).name}"
            except ValueError:
                return f"killed by signal {-self.code}"
        return f"ended with code {self.code}"

    @property
    def sentence(self) -> str:
        """ "the process was killed by SIGSEGV" or "the process ended with code 3"."""
        return f"the process {'was ' if self.code < 0 else ''}{self.how}"


class Stream:
    """Splits bytes into text and events.

    An event is a marker with this run's secret, JSON, and a newline; it may begin anywhere in a
    line. Whatever is no whole event is text, so that nothing a section prints is lost.
    """

    def __init__(self, token: str):
        self._marker = f"\x1e{token} ".encode()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pending = b""

    def feed(self, data: bytes) -> list[str | dict]:
        """What has become complete with these bytes, in order."""
        self._pending += data
        items: list[str | dict] = []
        while self._pending:
            start = self._pending.find(self._marker)
            if start < 0:
                keep = self._held_back()
                cut = len(self._pending) - keep
                self._text(items, self._pending[:cut])
                self._pending = self._pending[cut:]
                break
            self._text(items, self._pending[:start])
            self._pending = self._pending[start:]
            end = self._pending.find(b"\n")
            if end < 0 and len(self._pending) < LARGEST_EVENT:
                break
            end = len(self._pending) if end < 0 else end
            torn = self._pending.find(self._marker, 1, end)  # an event began within another
            if torn > 0:
                self._text(items, self._pending[len(self._marker) : torn])
                self._pending = self._pending[torn:]
                continue
            line, self._pending = self._pending[len(self._marker) : end], self._pending[end + 1 :]
            self._event(items, line)
        return items

    def flush(self) -> list[str | dict]:
        """What is left when the stream has ended: a torn event is text."""
        items: list[str | dict] = []
        self._text(items, self._pending.replace(self._marker, b""), last=True)
        self._pending = b""
        return items

    def _held_back(self) -> int:
        """How many bytes at the end may be the beginning of a marker."""
        for length in range(min(len(self._marker) - 1, len(self._pending)), 0, -1):
            if self._marker.startswith(self._pending[-length:]):
                return length
        return 0

    def _event(self, items: list, line: bytes) -> None:
        try:
            event = json.loads(line)
            if not isinstance(event, dict) or not isinstance(event.get("event"), str):
                raise ValueError("no event")
        except (ValueError, RecursionError):
            self._text(items, line + b"\n")
        else:
            items.append(event)

    def _text(self, items: list, data: bytes, last: bool = False) -> None:
        text = self._decoder.decode(data, last)
        if text:
            items.append(text)


class Worker:
    """One worker process and everything it starts, as one process group."""

    def __init__(self, job: dict, folder: str, environment: dict[str, str]):
        self._run = secrets.token_hex(8)
        token = secrets.token_hex(8)
        self._stream = Stream(token)
        self._process = subprocess.Popen(
            [sys.executable, "-u", "-c", start_code(job["package"])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=folder,
            env=worker_environment(environment, self._run),
        )
        self._descriptor = self._process.stdout.fileno()
        os.set_blocking(self._descriptor, False)
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps({**job, "token": token}).encode() + b"\n")
            self._process.stdin.flush()

    def poll(self, seconds: float) -> list[str | dict | Ended]:
        """What has come within `seconds`: text, events, and Ended once the process has ended.

        The end of the pipe is not waited for: a process left behind may hold it open.
        """
        items: list = self._stream.feed(self._read(seconds))
        if self._process.poll() is not None:
            for _ in range(LARGEST_PIPE // AT_ONCE):  # what it left there; others may write on
                items += self._stream.feed(self._read(0))
            items += self._stream.flush()
            items.append(Ended(self._process.returncode))
        return items

    def _read(self, seconds: float) -> bytes:
        poll = select.poll()  # select.select knows no descriptor above 1023
        poll.register(self._descriptor, select.POLLIN)
        if not poll.poll(1000 * seconds):
            return b""
        try:
            data = os.read(self._descriptor, AT_ONCE)
        except BlockingIOError:
            return b""
        if not data:  # the pipe is closed while the process lives: do not spin
            time.sleep(min(seconds, 0.05))
        return data

    def stop(self) -> None:
        """End the process, its group, and whatever it started that left the group."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):  # one that hangs in a driver may stay
            self._process.wait(STOP_SECONDS)
        kill_run(self._run)
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                pipe.close()


def start_code(package: str) -> str:
    """What the worker's Python runs, for a course in that package."""
    top = package.partition(".")[0]
    packages = {"sections", top} if (ROOT / top).is_dir() else {"sections"}
    return START.format(root=str(ROOT), packages=", ".join(sorted(packages)))


def worker_environment(environment: dict[str, str], run: str) -> dict[str, str]:
    """The worker's environment: marked as this run's, asserts on, text as UTF-8."""
    mine = {**environment, RUN_VARIABLE: run, "PYTHONIOENCODING": "utf-8:backslashreplace"}
    mine.pop("PYTHONOPTIMIZE", None)
    return mine
