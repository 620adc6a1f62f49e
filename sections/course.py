"""A course: a package of section modules, told in the order of its ORDER. Standard library only."""

import ast
import importlib
import textwrap
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Course:
    """A package whose `ORDER` names its section modules; `sections` is the tour itself.

    needs_tilelang   False for courses that only exercise the runner
    """

    package: str = "sections"
    needs_tilelang: bool = True

    @property
    def order(self) -> tuple[str, ...]:
        """The sections' names in the order in which they are told."""
        return tuple(importlib.import_module(self.package).ORDER)

    def sources(self) -> dict[str, int]:
        """When each file of the course was changed: {"sections/gemm.py": nanoseconds}."""
        folder = Path(importlib.import_module(self.package).__file__).parent
        changed = {}
        for path in folder.rglob("*.py"):
            with suppress(OSError):  # it is being replaced right now
                changed[str(path.relative_to(folder.parent))] = path.stat().st_mtime_ns
        return changed

    def docstring(self, name: str) -> tuple[str, str]:
        """First line and the rest of a section's docstring, read without importing it."""
        folder = Path(importlib.import_module(self.package).__file__).parent
        try:
            text = ast.get_docstring(ast.parse((folder / f"{name}.py").read_text("utf-8"))) or ""
        except (OSError, SyntaxError, ValueError):
            text = ""
        title, _, rest = text.partition("\n")
        return title, textwrap.dedent(rest).strip()
