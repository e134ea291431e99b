"""A neighbour's YAML, read as their launchers read it (PyYAML's safe loader).

Where a key is given twice the last one counts, which is told; anchors are followed.
"""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from schema.core.errors import SpecError, shown
from schema.core.yaml_file import MAX_BYTES

# what a recipe's anchors may make of it; each alias of an alias may multiply it
_MAX_NODES = 100_000


class _Loader(yaml.SafeLoader):
    """SafeLoader that remembers which keys it met twice."""

    twice: list[str]

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        self.twice += sorted({name for name in names if names.count(name) > 1})
        return super().construct_mapping(node, deep)


def _weight(node: yaml.Node, known: dict[int, int]) -> int:
    """How many values the node is with its aliases written out; ValueError for one in itself."""
    if id(node) not in known:
        known[id(node)] = -1
        inner = node.value if isinstance(node, yaml.CollectionNode) else ()
        parts = [part for row in inner for part in (row if isinstance(row, tuple) else (row,))]
        known[id(node)] = 1 + sum(_weight(part, known) for part in parts)
    if known[id(node)] < 0:
        raise ValueError("an alias stands in what it stands for")
    return known[id(node)]


def keys_of(file: Path) -> dict[str, object]:
    """The map in the file; an empty one where it cannot be read."""
    try:
        return read(file)[0]
    except SpecError:
        return {}


def read(file: Path) -> tuple[dict[str, object], list[str]]:
    """The map in the file, and the keys that stand twice. SpecError: one line that says why not."""
    try:
        text = file.read_bytes()
        if len(text) > MAX_BYTES:
            raise SpecError(f"{file}: is {len(text)} bytes; allowed: {MAX_BYTES} or fewer")
        loader = _Loader(text.decode())
        loader.twice = []
        root = loader.get_single_node()
        if root is not None and _weight(root, {}) > _MAX_NODES:
            raise SpecError(
                f"{file}: grows beyond {_MAX_NODES} values by its aliases; allowed: less"
            )
        data = None if root is None else loader.construct_document(root)
    except OSError as error:
        raise SpecError(f"{file}: cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        line = " ".join(str(error).split()) or "is nested too deeply"
        raise SpecError(f"{file}: {line}; allowed: valid YAML") from None
    if not isinstance(data, dict):
        raise SpecError(f"{file}: is {shown(data)}; allowed: a recipe, a map of keys and values")
    return {str(key): value for key, value in data.items()}, loader.twice
