"""Raises an exception."""


def run(page):
    raise RuntimeError("the kernel is upside down")
