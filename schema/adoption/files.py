"""The three files that say what serves: inventory, group data, recipe; as text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from node.rules.patterns import printable
from schema.adoption.live import LiveNode
from schema.adoption.recipe import Notes, recipe

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
        "from deploys.common.cli_guards import own_folder\n\nown_folder()\n\n"
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
