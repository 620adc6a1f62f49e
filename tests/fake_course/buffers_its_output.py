"""Buffers its output: a stream of its own, never flushed."""

import sys

own = None


def run(page):
    global own
    own = sys.stdout = open(1, "w", closefd=False)
    print("held back by Python")
