"""The base of every rigbook type: frozen, and closed to keys nobody declared."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator

from node.rules.patterns import printable

# the pattern of node/core/validate.py: of a change or a backup. It becomes a file's name on the
# operator's machine, and a word of the commands that a person is told
Id = Annotated[str, Field(pattern=r"^[0-9A-Za-z][0-9A-Za-z._-]{5,80}$")]
# what a host says where it could not do what was asked: no escape and no newline
PrintableLine = Annotated[str, AfterValidator(printable)]


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
