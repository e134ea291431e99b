"""What of an environment or a command line may leave the host."""

from __future__ import annotations

import re
from collections.abc import Iterable

from node.rules.secret import (
    MASK,
    SECRET_FLAG,
    SECRET_NAME,
    WATCHED,
    has_credentials,
    holds_secret,
)

# a path list of an engine is a few KB; a process of anybody may have 2 MB
MAX_VALUE = 32 << 10
_ENV_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")


def watched_environ(environ: dict[str, str]) -> dict[str, str]:
    """Gives the variables that rigbook watches, sorted; values of secrets are masked."""
    return {
        name: MASK if SECRET_NAME.search(name) else environ[name][:MAX_VALUE]
        for name in sorted(environ)
        if name.startswith(WATCHED)
    }


def masked_cmdline(text: str) -> str:
    """Gives a kernel's command line with the values of secrets masked: set_credential=… too."""
    pairs = (word.partition("=") for word in text.split())
    return " ".join(
        f"{name}={MASK}" if value and (SECRET_NAME.search(name) or "credential" in name)
        else f"{name}{equals}{value}" for name, equals, value in pairs
    )  # fmt: skip


def is_secret(name: str, value: str) -> bool:
    """Gives True for a variable whose value nobody is to see, by its name or by a URL's password.

    A number, a word such as `false` or a path is none, whatever the name (TOKENIZERS_PARALLELISM).
    """
    if holds_secret(name) or has_credentials(value):
        return True
    return bool(SECRET_NAME.search(name)) and len(value) > 5 and not value.startswith("/")


def masked_argv(argv: Iterable[str]) -> tuple[str, ...]:
    """Gives argv with the values of --api-key and its like masked.

    `--api-key` of vLLM takes several values, so all up to the next option are masked.
    """
    out: list[str] = []
    hiding = False
    for arg in argv:
        flag, equals, _ = arg.partition("=")
        if SECRET_FLAG.match(flag):
            hiding = not equals
            out.append(f"{flag}={MASK}" if equals else arg)
        elif hiding and not arg.startswith("-"):
            out.append(MASK)
        else:
            hiding = False
            out.append(arg)
    return tuple(out)


def masked_labels(labels: dict[str, str]) -> dict[str, str]:
    """Gives a container's labels, sorted, with the values of secrets masked."""
    return {
        name: MASK if SECRET_NAME.search(name) else str(labels[name]) for name in sorted(labels)
    }


def masked_env_file(text: str, every: bool = False) -> str | None:
    """Gives an environment file's text with the values of secrets masked; with `every` all values,
    and the words of comments.

    None when a line is neither NAME=VALUE, a comment nor empty: it is then no environment file,
    and what it holds is not ours to tell.
    """
    out: list[str] = []
    for line in text.splitlines(keepends=True):
        name, equals, _ = line.partition("=")
        if line.strip() and not line.startswith("#") and not (equals and _ENV_NAME.match(name)):
            return None
        ending = line[len(line.rstrip("\r\n")) :]
        if line.startswith("#"):
            out.append(f"#{ending}" if every else line)
        else:
            secret = equals and (every or SECRET_NAME.search(name))
            out.append(f"{name}={MASK}{ending}" if secret else line)
    return "".join(out)
