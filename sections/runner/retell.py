"""What is made of a run afterwards: pictures, a comparison, a summary read from its file."""

from sections.runner import pictures, results, summary
from sections.runner.arguments import Options
from sections.runner.compare import compare
from sections.runner.screen import Screen


def retell(options: Options, screen: Screen) -> int:
    """--from: a results file's summary as after its run, and what else is asked for.

    Returns the exit code: that of the run, or 1 where pictures could not be written.
    """
    name, found = options.source
    environment = found["environment"]
    versions = [f"{key} {environment[key]}" for key in ("tilelang", "torch", "driver", "nvcc")
                if environment[key]]
    screen.line(f"TileLang tour: results of {name}: {', '.join([results.place(found), *versions])}")
    announce(options, screen)
    record = results.as_record(found)
    screen.line()
    screen.line(summary.table(record, timed=found["mode"] in ("gpu", "arch")))
    for line in summary.notes(record):
        screen.line(line)
    drawn = look(found, options, screen)
    screen.line(summary.verdict(record, "python tilelang_tour.py --exercise list"))
    return record.exit_code if drawn else record.exit_code or 1


def announce(options: Options, screen: Screen) -> None:
    """Say before a long run that there will be no pictures."""
    if options.pictures and pictures.missing():
        screen.line(f"note: {pictures.missing()}")


def look(found: dict, options: Options, screen: Screen) -> bool:
    """Draw the pictures and print the comparison that were asked for.

    Returns whether the pictures could be written.
    """
    drawn = True
    if options.pictures and not pictures.missing():
        try:
            for line in pictures.draw(found, options.pictures):
                screen.line(line)
        except OSError as error:
            screen.line(f"--pictures {options.pictures} could not be written: {error}")
            drawn = False
    if options.compare:
        name, other = options.compare
        screen.line(f"\n{compare(found, other, name)}\n")
    return drawn
