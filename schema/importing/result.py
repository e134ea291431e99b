"""What an import gives: the recipe as plain data, and the words about what nothing here took."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from node.rules.secret import has_credentials, holds_secret
from schema.core.errors import shown
from schema.core.parse import build
from schema.importing.neighbour import Launcher
from schema.recipe.recipe import Recipe


@dataclass
class Imported:
    """A recipe of ours as plain data, with what is to be said about it. `file` is the
    neighbour's, as errors name it.
    """

    name: str
    file: str
    launcher: Launcher
    data: dict[str, Any]
    needs: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def without(self, key: str, value: object) -> None:
        """Names a key that has no counterpart, with its value where that is one that all may read:
        the text goes into a file of the project."""
        plain = isinstance(value, str | int | float) and not holds_secret(key.rpartition(".")[2])
        told = f": {shown(value)}" if plain and not has_credentials(str(value)) else ""
        self.needs.append(f"{key}: has no counterpart{told}")

    def recipe(self) -> Recipe:
        """The same as the loader takes it; SpecError names what it does not take."""
        return build(Recipe, self.data, lambda key: self.file, given={"name": self.name})
