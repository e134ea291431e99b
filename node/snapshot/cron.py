"""The lines of the crontabs that start an engine or a container: another supervisor (cron(8))."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator

from node.core import masking
from node.core.errors import CannotRead, Json, io_reason
from node.rules.secret import MASK
from node.systemd import scripts

SYSTEM = "/etc/crontab"
FOLDER = "/etc/cron.d"
# Debian's; only root reads it
USERS = "/var/spool/cron/crontabs"
# cron leaves files of other names alone (cron(8), "/etc/cron.d")
_READ = re.compile(r"^[A-Za-z0-9_-]+$")
_SETTING = re.compile(r"^[A-Za-z_]\w*\s*=")


def _files() -> Iterator[tuple[str, str | None]]:
    """Gives (path, user) of each crontab; the user is None where its lines name one."""
    yield SYSTEM, None
    for path in sorted(glob.glob(f"{FOLDER}/*")):
        if _READ.match(os.path.basename(path)):
            yield path, None
    for path in sorted(glob.glob(f"{USERS}/*")):
        yield path, os.path.basename(path)


def _lines(path: str) -> list[str]:
    """Gives a crontab's lines; none when there is no such file. Raises CannotRead."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().splitlines()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return []
    except OSError as error:
        raise CannotRead(f"{path}: {io_reason(error)}") from None


def masked(text: str) -> str:
    """Gives a command line's text with the values of secrets masked; runs of blanks become one."""
    told = masking.masked_argv(text.split())
    rows = (word.partition("=") for word in told)
    return " ".join(
        f"{name}={MASK}" if equals and masking.is_secret(name.strip("'\""), value)
        else name + equals + value
        for name, equals, value in rows
    )  # fmt: skip


def read() -> list[Json]:
    """Gives the lines that start an engine or a container, scripts read one level deep.

    Raises CannotRead for a crontab that is there and cannot be read.
    """
    found: list[Json] = []
    for path, owner in _files():
        for number, raw in enumerate(_lines(path), 1):
            line = raw.strip()
            if not line or line.startswith("#") or _SETTING.match(line):
                continue
            at_boot = line.startswith("@reboot")
            parts = line.split(None, (1 if line.startswith("@") else 5) + (owner is None))
            lines = scripts.starting(parts[-1])
            if lines:
                found.append({
                    "file": path,
                    "line": number,
                    "user": owner or parts[-2],
                    "at_boot": at_boot,
                    "text": masked(line),
                    "words": scripts.words(lines),
                })  # fmt: skip
    return found
