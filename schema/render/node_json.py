"""node.json: what a node's own program knows of its engine (node/engine/config.py reads it)."""

from __future__ import annotations

import json

from schema.desired.plan import CONTAINER, UNIT, EngineSpec
from schema.desired.rig import Node, Rig
from schema.recipe.recipe import Recipe
from schema.render.start_budget import FABRIC_WAIT_S, cpu_memory, devices, gpus_needed, utilization

FORMAT = 1


def node_file(rig: Rig, node: Node, recipe: Recipe, spec: EngineSpec) -> str:
    """The file's text; the same plan gives the same bytes. It holds no secret."""
    document: dict[str, object] = {
        "format": FORMAT,
        "rig": rig.name,
        "node": node.name,
        "role": node.role,
        "rank": node.rank,
        "unit": UNIT,
        "container": CONTAINER if recipe.container else None,
        "image": recipe.container.image if recipe.container else None,
        "fabric": _fabric(rig, node),
        "peers": [str(n.fabric_address) for n in rig.nodes if n.name != node.name],
        "master": _master(rig, recipe),
        "endpoint": endpoint(rig, recipe) if node.role == "head" else None,
        "ports": _ports(node, recipe),
        "start_budget_s": recipe.expect.start_budget_s,
        "memory": _memory(rig, recipe, spec),
        "needs_nvidia": recipe.expect.needs_nvidia,
        "weights": spec.weights,
    }
    if recipe.venv is not None:
        document["venv"] = {"path": spec.venv, "user": spec.user, "version": recipe.venv.version}
    return json.dumps(document, indent=1, sort_keys=True, allow_nan=False) + "\n"


def _memory(rig: Rig, recipe: Recipe, spec: EngineSpec) -> dict[str, object]:
    """What the start will ask for; `devices` where the engine does not get all GPUs."""
    nvidia = recipe.expect.needs_nvidia
    need: dict[str, object] = {
        "gpu_memory_utilization": utilization(spec),
        "gpus": gpus_needed(rig, spec) if nvidia else 0,
        "cpu_bytes": 0 if nvidia else cpu_memory(rig, spec),
    }
    chosen = devices(recipe, spec)
    if nvidia and chosen is not None:
        need["devices"] = list(chosen)
    return need


def endpoint(rig: Rig, recipe: Recipe) -> dict[str, object]:
    """Where the rig's head answers, and what is asked of it."""
    return {
        "url": f"http://{rig.head.lan_address}:{recipe.port}",
        "model": recipe.served_model_name,
        "reasoning": recipe.expect.reasoning,
        "chat_template_kwargs": recipe.expect.chat_template_kwargs,
    }


def _fabric(rig: Rig, node: Node) -> dict[str, object] | None:
    if rig.fabric is None or node.fabric_device is None or len(rig.nodes) == 1:
        return None
    return {
        "device": node.fabric_device,
        "address": str(node.fabric_address),
        "mtu": rig.fabric.mtu,
        "wait_s": FABRIC_WAIT_S,
    }


def _master(rig: Rig, recipe: Recipe) -> dict[str, object] | None:
    if recipe.multi_node is None:
        return None
    return {"address": str(rig.head.fabric_address), "port": recipe.multi_node.master_port}


def _ports(node: Node, recipe: Recipe) -> list[int]:
    """The ports that must be free for this node's start; an orphan of either role holds them."""
    ports = [recipe.port] if node.role == "head" else []
    if recipe.multi_node is not None:
        ports.append(recipe.multi_node.master_port)
    return ports
