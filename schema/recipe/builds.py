"""For which builds of the engine something of a recipe is meant: a patch, a module."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from schema.core.base import Frozen
from schema.core.strings import single_line
from schema.observed.artifact import Module, relative_path
from schema.recipe.compatibility import Range


class Unless(Frozen):
    """A text in a file of the build, whose folders may be `*`, that shows that it needs no mend."""

    path: Annotated[str, AfterValidator(relative_path)]
    contains: Annotated[str, AfterValidator(single_line), Field(min_length=1)]


class Needed(Frozen):
    """What only some builds need: those of `versions` of the engine (None: all), and among them
    not those in which `unless` is found. A build that does not tell its version needs it.
    """

    versions: Range | None = None
    unless: Unless | None = None


class NeededModule(Module, Needed):
    """A module that the engine imports only when it runs."""
