"""The page's record of a row of incidents comes from what the tests kept, and from nothing else."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from tests.system.rehearse import transcript
from tests.system.rehearse.transcript import Line

SECONDS = {"break": 3.2, "doctor": 5.1, "mend": 88.0, "judge": 9.4}
ONE = Line(1764111600.0, "spark1, spark2", "C13", ["unit-ghost"], ["serve"], SECONDS)
TWO = Line(1764111000.0, "tower", "B3", ["venv-entry-missing"], ["remedy x", "serve"], SECONDS)


def test_a_line_is_kept_and_becomes_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "lines"
    monkeypatch.setenv(transcript.VARIABLE, str(kept))
    transcript.note(ONE)
    transcript.note(TWO)
    assert transcript.read(kept.read_text()) == [ONE, TWO]
    page = f"before\n{transcript.BEGIN}\nold\n{transcript.END}after\n"
    made = transcript.put(page, [ONE, TWO])
    rows = [line for line in made.splitlines() if line.startswith("| 2")]
    assert [row.split(" | ")[2] for row in rows] == ["B3", "C13"], "in the order of their times"
    assert rows[1].endswith("| unit-ghost | serve | 3 | 5 | 88 | 9 | 106 |")
    assert "Not dealt: A2, B1, " in made and " C13, " not in made.partition("| at |")[0]
    assert "old" not in made and made.startswith("before\n") and made.endswith("after\n")
    assert transcript.put(made, [ONE, TWO]) == made
    assert json.loads(kept.read_text().splitlines()[0]) == dataclasses.asdict(ONE)


def test_the_page_has_its_place() -> None:
    text = transcript.PAGE.read_text()
    assert text.count(transcript.BEGIN) == text.count(transcript.END) == 1
