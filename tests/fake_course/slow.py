"""Slow: says so, then works for half a second."""

import time


def run(page):
    page.say("work begins")
    time.sleep(0.5)
    page.say(f"work ends at {time.monotonic()}")
