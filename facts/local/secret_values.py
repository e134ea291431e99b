"""The values of a recipe's secrets that this machine has: of its shell, and of its files."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from node.rules.secret import API_KEY, MAX_VALUE, unfit
from schema.core.secret import Secret
from schema.desired.plan import Plan
from schema.recipe.secrets import SecretSource


class SecretMissing(Exception):
    """The value cannot be had here: `str()` says why, `remedy` what to do; neither quotes it."""

    def __init__(self, line: str, remedy: str) -> None:
        super().__init__(line)
        self.remedy = remedy


def value_of(name: str, source: SecretSource) -> Secret | None:
    """The value of the secret `name`; None where the nodes have it. Raises SecretMissing."""
    if source.env is not None:
        value, said = os.environ.get(source.env, ""), f"the variable {source.env} of this shell"
        remedy = f"read -rs {source.env}; export {source.env}"
        if source.env not in os.environ:
            raise SecretMissing(f"{name}: {said} is not set", remedy)
    elif source.file is not None:
        value, said = _of_file(name, source.file), source.file
        remedy = f"write the secret into {source.file}, as one line"
    else:
        return None
    wrong = unfit(name, value)
    if wrong:
        raise SecretMissing(f"{name}: {said} {wrong}", remedy)
    return Secret(value)


def _of_file(name: str, path: str) -> str:
    """The one line of a file of this machine. Raises SecretMissing."""
    try:
        with Path(path).expanduser().open("rb") as file:
            mode, raw = os.fstat(file.fileno()).st_mode, file.read(MAX_VALUE + 3)
        text = raw.decode("utf-8")
    except (OSError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or "there is no home"
        raise SecretMissing(
            f"{name}: {path} cannot be read: {why}", f"write the secret into {path}, as one line"
        ) from None
    except UnicodeDecodeError:
        raise SecretMissing(f"{name}: {path} is not UTF-8 text", "write it anew") from None
    if stat.S_IMODE(mode) & stat.S_IRWXO:
        raise SecretMissing(f"{name}: {path} is open to every user", f"chmod o= {path}")
    return text.removesuffix("\n").removesuffix("\r")


def api_key(plan: Plan) -> Secret | None:
    """The key that the recipe gives its engine; None where it gives none, or not from here."""
    source = plan.recipe.secrets.get(API_KEY)
    try:
        return value_of(API_KEY, source) if source is not None else None
    except SecretMissing:
        return None
