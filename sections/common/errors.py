"""What is told of an exception: one line that names the cause, a learner's line, the whole text."""

import os
import re
import tempfile
import traceback

LONGEST_NOTE = 300  # characters; an event stays below what a pipe takes in one piece
LONGEST_LINE = 2000  # what is searched of a line: what is behind that tells nothing
# In the line that says what is wrong.
TELLING = r"(error|fatal)\b[^:]*:\s*\S|^Compilation Failed!|\bld(\.\w+)?: .*failed"
# The name or the folder of a compiler's file, which is gone by then.
TEMPORARY = re.compile(r"""[^\s'"]*/tmp\w{8}(/|(?=\.\w))""")
SHORTAGE = re.compile(r"(CUDA out of memory)\. Tried to allocate ([\d.]+ \w+)\..*?"
                      r"total capacity of ([\d.]+ \w+) of which ([\d.]+ \w+) is free")


def root_cause(error: BaseException) -> str:
    """One line that names what went wrong, also where the message begins with pages of CUDA."""
    try:
        lines = [line.strip()[:LONGEST_LINE] for line in str(error).splitlines() if line.strip()]
    except Exception:  # an exception that cannot even be printed
        lines = []
    if not lines:
        return type(error).__name__
    telling = [line for line in lines if re.search(TELLING, line, re.IGNORECASE)]
    line = telling[0] if telling else (lines[-1] if len(lines) > 12 else lines[0])
    shortage = SHORTAGE.search(line)
    if shortage:
        line = "{}: {} needed, {} of {} free".format(*(shortage[n] for n in (1, 2, 4, 3)))
    line = TEMPORARY.sub(lambda found: "" if found[1] else "kernel", line)
    return one_line(f"{type(error).__name__}: {line}")


def one_line(text: str) -> str:
    """A text as a note: on one line, not too long."""
    return " ".join(text.split())[:LONGEST_NOTE]


def where(error: BaseException, path: str) -> str:
    """The last line of a file that an error came through: " (exercise_add_tail.py, line 31)"."""
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__)
             if frame.f_code.co_filename == path]
    return f" ({os.path.basename(path)}, line {lines[-1]})" if lines else ""


def whole(error: BaseException) -> str:
    """All that there is to say of an error: its traceback and its message."""
    return "".join(traceback.format_exception(error))


def keep(name: str, text: str) -> str:
    """Keep a long text in a file that outlives the tour; returns where, to end a note with."""
    try:
        descriptor, path = tempfile.mkstemp(".txt", f"tilelang-tour-{name}-")
        with open(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except OSError:
        return ""
    return f" (whole text: {path})"
