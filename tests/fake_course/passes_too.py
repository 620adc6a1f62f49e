"""Passes too: a section that finds the process as it should be."""

from tests.fake_course.healthy import expect_health


def run(page):
    expect_health("passes_too")
