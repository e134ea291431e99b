"""Neighbours' recipes, shape by shape (cases/): what they become, and what is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from schema.core.errors import SpecError
from schema.importing.mapping import imported
from schema.importing.text import text
from schema.inputs.load import recipe
from tests.importing import compared, environ, ours
from tests.unit.builders.spark_rig import project

FOLDER = Path(__file__).parent / "cases"
MADE, MORE = (yaml.safe_load((FOLDER / f"{n}.yaml").read_text()) for n in ("made", "refused"))
CASES = [*MADE["cases"], *MORE["cases"]]
TAKEN = [case for case in CASES if "refused" not in case]
REFUSED = [case for case in CASES if "refused" in case]
FILE = Path("small.yaml")


def theirs(case: dict[str, Any]) -> dict[str, Any]:
    """The neighbour's recipe of a case; a key that the case sets to null is not in it."""
    [(launcher, changes)] = [(k, case[k]) for k in ("eugr", "sparkrun") if k in case]
    data = {**MADE["all"][launcher], **changes}
    return {key: value for key, value in data.items() if value is not None or key == "container"}


def at(data: Any, path: str) -> Any:
    """The value at a dotted path; None where there is none. A key itself may hold dots."""
    if not isinstance(data, dict) or path in data:
        return data.get(path) if isinstance(data, dict) else None
    head, _, rest = path.partition(".")
    return at(data.get(head), rest) if rest else None


@pytest.mark.parametrize("case", TAKEN, ids=lambda case: case["case"])
def test_it_is_taken_over(case: dict[str, Any], tmp_path: Path) -> None:
    data = theirs(case)
    made = imported(data, FILE, "small")
    written = text(made, str(FILE))
    loaded = recipe("small", project(tmp_path, written, "small"))
    assert loaded == made.recipe()
    assert " ".join(ours(loaded)) == case["argv"]
    assert [line.split(": ")[0] for line in compared(data, FILE)] == case.get("differ", [])
    for path, value in case.get("has", {}).items():
        assert at(made.data, path) == value, path
    for name, value in case.get("environ", {}).items():
        assert environ(loaded)[name] == value
    for kind, lines in (("needs", made.needs), ("left", made.left)):
        for words in case.get(kind, []):
            assert any(words in line for line in lines), (words, lines)
    assert written.count("# needs you: ") == len(made.needs)
    assert written.count("# left out: ") == len(made.left)
    assert case.get("never", "s3cret") not in written


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case["case"])
def test_it_is_refused_in_one_line(case: dict[str, Any]) -> None:
    with pytest.raises(SpecError) as caught:
        imported(theirs(case), FILE, "small")
    assert str(caught.value).startswith(case["refused"])
    assert "\n" not in str(caught.value)
    assert case.get("never", "s3cret") not in str(caught.value)


def test_each_case_names_where_its_shape_was_seen() -> None:
    assert all(case["like"] for case in CASES)
    assert len({case["case"] for case in CASES}) == len(CASES)
