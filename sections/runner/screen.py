"""Where the tour's output goes: a terminal, a pipe or a notebook cell."""

import os
import shutil
import sys

ERASE_LINE = "\r\x1b[2K"
# Printed by accident, a control character can leave a terminal unreadable.
HARMLESS = dict.fromkeys({*range(32), *range(127, 160)} - set(map(ord, "\n\r\t")), "\ufffd")


class Screen:
    """Writes text as it comes; on a terminal also a live line while nothing else is printed."""

    def __init__(self):
        self._live = False
        self._at_line_start = True

    def write(self, text: str) -> None:
        """Print text as it is; on a terminal control characters are replaced."""
        if text:
            self.clear()
            _put(text.translate(HARMLESS) if _isatty() else text)
            self._at_line_start = text.endswith("\n")

    def line(self, text: str = "") -> None:
        """Print text on a line of its own."""
        self.write(("" if self._at_line_start else "\n") + text + "\n")

    def live(self, text: str) -> None:
        """Show what is going on at the bottom of a terminal; the next output takes its place."""
        if self._at_line_start and _is_terminal():
            columns = shutil.get_terminal_size().columns
            self._live = True  # at once: Ctrl-C may come while it is written
            _put(ERASE_LINE + " ".join(text.split())[: columns - 1])

    def clear(self) -> None:
        """Take the live line away."""
        if self._live:
            _put(ERASE_LINE)
            self._live = False


def _put(text: str) -> None:
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding, "replace"))
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:  # a full disk: nobody can read that either
        raise BrokenPipeError(f"the output cannot be written: {error.strerror}") from error


def _isatty() -> bool:
    isatty = getattr(sys.stdout, "isatty", None)
    return bool(isatty and isatty())


def _is_terminal() -> bool:
    dumb = os.environ.get("TERM", "dumb") == "dumb"
    return _isatty() and not dumb and "NO_COLOR" not in os.environ
