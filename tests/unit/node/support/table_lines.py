"""Lines that a test has to show although it passed: its table of cells. Also from a worker."""

from __future__ import annotations

from collections.abc import Callable

KEY = "rigbook table"
Show = Callable[[str], None]


def shown(reports: list[object]) -> list[str]:
    """The lines of finished tests, in their order."""
    rows: list[str] = []
    for report in reports:
        for key, line in getattr(report, "user_properties", ()):
            if key == KEY:
                rows.append(str(line))
    return rows
