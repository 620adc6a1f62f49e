"""Floods: 10 MB on 100,000 lines."""


def run(page):
    for _ in range(100):
        print(("x" * 99 + "\n") * 1000, end="")
