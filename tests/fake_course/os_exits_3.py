"""Leaves with os._exit(3), after more words than a pipe holds."""

import os


def run(page):
    print("many words\n" * 20_000)
    print("last words", end="")
    os._exit(3)
