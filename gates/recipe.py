"""Choices of a recipe, and where the engine differs from it."""

from __future__ import annotations

import hashlib
import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from gates.artifact import full_name, image_name, image_of, own_venv
from gates.core import Observed, Violation, deploy_command, per_node, require, violation
from gates.processes import (
    LOST_QUOTES,
    NOT_SET,
    compare_vllm_flags,
    engine_state,
    engine_unit,
    is_own,
    own_container,
    serves,
)
from node.rules.engine import same_container
from node.rules.secret import MASK, SECRETS_PATH, WATCHED
from node.rules.text import environment_text
from schema import render_unit
from schema.plan import ENGINE_DIR, UNIT, Document, EngineSpec, Node, Plan, engine_spec
from schema.recipe import ContainerSpec, ForbiddenEnv
from schema.render_engine import ENV_PATH, SCRIPT_PATH
from schema.render_unit import argv_in, same_but_program
from schema.snapshot import Container, Docker, EngineProcess, FileState, NodeSnapshot, Unreadable

# What a recipe chooses against the machines it is to run on.

# Gates of what the recipe asks for: forbidden variables, and choices that deserve a warning.


def forbidden(plan: Plan, environ: Mapping[str, str]) -> list[ForbiddenEnv]:
    """The recipe's forbidden variables that this environment sets."""
    return [
        rule
        for rule in plan.recipe.forbidden_env
        if rule.name in environ and rule.value in (None, environ[rule.name])
    ]


def forbidden_rendered(plan: Plan, observed: Observed) -> list[Violation]:
    """The recipe may not render a variable that it forbids (C14: `fork`, two evenings lost)."""
    found = []
    for node in plan.rig.nodes:
        environ = plan.specs[node.name].environ
        for rule in forbidden(plan, environ):
            found.append(
                violation(
                    "forbidden-env",
                    node.name,
                    f"the recipe sets {rule.name}={environ[rule.name]} for {node.name}, which "
                    "it forbids",
                    evidence=f"forbidden because: {rule.reason}",
                    remedy=f"take {rule.name} out of env in "
                    f"catalog/recipes/{plan.recipe.name}.yaml",
                )
            )
    return found


@per_node
def forbidden_live(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """The live engine's environment, too (C14). A warning: serve's restart is what mends it."""
    live: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for process in require(snapshot.engine_processes, "engine_processes"):
        for rule in forbidden(plan, process.environ):
            live[rule.name, process.environ[rule.name], rule.reason].append(process.pid)
    for (name, value, reason), pids in live.items():
        listed = ", ".join(map(str, pids))
        yield violation(
            "forbidden-env",
            node.name,
            f"the engine of {node.name} runs with {name}={value}, which the recipe forbids",
            evidence=f"in the environment of pid {listed}; forbidden because: {reason}",
            remedy=deploy_command(plan, "serve"),
            severity="warn",
        )


def enforce_eager(plan: Plan, observed: Observed) -> list[Violation]:
    """--enforce-eager is no mend for a CUDA graph crash: decode 44 → 25 t/s (C3).

    A CPU engine has no CUDA graphs to lose.
    """
    flags = plan.specs[plan.rig.head.name].flags
    if not plan.recipe.expect.needs_nvidia or flags.get("enforce_eager") is not True:
        return []
    return [
        violation(
            "enforce-eager",
            None,
            "enforce_eager turns CUDA graphs off and about halves decode",
            evidence=f"recipe {plan.recipe.name}, profile {plan.profile}: enforce_eager true",
            remedy=f"take enforce_eager out of catalog/recipes/{plan.recipe.name}.yaml",
        )
    ]


def image_latest(plan: Plan, observed: Observed) -> list[Violation]:
    """A `:latest` names another build after the next pull; a digest does not."""
    image = image_name(plan)
    if image is None or "@" in image or not full_name(image).endswith(":latest"):
        return []
    return [
        violation(
            "image-latest",
            None,
            "the recipe's image is a :latest, which may become another build at any pull",
            evidence=f"container.image: {image}",
            remedy="write the digest that this prints into container.image: sudo docker image "
            f"inspect --format '{{{{.RepoDigests}}}}' {shlex.quote(image)}",
        )
    ]


def privileged(plan: Plan, observed: Observed) -> list[Violation]:
    """A privileged container is root on the host; the seeds' recipe asks for it."""
    if plan.recipe.container is None or not plan.recipe.container.privileged:
        return []
    return [
        violation(
            "privileged",
            None,
            "the engine's container runs privileged",
            evidence=f"recipe {plan.recipe.name}: container.privileged true",
            remedy="without RDMA, try container.privileged: false with container.gpus: all in "
            f"catalog/recipes/{plan.recipe.name}.yaml",
        )
    ]


CHOICE_GATES = (
    forbidden_rendered,
    forbidden_live,
    enforce_eager,
    image_latest,
    privileged,
)


# The recipe's secrets: whether each can be had, and what the nodes have of them.


def missing(plan: Plan, problems: Iterable[tuple[str | None, str, str]]) -> list[Violation]:
    """A finding for each (node or None, why, what to do) of a secret that cannot be had.

    An engine without its key serves everybody, one without its token loads nothing after 20
    minutes: so that stops all hosts before anything changes (moving.md, row 6).
    """
    return [
        violation(
            "secret-missing",
            node,
            f"a secret of recipe {plan.recipe.name} cannot be had",
            evidence=evidence,
            remedy=remedy,
        )
        for node, evidence, remedy in problems
    ]


def differing(spec: EngineSpec, states: Mapping[str, FileState]) -> Iterator[tuple[str, str, str]]:
    """(path, wanted, found) of each difference of the file of secrets; the host tells names alone,
    so another value is not among them.
    """
    path, wanted = SECRETS_PATH, ", ".join(spec.secrets)
    state = states.get(path)
    if state is None or state.kind != "file":
        if spec.secrets:
            yield path, f"a file with {wanted}", state.kind if state else "not in the snapshot"
        return
    if not spec.secrets:
        yield path, "absent: the recipe names no secret", "a file"
        return
    names = [line.partition("=")[0] for line in (state.content or "").splitlines() if "=" in line]
    if set(names) != set(spec.secrets):
        yield path, wanted, ", ".join(names) or "no secret"
    if state.mode is None or int(state.mode, 8) != 0o600:
        yield path, "mode 0600", f"mode {state.mode}"
    if (state.uid, state.gid) != (0, 0):
        yield path, "owner 0:0", f"owner {state.uid}:{state.gid}"


# One difference between what a node's engine is and what its plan says.


@dataclass(frozen=True)
class Difference:
    """One thing that is not as the plan says. `want` and `have` are texts for a person.

    Kinds: flag, environment, forbidden, image, container, mount, venv, file, unit, unknown.
    """

    kind: str
    name: str
    want: str
    have: str

    def __str__(self) -> str:
        return self.text

    @property
    def text(self) -> str:
        """One line, such as `max_model_len 200000, recipe says 131072`."""
        if self.kind in ("flag", "environment"):
            return f"{self.name} {self.have}, recipe says {self.want}"
        if self.kind == "forbidden":
            return f"{self.name}={self.have} is forbidden: {self.want}"
        return f"{self.kind} {self.name}: {self.have}, wanted {self.want}"


# What the launch files on a node say, for a node whose engine does not run: they start it next.


def content(snapshot: NodeSnapshot, path: str) -> str | None:
    """The text of a file that the snapshot looked at; None when absent, private or unreadable."""
    if isinstance(snapshot.files, Unreadable):
        return None
    return next((state.content for state in snapshot.files if state.path == path), None)


def written_argv(snapshot: NodeSnapshot) -> tuple[str, ...]:
    """The command line that the launch script runs, in the words of bash; () when not known."""
    return argv_in(content(snapshot, SCRIPT_PATH) or "")


def written_environ(snapshot: NodeSnapshot, quoted: bool = False) -> dict[str, str] | None:
    """The variables of the environment file, secrets masked; None when they are not known.

    `quoted`: the file is systemd's (a venv), whose values may stand in quotes; docker's are raw.
    """
    text = content(snapshot, ENV_PATH)
    if text is None:
        return None
    pairs = (line.partition("=") for line in text.splitlines() if not line.startswith("#"))
    read = environment_text if quoted else str
    return {name: read(value) for name, equals, value in pairs if equals}


def running_profile(plan: Plan, node: Node, snapshot: NodeSnapshot) -> str:
    """The profile of the node's live flags, never the one that a run would ask for; words about
    the flags where they are no profile's. Without a live engine: what its launch script starts.
    """
    found = snapshot.engine_processes
    own = () if isinstance(found, Unreadable) else (p for p in found if is_own(snapshot, p))
    live = next((p.argv for p in own if serves(p.argv)), written_argv(snapshot))
    if not serves(live):
        return "profile not seen"
    changed = {
        name: [flag for flag, _, _ in compare_vllm_flags(_argv(plan, node, name), live)]
        for name in dict.fromkeys((plan.profile, *plan.recipe.profiles))
    }
    known = next((name for name, flags in changed.items() if not flags), None)
    flags = ", ".join(changed[plan.profile])
    return known or f"changed flags: {flags} differ from {plan.profile}"


def _argv(plan: Plan, node: Node, profile: str) -> tuple[str, ...]:
    return engine_spec(plan.rig, node, plan.recipe, profile).argv


# A venv's live engine against its plan: its flags, its environment, the venv that it runs in.


def venv_drift(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Difference]:
    """What differs; without a live engine, what its files would start."""
    processes = snapshot.engine_processes
    if isinstance(processes, Unreadable):
        yield Difference("unknown", "engine_processes", "readable", processes.unreadable)
        return
    own = [process for process in processes if is_own(snapshot, process)]
    server = next((process for process in own if serves(process.argv)), None)
    argv = server.argv if server else written_argv(snapshot)
    if serves(argv):
        for name, want, have in compare_vllm_flags(plan.specs[node.name].argv, argv):
            yield Difference("flag", name, want, have)
    environ = server.environ if server else written_environ(snapshot, quoted=True)
    if environ is not None:
        yield from environment_drift(plan, node, environ)
    if server is not None:
        yield from secrets_not_set(plan, node, server.environ)
        yield from _place(plan, node, snapshot, server)


def _place(
    plan: Plan, node: Node, snapshot: NodeSnapshot, server: EngineProcess
) -> Iterator[Difference]:
    """The program that runs, and the venv whose interpreter runs it: a link that was moved on
    since the start leaves the former engine serving.
    """
    wanted = plan.specs[node.name].argv[0]
    program = server.argv[server.argv.index("serve") - 1]
    if program != wanted:
        yield Difference("venv", "program", wanted, program)
        return
    venv = own_venv(plan, node, snapshot)
    if venv is None or venv.target is None:
        return
    interpreter = server.argv[0]
    inside = interpreter.startswith((f"{venv.target}/", f"{venv.path}/"))
    if interpreter.startswith("/") and interpreter != program and not inside:
        yield Difference("venv", venv.path, f"leads to {venv.target}", f"runs {interpreter}")


def environment_drift(plan: Plan, node: Node, live: dict[str, str]) -> Iterator[Difference]:
    """The recipe's watched variables that the engine has otherwise, and forbidden ones."""
    for name, want in plan.specs[node.name].environ.items():
        have = live.get(name)
        if name.startswith(WATCHED) and have not in (want, MASK):
            yield Difference("environment", name, want, NOT_SET if have is None else have)
    for rule in forbidden(plan, live):
        yield Difference("forbidden", rule.name, rule.reason, live[rule.name])


def secrets_not_set(plan: Plan, node: Node, live: dict[str, str]) -> Iterator[Difference]:
    """The secrets that a live engine does not have: without its key it serves everybody."""
    for name in plan.specs[node.name].secrets:
        if name.startswith(WATCHED) and name not in live:
            yield Difference("environment", name, "set, as a secret", NOT_SET)


# What a node's engine is, against what its plan says: flags, environment, container, files, unit.
#
# Pure. The deploys act on the differences, the doctor prints them.


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
        former = " ".join(render_unit.programs_in(state.content or ""))
        yield Difference(
            "file", document.path, f"runs {render_unit.program_path()}", f"runs {former}"
        )
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
        for name, want, have in compare_vllm_flags(plan.specs[node.name].argv, argv):
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


# Doctor's findings about what differs from the recipe, each difference by its own name.

LIVE = "the live process, its container and its files against what the recipe renders"
FILES = "its files, as none of its engine runs, against what the recipe renders"


@per_node
def drifted(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """Everything that serve would set right; a node that was never served has nothing to drift."""
    state = engine_state(plan, node, snapshot)
    if state == "absent":
        return
    seen = FILES if state == "stopped" else LIVE
    for difference in drift(plan, node, snapshot):
        if not _told_elsewhere(difference, snapshot):
            yield _finding(plan, node, difference, seen)


def _told_elsewhere(difference: Difference, snapshot: NodeSnapshot) -> bool:
    """True for a difference that another finding names with its own cause and mending."""
    if difference.kind == "unknown" or difference.name == "restart policy":
        return True
    if difference.kind == "unit" and engine_unit(snapshot) is not None:
        return difference.want in ("enabled", "loaded as on disk")
    if difference.kind == "forbidden" and not isinstance(snapshot.engine_processes, Unreadable):
        processes = snapshot.engine_processes
        return any(p.environ.get(difference.name) == difference.have for p in processes)
    return False


def _finding(plan: Plan, node: Node, difference: Difference, seen: str) -> Violation:
    serve = deploy_command(plan, "serve")
    if difference.kind == "forbidden":
        return violation(
            "forbidden-env",
            node.name,
            f"the engine of {node.name} would start with {difference.name}={difference.have}, "
            "which the recipe forbids",
            evidence=f"in its container or its environment file; forbidden because: "
            f"{difference.want}",
            remedy=serve,
            severity="warn",
        )
    if difference.kind == "flag" and difference.name == "headless" and difference.want == "true":
        return violation(
            "worker-not-headless",
            node.name,
            f"the worker {node.name} runs without --headless: it binds the rendezvous itself",
            evidence=f"{difference.text}; {seen}",
            remedy=serve,
        )
    if difference.kind == "flag" and difference.have.endswith(LOST_QUOTES):
        have = difference.have.removesuffix(LOST_QUOTES).strip()
        return violation(
            "json-quotes-lost",
            node.name,
            f"{difference.name} of {node.name} lost its JSON quotes on the way",
            evidence=f"the engine got {have}, the recipe says {difference.want}",
            remedy=serve,
        )
    return violation(
        "drift",
        node.name,
        f"differs from the recipe: {difference}",
        evidence=seen,
        remedy=f"{serve} --dry --diff, then without --dry",
    )


DRIFT_GATES = (drifted,)
