"""The doctor's archive: what lies in it, and that no secret does."""

from __future__ import annotations

import json
import stat
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from pyinfra.api.exceptions import DeployError

from deploys.procedures.engine import bundle
from schema.observed.snapshot import Unreadable
from schema.recipe.secrets import SecretSource
from tests.unit.builders import snapshots
from tests.unit.builders.spark_rig import spark_plan

OWN, TOKEN, KEY = "s3cret-of-this-rig", "hf_abcdefghijklmnop", "sk-live-1234567890"


def test_everything_for_a_report_and_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RIG_KEY", OWN)
    plan = spark_plan()
    secrets = {"VLLM_API_KEY": SecretSource(env="RIG_KEY"), "HF_TOKEN": SecretSource(env="ABSENT")}
    plan = replace(plan, recipe=plan.recipe.model_copy(update={"secrets": secrets}))
    seen = dict(snapshots.serving(plan))
    process = {"HF_TOKEN": TOKEN, "VLLM_LOGGING_LEVEL": "INFO"}
    seen["spark1"] = snapshots.put(seen["spark1"], "engine_processes.0.environ", process)
    observed = {**seen, "spark2": Unreadable(unreadable="no ssh connection")}
    rows = [{"code": "no-answer", "evidence": f"asked with {OWN}", "remedy": "http://u:pw@host/"}]
    lines = {"spark1": [f"INFO token {TOKEN}", f"got {KEY}", f"Authorization: Bearer {OWN}", "ok"]}
    path = tmp_path / "rig.tar.gz"
    bundle.write(path, plan, observed, rows, lines)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with tarfile.open(path) as archive:
        texts = {name: archive.extractfile(name).read().decode()  # type: ignore[union-attr]
                 for name in archive.getnames()}  # fmt: skip
    top = f"rigbook-{plan.rig.name}"
    assert {name.removeprefix(f"{top}/") for name in texts} == {
        "findings.json", "versions.json", "snapshots/spark1.json", "snapshots/spark2.json",
        "logs/spark1.log"}  # fmt: skip
    for name, text in texts.items():
        assert not [word for word in (OWN, TOKEN, KEY, "u:pw") if word in text], name
    snapshot = json.loads(texts[f"{top}/snapshots/spark1.json"])
    assert snapshot["engine_processes"][0]["environ"]["VLLM_LOGGING_LEVEL"] == "INFO"
    versions = json.loads(texts[f"{top}/versions.json"])
    assert versions["nodes"]["spark1"]["driver"] == "580.95.05"
    assert versions["nodes"]["spark2"] == {"unreadable": "no ssh connection"}
    assert texts[f"{top}/logs/spark1.log"].endswith("ok\n")


def test_a_file_that_is_there_stays(tmp_path: Path) -> None:
    path = tmp_path / "rig.tar.gz"
    path.write_text("mine")
    with pytest.raises(DeployError, match=r"--data bundle: .* File exists; name a new file"):
        bundle.write(path, spark_plan(), {}, [], {})
    assert path.read_text() == "mine"
