"""Prints in turn: Python, C, another process and events, 400 lines in all."""

import ctypes
import os

LINES = 400


def run(page):
    library = ctypes.CDLL(None)
    for number in range(0, LINES, 4):
        print(f"line {number:03}")
        library.printf(b"line %03d\n", number + 1)
        page.emit({"event": "progress", "text": f"line {number}"})
        library.puts(b"line %03d" % (number + 2))
        os.write(2, b"line %03d\n" % (number + 3))
