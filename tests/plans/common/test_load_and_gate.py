"""The gate of the deploys: what blocks, how it is said, and what a waiver does."""

from __future__ import annotations

import pytest

from tests.plans.support import rigs
from tests.plans.support.engine_double import Reply
from tests.plans.support.scenario import HEAD, INVENTORY, WORKER, Ran, Runs, Scenario, serving
from tests.unit.builders.snapshots import healthy

SERVE = ("deploys/serve.py", "-y")
WAIVE = ("--data", "waive=fabric-mtu")
REASON = ("--data", "reason=the new cable comes on Monday")
# Name, what the host says, the last line's parts, a part of the evidence.
BLOCKED = {
    "image": (
        Scenario(SERVE, rigs.image_missing),
        ("image-missing", WORKER, "deploys/image.py"),
        WORKER,
    ),
    "typed": (
        Scenario((*SERVE, "--data", "profile=latency"), rigs.image_missing),
        # another profile's command would look at another engine
        ("image-missing", f"deploys/image.py --data profile=latency --data from={HEAD}"),
        WORKER,
    ),
    "open change": (
        Scenario(SERVE, rigs.change_open),
        ("change-open", HEAD, rigs.OPEN_ID, "deploys/rollback.py"),
        "by milo@forge, in this boot; steps: file /etc/rigbook/engine/serve.sh",
    ),
    "lock": (Scenario(SERVE, rigs.locked), ("lock-held", HEAD, "rignode status"), "pid 7"),
    "no docker": (
        Scenario(SERVE, rigs.docker_silent),
        ("docker-unreadable", WORKER),
        "dockerd: no answer",
    ),
    "no json": (
        Scenario(SERVE, healthy, faults={f"{WORKER}:snapshot": "sh: python3: not found"}),
        ("nodes-reachable", WORKER),
        "sh: python3: not found",
    ),
    "line cut": (
        Scenario(SERVE, healthy, faults={f"{HEAD}:lost": "snapshot"}),
        ("nodes-reachable", HEAD),
        "stand-in: the line was cut",
    ),
    "left out": (
        Scenario((*SERVE, "--limit", HEAD), healthy),
        ("nodes-reachable", WORKER),
        "left out by --limit or --exclude; a rig is taken whole",
    ),
    "stop": (
        Scenario(
            ("deploys/stop.py", "-y"), rigs.with_changes(serving, (HEAD, "OPEN", rigs.OPEN_ID))
        ),
        ("change-open", HEAD),
        "by milo@forge",
    ),
}
WAIVING = {
    "mtu": Scenario((*SERVE,), rigs.short_mtu),
    "waived": Scenario((*SERVE, *WAIVE, *REASON), rigs.short_mtu, answers=Reply),
    "no reason": Scenario((*SERVE, *WAIVE), rigs.short_mtu),
    "unknown": Scenario((*SERVE, "--data", "waive=fabric-mut", *REASON), rigs.short_mtu),
    "unwaivable": Scenario((*SERVE, "--data", "waive=change-open", *REASON), rigs.change_open),
}


@pytest.fixture(scope="module")
def ran() -> Runs:
    """All runs of this module."""
    return Runs({name: case[0] for name, case in BLOCKED.items()} | WAIVING)


def said_with_evidence(run: Ran, evidence: str) -> bool:
    """Whether a finding above the last line carries the evidence and how to mend it."""
    lines = [line.strip() for line in run.stderr.splitlines()]
    found = any(x.startswith("evidence:") and evidence in x for x in lines)
    return found and any(x.startswith("mend:") for x in lines)


@pytest.mark.parametrize("name", BLOCKED)
def test_a_finding_stops_both_hosts_before_any_change(ran: Runs, name: str) -> None:
    """One clear line with code, host and command; the evidence above it; nothing is sent."""
    _, parts, evidence = BLOCKED[name]
    ran[name].refused("nothing was changed", *parts)
    assert said_with_evidence(ran[name], evidence), ran[name].output


def test_the_refusal_is_one_line(ran: Runs) -> None:
    """Two hosts run the same deploy file; the operator reads the reason once."""
    for run in ran.each(BLOCKED):
        assert run.stderr.count("nothing was changed:") == 1, run.output
        assert "\n" not in run.last_words


def test_the_healthy_host_is_only_looked_at(ran: Runs) -> None:
    """One node that does not answer leaves the other as it is."""
    assert ran["line cut"].of(WORKER) == ["snapshot"]
    assert ran["left out"].of(HEAD) == ["snapshot"] and ran["left out"].of(WORKER) == []


def test_a_waiver_lets_one_code_pass_and_is_in_the_change(ran: Runs) -> None:
    """The journal of both hosts carries code and reason, once."""
    ran["mtu"].refused("fabric-mtu")
    run = ran["waived"]
    assert run.status == 0, run.output
    assert "waived fabric-mtu" in run.stderr
    headers = [c.request["change"] for c in run.changing if c.verb == "apply"]
    assert headers
    wanted = [{"code": "fabric-mtu", "reason": "the new cable comes on Monday"}]
    assert all(header["waivers"] == wanted for header in headers)


def test_a_waiver_needs_a_reason(ran: Runs) -> None:
    """Without one nothing is asked of any host."""
    ran["no reason"].refused("waive: needs a reason", "--data reason=")
    assert ran["no reason"].commands == ()


def test_a_waiver_of_an_unknown_code_names_the_nearest(ran: Runs) -> None:
    """A slip of the pen must not read as a waiver of nothing."""
    ran["unknown"].refused("unknown code 'fabric-mut'", "did you mean fabric-mtu?")


def test_some_codes_are_never_waived(ran: Runs) -> None:
    """An open change is undone, not overlooked."""
    ran["unwaivable"].refused("change-open cannot be waived", "docs/gates.md")


def test_remedies_name_the_rig(ran: Runs) -> None:
    """The command can be pasted: it has an inventory, and no placeholder is left."""
    assert "INVENTORY" not in ran["open change"].output
    assert f"pyinfra {INVENTORY} deploys/rollback.py" in ran["open change"].stderr
