"""A snapshot of a Hugging Face cache needs the blobs beside it, in the container as well."""

from __future__ import annotations

from pathlib import Path

import pytest

from gates.weights.weights import weights_mounted
from tests.unit.builders import snapshots
from tests.unit.builders.snapshots import put
from tests.unit.builders.spark_rig import changed, project, spark_plan

HUB = "~/.cache/huggingface"
MODEL = f"{HUB}/hub/models--deepseek-ai--DeepSeek-V4-Flash"
SNAPSHOT = f"{MODEL}/snapshots/0f1e2d3c"


@pytest.mark.parametrize(
    ("path", "mounted", "linked", "found"),
    [
        (SNAPSHOT, SNAPSHOT, 48, True),
        (SNAPSHOT, f"{MODEL}/snapshots", 48, True),
        (MODEL, SNAPSHOT, 48, True),
        (SNAPSHOT, MODEL, 48, False),
        (MODEL, HUB, 48, False),
        # plain files, as a move between nodes brings them
        (SNAPSHOT, SNAPSHOT, 0, False),
        # another model's
        (SNAPSHOT, f"{HUB}/hub/models--org--other/snapshots", 48, False),
    ],
)
def test_links_lead_to_what_is_mounted(
    tmp_path: Path, path: str, mounted: str, linked: int, found: bool
) -> None:
    edit = changed(("weights", "path"), path)
    edit["container"]["volumes"] = [{"source": mounted, "target": "/models"}]
    plan = spark_plan(project(tmp_path, edit), recipe="broken")
    seen = dict(snapshots.healthy(plan))
    home = plan.rig.head.home
    for name in seen:
        seen[name] = put(seen[name], "weights.0.folder", SNAPSHOT.replace("~", home))
        seen[name] = put(seen[name], "weights.0.linked", linked)
    said = weights_mounted(plan, seen)
    assert [v.node for v in said] == (list(seen) if found else [])
    for v in said:
        assert f"links into {MODEL.replace('~', home)}/blobs" in v.evidence
        assert "catalog/recipes/broken.yaml" in v.remedy
