"""Plain text tables, with tabulate where it is installed and without it where it is not."""


def format_table(headers: list[str], rows: list[list], right: tuple[str, ...] = ()) -> str:
    """A table as text: one line of headers, one line a row, two spaces between columns.

    headers  column names, also used in `right`: the columns that are aligned to the right
    rows     cells of any type; None is shown as "-"
    """
    lines = [headers, *(["-" if cell is None else str(cell) for cell in row] for row in rows)]
    align = ["right" if name in right else "left" for name in headers]
    try:
        from tabulate import tabulate
    except ImportError:
        return _plain(lines, align)
    # The headers are given as a row: tabulate would make columns wider than their headers.
    text = tabulate(lines, tablefmt="plain", colalign=align, disable_numparse=True)
    return "\n".join(line.rstrip() for line in text.splitlines())


def _plain(lines: list[list[str]], align: list[str]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    placed = (
        "  ".join(
            cell.rjust(width) if side == "right" else cell.ljust(width)
            for cell, width, side in zip(line, widths, align, strict=True)
        )
        for line in lines
    )
    return "\n".join(line.rstrip() for line in placed)


def indent(text: str, by: str = "  ") -> str:
    """`text` with every non-empty line moved to the right."""
    return "\n".join(by + line if line else line for line in text.splitlines())
