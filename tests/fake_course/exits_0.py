"""Exits with 0."""

import sys


def run(page):
    sys.exit(0)
