"""Leaves a child behind that has a session of its own and holds the pipe open."""

import subprocess


def run(page):
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
