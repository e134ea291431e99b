"""Rigs that the plan tests meet, each as a function from the plan to its nodes' snapshots."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from deploys.common.snapshot_view import files_in
from schema.desired.plan import Plan
from schema.observed.snapshot import Unreadable
from schema.render import node_program
from tests.plans.support.scenario import HEAD, WORKER, Snapshots, serving
from tests.unit.builders.engine_parts import written_file
from tests.unit.builders.host_parts import change
from tests.unit.builders.snapshots import healthy, put

Seen = Callable[[Plan], Snapshots]
OPEN_ID = "20260530T065800Z-serve-1a2b"
PROGRAM, FORMER = node_program.path(), f"{node_program.LIBRARY}/rignode-0123456789ab.pyz"
BLESSED_ID = "20260529T065800Z-serve-3c4d"


def broken(base: Seen, *changes: tuple[str, str, object]) -> Seen:
    """`base` with (host, path, value) replaced."""

    def make(plan: Plan) -> Snapshots:
        seen = dict(base(plan))
        for name, path, value in changes:
            seen[name] = put(seen[name], path, value)
        return seen

    return make


def with_changes(base: Seen, *of: tuple[str, str, str]) -> Seen:
    """`base` with (host, status, id) in the journals."""
    rows = {
        name: tuple(change(status, id=id_) for at, status, id_ in of if at == name)
        for name in (HEAD, WORKER)
    }
    return broken(base, *((name, "journal.changes", found) for name, found in rows.items()))


image_missing = broken(healthy, (WORKER, "docker.images", ()))
docker_silent = broken(healthy, (WORKER, "docker", Unreadable(unreadable="dockerd: no answer")))
# of a runbook that nobody takes up
change_open = broken(
    healthy, (HEAD, "journal.changes", (change("OPEN", id=OPEN_ID, deploy="patch"),))
)
locked = broken(healthy, (HEAD, "journal.lock_held", True), (HEAD, "journal.lock_holder", "pid 7"))
_MTU = "network.links.0.mtu"
short_mtu = broken(healthy, (HEAD, _MTU, 1500), (WORKER, _MTU, 1500))
unit_disabled = broken(serving, (WORKER, "units.0.enabled", "disabled"))


def former_program(plan: Plan) -> Snapshots:
    """A serving rig whose units a former version of rigbook wrote: they name its program."""
    seen = dict(serving(plan))
    for name, documents in plan.documents.items():
        former = {
            state.path: state
            for d in documents
            for state in [written_file(replace(d, content=d.content.replace(PROGRAM, FORMER)))]
        }
        files = tuple(former.get(file.path, file) for file in files_in(seen[name]).values())
        seen[name] = put(seen[name], "files", files)
    return seen


one_forgotten = with_changes(healthy, (HEAD, "COMMITTED", BLESSED_ID), (WORKER, "OPEN", OPEN_ID))
