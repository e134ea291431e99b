"""Which units and containers have to do with an engine, and the doctor's findings about ours."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator

from gates.core.check import deploy_command, per_node, require
from gates.core.codes import violation
from gates.core.violation import Violation
from gates.engine.state import engine_unit
from node.rules.ownership import same_container
from node.rules.patterns import LOGIN_UNIT
from schema.desired.plan import CONTAINER, UNIT, Plan
from schema.desired.rig import Node
from schema.observed.docker import Container
from schema.observed.snapshot import NodeSnapshot, Unreadable
from schema.observed.units import Unit

# The engine's unit and its helpers (the pair check, the watch).
OWN_UNITS = "rigbook-"
# guards of memory whose options name an engine as their prey (deploys/host.py sets earlyoom's)
_GUARDS = ("earlyoom", "systemd-oomd", "nohang")


def runs_vllm(snapshot: NodeSnapshot, container: Container) -> bool:
    """True for a container that runs a vLLM, or was made to."""
    told = " ".join((container.name, container.image, *container.argv)).lower()
    if "vllm" in told or container.name.lstrip("/") == CONTAINER:
        return True
    processes = snapshot.engine_processes
    return not isinstance(processes, Unreadable) and any(
        same_container(p.container_id or "", container.id) for p in processes
    )


def concerns_engine(snapshot: NodeSnapshot, unit: Unit) -> bool:
    """True for our unit, for one that an engine's process belongs to, and for one whose commands,
    or the script that they run, name vLLM, our container or one with vLLM.
    """
    if unit.name == UNIT or unit.name in _holders(snapshot):
        return True
    if unit.exec_start and unit.exec_start[0].rpartition("/")[2] in _GUARDS:
        return False
    lines = (" ".join(unit.exec_start), *unit.exec_start_pre, *unit.script_words)
    return name_engine(snapshot, {word for line in lines for word in line.split()})


def name_engine(snapshot: NodeSnapshot, words: Collection[str]) -> bool:
    """True for words of a command line that name vLLM, our container or one with vLLM."""
    if any("vllm" in word.lower() or word == CONTAINER for word in words):
        return True
    if isinstance(snapshot.docker, Unreadable):
        return False
    return any(
        container.name.lstrip("/") in words and runs_vllm(snapshot, container)
        for container in snapshot.docker.containers
    )


def _holders(snapshot: NodeSnapshot) -> set[str]:
    """The units that a process of an engine belongs to, as far as it is known."""
    processes = snapshot.engine_processes
    if isinstance(processes, Unreadable):
        return set()
    return {p.unit for p in processes if p.unit and not LOGIN_UNIT.match(p.unit)}


def dormant(unit: Unit) -> bool:
    """True for a unit that neither runs nor comes back at the next boot."""
    idle = unit.active_state in ("inactive", "failed") and unit.sub_state != "auto-restart"
    return idle and unit.enabled != "enabled"


def watched(snapshot: NodeSnapshot, unit: Unit) -> bool:
    """True for our unit, and for another that starts a vLLM and is not dormant."""
    return unit.name == UNIT or (concerns_engine(snapshot, unit) and not dormant(unit))


def repoint(plan: Plan, node: Node, unit: str) -> str:
    """The command that points a unit of others at what is there (deploys/unit.py)."""
    program = "exec_start=/PATH/OF/PROGRAM ARGUMENTS"
    return deploy_command(plan, "unit", f"unit={unit}", f"only={node.name}", program)


@per_node
def own_policy(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """docker restarts our container by itself, beside systemd; the next serve makes it anew."""
    if plan.recipe.container is None and isinstance(snapshot.docker, Unreadable):
        return  # a rig without docker
    for container in require(snapshot.docker, "docker").containers:
        policy = container.restart_policy
        if container.name.lstrip("/") == CONTAINER and policy not in ("no", ""):
            yield violation(
                "restart-policy",
                node.name,
                f"docker restarts {CONTAINER} on {node.name} by itself ({policy}), beside systemd",
                evidence=f"container {CONTAINER} (ours): restart policy {policy}, "
                f"{container.state}, restarted {container.restarts} times by docker",
                remedy=f"on {node.name}: sudo docker update --restart=no {CONTAINER}",
                severity="warn",
            )


@per_node
def unit_state(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """Our unit comes back at the next boot, and systemd runs what stands on disk."""
    require(snapshot.units, "units")
    unit = engine_unit(snapshot)
    if unit is None:
        return
    torn = [o for o in unit.overrides if o.exec_start and not o.resets]
    if torn:
        yield violation(
            "drop-in-no-reset",
            node.name,
            f"a drop-in of {UNIT} on {node.name} adds an ExecStart without a reset",
            evidence="; ".join(f"{o.path}: ExecStart={o.exec_start[0]}" for o in torn)
            + f"; load state {unit.load_state}",
            remedy=f"on {node.name}: put an empty line ExecStart= before it in "
            f"{shlex.quote(torn[0].path)} (or remove that file), then sudo systemctl daemon-reload",
            severity="block" if unit.load_state not in ("loaded", "") else "warn",
        )
    if unit.needs_reload:
        yield violation(
            "unit-not-reloaded",
            node.name,
            f"systemd on {node.name} still runs an older {UNIT} than the one on disk",
            evidence=f"NeedDaemonReload=yes; unit file {unit.fragment}; drop-ins "
            f"{', '.join(unit.drop_ins) or 'none'}",
            remedy=f"on {node.name}: sudo systemctl daemon-reload, then "
            + deploy_command(plan, "restart"),
        )
    if unit.enabled != "enabled":
        yield violation(
            "unit-disabled",
            node.name,
            f"{UNIT} on {node.name} will not come back after a reboot",
            evidence=f"UnitFileState={unit.enabled or 'none'}, now {unit.active_state}",
            remedy=f"on {node.name}: sudo systemctl {_enable(unit)}",
        )


def _enable(unit: Unit) -> str:
    masked = unit.enabled.startswith("masked") or unit.load_state == "masked"
    return f"unmask {UNIT} && sudo systemctl enable {UNIT}" if masked else f"enable {UNIT}"


GATES = (own_policy, unit_state)
