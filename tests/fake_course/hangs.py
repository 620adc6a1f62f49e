"""Hangs."""

import time


def run(page):
    page.progress("waiting for a miracle")
    page.say("no more words")
    time.sleep(1000)
