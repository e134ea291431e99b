"""What a rig's snapshot says beside its recipe, for the twin's hosts as far as they can hold it."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from lab.core.settings import ENGINE_IMAGE, LabError
from lab.rehearsal.recipe import KEPT, scaled
from schema.adoption.command_line import parse
from schema.core.parse import misfit
from schema.desired.plan import CONTAINER, UNIT, Plan
from schema.machine.rig_snapshot import KeptNode, RigSnapshot
from schema.observed.docker import Container
from schema.observed.snapshot import NodeSnapshot, Unreadable
from schema.observed.units import Unit

STAND_IN = "#!/bin/sh\n# TWIN stand-in: the rig has a program here\nexec sleep infinity\n"
NOT_HERE = "TWIN stand-in of a file of the rig\n"
UNITS = ("/etc/systemd/system/", "/usr/local/lib/systemd/system/")
OURS = "rigbook-"
# What of the live flags the small engine can be given; the rest is told.
EDITED = KEPT & {"max_num_seqs", "max_model_len"}
_PLAIN_PATH = re.compile(r"(?:/[A-Za-z0-9_.@:+-]+)+\Z")
_ON = ("active", "activating", "reloading", "failed")


@dataclass(frozen=True)
class Disorder:
    """One host's part. `script` runs as root before anything serves; `flags` and `environ` are how
    the engine that ran there differs from its recipe, in the twin's lengths.
    """

    script: str
    shows: tuple[str, ...]
    cannot: tuple[str, ...]
    flags: Mapping[str, int]
    environ: Mapping[str, str]


class _Host:
    """The lines of one host's script, and what they show."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lines = ["set -e"]
        self.shows: list[str] = []
        self.cannot: list[str] = []

    def show(self, text: str) -> None:
        """A line about what the twin has of this host."""
        self.shows.append(f"{self.name}: {text}")

    def lack(self, text: str) -> None:
        """A line about what it has not."""
        self.cannot.append(f"{self.name}: {text}")

    def write(self, path: str, text: str, mode: str = "0644", over: bool = True) -> None:
        """A file; `over` False: only where there is none."""
        folder, target = shlex.quote(str(Path(path).parent)), shlex.quote(path)
        put = f"mkdir -p {folder} && printf %s {shlex.quote(text)} > {target}"
        self.lines.append(
            f"{'' if over else f'[ -e {target} ] || '}{{ {put} && chmod {mode} {target}; }}"
        )


def read(path: Path) -> RigSnapshot:
    """The snapshot in a file; LabError in one line for one that is none."""
    try:
        return RigSnapshot.model_validate_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise LabError(f"{path}: {error.strerror}; make one: deploys/snapshot.py") from None
    except ValidationError as error:
        raise LabError(f"{path}: the snapshot {misfit(error)}; make it anew") from None


def of(snapshot: RigSnapshot, plan: Plan, longest: int) -> dict[str, Disorder]:
    """Each host's disorder by name; LabError for a snapshot of another rig.

    `longest` is the recipe's longest context, which the twin's lengths are in proportion to.
    """
    if snapshot.rig != plan.rig.name:
        raise LabError(f"the snapshot is of rig {snapshot.rig}, not of {plan.rig.name}")
    found = {}
    for node in plan.rig.nodes:
        kept = snapshot.nodes.get(node.name)
        if kept is None or isinstance(kept, Unreadable):
            why = "it is not in the snapshot" if kept is None else kept.unreadable
            found[node.name] = Disorder("true\n", (), (f"{node.name}: {why}",), {}, {})
        else:
            found[node.name] = _of_host(node.name, kept, plan, longest)
    return found


def _of_host(name: str, kept: KeptNode, plan: Plan, longest: int) -> Disorder:
    host = _Host(name)
    _users(host, kept)
    _cards(host, kept.seen)
    _kernels(host, kept)
    _segments(host, kept.seen)
    if plan.recipe.container is None:
        _no_docker(host, kept.seen)
    else:
        _containers(host, kept.seen)
    _units(host, kept)
    _crontabs(host, kept.seen)
    flags, environ = _drift(host, kept.seen, plan, longest)
    _lacks(host, kept, plan)
    script = "\n".join(host.lines) + "\n"
    return Disorder(script, tuple(host.shows), tuple(host.cannot), flags, environ)


def _users(host: _Host, kept: KeptNode) -> None:
    rows = () if isinstance(kept.users, Unreadable) else kept.users
    for user in rows:
        name, home = shlex.quote(user.name), shlex.quote(user.home or "/nonexistent")
        host.lines.append(
            f"id -u {name} >/dev/null 2>&1 || useradd --create-home --home-dir {home} "
            f"--shell {shlex.quote(user.shell or '/bin/false')} {name}"
        )


def _cards(host: _Host, seen: NodeSnapshot) -> None:
    found = seen.gpus
    if isinstance(found, Unreadable) or not found.gpus:
        host.lack("its GPUs are not in the snapshot: the lab's stand in")
        return
    cards = []
    for gpu in found.gpus:
        own = {"name": gpu.name, "uuid": gpu.uuid, "memory_mib": gpu.memory_total_mib,
               "compute_cap": gpu.compute_cap, "bus_id": gpu.pci_bus_id}  # fmt: skip
        card: dict[str, object] = {key: value for key, value in own.items() if value is not None}
        cards.append(card if gpu.unified_memory else {"reserved_mib": 0, **card})
    kind = "gb10" if found.gpus[0].unified_memory else "discrete"
    state = {"kind": kind, "driver": found.driver_version, "gpus": cards}
    host.write("/etc/rigbook-lab/gpu.json", json.dumps(state, indent=1) + "\n")
    names = ", ".join(gpu.name for gpu in found.gpus)
    host.show(f"{names}, driver {found.driver_version}, as nvidia-smi tells them")


def _kernels(host: _Host, kept: KeptNode) -> None:
    facts = kept.kernel
    kernels = facts if isinstance(facts, Unreadable) else facts.kernels
    if isinstance(facts, Unreadable) or isinstance(kernels, Unreadable) or not kernels:
        return
    for one in kernels:
        for path in (one.vmlinuz, one.initrd):
            if path and _PLAIN_PATH.match(path):
                host.write(path, NOT_HERE, over=False)
    names = ", ".join(one.release for one in kernels)
    host.show(f"kernels by name in /boot: {names}")
    host.lack(f"runs {facts.running}; its GRUB, modules and pins: make test-vm")


def _segments(host: _Host, seen: NodeSnapshot) -> None:
    rows = () if isinstance(seen.shm, Unreadable) else seen.shm
    stale = [row for row in rows if row.is_engines and not row.mappers and "/" not in row.name]
    for row in stale:
        path = shlex.quote(f"/dev/shm/{row.name}")
        host.lines.append(f"truncate -s 1M {path} && touch -d -10min {path}")
    if stale:
        host.show(f"{len(stale)} shared memory segments of dead engines")


def _containers(host: _Host, seen: NodeSnapshot) -> None:
    boxes, _ = seen.supervisors
    for box in boxes:
        if box.name != CONTAINER:
            host.lines.append(_container(box))
            host.show(f"container {box.name} of others ({box.state}): it only waits")


def _container(box: Container) -> str:
    """The command that makes a container of that name, where there is none."""
    name, _, digest = box.image.partition("@")
    image = shlex.quote(f"{name}:twin" if digest or not name else name)
    words = ["docker", "run", "-d"] if box.state == "running" else ["docker", "create"]
    words += ["--name", box.name, "--restart", box.restart_policy, "--init"]
    words += ["--network", "host" if box.network_mode == "host" else "none"]
    for key, value in box.labels.items():
        words += ["--label", f"{key}={value}"]
    made = f"{shlex.join(words)} {image} sleep infinity >/dev/null"
    # the recipe's own image has its name already, and the recipe's files in it
    tag = f"docker image inspect {image} >/dev/null 2>&1 || docker tag {ENGINE_IMAGE} {image}"
    return (
        f"docker container inspect {shlex.quote(box.name)} >/dev/null 2>&1 || "
        f"{{ {{ {tag}; }} && {made}; }}"
    )


def _no_docker(host: _Host, seen: NodeSnapshot) -> None:
    boxes, _ = seen.supervisors
    for box in boxes:
        host.lack(f"container {box.name}: this twin has no docker")


def _units(host: _Host, kept: KeptNode) -> None:
    """Units of others with their drop-ins, and what others put over ours."""
    _, units = kept.seen.supervisors
    known = {} if isinstance(kept.texts, Unreadable) else {r.path: r.text for r in kept.texts}
    others = [unit for unit in units if unit.load_state == "loaded"]
    started = []
    for unit in others:
        ours = unit.name.startswith(OURS)
        paths = [*unit.drop_ins] if ours else [unit.fragment or "", *unit.drop_ins]
        mine = [path for path in paths if path.startswith(UNITS)]
        texts = {path: known[path] for path in mine if path in known}
        if ours:
            texts = {path: text for path, text in texts.items() if not _is_ours(text)}
        for path in sorted(set(mine) - set(known)):
            host.lack(f"{path}: not everybody may read it, so it is not in the snapshot")
        for path, text in texts.items():
            host.write(path, text)
        if texts:
            ghosts = ", ".join(ghost.path for ghost in unit.ghosts)
            host.show(f"{unit.name}{' with a drop-in of others' if ours else ''}"
                      f"{f', which starts {ghosts}: not there' if ghosts else ''}")  # fmt: skip
        if texts and not ours:
            _program(host, unit)
            started.append(unit)
    host.lines.append("systemctl daemon-reload")
    for unit in started:
        if unit.enabled == "enabled":
            host.lines.append(f"systemctl enable -q {shlex.quote(unit.name)}")
        if unit.active_state in _ON:
            host.lines.append(f"systemctl start --no-block {shlex.quote(unit.name)}")


def _is_ours(text: str) -> bool:
    """Whether rigbook wrote this file; serve writes it on the twin as well."""
    return text.startswith(("# Managed by rigbook", "# Written by rigbook"))


def _program(host: _Host, unit: Unit) -> None:
    """A stand-in where the unit's program is on the rig, and not on the twin."""
    program = unit.exec_start[0] if unit.exec_start else ""
    if unit.exec_start_exists and _PLAIN_PATH.match(program) and ".." not in program:
        host.write(program, STAND_IN, "0755", over=False)


def _crontabs(host: _Host, seen: NodeSnapshot) -> None:
    rows = () if isinstance(seen.cron, Unreadable) else seen.cron
    for row in rows:
        target = shlex.quote(row.file)
        line = shlex.quote(row.text)
        host.lines.append(
            f"mkdir -p {shlex.quote(str(Path(row.file).parent))} && touch {target} && "
            f"{{ grep -qxF -- {line} {target} || printf '%s\\n' {line} >> {target}; }}"
        )
        host.show(f"{row.file} starts an engine; the lab's hosts run no cron")


def _drift(
    host: _Host, seen: NodeSnapshot, plan: Plan, longest: int
) -> tuple[dict[str, int], dict[str, str]]:
    """How our engine's live flags and forbidden variables differ from the recipe."""
    rows = () if isinstance(seen.engine_processes, Unreadable) else seen.engine_processes
    boxes, _ = seen.supervisors
    own = next((box.id for box in boxes if box.name == CONTAINER), "")
    for process in rows:
        inside = bool(process.container_id) and own.startswith(str(process.container_id))
        mine = process.unit == UNIT or inside
        if mine and "serve" in process.argv:
            break
    else:
        return {}, {}
    live, wanted = parse(process.argv).flags, plan.specs[host.name].flags
    flags: dict[str, int] = {}
    for name in sorted({*live, *wanted} - {"model"}):
        value, meant = live.get(name), wanted.get(name)
        if str(value) == str(meant):
            continue
        text = f"--{name.replace('_', '-')} is {value}, the recipe says {meant}"
        number = _number(name, value, longest)
        if name in EDITED and number is not None and meant is not None:
            flags[name] = number
            host.show(f"{text}; here {number}")
        else:
            host.lack(text)
    forbidden = {row.name for row in plan.recipe.forbidden_env}
    environ = {k: v for k, v in process.environ.items() if k in forbidden}
    for name, text in environ.items():
        host.show(f"{name}={text} in the engine's environment, which the recipe forbids")
    return flags, environ


def _number(name: str, value: object, longest: int) -> int | None:
    """The flag's value for the small engine; None for one that it cannot be given."""
    if not str(value).isdigit():
        return None
    if name != "max_model_len":
        return int(str(value))
    return scaled(int(str(value)), longest) if int(str(value)) <= longest else None


def _lacks(host: _Host, kept: KeptNode, plan: Plan) -> None:
    """What else was seen, and is not on the twin."""
    seen = kept.seen
    if not isinstance(kept.former, Unreadable):
        for engine in kept.former.engines:
            place = f"in container {engine.container}" if engine.container else engine.unit or ""
            host.lack(f"an engine of others on port {engine.port} {place}".rstrip())
    ports = () if isinstance(seen.ports, Unreadable) else seen.ports
    own = {22, int(str(plan.recipe.vllm_serve.get("port", 8000)))}
    others = {
        (row.port, row.process) for row in ports
        if row.port not in own and row.address not in ("127.0.0.1", "::1")
        and not (row.unit or "").startswith(OURS) and not (row.process or "").startswith("VLLM::")
    }  # fmt: skip
    if others:
        told = (f"{port} ({process})" for port, process in sorted(others, key=str))
        host.lack(f"listens on {', '.join(told)}")
    if not isinstance(seen.sysctls, Unreadable) and seen.sysctls:
        rows = ", ".join(f"{name}={value}" for name, value in seen.sysctls.items())
        host.lack(f"settings of the kernel are this machine's: {rows}")
    if not isinstance(seen.journal, Unreadable):
        for change in seen.journal.changes:
            if change.status == "OPEN":
                host.lack(f"change {change.id} of {change.deploy} is open there")
