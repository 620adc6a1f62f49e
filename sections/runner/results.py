"""The results file: everything a tour checked and measured, as JSON."""

import json
import math
import os

from sections.runner.tour import Record, Row

SCHEMA = 1
CHECK_KEYS = ("case", "rel_error", "bound", "passed")
MEASUREMENT_KEYS = ("case", "variant", "ms", "baseline", "baseline_ms", "ratio", "ratio_low",
                    "ratio_high", "value", "unit", "of_ceiling", "headline")


def as_dict(record: Record, environment: dict) -> dict:
    """A record in the results file's form; what is unknown or not finite is null."""
    mode = environment.pop("mode", None)
    return _plain({
        "schema": SCHEMA,
        "mode": mode,
        "exit_code": record.exit_code,
        "seconds": record.seconds,
        "compile_seconds": record.compile_seconds,
        "environment": environment,
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
    """Write a results file whole or not at all. Raises OSError."""
    text = json.dumps(results, indent=1, allow_nan=False) + "\n"
    if os.path.exists(path) and not os.path.isfile(path):  # /dev/stdout, a named pipe
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return
    path = os.path.realpath(path)
    partial = f"{path}.{os.getpid()}.partial"
    try:
        with open(partial, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(partial, path)
    except OSError:
        if os.path.exists(partial):
            os.remove(partial)
        raise
