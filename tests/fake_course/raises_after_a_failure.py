"""Raises after a failure: what raises is the consequence of a check that failed before."""


def run(page):
    page.fail("1x1 did not compile: no such name")
    raise TypeError("'AttributeError' object is not callable")
