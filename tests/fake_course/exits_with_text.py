"""Exits with a text."""


def run(page):
    raise SystemExit("x")
