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


class _Loader(yaml.SafeLoader):
    """SafeLoader that remembers which keys it met twice."""

    twice: list[str]

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        self.twice += sorted({name for name in names if names.count(name) > 1})
        return super().construct_mapping(node, deep)


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
        data = loader.get_single_data()
    except OSError as error:
        raise SpecError(f"{file}: cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        line = " ".join(str(error).split()) or "is nested too deeply"
        raise SpecError(f"{file}: {line}; allowed: valid YAML") from None
    if not isinstance(data, dict):
        raise SpecError(f"{file}: is {shown(data)}; allowed: a recipe, a map of keys and values")
    return {str(key): value for key, value in data.items()}, loader.twice
