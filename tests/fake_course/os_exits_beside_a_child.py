"""Leaves with os._exit(4) while a child keeps on writing into the pipe."""

import os
import subprocess


def run(page):
    subprocess.Popen(["yes"])
    os._exit(4)
