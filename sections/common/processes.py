"""The processes of a run: all that a worker starts carry its mark. Standard library only."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

RUN_VARIABLE = "TILELANG_TOUR_RUN"


def kill_run(run: str) -> None:
    """Kill every other process that carries a run's mark, also those that left its group.

    Looks into /proc: where there is none, only the group can be killed.
    """
    for _ in range(100):  # one that is killed may have started another; a stuck one is left
        others = set(marked(run)) - {os.getpid()}
        if not others:
            return
        for pid in others:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def marked(run: str) -> list[int]:
    """The processes that carry a run's mark in the environment they were started with."""
    mark = f"{RUN_VARIABLE}={run}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if mark in entry.read_bytes().split(b"\0"):
                found.append(int(entry.parent.name))
    return found
