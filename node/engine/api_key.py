"""The key that this host's engine wants of its clients: what its secrets say, never in a log."""

from __future__ import annotations

import os

from node.engine.config import Engine
from node.files import secret_env
from node.rules.secret import API_KEY, SECRETS_PATH


def path() -> str:
    """Gives the file of the secrets; RIGBOOK_SECRETS names another one (tests)."""
    return os.environ.get("RIGBOOK_SECRETS") or SECRETS_PATH


def key_of(engine: Engine) -> str | None:
    """Gives the key, or None: there is none, or it is not ours to read.

    A venv's unit has it in its environment, and its user may not read the file.
    """
    quoted = engine.venv is not None
    key = os.environ.get(API_KEY) or secret_env.value_of(path(), API_KEY, quoted)
    # An HTTP header takes no other, and the error about it would quote it.
    return key if key and key.isascii() and key.isprintable() else None
