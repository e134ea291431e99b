"""snapshot: all that is seen of a rig, written into one file of this machine; no secret in it."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path

from pyinfra import logger, state
from pyinfra.api.exceptions import DeployError

from deploys.common.boot_needs import driver_module
from deploys.common.cli_guards import ROOT
from deploys.common.load_and_gate import dry_run
from deploys.common.procedure import Procedure
from deploys.procedures.engine import hidden
from facts.former import FormerFact
from facts.hardware import Hardware
from facts.kernels import Kernels
from facts.observe import observe
from facts.rignode.context import real
from facts.rignode.fact import ask_some
from facts.rignode.together import Together
from facts.snapshot import Snapshot
from schema.desired.plan import Plan
from schema.inputs.host_data import HostData
from schema.machine.rig_snapshot import KeptNode, KeptText, KeptUser, RigSnapshot, place
from schema.observed.files import FileState
from schema.observed.snapshot import NodeSnapshot, SnapshotRequest, Unreadable

PASSWD, GRUB_DEFAULTS = "/etc/passwd", "/etc/default/grub"
SYSCTLS = (
    "kernel.panic", "kernel.numa_balancing", "net.core.rmem_max", "net.core.wmem_max",
    "vm.min_free_kbytes", "vm.overcommit_memory", "vm.swappiness",
)  # fmt: skip
# The first user that Debian and Ubuntu give to a person.
FIRST_USER = 1000
NOBODY = 65534
_USER = re.compile(r"^User=(\S+)", re.MULTILINE)


def wider(seen: NodeSnapshot) -> SnapshotRequest:
    """What is asked once the units and containers are known: their files, their images."""
    containers, units = seen.supervisors
    files = [path for unit in units for path in (unit.fragment, *unit.drop_ins) if path]
    return SnapshotRequest(
        files=(*dict.fromkeys(files), GRUB_DEFAULTS, PASSWD),
        images=tuple(dict.fromkeys(box.image for box in containers if box.image)),
        sysctls=SYSCTLS,
    )


def texts(files: tuple[FileState, ...]) -> tuple[KeptText, ...]:
    """The files that are there and that everybody on the host may read."""
    return tuple(
        KeptText(path=file.path, text=file.content)
        for file in files
        if file.content is not None and file.path != PASSWD
    )


def users(files: tuple[FileState, ...], login: str) -> tuple[KeptUser, ...]:
    """The persons of /etc/passwd, the login user, and who a unit names (User=)."""
    wanted = {login, *(name for file in files for name in _USER.findall(file.content or ""))}
    rows = "".join(file.content or "" for file in files if file.path == PASSWD)
    found = []
    for row in rows.splitlines():
        name, _, uid, gid, _, home, shell = (*row.split(":"), *[""] * 7)[:7]
        if not (uid.isdigit() and gid.isdigit()):
            continue
        if name in wanted or FIRST_USER <= int(uid) < NOBODY:
            found.append(KeptUser(name=name, uid=int(uid), gid=int(gid), home=home, shell=shell))
    return tuple(found)


def _whole(first: NodeSnapshot, more: NodeSnapshot | Unreadable) -> NodeSnapshot:
    """The snapshot with the images and the settings of the second look."""
    if isinstance(more, Unreadable):
        return first
    values = {key: getattr(first, key) for key in NodeSnapshot.model_fields}
    values["sysctls"] = more.sysctls
    if not isinstance(first.docker, Unreadable) and not isinstance(more.docker, Unreadable):
        known = {image.id: image for image in (*more.docker.images, *first.docker.images)}
        values["docker"] = first.docker.model_copy(update={"images": tuple(known.values())})
    return NodeSnapshot.model_construct(**values)


def look(rig: Procedure) -> dict[str, KeptNode | Unreadable]:
    """Each node as it is now, by two commands, the second for what the first named. A node that
    does not answer says why.
    """
    plan, here = rig.plan, real(state)
    asked = Together(here, plan.requests)
    module = json.dumps({"module": driver_module(plan, rig.data(HostData))})
    kernels = asked.add(Kernels(), dict.fromkeys(plan.requests, module))
    hardware, formers = asked.add(Hardware()), asked.add(FormerFact())
    first = observe(here, plan, asked=asked)
    up = {name: one for name, one in first.items() if isinstance(one, NodeSnapshot)}
    requests = {name: wider(one).model_dump_json() for name, one in up.items()}
    second = ask_some(here, Snapshot(), requests)
    found: dict[str, KeptNode | Unreadable] = {}
    for node in plan.rig.nodes:
        seen = first[node.name]
        if isinstance(seen, Unreadable):
            found[node.name] = seen
            continue
        more = second[node.name]
        files = more if isinstance(more, Unreadable) else more.files
        found[node.name] = KeptNode.model_construct(
            seen=_whole(seen, more),
            kernel=kernels()[node.name],
            hardware=hardware()[node.name],
            former=formers()[node.name],
            texts=files if isinstance(files, Unreadable) else texts(files),
            users=files if isinstance(files, Unreadable) else users(files, node.ssh_user),
        )
    return found


def document(plan: Plan, nodes: Mapping[str, KeptNode | Unreadable], at: float) -> str:
    """The file's text, every secret masked."""
    whole = RigSnapshot.model_construct(
        format=1, rig=plan.rig.name, recipe=plan.recipe.name, profile=plan.profile,
        taken_unix_s=at, nodes=dict(nodes),
    )  # fmt: skip
    return hidden.as_text(whole.to_json(), hidden.values(plan))


def write(path: Path, text: str) -> None:
    """Replaces the file as a whole; its owner alone may read it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".part")
    beside.unlink(missing_ok=True)
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(text.encode())
    beside.replace(path)


def record(rig: Procedure) -> None:
    """Looks, writes the file, and tells what is in it; DeployError when no node answered."""
    plan = rig.plan
    path = place(ROOT, plan.rig.name)
    if dry_run():
        logger.info(f"    would write {path}")
        return
    nodes = look(rig)
    for name, one in nodes.items():
        logger.info(f"    {name}{_told(one)}")
    if all(isinstance(one, Unreadable) for one in nodes.values()):
        raise DeployError(f"no node of rig {plan.rig.name} answered; nothing was written")
    write(path, document(plan, nodes, time.time()))
    logger.info(f"    wrote {path}, secrets masked; look through it before you show it to anybody")


def _told(node: KeptNode | Unreadable) -> str:
    """What of a node is in the file, in a few words."""
    if isinstance(node, Unreadable):
        return f" is not in it: {node.unreadable}"
    boxes, units = node.seen.supervisors
    kernels = node.kernel if isinstance(node.kernel, Unreadable) else node.kernel.kernels
    told = "no" if isinstance(kernels, Unreadable) else len(kernels)
    return f": {len(units)} units, {len(boxes)} containers, {told} kernels"
