"""Skips after a failure: what has failed is not made good by it."""

from sections.common.page import Skip


def run(page):
    page.fail("check 1x1: wrong")
    raise Skip("needs sm_90a")
