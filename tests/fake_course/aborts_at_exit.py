"""Aborts at the interpreter's exit, long after it passed."""

import atexit
import os


def run(page):
    atexit.register(os.abort)
