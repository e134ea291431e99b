"""A key of an earlier release's recipes is refused in one line that says what to do instead."""

from __future__ import annotations

from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import yaml

from schema.core import REMOVED, SpecError
from schema.load import recipe
from tests.unit.builders.rigs import ROOT, project


@pytest.mark.parametrize("key", sorted(REMOVED))
def test_it_says_what_to_do_instead(key: str, tmp_path: Path) -> None:
    data: dict[str, Any] = yaml.safe_load((ROOT / "catalog/recipes/tiny.yaml").read_text())
    *above, last = key.split(".")
    reduce(lambda place, part: place[part], above, data)[last] = {"template": "layered"}
    root = project(tmp_path, yaml.safe_dump(data), "tiny")
    with pytest.raises(SpecError) as caught:
        recipe("tiny", root)
    assert caught.value.problems == (f"catalog/recipes/tiny.yaml: {key}: {REMOVED[key]}",)
