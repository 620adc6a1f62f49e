"""Interrupts itself."""


def run(page):
    raise KeyboardInterrupt
