"""The table that a tier's tests print."""

from __future__ import annotations

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The rows `TABLE | …` of the tests that passed."""
    reports = terminalreporter.stats.get("passed", [])
    rows = [line[6:] for report in reports for line in report.capstdout.splitlines()
            if line.startswith("TABLE ")]  # fmt: skip
    for line in rows:
        terminalreporter.write_line(line)
