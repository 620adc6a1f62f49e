"""The tour's command on the fake course as a process, its output, and what it leaves behind."""

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PATIENCE = 30.0  # seconds after which a test gives up waiting


@dataclass(frozen=True)
class Home:
    """A folder for one test; its path marks the environment of every process the test starts."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """The environment for a command: temporary files go into this home."""
        variables = {"TMPDIR": str(self.folder), "TERM": "xterm", "TOUR_TEST": str(self.folder)}
        gone = ("NO_COLOR", "COLUMNS", "TILELANG_TOUR_RUN")
        return variables | {
            name: value for name, value in os.environ.items()
            if name not in (*gone, *variables) and not name.startswith("PYTHON")
        }

    def processes(self) -> list[int]:
        """Living processes that were started from here, directly or not."""
        mark = f"TOUR_TEST={self.folder}".encode()
        found = []
        for entry in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if mark in entry.read_bytes().split(b"\0"):
                    found.append(int(entry.parent.name))
        return found

    def all_gone(self) -> bool:
        """Whether no process is left; one that was killed has a moment to go."""
        return wait_until(lambda: not self.processes(), 2)

    def command(self, *arguments: str, python: tuple[str, ...] = ()) -> list[str]:
        """The real command on the fake course."""
        return [sys.executable, *python, "-m", "tests.fake_tour", *arguments]

    def start(self, *arguments, python=(), stdout=subprocess.PIPE, **variables) -> subprocess.Popen:
        """Start the command in a process group of its own, as a shell does."""
        return subprocess.Popen(
            self.command(*arguments, python=python),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            env=self.environment | variables,
            start_new_session=True,
            preexec_fn=_hear_interrupts,
        )

    def run(self, *arguments, python=(), **variables) -> subprocess.CompletedProcess:
        """Run the command to its end; output as text, nothing may be left or complained about."""
        process = self.start(*arguments, python=python, **variables)
        try:
            out, err = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
        assert self.all_gone()
        return subprocess.CompletedProcess(
            arguments, process.returncode, out.decode("utf-8", "replace"), err.decode()
        )

    def clean_up(self) -> None:
        """End what a failed test has left."""
        for pid in self.processes():
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)


class Terminal:
    """The command on a terminal of 80 columns."""

    def __init__(self, home: Home, *arguments: str, python: tuple[str, ...] = (), **variables: str):
        self.output = b""
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))

        def take_terminal() -> None:
            _hear_interrupts()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            home.command(*arguments, python=python),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=ROOT,
            env=home.environment | variables,
            start_new_session=True,
            preexec_fn=take_terminal,
        )
        os.close(slave)

    def read_until(self, text: bytes) -> None:
        """Read until a text has come."""
        while text not in self.output:
            self.output += os.read(self._master, 4096)

    def type(self, keys: bytes) -> None:
        """Press keys."""
        os.write(self._master, keys)

    def read_to_the_end(self) -> int:
        """Read until the command has ended; returns its exit code."""
        with suppress(OSError):
            while data := os.read(self._master, 4096):
                self.output += data
        os.close(self._master)
        return self.process.wait(PATIENCE)


def screen(output: bytes) -> list[str]:
    """The lines that a terminal shows in the end: knows \\r, \\n and "erase this line"."""
    lines, column = [""], 0
    for part in re.split(r"(\r|\n|\x1b\[2K)", output.decode("utf-8", "replace")):
        if part == "\n":
            lines.append("")
        elif part == "\x1b[2K":
            lines[-1] = ""
        elif part != "\r":
            lines[-1] = lines[-1][:column].ljust(column) + part + lines[-1][column + len(part) :]
            column += len(part)
        if part in ("\r", "\n"):
            column = 0
    return lines


def wait_until(condition, seconds: float = PATIENCE) -> bool:
    """Wait until a condition holds; False when it did not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def statuses(output: str) -> dict[str, str]:
    """The summary's statuses by section, as printed."""
    row = r"^(\w+) +(PASS|SKIP|FAIL|CRASH|TIMEOUT|NOT RUN)  "
    return dict(re.findall(row, output, re.MULTILINE))


def _hear_interrupts() -> None:
    """A test that runs in the background of a shell was started deaf to them."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
