"""Bundles of evidence of engines that were silent."""

from __future__ import annotations

from functools import partial

from node.files import evidence_folder
from node.growth.item import Item


def bundles() -> list[Item]:
    """Gives the bundles, newest first."""
    return [
        Item(row.path, row.bytes, partial(evidence_folder.remove, row.path))
        for row in evidence_folder.bundles()
    ]
