"""Aborts."""

import os


def run(page):
    page.progress("thinking of ending it")
    os.abort()
