"""Leaves a child behind that holds the pipe open and does not carry the run's mark."""

import os
import subprocess


def run(page):
    subprocess.Popen(["sleep", "1000"], env={"TOUR_TEST": os.environ["TOUR_TEST"]})
