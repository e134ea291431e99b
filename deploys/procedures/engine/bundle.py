"""One archive for a report about a rig: snapshots, findings, logs, versions; secrets masked."""

from __future__ import annotations

import io
import os
import platform
import tarfile
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import gevent
from pyinfra.api import State
from pyinfra.api.exceptions import DeployError

from deploys.procedures.engine import hidden
from facts import unit_state
from facts.rignode.context import fact_of, real
from gates.core.check import Observed
from gates.drift.launch_files import running_profile
from schema.desired.plan import UNIT, Plan
from schema.observed.snapshot import NodeSnapshot

LOG_LINES = 1000


def logs(state: State, plan: Plan) -> dict[str, list[str]]:
    """The last lines of each node's engine unit; none of a node that cannot be asked, and none
    where a chart runs the engine.
    """
    if plan.runtime == "deployment":
        return {}
    state = real(state)
    jobs = {
        node.name: gevent.spawn(
            fact_of, state, state.inventory.get_host(node.name), unit_state.Log, UNIT, LOG_LINES
        )
        for node in plan.rig.nodes
    }
    gevent.joinall(list(jobs.values()))
    return {name: job.get() or [] for name, job in jobs.items()}


def write(
    path: Path,
    plan: Plan,
    observed: Observed,
    findings: Sequence[Mapping[str, object]],
    lines: Mapping[str, Sequence[str]],
) -> None:
    """Writes the archive, readable by its owner alone; DeployError when it cannot be written.

    A file that is there is not overwritten.
    """
    known = hidden.values(plan)
    files = {
        "findings.json": hidden.as_text(findings, known),
        "versions.json": hidden.as_text(_versions(plan, observed), known),
        **{f"snapshots/{name}.json": hidden.as_text(one.to_json(), known)
           for name, one in observed.items()},
        **{f"logs/{name}.log": "".join(hidden.text(line, known) + "\n" for line in rows)
           for name, rows in lines.items()},
    }  # fmt: skip
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
            for name, text in sorted(files.items()):
                _add(archive, f"rigbook-{plan.rig.name}/{name}", text.encode())
    except OSError as error:
        raise DeployError(
            f"--data bundle: {path} cannot be written: {error.strerror}; name a new file"
        ) from None


def _add(archive: tarfile.TarFile, name: str, raw: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mtime, info.mode = len(raw), int(time.time()), 0o600
    archive.addfile(info, io.BytesIO(raw))


def _versions(plan: Plan, observed: Observed) -> dict[str, object]:
    """What runs here and there, for who reads the report."""
    head = observed.get(plan.rig.head.name)
    return {
        "operator": {"python": platform.python_version(), "pyinfra": version("pyinfra")},
        "recipe": plan.recipe.name,
        "profile": running_profile(plan, plan.rig.head, head)
        if isinstance(head, NodeSnapshot)
        else "profile not seen",
        "runtime": plan.runtime,
        "nodes": {
            name: _node(one) if isinstance(one, NodeSnapshot) else one.to_json()
            for name, one in observed.items()
        },
    }


def _node(snapshot: NodeSnapshot) -> dict[str, object]:
    identity, gpus, docker = snapshot.identity, snapshot.gpus, snapshot.docker
    return {
        "os": f"{identity.os_id} {identity.os_version}",
        "kernel": identity.kernel,
        "driver": getattr(gpus, "driver_version", None),
        "docker": getattr(docker, "version", None),
        "node": snapshot.node_version,
    }
