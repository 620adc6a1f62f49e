"""Replaces the output, on every level."""

import io
import os
import sys


def run(page):
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    os.set_blocking(1, False)
    sys.stdout = sys.stderr = io.StringIO()
    sys.__stdout__ = sys.__stderr__ = None
