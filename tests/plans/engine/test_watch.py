"""watch: what it writes on which node, what it leaves alone, and that its secret stays one."""

from __future__ import annotations

import pytest

from schema.desired.plan import Plan
from schema.inputs.check import host_data
from schema.inputs.runbook_data import WatchData
from schema.render.watch_files import WATCH_TIMER, watch_documents
from tests.plans.support.rigs import change_open
from tests.plans.support.scenario import HEAD, WORKER, Runs, Scenario, Snapshots, host, serving
from tests.unit.builders.engine_parts import written_file
from tests.unit.builders.host_parts import pair_timer
from tests.unit.builders.snapshots import put

SECRET = "T0P-S3CRET"
HOOK = f"webhook=http://127.0.0.1:1/{SECRET}"
WATCH = "deploys/watch.py"


def watching(plan: Plan) -> Snapshots:
    """The head watches already, every 30 s, and tells the journal."""
    seen = dict(serving(plan))
    address = str(plan.rig.head.lan_address)
    documents = watch_documents(
        plan, HEAD, host_data(HEAD, host(1, address, interval=30), {}, WatchData)
    )
    head = seen[HEAD]
    files = (*head.files, *map(written_file, documents))
    timer = pair_timer(name=WATCH_TIMER, fragment=f"/etc/systemd/system/{WATCH_TIMER}")
    seen[HEAD] = put(put(head, "files", files), "units", (*head.units, timer))
    return seen


SCENARIOS = {
    "dry": Scenario((WATCH, "--dry", "--diff", "--data", HOOK)),
    "worker": Scenario((WATCH, "--dry", "--data", "only=@fake/lab2")),
    "same": Scenario((WATCH, "-y", "--data", "interval=30"), watching),
    "interval": Scenario((WATCH, "--dry", "--data", "interval=60"), watching),
    "misses": Scenario((WATCH, "--dry", "--data", "interval=30", "--data", "misses=9"), watching),
    "remove": Scenario((WATCH, "--dry", "--data", "remove=true"), watching),
    "nothing to remove": Scenario((WATCH, "-y", "--data", "remove=true")),
    "no such node": Scenario((WATCH, "-y", "--data", "only=lab9")),
    "bad url": Scenario((WATCH, "-y", "--data", f"webhook=ftp://h/{SECRET}")),
    "both": Scenario((WATCH, "-y", "--data", HOOK, "--data", "webhook_file=/root/hook")),
    "change open": Scenario((WATCH, "-y"), change_open),
}


@pytest.fixture(scope="module")
def ran() -> Runs:
    """All runs of this module."""
    return Runs(SCENARIOS)


def test_dry_shows_files_and_units_of_the_head_alone(ran: Runs) -> None:
    """The other node is looked at and left alone; nothing is sent."""
    dry = ran["dry"]
    assert dry.status == 0 and dry.changing == (), dry.output
    for line in ("write /etc/rigbook/watch.json (mode 0600, owner root)",
                 f"enable and start {WATCH_TIMER}", "start rigbook-watch.service"):  # fmt: skip
        assert f"[{HEAD}] {line}" in dry.stderr
        assert f"[{WORKER}] {line}" not in dry.stderr


@pytest.mark.parametrize("name", ["dry", "bad url", "both"])
def test_the_webhook_is_shown_nowhere(ran: Runs, name: str) -> None:
    """Not in a diff, not in an error."""
    assert SECRET not in ran[name].output


def test_another_node_may_watch(ran: Runs) -> None:
    """`only` names it."""
    assert f"[{WORKER}] write /etc/rigbook/watch.json" in ran["worker"].stderr
    assert f"[{HEAD}] write /etc" not in ran["worker"].stderr


@pytest.mark.parametrize("name", ["same", "nothing to remove"])
def test_a_second_run_changes_nothing(ran: Runs, name: str) -> None:
    """One look a host."""
    again = ran[name]
    assert again.status == 0 and again.changing == (), again.output
    assert [command.verb for command in again.commands] == ["snapshot", "snapshot"]


def test_only_what_differs_is_written(ran: Runs) -> None:
    """The timer runs with its new interval; new misses leave it alone."""
    assert f"enable and restart {WATCH_TIMER}" in ran["interval"].stderr
    assert "write /etc/rigbook/watch.json" not in ran["interval"].stderr
    assert "write /etc/rigbook/watch.json" in ran["misses"].stderr
    assert WATCH_TIMER not in ran["misses"].stderr
    assert "start rigbook-watch.service" in ran["misses"].stderr


def test_its_end_takes_everything_away(ran: Runs) -> None:
    """Timer first, so that no look meets a missing file."""
    lines = [line.strip() for line in ran["remove"].stderr.splitlines()]
    at = [lines.index(f"[{HEAD}] {what}") for what in (
        f"disable and stop {WATCH_TIMER}", "remove /etc/rigbook/watch.json",
        "remove /etc/systemd/system/rigbook-watch.service",
        f"remove /etc/systemd/system/{WATCH_TIMER}", "have systemd read its units again",
    )]  # fmt: skip
    assert at == sorted(at)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("no such node", f"only=lab9: no such node; the rig has: {HEAD}, {WORKER}"),
        ("bad url", "webhook: is not a URL; allowed: http:// or https://"),
        ("both", "webhook: and webhook_file; allowed: one of them"),
        ("change open", "change-open"),
    ],
)
def test_what_is_refused(ran: Runs, name: str, part: str) -> None:
    """One clear line, and nothing was changed."""
    ran[name].refused(part)
