"""Closes the output, all there is of it, and opens a file in its place."""

import os
import sys


def run(page):
    sys.stdout.close()
    sys.stderr.close()
    os.close(1)
    os.close(2)
    for _ in range(2):  # takes the numbers 1 and 2
        os.open("/dev/null", os.O_RDWR)
