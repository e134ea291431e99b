"""A recipe that renders to what runs: from the live command lines, environments and containers.

What has no key, or what only a person knows, becomes a note of the section that it belongs to.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any

from pydantic import JsonValue, TypeAdapter, ValidationError

from node.rules.secret import MASK, holds_secret, is_reported
from schema.adoption.command_line import CommandLine, parse
from schema.adoption.compare import OWN, UNIT_PATH, canonical, secret_name
from schema.adoption.container import container
from schema.adoption.live import LiveNode, common, escaped
from schema.recipe.recipe import EnvName, EnvValue, Flags

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
    lines = [parse(node.engine.argv) for node in nodes]
    head, line = nodes[0], lines[0]
    flags = _flags(nodes, lines, notes)
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


def _flags(nodes: Sequence[LiveNode], lines: Sequence[CommandLine], notes: Notes) -> dict[str, Any]:
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
