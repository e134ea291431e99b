"""What a node's engine is, against what its plan says: flags, environment, container, files, unit.

Pure. The deploys act on the differences, the doctor prints them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from gates.artifact.image import image_of
from gates.drift.compare_venv import environment_drift, secrets_not_set, venv_drift
from gates.drift.difference import Difference
from gates.drift.launch_files import written_argv, written_environ
from gates.engine.state import EngineState, engine_state, engine_unit, own_container
from gates.engine.vllm_flags import NOT_SET, compare, serves
from gates.recipe.secrets import differing
from node.rules.ownership import same_container
from schema.desired.plan import ENGINE_DIR, UNIT, Document, Plan
from schema.desired.rig import Node
from schema.observed.docker import Container, Docker
from schema.observed.files import FileState
from schema.observed.machine import EngineProcess
from schema.observed.snapshot import NodeSnapshot, Unreadable
from schema.recipe.recipe import ContainerSpec
from schema.render import node_program
from schema.render.node_program import same_but_program

__all__ = ["Difference", "EngineState", "drift", "engine_state"]


def drift(plan: Plan, node: Node, snapshot: NodeSnapshot) -> list[Difference]:
    """Everything on the node that is not as the plan says; empty when it is as planned.

    Flags and variables are the live engine's; where none runs, those that its files would start.
    """
    return [
        *_files(plan, node, snapshot),
        *_unit(plan, node, snapshot),
        *_engine(plan, node, snapshot),
    ]


def _unknown(section: str, found: Unreadable) -> Difference:
    return Difference("unknown", section, "readable", found.unreadable)


def _files(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Difference]:
    if isinstance(snapshot.files, Unreadable):
        yield _unknown("files", snapshot.files)
        return
    states = {state.path: state for state in snapshot.files}
    for document in plan.documents[node.name]:
        state = states.get(document.path)
        if state is None:
            yield Difference("file", document.path, "looked at", "not in the snapshot")
        else:
            yield from _file(document, state)
    for path, want, have in differing(plan.specs[node.name], states):
        yield Difference("file", path, want, have)


def _file(document: Document, state: FileState) -> Iterator[Difference]:
    if state.kind != "file":
        yield Difference("file", document.path, "a file", state.kind)
        return
    wanted = hashlib.sha256(document.content.encode()).hexdigest()
    # The content itself stays on the host where others may not read it; its hash always comes.
    if state.sha256 != wanted and same_but_program(state.content or "", document.content):
        former = " ".join(node_program.programs_in(state.content or ""))
        yield Difference("file", document.path, f"runs {node_program.path()}", f"runs {former}")
    elif state.sha256 != wanted:
        found = f"sha256 {state.sha256[:12]}" if state.sha256 else "no sha256"
        yield Difference("file", document.path, f"sha256 {wanted[:12]}", found)
    if state.mode is None or int(state.mode, 8) != int(document.mode, 8):
        yield Difference("file", document.path, f"mode {document.mode}", f"mode {state.mode}")
    if (state.uid, state.gid) != (0, 0):
        yield Difference("file", document.path, "owner 0:0", f"owner {state.uid}:{state.gid}")


def _unit(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Difference]:
    if isinstance(snapshot.units, Unreadable):
        yield _unknown("units", snapshot.units)
        return
    unit = engine_unit(snapshot)
    if unit is None:
        yield Difference("unit", UNIT, "enabled", "absent")
        return
    if unit.enabled != "enabled":
        yield Difference("unit", UNIT, "enabled", unit.enabled or "not enabled")
    if unit.needs_reload:
        yield Difference("unit", UNIT, "loaded as on disk", "changed since systemd read it")
    ours = {document.path for document in plan.documents[node.name]}
    for path in unit.drop_ins:
        if path not in ours:
            yield Difference("unit", UNIT, "no drop-in of others", f"overridden by {path}")
    container = own_container(snapshot) if plan.recipe.container else None
    if container and container.state == "running" and unit.active_state == "inactive":
        yield Difference("unit", UNIT, "active", "inactive, while its container runs")


def _engine(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Difference]:
    if plan.recipe.container is None:
        yield from venv_drift(plan, node, snapshot)
        return
    docker = snapshot.docker
    if isinstance(docker, Unreadable):
        yield _unknown("docker", docker)
        return
    container = own_container(snapshot)
    server = _server(snapshot, container) if container else None
    live = server.argv if server else container.argv if container else ()
    # Without a live command line the launch script tells what the next start will run.
    argv = live if serves(live) else written_argv(snapshot)
    if serves(argv):
        for name, want, have in compare(plan.specs[node.name].argv, argv):
            yield Difference("flag", name, want, have)
    if container is None:
        written = written_environ(snapshot)
        yield from environment_drift(plan, node, written) if written is not None else ()
        return
    environ = {**container.environ, **(server.environ if server else {})}
    yield from environment_drift(plan, node, environ)
    yield from secrets_not_set(plan, node, environ)
    yield from _box(plan.recipe.container, docker, container)
    yield from _mounts(plan, node, docker, container)


def _server(snapshot: NodeSnapshot, container: Container) -> EngineProcess | None:
    """The live `vllm serve` of our container; its children's titles hide argv and environment."""
    if isinstance(snapshot.engine_processes, Unreadable):
        return None
    for process in snapshot.engine_processes:
        ours = same_container(process.container_id or "", container.id)
        if ours and serves(process.argv):
            return process
    return None


def _box(wanted: ContainerSpec, docker: Docker, container: Container) -> Iterator[Difference]:
    image = image_of(docker, wanted.image)
    if image is None or image.id != container.image_id:
        have = f"{container.image} {container.image_id[:19]}"
        missing = f"{wanted.image} (not on this node)"
        want = missing if image is None else f"{wanted.image} {image.id[:19]}"
        yield Difference("image", wanted.image, want, have)
    if container.restart_policy not in ("no", ""):
        policy = f"{container.restart_policy} (a second supervisor beside systemd)"
        yield Difference("container", "restart policy", "no", policy)
    for name, want, have in (
        ("network mode", "host", container.network_mode),
        ("ipc mode", wanted.ipc, container.ipc_mode),
        ("privileged", str(wanted.privileged).lower(), str(container.privileged).lower()),
        ("init process", "true", str(container.init).lower()),
    ):
        if want != have:
            yield Difference("container", name, want, have or NOT_SET)


def _mounts(plan: Plan, node: Node, docker: Docker, container: Container) -> Iterator[Difference]:
    wanted = {target: (source, ro) for source, target, ro in plan.specs[node.name].volumes}
    # Our own launch script, and volumes that the image declares, are no part of the spec.
    own = (f"{ENGINE_DIR}/", f"{docker.root.rstrip('/')}/volumes/")
    had = {
        mount.target: (mount.source, mount.read_only)
        for mount in container.mounts
        if mount.target in wanted or not mount.source.startswith(own)
    }
    for target in (*wanted, *(t for t in had if t not in wanted)):
        want, have = wanted.get(target), had.get(target)
        if want != have:
            yield Difference("mount", target, _mount(want), _mount(have))


def _mount(mount: tuple[str, bool] | None) -> str:
    if mount is None:
        return "none"
    return f"{mount[0]} ({'read-only' if mount[1] else 'writable'})"
