"""doctor: all findings, the lowest layer first, for a person and for a machine."""

from __future__ import annotations

import json
import re

import pytest

from gates.core.violation import Layer
from tests.plans.support import rigs
from tests.plans.support.engine_double import Reply
from tests.plans.support.scenario import HEAD, INVENTORY, WORKER, Runs, Scenario, serving

DOCTOR = ("deploys/doctor.py", "-y")
JSON = ("--data", "json=true")
# The image is missing on the worker, the head's link is short; no engine runs.
ill = rigs.broken(rigs.image_missing, (HEAD, "network.links.0.mtu", 1500))
# Serving, but the head's container restarts on its own.
drifted = rigs.broken(serving, (HEAD, "docker.containers.0.restart_policy", "always"))
SCENARIOS = {
    "healthy": Scenario(DOCTOR, answers=Reply),
    "healthy json": Scenario((*DOCTOR, *JSON), answers=Reply),
    "ill": Scenario(DOCTOR, ill),
    "ill json": Scenario((*DOCTOR, *JSON), ill),
    "drifted": Scenario(DOCTOR, drifted, answers=Reply),
    "one lost": Scenario(DOCTOR, faults={f"{WORKER}:lost": "snapshot"}, answers=Reply),
}


@pytest.fixture(scope="module")
def ran() -> Runs:
    """All runs of this module."""
    return Runs(SCENARIOS)


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_doctor_changes_nothing(ran: Runs, name: str) -> None:
    """One look a host, in three commands at the same time, whatever it finds."""
    assert ran[name].changing == () and len(ran[name].commands) == 6
    assert "Traceback" not in ran[name].output


def test_a_healthy_rig_is_told_so(ran: Runs) -> None:
    """Exit status 0, and the names of what is well."""
    run = ran["healthy"]
    assert run.status == 0, run.output
    assert f"{HEAD}, {WORKER}: tiny (balanced) serves; nothing blocks" in run.stderr


def test_the_lowest_layer_comes_first(ran: Runs) -> None:
    """Fabric, container, unit, endpoint: the first line is the likeliest cause."""
    run = ran["ill"]
    found = re.findall(r"^\s+(block|warn) (\S+)(?: \[\S+\])? (\w+):", run.stderr, re.M)
    layers = [Layer[layer.upper()] for _, _, layer in found]
    assert layers == sorted(layers)
    codes = [code for severity, code, _ in found if severity == "block"]
    assert codes == ["fabric-mtu", "image-missing", "engine-down", "engine-down", "no-answer"]
    run.refused("5 finding(s) block serving", f"fabric-mtu on {HEAD}")


def test_each_finding_has_its_evidence_and_its_command(ran: Runs) -> None:
    """No finding without how we know, none without what to do."""
    text = ran["ill"].stderr
    heads = re.findall(r"^\s+(?:block|warn) \S+", text, re.M)
    assert len(heads) == text.count("evidence:") == text.count("mend:") > 0
    assert "INVENTORY" not in text
    assert f"mend:     pyinfra {INVENTORY} deploys/serve.py" in text


@pytest.mark.parametrize("name", ["healthy json", "ill json"])
def test_json_is_all_that_stands_on_stdout(ran: Runs, name: str) -> None:
    """A machine reads it as it is; pyinfra's own lines are on stderr."""
    rows = json.loads(ran[name].stdout)
    assert all(row["severity"] in ("block", "warn") for row in rows)
    assert "INVENTORY" not in ran[name].stdout


def test_json_says_what_the_text_says(ran: Runs) -> None:
    """The same findings in the same order, and the same exit status."""
    rows = json.loads(ran["ill json"].stdout)
    assert [row["code"] for row in rows if row["severity"] == "block"][:2] == [
        "fabric-mtu",
        "image-missing",
    ]
    assert rows[0]["layer"] == "fabric" and rows[0]["node"] == HEAD
    assert ran["ill json"].status == 1
    assert json.loads(ran["healthy json"].stdout) == [
        row for row in rows if row["severity"] == "warn"
    ]


def test_drift_is_a_warning(ran: Runs) -> None:
    """A rig that serves is not called broken; the difference is named."""
    run = ran["drifted"]
    assert run.status == 0, run.output
    assert "warn restart-policy" in run.stderr and "docker update --restart=no" in run.stderr


def test_a_lost_host_is_the_first_finding(ran: Runs) -> None:
    """What could not be asked is not healthy."""
    ran["one lost"].refused(f"nodes-reachable on {WORKER}")
