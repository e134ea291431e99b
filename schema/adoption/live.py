"""What is known of one node that serves by other means, and values that differ by node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from schema.observed.former import FormerContainer, FormerEngine
from schema.recipe.placeholders import check_placeholders


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
