"""The doctor's archive: what lies in it, and that no secret does."""

from __future__ import annotations

import json
import stat
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyinfra.api.exceptions import DeployError

from deploys.procedures.engine import bundle
from node.rules.secret import masked_text
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


# every one has the same word, which must be in no file
WORD = "Sw0rdf1shSw0rdf1sh"
LEAKS = (
    f"HF_TOKEN=hf_{WORD}", f"-e VLLM_API_KEY={WORD}", f"--api-key {WORD}", f"--api-key={WORD}",
    # vLLM's own line about its arguments; it takes several keys
    f"non-default args: {{'api_key': ['x', '{WORD}'], 'max_model_len': 512}}",
    f'Environment="DB_PASSWORD=two {WORD}"', f"POSTGRES_PASSWORD='a {WORD}'", f"passwd: {WORD}",
    f"Authorization: Bearer {WORD}", f"Authorization: Basic {WORD}=", f"x-api-key: {WORD}",
    f"https://hooks.slack.com/services/T0/B0/{WORD}", f"https://ntfy.sh/{WORD}",
    f"https://discord.com/api/webhooks/1/{WORD}", f"http://me:{WORD}@host:8000/v1",
    f"https://host/x?token={WORD}&a=b", f"ghp_{WORD}", f"nvapi-{WORD}",
    f"AWS_SECRET_ACCESS_KEY={WORD}",
    f'{{"webhook": "https://host/{WORD}"}}', f"sk-{WORD}", f"hf_{WORD}",
)  # fmt: skip


def _poisoned(value: Any, leak: str) -> Any:
    """The data with the leak behind every text."""
    if isinstance(value, dict):
        return {key: _poisoned(one, leak) for key, one in value.items()}
    if isinstance(value, list):
        return [*(_poisoned(one, leak) for one in value), "--password", WORD]
    return f"{value} {leak}" if isinstance(value, str) else value


@pytest.mark.parametrize("leak", LEAKS)
def test_no_text_of_any_file_tells_it(leak: str, tmp_path: Path) -> None:
    plan = spark_plan()
    plain = snapshots.serving(plan)["spark1"].to_json()
    data = {**_poisoned(plain, leak), "password": WORD, "MY_KEY": WORD}

    class Seen(Unreadable):
        def to_json(self) -> Any:
            return data

    seen = {"spark1": Seen(unreadable="x")}
    bundle.write(tmp_path / "x.tar.gz", plan, seen, [{"evidence": leak}], {"spark1": [leak]})
    with tarfile.open(tmp_path / "x.tar.gz") as archive:
        for name in archive.getnames():
            text = archive.extractfile(name).read().decode()  # type: ignore[union-attr]
            assert WORD not in text, name


@pytest.mark.parametrize("line", [
    "Avg prompt throughput: 5.2 tokens/s, Avg generation throughput: 18.0 tokens/s, Running: 1",
    "max_tokens=512, eos_token_id=2, tokenizer='/models/x', total token count: 512",
    "GPU KV cache size: 922,496 tokens", "Basic attention of https://host/v1/models",
])  # fmt: skip
def test_what_a_model_makes_is_no_secret(line: str) -> None:
    assert masked_text(line) == line


def test_a_file_that_is_there_stays(tmp_path: Path) -> None:
    path = tmp_path / "rig.tar.gz"
    path.write_text("mine")
    with pytest.raises(DeployError, match=r"--data bundle: .* File exists; name a new file"):
        bundle.write(path, spark_plan(), {}, [], {})
    assert path.read_text() == "mine"
