"""Exercises: makes a learner's file, gives hints, has the file checked. Standard library only."""

import os
import textwrap
from dataclasses import replace

from sections.course import Course
from sections.exercises import EXERCISES, ORDER, hints, learners_file, skeleton, source
from sections.runner.arguments import Options
from sections.runner.conduct import conduct
from sections.runner.known_errors import explain
from sections.runner.screen import Screen
from sections.runner.tour import Record, Row

COURSE = Course("sections.exercises")
COMMAND = "python tilelang_tour.py --exercise"


def exercise(options: Options, screen: Screen) -> int:
    """Do what --exercise asks for; returns the exit code.

    The first call for an exercise makes the learner's file in the current folder; later ones check
    it, as a section of a course: whatever it does costs its own process.
    """
    name = options.exercise
    if name == "list":
        screen.line(listing())
        return 0
    if options.hint:
        screen.line(hint(name, options.hint))
        return 0
    path, text = learners_file(name), skeleton(source(name))
    try:
        path = os.path.abspath(path)
        with open(path, "x", encoding="utf-8") as file:
            try:
                file.write(text)
                file.flush()
            except BaseException:  # half a task would be checked the next time
                os.remove(path)
                raise
    except FileExistsError:
        return conduct(COURSE, replace(options, names=(name,), learner=path), screen, verdict)
    except OSError as error:
        screen.line(f"{path} cannot be written ({error.strerror}); go to a folder in which you may "
                    "make files")
        return 2
    screen.line(task(name))
    return 0


def listing() -> str:
    """All exercises by section, and which of them were begun in this folder."""
    lines = []
    for section, names in EXERCISES.items():
        lines.append(section)
        for name in names:
            begun = f"  ({learners_file(name)} is here)" if os.path.exists(learners_file(name)) \
                else ""
            lines.append(f"  {name:<14} {COURSE.docstring(name)[0]}{begun}")
    return "\n".join([*lines, f"Begin with: {COMMAND} {ORDER[0]}"])


def task(name: str) -> str:
    """What to do, once the learner's file is there."""
    section = next(section for section, names in EXERCISES.items() if name in names)
    title, text = COURSE.docstring(name)
    lines = skeleton(source(name)).splitlines()
    todo = next((n for n, line in enumerate(lines, 1) if "TODO" in line), None)
    first = f"Line {todo} says TODO. Change it, then have the file checked, as often as you like:" \
        if todo else "Have it checked as it is, to see what is wrong, and again after each change:"
    return "\n".join([
        f"{learners_file(name)} is now in this folder. {title}.",
        "",
        textwrap.indent(text, "  "),
        "",
        first,
        f"  {COMMAND} {name}",
        *for_a_hint(name),
        "The section that explains what it needs:",
        f"  python tilelang_tour.py --only {section}",
    ])


def for_a_hint(name: str) -> list[str]:
    """How to get the first hint."""
    return ["A hint, should you want one:", f"  {COMMAND} {name} hint"]


def hint(name: str, number: int) -> str:
    """One hint, and how to get the next."""
    all_hints = hints(source(name))
    text = textwrap.fill(f"Hint {number} of {len(all_hints)}: {all_hints[number - 1]}", 98)
    if number < len(all_hints):
        return f"{text}\nA plainer one: {COMMAND} {name} hint {number + 1}"
    return f"{text}\nThat was the last hint. The solution is in sections/exercises/{name}.py"


def verdict(record: Record) -> str:
    """How the check went, and what to do next."""
    (row,) = record.rows
    if row.status == "PASS":
        return "\n".join(["", f"Solved. {after(row)}"])
    if row.status == "NOT RUN":
        return f"\n{row.name} was not checked: {row.note}"
    meaning = explain(row.note)
    return "\n".join([*([f"  {meaning}"] if meaning else []), "",
                      f"Not solved yet. Change {learners_file(row.name)} and check it again:",
                      f"  {COMMAND} {row.name}", *for_a_hint(row.name)])


def after(row: Row) -> str:
    """What there is to read, and the exercise that follows."""
    compare = f"The tour's own solution, to compare: sections/exercises/{row.name}.py"
    following = ORDER[ORDER.index(row.name) + 1 :][:1]
    if not following:
        return f"{compare}\nThat was the last exercise. All of them: {COMMAND} list"
    return f"{compare}\nNext: {COMMAND} {following[0]}"
