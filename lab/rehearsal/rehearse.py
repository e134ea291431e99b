"""`make rehearse`: a twin of a rig, with what its snapshot says, and what it cannot show."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lab.core import console
from lab.core.settings import LabError, LabSettings
from lab.rehearsal import data, disorder, incident, raising, shape
from lab.rehearsal.disorder import Disorder
from lab.rehearsal.incidents import breaks
from lab.rehearsal.recipe import longest_of
from schema.machine.rig_snapshot import place


def make(settings: LabSettings, inventory: str, snapshot: str | None = None) -> None:
    """Makes the twin of the rig in an inventory file; says how it differs and what is next.

    `snapshot`: a file of deploys/snapshot.py; None: the rig's own, where there is one.
    """
    hosts = data.load(inventory)
    made = shape.shape(settings, inventory, hosts)
    found = _disorder(inventory, hosts, snapshot)
    console.say(f"a twin of {inventory}: {', '.join(made.twin.names)}")
    for line in shape.told(made, [row for one in found.values() for row in one.cannot]):
        console.say(line)
    raising.up(settings, made)
    drifted = any(one.flags or one.environ for one in found.values())
    if drifted:
        # before the disorder: beside a unit of others that starts a vLLM, serve is refused
        _serve(settings)
    _put(settings, found)
    if drifted:
        _relaunch(settings, found)
    next_one = "doctor" if drifted else "serve"
    console.say(f"next: pyinfra {made.twin.inventory} deploys/{next_one}.py -y")


def _disorder(
    inventory: str, hosts: data.HostsData, snapshot: str | None
) -> Mapping[str, Disorder]:
    """Each host's disorder; none where no snapshot was named and none is kept."""
    plan = shape.planned(inventory, hosts)
    path = Path(snapshot) if snapshot else place(shape.ROOT, plan.rig.name)
    if snapshot is None and not path.exists():
        return {}
    kept = disorder.read(path)
    console.say(f"from the snapshot {path}")
    return disorder.of(kept, plan, longest_of(plan.recipe))


def _serve(settings: LabSettings) -> None:
    """A first serve, as the rig had one."""
    with console.phase("serve", "2 minutes"):
        done = incident.pyinfra(incident.rig_of(settings), "serve")
    if done.returncode != 0:
        raise LabError(f"the twin does not serve: {incident.reason(done.stdout)}")


def _put(settings: LabSettings, found: Mapping[str, Disorder]) -> None:
    """The disorder onto the hosts, and a line about each part of it."""
    for host in settings.hosts() if found else ():
        raising.put(settings, host, found[host.name].script)
    for one in found.values():
        for line in one.shows:
            console.say(f"  as the rig is: {line}")


def _relaunch(settings: LabSettings, found: Mapping[str, Disorder]) -> None:
    """Relaunches by hand with the flags and variables that were seen, the head last."""
    rig = incident.rig_of(settings)
    for name in reversed(rig.names):
        breaks.set_environ(rig.hosts, name, found[name].environ)
        breaks.relaunch(rig.hosts, name, *breaks.edits(found[name].flags))
