"""The results file: everything a tour checked and measured, as JSON."""

import json
import math
import os
import sys
from contextlib import suppress

from sections.runner.tour import Record, Row

SCHEMA = 1
CHECK_KEYS = ("case", "rel_error", "bound", "passed")
MEASUREMENT_KEYS = ("case", "variant", "ms", "baseline", "baseline_ms", "ratio", "ratio_low",
                    "ratio_high", "value", "unit", "of_ceiling", "headline")


def as_dict(record: Record, environment: dict) -> dict:
    """A record in the results file's form; what is unknown or not finite is null."""
    return _plain({
        "schema": SCHEMA,
        "mode": environment.get("mode"),
        "exit_code": record.exit_code,
        "seconds": record.seconds,
        "compile_seconds": record.compile_seconds,
        "environment": {key: value for key, value in environment.items() if key != "mode"},
        "ceilings": {name: record.ceilings.get(name) for name in ("copy_GBps", "matmul_TFLOPs")},
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
