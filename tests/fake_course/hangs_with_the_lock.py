"""Hangs with the lock: no other Python thread runs meanwhile."""

import ctypes


def run(page):
    print("  the lock is taken", end="")
    ctypes.PyDLL(None).sleep(1000)
