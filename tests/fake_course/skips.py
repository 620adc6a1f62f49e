"""Skips: cannot run here, and says why."""

from sections.common.page import Skip


def run(page):
    raise Skip("needs\n sm_90a")
