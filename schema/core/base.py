"""The base of every rigbook type: frozen, and closed to keys nobody declared."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, field_validator

from schema.core.parse import printable


class Frozen(BaseModel):
    """A value that cannot change and that refuses unknown keys (`extra="forbid"`)."""

    # built at first use: a run pays for the types that it meets, not for all of them
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    def to_json(self) -> dict[str, Any]:
        """The value as plain data: what pyinfra's `fact` and `debug-inventory --json` print."""
        return self.model_dump(mode="json")


class Said(Frozen):
    """What a host says in short texts, each one line that a terminal only shows: nobody on that
    host writes a line of rigbook's, or moves the cursor.
    """

    @field_validator("*", mode="before")
    @classmethod
    def _one_line(cls, value: object) -> object:
        if isinstance(value, list | tuple):
            return tuple(cls._one_line(each) for each in value)
        return printable(value.replace("\n", " ")) if isinstance(value, str) else value
