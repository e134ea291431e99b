"""The lab with the real vLLM on both hosts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.system.rehearsal import Lab, rehearsal


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Lists what each replay measured (its lines that begin with REPLAY), also when it passed."""
    for report in terminalreporter.stats.get("passed", []):
        for line in report.capstdout.splitlines():
            if line.startswith("REPLAY"):
                terminalreporter.write_line(f"{report.nodeid.rpartition('::')[2]}: {line[7:]}")


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """The lab with the engine's image loaded on both hosts."""
    with rehearsal() as made:
        yield made


@pytest.fixture(scope="session")
def serving(lab: Lab) -> Lab:
    """The lab after a `serve` in the default profile."""
    done = lab.pyinfra("serve")
    assert done.rc == 0, done.text
    return lab
