"""The gate of the deploys: what blocks, how it is said, and what a waiver does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.plans.support import scenario
from tests.plans.support.doubles import Reply
from tests.plans.support.scenario import (
    HEAD,
    INVENTORY,
    WORKER,
    Ends,
    Ran,
    Runs,
    Scenario,
    Table,
    data,
    done,
    each_row,
    refused,
    serving,
)
from tests.unit.builders.rigs import healthy

SERVE = ("deploys/serve.py", "-y")
WAIVE, WHY = "waive=fabric-mtu", "the new cable comes on Monday"


def serve(*pairs: str, seen: scenario.Seen = healthy, **more: Any) -> Scenario:
    """A run of serve."""
    return Scenario((*SERVE, *data(*pairs)), seen, **more)


# What the host says, the last line's parts, a part of the evidence.
BLOCKED: Mapping[str, tuple[Scenario, tuple[str, ...], str]] = {
    "image": (
        serve(seen=scenario.image_missing),
        ("image-missing", WORKER, "deploys/image.py"),
        WORKER,
    ),
    # another profile's command would look at another engine
    "typed": (
        serve("profile=latency", seen=scenario.image_missing),
        ("image-missing", f"deploys/image.py --data profile=latency --data from={HEAD}"),
        WORKER,
    ),
    "open change": (
        serve(seen=scenario.change_open),
        ("change-open", HEAD, scenario.OPEN_ID, "deploys/rollback.py"),
        "by milo@forge, in this boot; steps: file /etc/rigbook/engine/serve.sh",
    ),
    "lock": (serve(seen=scenario.locked), ("lock-held", HEAD, "rignode status"), "pid 7"),
    "no docker": (
        serve(seen=scenario.docker_silent),
        ("docker-unreadable", WORKER),
        "dockerd: no answer",
    ),
    "no json": (
        serve(faults={f"{WORKER}:snapshot": "sh: python3: not found"}),
        ("nodes-reachable", WORKER),
        "sh: python3: not found",
    ),
    "line cut": (
        serve(faults={f"{HEAD}:lost": "snapshot"}),
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
            ("deploys/stop.py", "-y"),
            scenario.with_changes(serving, (HEAD, "OPEN", scenario.OPEN_ID)),
        ),
        ("change-open", HEAD),
        "by milo@forge",
    ),
}
TABLE: Table = {
    **{name: (run, refused("nothing was changed", *parts))
       for name, (run, parts, _) in BLOCKED.items()},
    "mtu": (serve(seen=scenario.short_mtu), refused("fabric-mtu")),
    "waived": (
        serve(WAIVE, f"reason={WHY}", seen=scenario.short_mtu, answers=Reply),
        done("waived fabric-mtu")),
    # without one nothing is asked of any host
    "no reason": (serve(WAIVE, seen=scenario.short_mtu), Ends(
        None, last=("waive: needs a reason", "--data reason="), asks=[])),
    # a slip of the pen must not read as a waiver of nothing
    "unknown": (
        serve("waive=fabric-mut", f"reason={WHY}", seen=scenario.short_mtu),
        refused("unknown code 'fabric-mut'", "did you mean fabric-mtu?")),
    # an open change is undone, not overlooked
    "unwaivable": (
        serve("waive=change-open", f"reason={WHY}", seen=scenario.change_open),
        refused("change-open cannot be waived", "docs/gates.md")),
}  # fmt: skip
test_each_run_ends_as_its_row_says = each_row(TABLE)


def said_with_evidence(run: Ran, evidence: str) -> bool:
    """Whether a finding above the last line carries the evidence and how to mend it."""
    lines = [line.strip() for line in run.stderr.splitlines()]
    found = any(x.startswith("evidence:") and evidence in x for x in lines)
    return found and any(x.startswith("mend:") for x in lines)


@pytest.mark.parametrize("name", BLOCKED)
def test_the_evidence_stands_above_the_line(ran: Runs, name: str) -> None:
    assert said_with_evidence(ran[name], BLOCKED[name][2]), ran[name].output


def test_the_refusal_is_one_line(ran: Runs) -> None:
    """Two hosts run the same deploy file; the operator reads the reason once."""
    for run in ran.each(BLOCKED):
        assert run.stderr.count("nothing was changed:") == 1, run.output
        assert "\n" not in run.last_words


def test_the_healthy_host_is_only_looked_at(ran: Runs) -> None:
    """One node that does not answer leaves the other as it is."""
    assert ran["line cut"].of(WORKER) == ["snapshot"]
    assert ran["left out"].of(HEAD) == ["snapshot"] and ran["left out"].of(WORKER) == []


def test_a_waiver_is_in_the_change(ran: Runs) -> None:
    """The journal of both hosts carries code and reason, once."""
    headers = [c.request["change"] for c in ran["waived"].changing if c.verb == "apply"]
    assert headers
    assert all(row["waivers"] == [{"code": "fabric-mtu", "reason": WHY}] for row in headers)


def test_remedies_name_the_rig(ran: Runs) -> None:
    """The command can be pasted: it has an inventory, and no placeholder is left."""
    assert "INVENTORY" not in ran["open change"].output
    assert f"pyinfra {INVENTORY} deploys/rollback.py" in ran["open change"].stderr
