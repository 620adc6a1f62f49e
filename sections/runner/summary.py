"""The summary: one row a section, what went wrong, and a verdict in the last line."""

import math
from collections import Counter

from sections.common.table import format_table
from sections.runner.known_errors import explain
from sections.runner.tour import Record, Row


def table(record: Record, timed: bool) -> str:
    """The summary table; with timings where a GPU ran, with errors where the CPU rehearsed."""
    headers = ["section", "status", "seconds", "checked"]
    headers += ["best", "against PyTorch", "of this GPU's ceiling"] if timed else ["worst error"]
    rows = []
    for row in record.rows:
        cells = [row.name, row.status, f"{row.seconds:.1f}" if row.seconds else None, _checked(row)]
        cells += _timed(row) if timed else [_worst(row)]
        rows.append(cells)
    return format_table(headers, rows, right=("seconds",))


def _checked(row: Row) -> str | None:
    cases = len(row.checks)
    return f"{cases} case{'s' if cases != 1 else ''}" if cases else None


def _worst(row: Row) -> str | None:
    checks = [check for check in row.checks if check["bound"]]
    if not checks:
        return None
    worst = max(checks, key=_badness)
    return f"{worst['rel_error']:.1e} (bound {worst['bound']:.1e})"


def _badness(check: dict) -> float:
    share = check["rel_error"] / check["bound"]
    return math.inf if math.isnan(share) else share


def _timed(row: Row) -> list[str | None]:
    best = next((entry for entry in row.measurements if entry.get("headline")), None)
    if best is None:
        return [None, None, None]
    what = "matmul" if best["unit"] == "TFLOP/s" else "copy"
    return [
        f"{best['ms']:.3f} ms, {best['value']:.0f} {best['unit']}",
        f"{best['ratio']:.2f}x {best['baseline'].partition(' (')[0]}",
        f"{100 * best['of_ceiling']:.0f} % of {what}",
    ]


def notes(record: Record) -> list[str]:
    """A line for every section that did not pass, what a known error means, files that were
    changed, this GPU's ceilings."""
    names: dict[tuple, list[str]] = {}  # one line for all that share a reason
    for row in record.rows:
        if row.status != "PASS" and row.note:
            names.setdefault((row.status, row.note), []).append(row.name)
    lines = []
    for (status, note), who in names.items():
        lines.append(f"{', '.join(who)}: {status}: {note}")
        if meaning := explain(note):
            lines.append(f"  {meaning}")
    if record.changed:
        lines.append(f"changed while the tour ran: {', '.join(record.changed)}; old and new may be "
                     "mixed above: run it again")
    if record.ceilings:
        lines.append(
            f"ceilings measured here: copy {record.ceilings['copy_GBps']:.0f} GB/s (device to "
            f"device), matmul {record.ceilings['matmul_TFLOPs']:.0f} TFLOP/s (cuBLAS, large, "
            "float16).\nA cool chip clocks higher than a hot one: cuBLAS, too, may pass 100 % of "
            "it."
        )
    return lines


def verdict(record: Record, next_step: str = "follow one of the Try lines above.") -> str:
    """The last line: how many passed, how many failed, how long it took, what to do next."""
    count = Counter(row.status for row in record.rows)
    bad = [row for row in record.rows if row.status in ("FAIL", "CRASH", "TIMEOUT")]
    parts = [f"{count['PASS']} passed", f"{len(bad)} failed"]
    parts += [f"{count[status]} {word}" for status, word in
              (("SKIP", "skipped"), ("NOT RUN", "not run")) if count[status]]
    took = f"in {record.seconds:.0f} s ({record.compile_seconds:.0f} s compiling)"
    line = f"{', '.join(parts)} {took}."
    if record.interrupted:
        return f"{line} Interrupted."
    if bad:
        return f"{line} Next: python -m sections.{bad[0].name}"
    if count["PASS"]:
        return f"{line} Next: {next_step}"
    return f"{line} Next: python tilelang_tour.py --check"
