"""Goes away: removes its folder, loses its environment."""

import os
import shutil


def run(page):
    shutil.rmtree(os.getcwd())
    os.chdir("/")
    os.environ.clear()
    os.environ["LEFT_BEHIND"] = "yes"
