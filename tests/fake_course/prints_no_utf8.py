"""Prints no UTF-8: bytes of all values, and a character that stops half way."""

import os


def run(page):
    os.write(1, bytes(range(256)))
    print("\N{SNOWMAN} \ud800")
    os.write(1, "\N{SNOWMAN}".encode()[:2])
