"""doctor: all findings, the lowest layer first, for a person and for a machine."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest

from gates.core import CODES, Layer
from schema.plan import Plan
from schema.snapshot import NodeSnapshot, Unknown
from tests.plans.support import scenario
from tests.plans.support.doubles import Reply
from tests.plans.support.scenario import (
    HEAD,
    INVENTORY,
    WORKER,
    Runs,
    Scenario,
    Table,
    data,
    each_row,
    quiet,
    refused,
    tiny_plan,
)
from tests.plans.support.scenario import serving as serving_rig
from tests.unit.builders.host_parts import unit
from tests.unit.builders.rigs import put, serving

DOCTOR = ("deploys/doctor.py", "-y")
JSON = (*DOCTOR, *data("json=true"))
KEYS = ["code", "layer", "severity", "node", "summary", "evidence", "cause", "remedy", "explains",
        "unknown"]  # fmt: skip
# The image is missing on the worker, the head's link is short; no engine runs.
ill = scenario.broken(scenario.image_missing, (HEAD, "network.links.0.mtu", 1500))
# Serving, but the head's container restarts on its own.
drifted = scenario.broken(serving_rig, (HEAD, "docker.containers.0.restart_policy", "always"))

LATE = "not looked for the kernel's lines of earlier boots: journalctl did not answer in 3 s"
journal_late = scenario.broken(serving_rig, (WORKER, "health.journal", Unknown(unreadable=LATE)))


def wedged(plan: Plan) -> dict[str, NodeSnapshot]:
    """Both units run, and the ranks are not joined."""
    return {name: put(seen, "connections", ()) for name, seen in serving(plan).items()}


def ghost(plan: Plan) -> dict[str, NodeSnapshot]:
    """The head's unit starts what is not there, again and again."""
    seen = dict(serving(plan))
    gone = unit(active_state="activating", sub_state="auto-restart", result="exit-code",
                exit_kind="exited", exit_status=203, restarts=30, exec_start_exists=False,
                exec_start=("/opt/gone",), drop_ins=("/etc/x.conf",))  # fmt: skip
    for path, value in (("units.0", gone), ("docker.containers", ()), ("engine_processes", ()),
                        ("ports", ()), ("memory.available", 110 * 2**30)):  # fmt: skip
        seen[HEAD] = put(seen[HEAD], path, value)
    return seen


def another(plan: Plan) -> dict[str, NodeSnapshot]:
    """The pair as `serve --data profile=throughput` leaves it."""
    return serving_rig(tiny_plan(str(plan.rig.head.lan_address), profile="throughput"))


def changed(plan: Plan) -> dict[str, NodeSnapshot]:
    """The head's live engine has flags of no profile."""
    seen = serving_rig(plan)
    text = seen[HEAD].model_dump_json().replace('"--max-num-seqs","4"', '"--max-num-seqs","7"')
    return {**seen, HEAD: NodeSnapshot.model_validate_json(text)}


TABLE: Table = {
    "healthy": (Scenario(DOCTOR, answers=Reply), quiet(
        f"{HEAD}, {WORKER}: tiny (balanced) serves; nothing blocks; a first answer in")),
    "another profile": (Scenario(DOCTOR, another, answers=Reply), quiet(
        f"{WORKER}: worker, rank 1, tiny (throughput), active",
        f"{HEAD}, {WORKER}: tiny (throughput) serves;", never=("tiny (balanced)",))),
    "changed flags": (Scenario(DOCTOR, changed, answers=Reply), quiet(
        f"{HEAD}, {WORKER}: tiny (changed flags: max_num_seqs differ from balanced) serves;",
        f"{WORKER}: worker, rank 1, tiny (balanced), active")),
    "deep": (Scenario((*DOCTOR, *data("deep=true")), answers=Reply), quiet("nothing blocks")),
    "healthy json": (Scenario(JSON, answers=Reply), quiet()),
    "ill": (Scenario(DOCTOR, ill), refused(
        "5 finding(s) block serving", f"fabric-mtu on {HEAD}",
        says=(f"mend:     pyinfra {INVENTORY} deploys/serve.py",))),
    "ill json": (Scenario(JSON, ill), refused()),
    # a rig that serves is not called broken; the difference is named
    "drifted": (Scenario(DOCTOR, drifted, answers=Reply), quiet(
        "warn restart-policy", "docker update --restart=no")),
    # what could not be asked is not healthy
    "one lost": (
        Scenario(DOCTOR, faults={f"{WORKER}:lost": "snapshot"}, answers=Reply),
        refused(f"nodes-reachable on {WORKER}")),
    # no Xid was seen because nobody looked
    "journal late": (
        Scenario(DOCTOR, journal_late, answers=Reply),
        quiet("warn health-unreadable", f"evidence: {LATE}", "nothing blocks")),
    # a part of the one question that fails says so, and hides no other
    "one part lost": (
        Scenario(DOCTOR, answers=Reply, faults={
            f"{WORKER}:says {verb}": {"ok": False, "error": "no answer in 60 s"}
            for verb in ("growth", "host", "hardware")
        }),
        quiet("warn growth-unreadable", "warn host-unreadable", "warn hardware-unreadable",
              "node growth failed: no answer in 60 s", f"{HEAD}: keeps changes",
              f"{WORKER}: worker, rank 1")),
    "ghost": (Scenario(DOCTOR, ghost), refused(
        "block serving, the likeliest cause first: unit-ghost", f"on {HEAD}")),
    "ghost json": (Scenario(JSON, ghost), refused()),
    "wedged json": (
        Scenario(JSON, wedged, answers=lambda: Reply("EngineDeadError", status=500)), refused()),
    "docker json": (Scenario(JSON, scenario.docker_silent), refused()),
}  # fmt: skip
test_each_run_ends_as_its_row_says = each_row(TABLE)


@pytest.mark.parametrize("name", TABLE)
def test_each_host_is_asked_once(ran: Runs, name: str) -> None:
    assert Counter(command.host for command in ran[name].commands) == {HEAD: 1, WORKER: 1}


def test_a_rig_that_serves_has_a_line_a_node(ran: Runs) -> None:
    for node, role in ((HEAD, "head, rank 0"), (WORKER, "worker, rank 1")):
        line = rf"{node}: {role}, tiny \(balanced\), active for 10 min"
        assert re.search(line, ran["healthy"].stderr)
        assert f"{node}: keeps changes 2 (3.0 MiB), blobs 2 (3.0 MiB)" in ran["healthy"].stderr


def test_the_lowest_layer_comes_first(ran: Runs) -> None:
    """Fabric, container, unit, endpoint: the first line is the likeliest cause."""
    run = ran["ill"]
    found = re.findall(r"^\s+(block|warn) (\S+)(?: \[\S+\])? (\w+):", run.stderr, re.M)
    layers = [Layer[layer.upper()] for _, _, layer in found]
    assert layers == sorted(layers)
    codes = [code for severity, code, _ in found if severity == "block"]
    assert codes == ["fabric-mtu", "image-missing", "engine-down", "engine-down", "no-answer"]


def test_each_finding_has_its_evidence_and_its_command(ran: Runs) -> None:
    """No finding without how we know, none without what to do."""
    text = ran["ill"].stderr
    heads = re.findall(r"^\s+(?:block|warn) \S+", text, re.M)
    assert len(heads) == text.count("evidence:") == text.count("mend:") > 0
    assert "INVENTORY" not in text


def test_the_text_says_why_how_and_what_to_ignore(ran: Runs) -> None:
    run = ran["ghost"]
    first = run.stderr[run.stderr.index("unit-ghost") :].splitlines()
    assert "starts a program that does not exist: /opt/gone" in first[0]
    assert [line.split(":")[0].strip() for line in first[1:5]] == [
        "evidence", "cause", "mend", "because of this, ignore"]  # fmt: skip
    ignored = first[4].partition("ignore: ")[2].split(", ")
    assert {f"crash-loop@{HEAD}", f"engine-down@{HEAD}", f"no-answer@{HEAD}"} <= {*ignored}


@pytest.mark.parametrize("name", [name for name in TABLE if name.endswith("json")])
def test_the_json_has_its_form(ran: Runs, name: str) -> None:
    rows = json.loads(ran[name].stdout)
    keys = {row["code"] + (f"@{row['node']}" if row["node"] else "") for row in rows}
    for row in rows:
        assert list(row) == KEYS and row["code"] in CODES
        assert Layer[row["layer"].upper()] == CODES[row["code"]].layer
        assert row["severity"] in ("block", "warn") and isinstance(row["unknown"], bool)
        assert row["node"] in (HEAD, WORKER, None) and {*row["explains"]} <= keys
        for key in ("summary", "evidence", "cause", "remedy"):
            assert row[key] and isinstance(row[key], str) and "INVENTORY" not in row[key]
    blocks = any(row["severity"] == "block" for row in rows)
    assert ran[name].status == (1 if blocks else 0)


def test_json_says_what_the_text_says(ran: Runs) -> None:
    """The same findings in the same order, and the same exit status."""
    rows = json.loads(ran["ill json"].stdout)
    assert [row["code"] for row in rows if row["severity"] == "block"][:2] == [
        "fabric-mtu",
        "image-missing",
    ]
    assert rows[0]["layer"] == "fabric" and rows[0]["node"] == HEAD
    assert json.loads(ran["healthy json"].stdout) == []


def test_causes_stand_before_what_they_explain(ran: Runs) -> None:
    for name in ("ghost json", "wedged json", "docker json"):
        rows = json.loads(ran[name].stdout)
        place = {f"{row['code']}@{row['node']}": n for n, row in enumerate(rows)}
        for row in rows:
            assert all(place[f"{row['code']}@{row['node']}"] < place[e] for e in row["explains"])
    wedge = json.loads(ran["wedged json"].stdout)[0]
    assert wedge["code"] == "wedged-pair" and f"pyinfra {INVENTORY}" in wedge["remedy"]
    docker = json.loads(ran["docker json"].stdout)[0]
    assert docker["code"] == "docker-unreadable" and docker["unknown"] is True
