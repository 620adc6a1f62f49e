"""The results file: everything a tour checked and measured, as JSON, written and read."""

import json
import math
import os
import sys
from contextlib import suppress

from sections.runner.tour import Record, Row

SCHEMA = 1
LARGEST = 64 << 20  # characters of a file that is read; a whole tour's has 0.2 million
REFERENCE = os.path.join(  # a run on an H200
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "reference", "h200.json")
ENVIRONMENT_KEYS = ("gpu", "arch", "driver", "torch", "tilelang", "python", "nvcc")
CEILING_KEYS = ("copy_GBps", "matmul_TFLOPs")
CHECK_KEYS = ("case", "rel_error", "bound", "passed")
MEASUREMENT_KEYS = ("case", "variant", "ms", "baseline", "baseline_ms", "ratio", "ratio_low",
                    "ratio_high", "value", "unit", "of_ceiling", "shared_bytes", "headline",
                    "rivals")
WORDS = ("case", "variant", "baseline", "unit")  # the other keys of an entry are numbers
FLAGS = ("passed", "headline")


def as_dict(record: Record, environment: dict) -> dict:
    """A record in the results file's form; what is unknown or not finite is null."""
    return _plain({
        "schema": SCHEMA,
        "mode": environment.get("mode"),
        "exit_code": record.exit_code,
        "seconds": record.seconds,
        "compile_seconds": record.compile_seconds,
        "environment": {key: value for key, value in environment.items() if key != "mode"},
        "ceilings": {name: record.ceilings.get(name) for name in CEILING_KEYS},
        "sections": [_section(row) for row in record.rows],
    })


def _section(row: Row) -> dict:
    return {
        "name": row.name,
        "status": row.status,
        "seconds": row.seconds,
        "note": row.note,
        "lesson": row.lesson,
        "checks": [{key: check.get(key) for key in CHECK_KEYS} for check in row.checks],
        "measurements": [
            {key: entry.get(key) for key in MEASUREMENT_KEYS} for entry in row.measurements
        ],
        "data": row.data,
    }


def _plain(value):
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def write(path: str, results: dict) -> None:
    """Write a results file whole or not at all; into the output where that is the file.

    Raises OSError.
    """
    text = json.dumps(results, indent=1, allow_nan=False) + "\n"
    if _is_output(path):  # opening it would cut off what has been printed
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    path = os.path.realpath(path)
    folder = os.path.dirname(path)
    special = os.path.exists(path) and not os.path.isfile(path)  # a pipe or a device
    if special or not os.access(folder, os.W_OK):
        _write(path, text)
        return
    partial = os.path.join(folder, f".tilelang-tour-{os.getpid()}.partial")
    try:
        _write(partial, text)
        os.replace(partial, path)
    except OSError:
        with suppress(OSError):
            os.remove(partial)
        raise


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def _is_output(path: str) -> bool:
    """Whether a path is what this process prints to, as /dev/stdout is."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(1))
    except OSError:
        return False


# Reading


def read(path: str) -> dict:
    """What `write` wrote, every key of the form in it; null for what an older tour did not write.

    Raises OSError, or ValueError with what is wrong.
    """
    with open(path, encoding="utf-8") as file:
        try:
            text = file.read(LARGEST + 1)
            found = json.loads(text) if len(text) <= LARGEST else None
        except (ValueError, RecursionError) as error:
            raise ValueError(f"it is no JSON: {error}") from None
    _need(len(text) <= LARGEST, f"it is larger than {LARGEST:,} characters")
    try:
        return _read(found)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _read(found) -> dict:
    _need(isinstance(found, dict) and "schema" in found, 'it has no "schema"')
    _need(found["schema"] == SCHEMA,
          f"its schema is {repr(found['schema'])[:40]}, needed: {SCHEMA}")
    environment, ceilings = (
        _plain(found.get(name) or {}) for name in ("environment", "ceilings")
    )
    _need(isinstance(environment, dict), 'its "environment" is none')
    _need(isinstance(ceilings, dict), 'its "ceilings" are none')
    _need(isinstance(found.get("sections"), list), 'it has no list of "sections"')
    return {
        "schema": SCHEMA,
        "mode": found.get("mode"),
        "exit_code": found.get("exit_code"),
        "seconds": _number(found.get("seconds")),
        "compile_seconds": _number(found.get("compile_seconds")),
        "environment": {**dict.fromkeys(ENVIRONMENT_KEYS),
                        **{key: None if value is None else str(value)
                           for key, value in environment.items()}},
        "ceilings": {key: _number(ceilings.get(key)) for key in CEILING_KEYS},
        "sections": [_read_section(section) for section in found["sections"]],
    }


def _read_section(section: dict) -> dict:
    named = isinstance(section, dict) and isinstance(section.get("name"), str)
    _need(named, "a section has no name")
    data = section.get("data")
    return {
        "name": section["name"],
        "status": str(section.get("status")),
        "seconds": _number(section.get("seconds")),
        "note": str(section.get("note") or ""),
        "lesson": str(section.get("lesson") or ""),
        "checks": _entries(section, "checks", CHECK_KEYS),
        "measurements": _entries(section, "measurements", MEASUREMENT_KEYS),
        "data": data if isinstance(data, dict) else {},
    }


def _entries(section: dict, name: str, keys: tuple[str, ...]) -> list[dict]:
    entries = section.get(name)
    whole = isinstance(entries, list) and all(isinstance(entry, dict) for entry in entries)
    _need(whole, f'section {section["name"]} has no list of "{name}"')

    def value(entry: dict, key: str):
        if key == "rivals":
            return _rivals(entry.get(key) or {})
        if key in WORDS:
            return str(entry.get(key) or "")
        return bool(entry.get(key)) if key in FLAGS else _number(entry.get(key))

    return [{key: value(entry, key) for key in keys} for entry in entries]


def _rivals(found: dict) -> dict:
    whole = isinstance(found, dict) and all(isinstance(entry, dict) for entry in found.values())
    _need(whole, "\"rivals\" are no entries")
    return {name: {key: _number(entry.get(key)) for key in ("ms", "ratio")}
            for name, entry in found.items()}


def _number(value) -> float | None:
    if value is None:
        return None
    _need(isinstance(value, int | float), f"{repr(value)[:40]} stands where a number should")
    return value if -math.inf < value < math.inf and abs(value) < 1e300 else None


def _need(condition: bool, problem: str) -> None:
    if not condition:
        raise ValueError(problem)


def as_record(found: dict) -> Record:
    """A results file's content as the record that it was written from, but for the probe."""

    def known(entry: dict) -> dict:
        return {key: math.nan if value is None else value for key, value in entry.items()}

    rows = []
    for section in map(known, found["sections"]):
        section["checks"] = [known(check) for check in section["checks"]]
        section["measurements"] = [known(entry) for entry in section["measurements"]]
        rows.append(Row(**section))
    return Record(
        rows=rows,
        ceilings=known(found["ceilings"]) if any(found["ceilings"].values()) else {},
        seconds=known(found)["seconds"],
        compile_seconds=known(found)["compile_seconds"],
        interrupted=found["exit_code"] == 130,
    )


# What is in it


def place(found: dict) -> str:
    """Where a run was: "NVIDIA H200", "sm_75 code on NVIDIA H200", "CPU rehearsal"."""
    environment = found["environment"]
    if found["mode"] == "arch":
        return f"{environment['arch']} code on {environment['gpu']}"
    return "CPU rehearsal" if found["mode"] == "rehearsal" else environment["gpu"] or "unknown GPU"


def timed(found: dict) -> list[tuple[str, dict]]:
    """(section, measurement) of all that was timed, in order; what has unknown numbers left out."""
    numbers = ("ms", "baseline_ms", "ratio", "ratio_low", "ratio_high", "value")
    return [
        (section["name"], entry)
        for section in found["sections"]
        for entry in section["measurements"]
        if all(entry[key] for key in numbers)
    ]


def bests(found: dict) -> list[tuple[str, list[dict]]]:
    """(section, the measurements of the best variant, one a baseline) of each case, in order.

    The best is the one that the summary shows, for other cases the one that stands best against the
    strongest of the baselines that all were timed with. Of a variant's two measurements with one
    baseline the later counts. A section that shows none in the summary is not about speed.
    """
    variants: dict[tuple, dict[str, dict[str, dict]]] = {}
    for section, entry in timed(found):
        case = variants.setdefault((section, entry["case"]), {})
        before = case.setdefault(entry["variant"], {}).get(entry["baseline"], {})
        if entry["headline"] or not before.get("headline"):
            case[entry["variant"]][entry["baseline"]] = entry
    shown = {section for section, entry in timed(found) if entry["headline"]}

    def best(case: dict[str, dict[str, dict]]) -> list[dict]:
        common = set.intersection(*(set(entries) for entries in case.values()))

        def standing(entries: dict[str, dict]) -> tuple:
            return (any(entry["headline"] for entry in entries.values()),
                    min(entries[name]["ratio"] for name in common or entries))

        return list(max(case.values(), key=standing).values())

    return [(section, best(case)) for (section, _), case in variants.items() if section in shown]
