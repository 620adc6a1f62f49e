"""Forks, and both processes return: only one may go on with the tour."""

import os


def run(page):
    if os.fork() == 0:
        raise RuntimeError("this is the child")
    os.wait()
