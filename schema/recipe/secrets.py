"""Where the values of an engine's secrets come from. The values themselves stand in no recipe."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Annotated

from pydantic import AfterValidator, model_validator

from node.rules.secret import holds_secret, is_reported
from schema.core.base import Frozen
from schema.core.strings import env_name, home_path, single_line

# what glibc of every program that systemd starts obeys, before env -i can clear it
LOADS_CODE = re.compile(r"(?:LD_\w+|GCONV_PATH|GLIBC_TUNABLES|LOCPATH|NLSPATH)\Z")
_SOURCES = ("env", "file", "node_file")


def operator_path(value: str) -> str:
    """A path on the operator's machine: absolute, or below the home (`~/`)."""
    if not single_line(value).startswith(("/", "~/")):
        raise ValueError("is not a path on this machine; allowed: /a/path or ~/a/path")
    return value


class SecretSource(Frozen):
    """One source: a variable of the operator's shell, a file of the operator's, or a file on each
    node (`~`: the login user's home there).
    """

    env: Annotated[str, AfterValidator(env_name)] | None = None
    file: Annotated[str, AfterValidator(operator_path)] | None = None
    node_file: Annotated[str, AfterValidator(home_path)] | None = None

    @model_validator(mode="after")
    def _one_source(self) -> SecretSource:
        named = [name for name in _SOURCES if getattr(self, name) is not None]
        if len(named) != 1:
            told = f"names {' and '.join(named)}" if named else "names no source"
            raise ValueError(f"{told}; allowed: one of {', '.join(_SOURCES)}")
        return self


def check_names(secrets: Mapping[str, SecretSource]) -> Mapping[str, SecretSource]:
    """The secrets, when no host would report the value of one; else ValueError."""
    for name in filter(is_reported, secrets):
        prefix = name.partition("_")[0]
        raise ValueError(
            f"{name} would be told: rigbook reports variables of {prefix}_, and masks those with "
            "TOKEN, KEY, SECRET, PASSWORD or AUTH in the name; allowed: another name"
        )
    return secrets


def check_public(values: Mapping[str, str]) -> Mapping[str, str]:
    """The values, when none is a secret by its name; else ValueError with the way out."""
    for name in filter(holds_secret, values):
        way = f"allowed: secrets: {{{name}: {{env: NAME}}}}, or file or node_file for env"
        raise ValueError(f"{name} is a secret by its name; {way}")
    return values


def conflicts(
    secrets: Mapping[str, SecretSource], env: Collection[str], forbidden: Mapping[str, str]
) -> Iterator[str]:
    """What is wrong with the secrets beside the recipe's other keys, a line each."""
    for name in secrets:
        if LOADS_CODE.match(name):
            yield f"secrets.{name}: loads code into root's programs too; allowed: under env"
        if name in env:
            yield f"secrets.{name}: stands under env as well; allowed: one of them"
        if name in forbidden:
            yield f"secrets.{name}: is forbidden by this recipe: {forbidden[name]}"
