"""The strip of the doctor: in a terminal alone, and readable without colours."""

from __future__ import annotations

import io
import re

import pytest

from deploys.plans.doctor import show
from tests.unit.builders.pages import finding, look

FOUND = (finding("fabric-mtu", "spark1", "MTU"), finding("memory-unreadable", "spark2", "m", True),
         finding("host-differs", "spark2", "h"))  # fmt: skip


class Terminal(io.StringIO):
    """A stdout that says of itself that it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def usual(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of 80 columns with colours."""
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")


def test_each_layer_has_its_sign_on_lines_that_fit() -> None:
    out = Terminal()
    show(look((), FOUND).strips, out)
    assert "\x1b[" in out.getvalue()
    text = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue()).replace("\u00a0", " ")
    for part in ("spark1 ✓ firmware", "✗ fabric", "! kernel", "? memory", "✓ endpoint"):
        assert part in text, text
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("endpoint") == 1, "the workers have none"


def test_nothing_is_said_where_nobody_looks() -> None:
    out = io.StringIO()
    show(look((), FOUND).strips, out)
    assert out.getvalue() == ""


def test_a_hostile_name_is_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    out = Terminal()
    show({"[bold]x[/bold]": look((), ()).strips["spark1"]}, out)
    assert "[bold]x[/bold]" in out.getvalue()
