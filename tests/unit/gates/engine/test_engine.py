"""What vLLM's own parser said becomes a finding: a refusal blocks, silence is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from gates.endpoint import SIGNATURES, action, cause_of, from_log, signature
from gates.processes import arguments, engine_state
from node import units
from node.rules.engine import same_container
from schema.artifact import ParserAnswer
from schema.snapshot import Unreadable
from tests.unit.builders import engine_parts, host_parts, rigs
from tests.unit.builders.host_parts import unit
from tests.unit.builders.rigs import spark_plan

# Words of vLLM 0.32.0 (CPU), by node/engine/preflight.py; the third is of
# eugr/spark-vllm-docker#111.
LENGTH = (
    "1 validation error for ModelConfig Value error, User-specified max_model_len (100000) is "
    "greater than the derived max_model_len (max_position_embeddings=2048.0 or "
    "model_max_length=None in model's config.json)."
)
JSON = (
    r"argument --speculative-config: Value \{\"method\":\"qwen3_next_mtp\"\,"
    r"\"num_speculative_tokens\":2\} cannot be converted to <function loads at 0xe67c60da6a20>."
)
NO_GPU = "RuntimeError: Failed to infer device type"


@pytest.mark.parametrize(
    ("outcome", "said", "unsure", "code", "words"),
    [
        ("accepted", "", "", None, ""),
        ("refused", "unrecognized arguments: --no-such-flag", "", "arguments-refused", "itself"),
        (
            "unreadable",
            "milo cannot read /m/x",
            "",
            "weights-denied",
            "user cannot read the weights",
        ),
        ("refused", LENGTH, "", "arguments-refused", "itself refuses"),
        ("refused", JSON, "", "arguments-refused", "itself refuses"),
        ("unchecked", NO_GPU, "", "arguments-unchecked", "the command line could not be checked"),
        ("accepted", "", NO_GPU, "arguments-unchecked", "the model's config could not be checked"),
    ],
)
def test_each_answer_is_one_finding_or_none(
    outcome: str, said: str, unsure: str, code: str | None, words: str
) -> None:
    answer = {"outcome": outcome, "said": said, "unsure": unsure, "took_s": 8.2}
    found = arguments(spark_plan(), "serve", {"spark2": ParserAnswer.model_validate(answer)})
    assert [v.code for v in found] == ([code] if code else [])
    for v in found:
        assert (v.node, v.severity) == ("spark2", "warn" if "unchecked" in str(code) else "block")
        assert words in v.summary and (said or unsure)[:80] in v.summary
        assert (said or unsure) in v.evidence and "8.2 s" in v.evidence
        assert "pyinfra INVENTORY deploys/serve.py --dry" in v.remedy


# Ids of one container, whole and as docker shortens them.


@pytest.mark.parametrize(("one", "other", "same"), [
    (engine_parts.FOREIGN, engine_parts.FOREIGN[:12], True),
    (engine_parts.FOREIGN[:12], engine_parts.FOREIGN, True),
    (engine_parts.FOREIGN, host_parts.OUR_PROCESSES, False),
    # A process without a container is of none; eleven digits are no id that docker gives.
    ("", engine_parts.FOREIGN, False),
    (engine_parts.FOREIGN[:11], engine_parts.FOREIGN, False),
])  # fmt: skip
def test_ids_of_one_container(one: str, other: str, same: bool) -> None:
    assert same_container(one, other) is same


# How a node's engine is doing, from its unit, its container and its port.

PLAN = spark_plan()
HEAD, WORKER = PLAN.rig.nodes


def state(*changes: tuple[str, Any], node: Any = HEAD, up: bool = True) -> str:
    seen = (rigs.serving if up else rigs.healthy)(PLAN)[node.name]
    for path, value in changes:
        seen = rigs.put(seen, path, value)
    return engine_state(PLAN, node, seen)


def test_engine_state() -> None:
    gone = ("docker.containers", ())
    inactive = ("units.0.active_state", "inactive")
    assert state(up=False) == "absent"
    assert state() == "running"
    assert state(node=WORKER) == "running"
    assert state(gone, inactive) == "stopped"
    assert state(("ports", ())) == "starting"
    assert state(("ports", ()), node=WORKER) == "running"
    assert state(gone) == "starting"
    assert state(("units.0.active_state", "activating")) == "starting"
    assert state(("units.0.active_state", "failed"), gone) == "failed"
    assert state(gone, ("units.0.active_state", "activating"),
                 ("units.0.sub_state", "auto-restart")) == "failed"  # fmt: skip
    assert state(("units", Unreadable(unreadable="x"))) == "failed"
    assert state(inactive) == "running"


# What a failed start's log means: each signature by a recorded line, and the action it has.

GOOD: dict[str, list[str]] = yaml.safe_load(
    Path(__file__).with_name("good_starts.yaml").read_text()
)
TABLE = yaml.safe_load(Path(__file__).with_name("signatures.yaml").read_text())


@pytest.mark.parametrize("row", TABLE, ids=lambda row: str(row["source"]))
def test_a_recorded_line_has_its_meaning(row: dict[str, Any]) -> None:
    assert row["means"] in (from_log([row["line"]]) or "")


def test_every_signature_has_a_recorded_line() -> None:
    assert len(SIGNATURES) >= 25
    assert {signature([row["line"]]) for row in TABLE} == set(SIGNATURES)


def test_the_root_cause_decides_before_what_followed() -> None:
    """The peer's goodbye stands in each log of a start that failed."""
    lost = "[c10d] sendBytes failed: Connection reset by peer, gloo"
    full = "root cause: ValueError: No available memory for the cache blocks. (vllm/v1/core.py:1)"
    assert "KV cache" in cause_of(unit(errors=(lost, full)))
    assert action(unit(errors=(full,))).startswith("raise gpu_memory_utilization")
    assert "lost its peer" in cause_of(unit(errors=(lost,))) and action(unit(errors=(lost,))) == ""


@pytest.mark.parametrize("source", GOOD)
def test_a_good_start_has_none(source: str) -> None:
    """Neither any line of it, nor all of them, nor what a snapshot takes for an error."""
    lines = GOOD[source]
    wrong = [line for line in lines if signature([line])]
    assert wrong == [] and signature(lines) is None
    assert signature(units.with_root_cause(lines)) is None
    assert signature(["WARNING 03-02 19:48:25 [topk.py:1] error 8021"]) is None
