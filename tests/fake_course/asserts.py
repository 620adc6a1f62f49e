"""Asserts something false; `python -O` must not save it."""


def run(page):
    assert page is None, "an assert that does not hold"
