"""The real command on the fake course: python -m tests.fake_tour --only passes,aborts"""

import runpy
import sys
from dataclasses import dataclass
from pathlib import Path

import sections.course


@dataclass(frozen=True)
class FakeCourse(sections.course.Course):
    """The course of tests/fake_course."""

    package: str = "tests.fake_course"
    needs_tilelang: bool = False


if __name__ == "__main__":
    sections.course.Course = FakeCourse
    command = Path(__file__).resolve().parents[1] / "tilelang_tour.py"
    sys.argv[0] = str(command)
    runpy.run_path(str(command), run_name="__main__")
