"""Plain text tables, with tabulate where it is installed and without it where it is not."""


def format_table(headers: list[str], rows: list[list], right: tuple[str, ...] = ()) -> str:
    """A table as text: one line of headers, one line a row, two spaces between columns.

    headers  column names, also used in `right`: the columns that are aligned to the right
    rows     cells of any type; None is shown as "-"
    """
    cells = [["-" if cell is None else str(cell) for cell in row] for row in rows]
    align = ["right" if name in right else "left" for name in headers]
    try:
        from tabulate import tabulate
    except ImportError:
        return _plain(headers, cells, align)
    # "presto" style would draw rules; "plain" keeps lines short. Numbers stay as they were written.
    text = tabulate(cells, headers, tablefmt="plain", colalign=align if cells else None,
                    disable_numparse=True)
    return "\n".join(line.rstrip() for line in text.splitlines())


def _plain(headers: list[str], cells: list[list[str]], align: list[str]) -> str:
    columns = list(zip(headers, *cells, strict=True))
    widths = [max(len(cell) for cell in column) for column in columns]
    lines = []
    for row in [headers, *cells]:
        placed = [
            cell.rjust(width) if side == "right" else cell.ljust(width)
            for cell, width, side in zip(row, widths, align, strict=True)
        ]
        lines.append("  ".join(placed).rstrip())
    return "\n".join(lines)


def indent(text: str, by: str = "  ") -> str:
    """`text` with every non-empty line moved to the right."""
    return "\n".join(by + line if line else line for line in text.splitlines())
