"""Prints forever."""


def run(page):
    while True:
        print("on and on and on and on and on and on and on and on and on and on")
