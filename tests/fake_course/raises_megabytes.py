"""Raises megabytes: a message larger than any event may be."""


def run(page):
    raise RuntimeError("the end of the world\n" + "\x1f\N{SNOWMAN}\ud800 and so on\n" * 200_000)
