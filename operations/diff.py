"""How a change looks to the operator before it is made: a unified diff, secrets masked."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from pyinfra.api import Host
from pyinfra.api.output import format_text

_SECRET = re.compile(r"^([+ -]?\s*\w*(?:TOKEN|SECRET|PASSWORD|API_KEY|ACCESS_KEY)\w*=).+", re.I)
_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


def lines(path: str, before: str | None, after: str | None) -> Iterator[str]:
    """Unified diff lines of a file; None stands for a file that is not there."""
    old = before.splitlines() if before is not None else []
    new = after.splitlines() if after is not None else []
    from_name = path if before is not None else "/dev/null"
    to_name = path if after is not None else "/dev/null"
    for line in difflib.unified_diff(old, new, from_name, to_name, lineterm="", n=2):
        yield _SECRET.sub(r"\1***", line)


def show(host: Host, path: str, before: str | None, after: str | None) -> None:
    """Logs the diff of one file on its host."""
    for line in lines(path, before, after):
        host.log(format_text(line, _COLOURS.get(line[:1], "white")))
