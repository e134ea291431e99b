"""From a rig's data to its twin's: names, users, paths; addresses on the lab's links.

Nothing of the twin leads to the rig, or out of this machine: what would is left out, and told.
"""

from __future__ import annotations

import json
import pprint
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.core.settings import (
    FABRIC_DEVICE,
    FABRIC_MTU,
    MAX_HOSTS,
    SSH_USER,
    LabError,
    LabSettings,
    Place,
    Twin,
)
from lab.rehearsal.recipe import image_of, name_of, twin_recipe
from schema.core.errors import SpecError
from schema.inputs import load

ROOT = Path(__file__).resolve().parents[2]
# Keys that lead out of the twin, or name hardware that it has not; with what stands in their place.
LEFT_OUT: dict[str, Any] = {
    "webhook": None, "webhook_file": None, "url": None, "power_cycle_command": None, "mac": None,
    "nic": None, "hcas": (), "uncabled": (), "driver_module": None, "home": None,
    "former_rig": None,
}  # fmt: skip
# What no twin of containers on one machine can show.
NEVER = (
    "NCCL and RDMA: ranks talk over gloo on a veth",
    "VRAM: nvidia-smi is a stand-in, and the engine computes on the CPU",
    "real speed: a 2-layer model on shared cores; no figure of a twin is a figure",
    "kernel, GRUB and reboots into another kernel: the VM tier has them (make test-vm)",
    "POST, BIOS, Wake-on-LAN, a power cut: they need the board",
    "memory that runs out: all hosts share this machine's",
)


@dataclass(frozen=True)
class Shape:
    """A twin before it is made. `data` and `recipe` are what its files hold."""

    of: str
    twin: Twin
    data: Mapping[str, Mapping[str, Any]]
    recipe_name: str
    recipe: Mapping[str, Any]
    image: str
    weights: str
    venv: str
    wheels: str
    differs: tuple[str, ...]

    @property
    def is_venv(self) -> bool:
        """Whether the engine lives in a venv, on a tower."""
        return bool(self.venv)


def folder(place: Place, of: str) -> Path:
    """Where the twin's own files are, from the project's root; git ignores it."""
    return Path("build", place.name, of)


def shape(
    settings: LabSettings,
    inventory: str,
    hosts: Mapping[str, Mapping[str, Any]],
) -> Shape:
    """The twin of the rig in `inventory`, whose hosts have this data.

    LabError for a rig that cannot have one, and where its data does not fit.
    """
    try:
        plan = load.plan(hosts, None, ROOT)
    except SpecError as error:
        raise LabError(f"{inventory}: {'; '.join(error.problems)}") from None
    of, nodes = Path(inventory).stem, plan.rig.nodes
    if plan.runtime == "deployment":
        raise LabError(f"{inventory}: a Kubernetes rig has no twin; make test-cluster has its lab")
    if len(nodes) > MAX_HOSTS:
        raise LabError(f"{inventory}: {len(nodes)} hosts; allowed: up to {MAX_HOSTS}")
    if plan.runtime == "venv" and len(nodes) > 1:
        raise LabError(f"{inventory}: a rig of several towers has no twin")
    users = {node.ssh_user for node in nodes}
    if len(users) > 1 or users & {"root", SSH_USER}:
        raise LabError(
            f"{inventory}: ssh_user is {', '.join(sorted(users))}; allowed: one user, "
            f"not root, not {SSH_USER}"
        )
    recipe, out = twin_recipe(plan.recipe, len(nodes))
    place = settings.place
    made = place.towers(1) if plan.runtime == "venv" else place.hosts(len(nodes))
    path = folder(place, of)
    data: dict[str, dict[str, Any]] = {}
    rows = []
    for node, host in zip(nodes, made, strict=True):
        own = {
            **_kept(hosts[node.name]),
            "ssh_hostname": host.address, "ssh_port": 22, "ssh_user": node.ssh_user,
            "ssh_key": str(settings.ssh_key), "ssh_known_hosts_file": str(settings.known_hosts),
            "ssh_strict_host_key_checking": "yes",
            "rig": f"{plan.rig.name}-twin", "rank": node.rank, "lan_address": host.address,
            "recipe": name_of(plan.recipe), "recipes_dir": [str(path / "recipes")],
        }  # fmt: skip
        text = f"{node.name}: {node.lan_address} is {host.address}"
        if len(nodes) > 1:
            own |= {"fabric_address": host.fabric_address, "fabric_device": FABRIC_DEVICE,
                    "fabric_mtu": FABRIC_MTU}  # fmt: skip
            text += f", {node.fabric_address} on {node.fabric_device} is {host.fabric_address} on "
            text += FABRIC_DEVICE
        data[node.name] = own
        rows.append(text)
    rows += [f"rig: {plan.rig.name} is {plan.rig.name}-twin", *_silent(hosts), *out]
    venv = plan.recipe.venv
    return Shape(
        of=of,
        twin=Twin(
            tuple(node.name for node in nodes), users.pop(),
            str(path / "inventory" / f"{of}.py"),
        ),
        data=data, recipe_name=name_of(plan.recipe), recipe=recipe, image=image_of(plan.recipe),
        weights=plan.recipe.weights.path, venv=str(venv.path) if venv else "",
        wheels=str(venv.wheels or "") if venv else "", differs=tuple(rows),
    )  # fmt: skip


def _kept(data: Mapping[str, Any]) -> dict[str, Any]:
    """A host's data without what leads out; group_data is read again, so each has its stand-in."""
    own = {key: value for key, value in data.items() if not key.startswith("ssh_")}
    own |= {key: LEFT_OUT[key] for key in own if key in LEFT_OUT}
    return own | {key: None for key in data if key.startswith("ssh_")}


def _silent(hosts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The keys that were left out, without their values: a webhook's is its password."""
    found = sorted(
        {key for data in hosts.values() for key in data if data[key] and key in LEFT_OUT}
    )
    return [f"not on the twin: {', '.join(found)}"] if found else []


def files(made: Shape) -> dict[str, str]:
    """The twin's inventory and recipe: path from the project's root → text."""
    root = Path(made.twin.inventory).parents[1]
    hosts = pprint.pformat([(name, dict(data)) for name, data in made.data.items()],
                           sort_dicts=False, width=99)  # fmt: skip
    inventory = (
        f'"""TWIN of {made.of}, made by `make rehearse`: rehearsal hosts. Not the rig."""'
        "\n\nfrom deploys.common.cli_guards import own_folder\n\nown_folder()\n\n"
        # its own group: group_data of this name is read for the twin too, and stands below it
        f"{made.of if made.of.isidentifier() else 'twin'} = {hosts}\n"
    )
    # JSON is YAML; the recipe's order is kept
    recipe = f"# TWIN, made by `make rehearse`\n{json.dumps(made.recipe, indent=1)}\n"
    return {
        made.twin.inventory: inventory,
        str(root / "recipes" / f"{made.recipe_name}.yaml"): recipe,
    }


def told(made: Shape) -> list[str]:
    """What differs from the rig and what the twin cannot show, in lines."""
    return [
        *(f"  differs: {row}" for row in made.differs),
        *(f"  cannot be shown: {row}" for row in NEVER),
    ]
