"""Asks for input: there is nobody to answer."""


def run(page):
    input("your name? ")
