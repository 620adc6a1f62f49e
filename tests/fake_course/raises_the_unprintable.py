"""Raises the unprintable: an exception whose message raises."""


class Unprintable(Exception):
    def __str__(self):
        raise ValueError("no message to be had")


def run(page):
    raise Unprintable
