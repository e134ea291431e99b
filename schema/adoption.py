"""A recipe made of a running engine."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Literal

import yaml
from pydantic import JsonValue, TypeAdapter, ValidationError

from node.rules.secret import API_KEY, MASK, holds_secret, is_reported
from node.rules.text import printable
from schema.core import mount_path
from schema.hardware import FormerContainer, FormerEngine
from schema.plan import EngineSpec, Plan
from schema.recipe import ContainerSpec, EnvName, EnvValue, Flags
from schema.vllm import CommandLine, check_placeholders, parse_command_line

# From a live engine to rigbook's files: inventory, group data, recipe; and how the two compare.

# What is known of one node that serves by other means, and values that differ by node.


@dataclass(frozen=True)
class LiveNode:
    """A node with its engine; `container` None: a venv's. Addresses are as the recipe's
    placeholders mean them; `fabric_address` and `fabric_device` None on a rig of one node.
    """

    name: str
    ssh_user: str
    home: str
    lan_address: str
    fabric_address: str | None
    fabric_device: str | None
    fabric_mtu: int
    has_gpu: bool
    engine: FormerEngine
    container: FormerContainer | None

    @property
    def rank(self) -> int:
        """Its place in the rig, as its engine was told."""
        return self.engine.node_rank

    @property
    def values(self) -> dict[str, str]:
        """What may differ by node, by placeholder."""
        found = {
            "node.fabric_address": self.fabric_address,
            "node.lan_address": self.lan_address,
            "node.home": self.home,
            "fabric.device": self.fabric_device,
            "node.name": self.name,
        }
        return {name: value for name, value in found.items() if value}


def escaped(text: str) -> str:
    """The text with its braces doubled, as a recipe takes them."""
    return text.replace("{", "{{").replace("}", "}}")


def common(values: Sequence[str], nodes: Sequence[LiveNode]) -> str | None:
    """The one text that renders to each node's own value; None when there is none.

    `values` are in the order of the nodes.
    """
    if len(set(values)) == 1:
        return escaped(values[0])
    for place in nodes[0].values:
        if not all(place in node.values for node in nodes):
            continue
        mark = f"{{{place}}}"
        texts = {
            escaped(value).replace(node.values[place], mark)
            for value, node in zip(values, nodes, strict=True)
        }
        if len(texts) == 1:
            return check_placeholders(texts.pop())
    return None


# A live container as a recipe's `container`.

_GIB, _MIB = 1 << 30, 1 << 20
# what --privileged gives anyway
_PRIVILEGED = ("--cap-add", "--device", "--security-opt")


def container(nodes: Sequence[LiveNode]) -> tuple[dict[str, Any], list[str]]:
    """The `container` section of the head's container, and what a person has to decide."""
    boxes = [(node, node.container) for node in nodes if node.container is not None]
    head = boxes[0][1]
    image, notes = _image(boxes)
    found: dict[str, Any] = {"image": image}
    if head.runtime not in ("", "runc", "io.containerd.runc.v2"):
        found["runtime"] = head.runtime
    if head.gpus:
        found["gpus"] = "all"
    if head.network_mode == "pod":
        notes.append(
            "it was in its pod's network; rigbook's is on the host's: a Service or an Ingress that "
            "led to it leads nowhere, and clients need the host's address"
        )
    elif head.network_mode != "host":
        notes.append(
            f"it was on the network {head.network_mode}; rigbook's is on the host's: no port is "
            "mapped, and other containers reach it by the host's address"
        )
    found["ipc"] = "host" if head.ipc_mode == "host" else "private"
    if head.ipc_mode.startswith("container:"):
        notes.append(f"its IPC was shared with another container ({head.ipc_mode})")
    if head.privileged:
        found["privileged"] = True
    if head.shm_bytes:
        found["shm_size"] = _size(head.shm_bytes)
    for option in head.other_options:
        if not (head.privileged and option.startswith(_PRIVILEGED)):
            notes.append(f"{option} has no key here: it is not set on rigbook's container")
    found["jit_caches"] = False
    found["volumes"] = list(_volumes(head, notes))
    for node, box in boxes:
        if box.changed:
            notes.append(
                f"files in {box.name} on {node.name} were put there or changed by hand, and ours "
                f"starts without: {', '.join(box.changed)}; bring a patch into the image "
                "by hand, mount what is data; a launch script is not needed"
            )
    return found, notes


def _image(boxes: Sequence[tuple[LiveNode, FormerContainer]]) -> tuple[str, list[str]]:
    """The image by digest, else by a name that leads to it, else by id."""
    head = boxes[0][1]
    repository = head.image.partition("@")[0].rpartition(":")[0] or head.image
    digests = sorted(head.digests, key=lambda name: not name.startswith(f"{repository}@"))
    shared = [d for d in digests if all(d in box.digests for _, box in boxes)]
    if boxes[0][0].engine.inside_of == "pod":
        reference = shared[0] if shared else head.image
        return reference, [
            f"{head.image} is in the cluster's store, and docker starts ours: docker pull "
            f"{shlex.quote(reference)}; or sudo ctr -n k8s.io images export - "
            f"{shlex.quote(head.image)} | sudo docker load, and that name here (k3s: k3s ctr)"
        ]
    if shared:
        return shared[0], []
    notes = []
    if len({box.image_id for _, box in boxes}) > 1:
        told = ", ".join(f"{node.name} {box.image_id[:19]}" for node, box in boxes)
        notes.append(
            f"the nodes' images differ ({told}): the head's stands here; serve asks for one image "
            "on all (deploys/image.py brings it)"
        )
    named = [head.image, *head.tags] if head.image in head.tags else list(head.tags)
    if digests and not notes:
        return digests[0], notes
    if named:
        notes.append(
            f"{named[0]} has no digest of a registry: it was built or loaded here, and the tag may "
            "be moved; keep the image"
        )
        return named[0], notes
    short = head.image_id[:19]
    notes.append(
        f"no name leads to {short} any more ({head.image} is another image, or none): give it one, "
        f"docker tag {shlex.quote(short)} adopted/NAME:1, and put that here"
    )
    return head.image, notes


def _volumes(box: FormerContainer, notes: list[str]) -> Iterator[dict[str, Any]]:
    for mount in box.mounts:
        try:
            mount_path(mount.source), mount_path(mount.target)
        except ValueError:
            notes.append(f"the mount {mount.source or 'tmpfs'} at {mount.target} has no place here")
            continue
        row: dict[str, Any] = {"source": mount.source, "target": mount.target}
        yield {**row, "read_only": True} if mount.read_only else row


def _size(size: int) -> str:
    """Bytes as docker's --shm-size takes them."""
    for unit, letter in ((_GIB, "g"), (_MIB, "m"), (1024, "k")):
        if size % unit == 0:
            return f"{size // unit}{letter}"
    return f"{size // 1024 + 1}k"


# What a recipe renders beside what runs: flag by flag, variable by variable, mount by mount.

Kind = Literal["flag", "variable", "mount", "option"]
Verdict = Literal["same", "differs", "secret"]
KINDS: tuple[Kind, ...] = ("flag", "variable", "mount", "option")
NOT_SET = "not set"
# A shell's, a login's, systemd's or docker's own; no engine reads them, and ours has its own.
OWN = re.compile(
    r"(?:HOSTNAME|HOME|PWD|OLDPWD|SHLVL|_|TERM|USER|LOGNAME|SHELL|MAIL|LANG|LANGUAGE|LC_\w+|EDITOR"
    r"|LS_COLORS|LESS\w*|PS1|INVOCATION_ID|JOURNAL_STREAM|SYSTEMD_\w+|MEMORY_PRESSURE_\w+"
    r"|NOTIFY_SOCKET|MAINPID|MANAGERPID\w*|CREDENTIALS_DIRECTORY|XDG_\w+|DBUS_\w+|SSH_\w+|SUDO_\w+"
    r"|TMUX\w*|STY|COLORTERM|VIRTUAL_ENV\w*|KUBERNETES_\w+)\Z"
)
# What systemd gives a service (systemd.exec(5), "Environment Variables in Spawned Processes").
UNIT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"


@dataclass(frozen=True)
class Row:
    """One flag, variable, mount, or option of the container: `ours` is what the recipe renders,
    `live` what runs.
    """

    kind: Kind
    name: str
    verdict: Verdict
    ours: str
    live: str


def compare(
    plan: Plan, node: str, engine: FormerEngine, container: FormerContainer | None
) -> list[Row]:
    """Every flag, variable, mount and option of a node's engine, in words; secrets are compared by
    name.
    """
    spec = plan.specs[node]
    rows = [*_compare_flags(spec, engine), *_variables(spec, engine, container)]
    if container is not None:
        rows += [*_mounts(spec, container), *_options(plan.recipe.container, container)]
    return rows


def _compare_flags(spec: EngineSpec, engine: FormerEngine) -> list[Row]:
    ours, live = parse_command_line(spec.argv), parse_command_line(engine.argv)
    want, have = {**ours.flags, **ours.join}, {**live.flags, **live.join}
    rows = [
        _row("flag", name, _text(want.get(name)), _text(have.get(name)),
             canonical(want.get(name)) == canonical(have.get(name)))
        for name in dict.fromkeys((*want, *have))
    ]  # fmt: skip
    for name in live.secret:
        given = secret_name(name) in spec.secrets
        rows.append(Row("flag", name, "secret" if given else "differs",
                        "from secrets" if given else NOT_SET, MASK))  # fmt: skip
    return rows


def secret_name(flag: str) -> str:
    """The variable that carries a secret flag's value; vLLM reads `api_key` from VLLM_API_KEY."""
    return API_KEY if flag == "api_key" else flag.upper()


def expected(spec: EngineSpec, container: FormerContainer | None) -> dict[str, str]:
    """The environment that our engine gets: the image's, and the recipe's above it."""
    if container is not None:
        return {**container.image_env, **spec.environ}
    path = f"{spec.venv}/bin:{spec.environ.get('PATH', UNIT_PATH)}"
    return {**spec.environ, "PATH": path}


def _variables(
    spec: EngineSpec, engine: FormerEngine, container: FormerContainer | None
) -> list[Row]:
    want, have = expected(spec, container), dict(engine.env)
    if engine.inside_of == "pod" and container is not None:
        # what its image sets is not known, and the cluster adds the addresses of all its services
        have = {n: v for n, v in have.items() if n in container.env or n in want}
    if container is None:
        want["PATH"], have["PATH"] = _path(want["PATH"]), _path(have.get("PATH", ""))
    rows = []
    for name in dict.fromkeys((*want, *have)):
        if name in spec.secrets or (OWN.match(name) and name not in spec.environ):
            continue
        known = have.get(name) == MASK and want.get(name) == MASK
        same = known or want.get(name) == have.get(name)
        rows.append(_row("variable", name, want.get(name, NOT_SET), have.get(name, NOT_SET), same))
    for name in spec.secrets:
        live = name in have or (name == API_KEY and "--api-key" in engine.secret_flags)
        rows.append(Row("variable", name, "secret" if live else "differs", "from secrets",
                        MASK if live else NOT_SET))  # fmt: skip
    return rows


def _path(text: str) -> str:
    """PATH's folders, each once, without those that every Linux has: what may differ."""
    usual = {*UNIT_PATH.split(":"), "/sbin", "/bin", "/snap/bin", "/usr/games", "/usr/local/games"}
    return ":".join(f for f in dict.fromkeys(text.split(":")) if f and f not in usual)


def _mounts(spec: EngineSpec, container: FormerContainer) -> list[Row]:
    want = {target: (source, ro) for source, target, ro in spec.volumes}
    have = {m.target: (m.source, m.read_only) for m in container.mounts}
    return [
        _row("mount", target, _mount(want.get(target)), _mount(have.get(target)),
             want.get(target) == have.get(target))
        for target in dict.fromkeys((*want, *have))
    ]  # fmt: skip


def _options(ours: ContainerSpec | None, live: FormerContainer) -> list[Row]:
    """The image by content, and how the container runs; nothing of it for a venv."""
    if ours is None:
        return [Row("option", "container", "differs", "a venv", live.name)]
    names = {*live.digests, *live.tags, live.image_id}
    # a pod's image is told by the cluster, which knows no names of this host
    leads = ours.image in names or (not live.tags and not live.digests and ours.image == live.image)
    pairs = {
        "privileged": (ours.privileged, live.privileged),
        "gpus": (ours.gpus is not None, live.gpus),
        "ipc": (ours.ipc == "host", live.ipc_mode == "host"),
        "network": ("host", live.network_mode),
    }
    return [
        _row("option", "image", ours.image, live.image if leads else live.image_id, leads),
        *(_row("option", n, str(a).lower(), str(b).lower(), a == b) for n, (a, b) in pairs.items()),
    ]


def _mount(value: tuple[str, bool] | None) -> str:
    return NOT_SET if value is None else value[0] + (" (read-only)" if value[1] else "")


def _row(kind: Kind, name: str, ours: str, live: str, same: bool) -> Row:
    return Row(kind, name, "same" if same else "differs", ours, live)


def _text(value: JsonValue | None) -> str:
    """A flag's value for a line of text."""
    if value is None:
        return NOT_SET
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def canonical(value: JsonValue | None) -> object:
    """Numbers by value (0.90 is 0.9), a list of one as its value, maps without their order."""
    if isinstance(value, list) and len(value) == 1:
        return canonical(value[0])
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, Mapping):
        return {key: canonical(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [canonical(inner) for inner in value]
    try:
        return float(value)
    except ValueError:
        return value


# A recipe that renders to what runs: from the live command lines, environments and containers.
#
# What has no key, or what only a person knows, becomes a note of the section that it belongs to.

Notes = dict[str, list[str]]
DEFAULT_MASTER_PORT = 29501
START_BUDGET_S = 1800
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*\Z")
_FLAG = TypeAdapter[Any](Flags)
# what HAMi's device plugin gives a pod's process (HAMi, Allocate in its server.go), or a chart
_HELD = re.compile(r"CUDA_DEVICE_(?:MEMORY_LIMIT(?:_\d+)?|SM_LIMIT)\Z")
_NAME, _VALUE = TypeAdapter[Any](EnvName), TypeAdapter[Any](EnvValue)


def recipe(nodes: Sequence[LiveNode], day: str) -> tuple[dict[str, Any], Notes]:
    """The recipe as data in the order of its keys, and notes by section ("" for the whole).

    `nodes` in rank order, the head first; `day` is told in the description.
    """
    notes: Notes = {}
    lines = [parse_command_line(node.engine.argv) for node in nodes]
    head, line = nodes[0], lines[0]
    flags = _recipe_flags(nodes, lines, notes)
    secrets = {secret_name(name): None for one in lines for name in one.secret}
    env = _env(nodes, secrets, notes)
    names = ", ".join(node.name for node in nodes)
    model = str(line.flags.get("model", ""))
    found: dict[str, Any] = {
        "model": PurePosixPath(model).name or "unknown",
        "description": f"as it served on {names} on {day}",
        "weights": _weights(head, line, notes),
    }
    found.update(_runtime(nodes, notes))
    found["env"] = env
    if secrets:
        found["secrets"] = {name: {"env": name} for name in secrets}
        told = ", ".join(secrets)
        _note(
            notes,
            "secrets",
            f"export {told} in the shell that runs pyinfra, or name a file; no value was read",
        )
    found["vllm_serve"] = flags
    if len(nodes) > 1:
        port = line.join.get("master_port", DEFAULT_MASTER_PORT)
        found["multi_node"] = {"nnodes": len(nodes), "master_port": port}
    found["default_profile"] = "as_found"
    found["profiles"] = {"as_found": {"description": "as it served", "vllm_serve": {}}}
    found["expect"] = {"start_budget_s": START_BUDGET_S, "needs_nvidia": head.has_gpu}
    _note(
        notes,
        "expect",
        f"start_budget_s: {START_BUDGET_S} is a guess; put in how long a cold start takes. "
        "reasoning and tools: true where its answers have them",
    )
    held = [f"{name}={value}" for name, value in head.engine.env.items() if _HELD.match(name)]
    if held:
        _note(
            notes,
            "vllm_serve",
            f"HAMi held the engine to {', '.join(held)}; nothing holds ours: "
            "gpu_memory_utilization is of the whole card",
        )
    for node, one in zip(nodes, lines, strict=True):
        for name in dict.fromkeys(one.twice):
            _note(
                notes,
                "vllm_serve",
                f"{name} was given more than once on {node.name}; vLLM takes the last value, which "
                "stands here",
            )
    return found, notes


def _note(notes: Notes, section: str, text: str) -> None:
    rows = notes.setdefault(section, [])
    if text not in rows:
        rows.append(text)


def _recipe_flags(
    nodes: Sequence[LiveNode], lines: Sequence[CommandLine], notes: Notes
) -> dict[str, Any]:
    """vllm_serve: the head's flags, and where they differ by node a placeholder."""
    found: dict[str, Any] = {}
    for name in dict.fromkeys(name for line in lines for name in line.flags):
        having = [(n, line.flags[name]) for n, line in zip(nodes, lines, strict=True)
                  if name in line.flags]  # fmt: skip
        value = _one_value([value for _, value in having], [node for node, _ in having])
        told = ", ".join(f"{node.name} {value}" for node, value in having)
        if nodes[0].name != having[0][0].name:
            _note(notes, "vllm_serve", f"{name} stands on {told} only, not on the head: left out")
        elif value is None:
            _note(
                notes,
                "vllm_serve",
                f"{name} differs by node ({told}): the head's value stands here",
            )
            found[name] = having[0][1]
        elif (wrong := _refused({name: value})) is not None:
            _note(notes, "vllm_serve", f"{name} has no place here: {wrong}")
        else:
            found[name] = value
    if "config" in found:
        _note(
            notes,
            "vllm_serve",
            f"config: {found['config']} holds more flags, which are not compared; ours needs the "
            "file at that path",
        )
    ray = [line for line in lines if line.flags.get("distributed_executor_backend") == "ray"]
    if ray and len(nodes) > 1:
        _note(
            notes,
            "vllm_serve",
            "distributed_executor_backend: ray: rigbook starts no Ray, its ranks join by "
            "themselves; remove the flag",
        )
    return found


def _one_value(values: Sequence[JsonValue], nodes: Sequence[LiveNode]) -> Any:
    """The value for all nodes; None when they differ and no placeholder says how."""
    first = values[0]
    if all(canonical(value) == canonical(first) for value in values):
        values = [first] * len(values)
    if all(isinstance(value, str) for value in values):
        return common([str(value) for value in values], nodes)
    if any(value != first for value in values):
        return None
    if isinstance(first, list):
        return [escaped(item) if isinstance(item, str) else item for item in first]
    return first


def _refused(flags: dict[str, Any]) -> str | None:
    """Why a recipe does not take these flags, in a line; None when it does."""
    return _wrong(_FLAG, flags)


def _wrong(adapter: TypeAdapter[Any], value: object) -> str | None:
    try:
        adapter.validate_python(value)
    except ValidationError as error:
        return str(error.errors()[0]["msg"]).removeprefix("Value error, ")
    return None


def _env(nodes: Sequence[LiveNode], secrets: dict[str, None], notes: Notes) -> dict[str, str]:
    """env: the engine's variables beyond the image's, the login's and systemd's own."""
    tables = [dict(_own_variables(node)) for node in nodes]
    found: dict[str, str] = {}
    for name in sorted({name for table in tables for name in table}):
        having = [(n, table[name]) for n, table in zip(nodes, tables, strict=True) if name in table]
        values = [value for _, value in having]
        if MASK in values:
            if is_reported(name):
                _note(notes, "env", f"{name} holds a URL with a password: left out")
            else:
                secrets[name] = None
            continue
        value = common(values, [node for node, _ in having])
        if len(having) < len(nodes):
            where = ", ".join(node.name for node, _ in having)
            _note(notes, "env", f"{name} was set on {where} only; here it is set on all nodes")
        if value is None:
            told = ", ".join(f"{node.name} {value}" for node, value in having)
            _note(notes, "env", f"{name} differs by node ({told}): the first one's stands here")
            value = escaped(values[0])
        wrong = _wrong(_NAME, name) or _wrong(_VALUE, value)
        if wrong or holds_secret(name):
            _note(notes, "env", f"{name} is left out: {wrong or 'a secret by its name'}")
        else:
            found[name] = value
    return found


def _own_variables(node: LiveNode) -> Iterator[tuple[str, str]]:
    """The variables of an engine that its image, its login and systemd do not give it."""
    box = node.container
    # the cluster gives a pod the addresses of all its services
    in_pod = node.engine.inside_of == "pod"
    for name, value in node.engine.env.items():
        if box is None and name == "PATH":
            rest = [f for f in value.split(":") if f != f"{node.engine.venv}/bin"]
            usual = {*UNIT_PATH.split(":"), "/sbin", "/bin", "/snap/bin", "/usr/games",
                     "/usr/local/games"}  # fmt: skip
            if set(rest) - usual:
                yield name, ":".join(dict.fromkeys(rest))
        elif OWN.match(name) or (in_pod and box is not None and name not in box.env):
            continue
        elif box is None or box.image_env.get(name) != value:
            yield name, value


def _weights(head: LiveNode, line: CommandLine, notes: Notes) -> dict[str, str]:
    """weights: the folder on the node; of a hub's name the model's folder in the hub's cache."""
    model = str(line.flags.get("model", ""))
    kind = "gguf" if model.endswith(".gguf") else "safetensors"
    if not model.startswith("/") and _HUB_ID.match(model):
        env = head.engine.env
        home = env.get("HOME") or ("/root" if head.container else head.home)
        hub = env.get("HF_HOME") or f"{home}/.cache/huggingface"
        cache = env.get("HF_HUB_CACHE") or f"{hub}/hub"
        inside = f"{cache}/models--{model.replace('/', '--')}"
        source = model
    else:
        inside = model if model.startswith("/") else f"{head.engine.cwd or ''}/{model}"
        source = f"as found: {model}"
    path = _on_host(head, inside)
    if path is None:
        _note(
            notes,
            "weights",
            f"{inside} lies in no mount: the weights are in the container's own layer or its "
            "image; copy them to a folder of the node and mount it",
        )
    return {"source": source, "path": path or inside, "format": kind}


def _on_host(node: LiveNode, path: str) -> str | None:
    """A path of the engine's as the host has it; None when no mount holds it."""
    if node.container is None:
        return path
    mounts = sorted(node.container.mounts, key=lambda m: len(m.target), reverse=True)
    for mount in mounts:
        target = mount.target.rstrip("/")
        if path == target or path.startswith(f"{target}/"):
            return mount.source.rstrip("/") + path[len(target) :]
    return None


def _runtime(nodes: Sequence[LiveNode], notes: Notes) -> dict[str, Any]:
    """container or venv."""
    head = nodes[0]
    if head.container is None:
        return {"venv": _venv(nodes, notes)}
    found, told = container(nodes)
    for text in told:
        _note(notes, "container", text)
    return {"container": found}


def _venv(nodes: Sequence[LiveNode], notes: Notes) -> dict[str, str]:
    """venv: its folder, who runs it."""
    engine, node = nodes[0].engine, nodes[0]
    if len(nodes) > 1:
        _note(notes, "", "rigbook serves a venv on one node only; these are several")
    if engine.venv is None:
        _note(notes, "venv", f"pid {engine.pid} runs in no venv ({engine.exe}); rigbook needs one")
    found = {"path": engine.venv or "/opt/vllm"}
    if engine.user is not None and engine.user != node.ssh_user:
        found["user"] = engine.user
    _note(notes, "venv", "version: and wheels: are left open; an upgrade needs them")
    return found


# The three files that say what serves: inventory, group data, recipe; as text.

# What a section is told in a comment, beside the notes.
_SAID = {
    "container": "jit_caches: as it was, compiled kernels go with the container; with true they "
    "are kept on the node, and the next start has them.",
}
# What pyinfra is told by, and nobody shall find in a file.
_NOT_WRITTEN = ("ssh_password", "ssh_key_password")


@dataclass(frozen=True)
class Written:
    """The files by path from the project's root, and what a person has to look at."""

    files: Mapping[str, str]
    needs: tuple[str, ...]


def written(
    name: str,
    nodes: Sequence[LiveNode],
    started_by: Mapping[str, Sequence[str]],
    ssh: Mapping[str, Mapping[str, object]],
    day: str,
) -> Written:
    """inventory/NAME.py, group_data/NAME.py and catalog/recipes/NAME.yaml for these nodes, in rank
    order.

    `started_by`: the names of each node's supervisors. `ssh`: each host's ssh_ keys in the
    inventory that is in use. `day`: for the texts.
    """
    data, notes = recipe(nodes, day)
    comments = [f"# from {line}" for line in _from(nodes, started_by)]
    per_host = {key for keys in ssh.values() for key in keys
                if len({str(keys.get(key)) for keys in ssh.values()}) > 1}  # fmt: skip
    per_host.add("ssh_hostname")
    secret = sorted({key for keys in ssh.values() for key in keys} & set(_NOT_WRITTEN))
    files = {
        f"inventory/{name}.py": _inventory(name, nodes, ssh, per_host, day),
        f"group_data/{name}.py": _group_data(name, nodes, ssh, per_host, secret),
        f"catalog/recipes/{name}.yaml": _recipe(name, data, notes, comments, day),
    }
    needs = [f"{section}: {text}" if section else text
             for section, rows in notes.items() for text in rows]  # fmt: skip
    needs += [f"group_data: {key} is not written; pyinfra asks for it" for key in secret]
    return Written(files, tuple(needs))


def _from(nodes: Sequence[LiveNode], started_by: Mapping[str, Sequence[str]]) -> list[str]:
    lines = []
    for node in nodes:
        engine, box = node.engine, node.container
        where = f"container {box.name} ({box.image})" if box else f"{engine.venv or engine.exe}"
        by = ", ".join(started_by.get(node.name, ())) or "nobody"
        lines.append(f"{node.name}: pid {engine.pid} in {where}, started by {by}")
    return lines


def _inventory(
    name: str,
    nodes: Sequence[LiveNode],
    ssh: Mapping[str, Mapping[str, object]],
    per_host: set[str],
    day: str,
) -> str:
    rows = []
    for node in nodes:
        keys: dict[str, object] = {"ssh_hostname": node.lan_address}
        keys.update({key: value for key, value in ssh.get(node.name, {}).items()
                     if key in per_host and key not in (*_NOT_WRITTEN, "ssh_user")})  # fmt: skip
        keys["role"] = "worker" if node.rank else "head"
        if node.rank > 1:
            keys["rank"] = node.rank
        keys["lan_address"] = node.lan_address
        if node.fabric_address is not None:
            keys["fabric_address"] = node.fabric_address
        if node.home != usual_home(node.ssh_user):
            keys["home"] = node.home
        lines = "".join(f'            "{key}": {_literal(value)},\n' for key, value in keys.items())
        rows.append(f'    (\n        "{node.name}",\n        {{\n{lines}        }},\n    ),\n')
    return (
        f'"""The rig {name}, as deploys/adopt.py found it on {day}."""\n\n'
        "from deploys.plans.cli import own_folder\n\nown_folder()\n\n"
        f"{name} = [\n{''.join(rows)}]\n"
    )


def usual_home(user: str) -> str:
    """The home that a login user has on most hosts."""
    return "/root" if user == "root" else f"/home/{user}"


def _group_data(
    name: str,
    nodes: Sequence[LiveNode],
    ssh: Mapping[str, Mapping[str, object]],
    per_host: set[str],
    secret: Sequence[str],
) -> str:
    head = nodes[0]
    keys: dict[str, object] = {"ssh_user": head.ssh_user}
    for key, value in ssh.get(head.name, {}).items():
        if key not in per_host and key not in _NOT_WRITTEN:
            keys[key] = value
    keys.update(rig=name, recipe=name)
    if head.fabric_device is not None:
        keys.update(fabric_device=head.fabric_device, fabric_mtu=head.fabric_mtu)
    lines = [f"{key} = {_literal(value)}\n" for key, value in keys.items()]
    told = [f"# needs you: {key} is not written here\n" for key in secret]
    return f'"""What is common to the nodes of {name}."""\n\n{"".join([*lines, *told])}'


def _literal(value: object) -> str:
    """A value as Python writes it; a path as its text."""
    return repr(value) if isinstance(value, int | float) else json.dumps(str(value))


def _recipe(
    name: str, data: Mapping[str, Any], notes: Notes, comments: Sequence[str], day: str
) -> str:
    """The recipe's text: each section with its notes above it."""
    head = [f"# Written on {day} by: deploys/adopt.py --data write={name}"]
    head += map(printable, (*comments, *(f"# needs you: {text}" for text in notes.get("", ()))))
    parts = ["\n".join(head) + "\n"]
    for key, value in data.items():
        lines = "".join(f"# needs you: {printable(text)}\n" for text in notes.get(key, ()))
        lines += f"# {_SAID[key]}\n" if key in _SAID else ""
        text = yaml.safe_dump({key: value}, sort_keys=False, allow_unicode=True, width=100)
        gap = "\n" if isinstance(value, dict) or lines or key == "default_profile" else ""
        parts.append(f"{gap}{lines}{text}")
    return "".join(parts)
