"""Raises beside a child that writes all the time, so that a long event would be torn."""

import subprocess
import sys

CHILD = "import os\nwhile True: os.write(1, b'chatter\\n')"


def run(page):
    subprocess.Popen([sys.executable, "-c", CHILD])
    page.say("\n\n".join(["many words " * 400] * 20))
    raise RuntimeError("\n".join(["long"] * 20_000 + ["error: with a child beside it"]))
