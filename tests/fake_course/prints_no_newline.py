"""Prints no newline at its end."""


def run(page):
    print("a line that does not end", end="")
