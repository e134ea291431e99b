"""How a change looks to the operator before it is made: a unified diff, secrets masked."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from pyinfra.api import Host
from pyinfra.api.output import format_text

# As node/core/masking.py masks them, so that both sides of a diff look alike.
_SECRET = re.compile(r"^(\s*\w*(?:TOKEN|KEY|SECRET|PASSWORD|AUTH)\w*=).+", re.I)
_SECRET_FLAG = re.compile(r"^(\s*--(?:[\w-]+-)?(?:api-key|token|secret|password)[ =]).+")
_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


def lines(path: str, before: str | None, after: str | None) -> Iterator[str]:
    """Unified diff lines of a file; None stands for a file that is not there."""
    old = [_masked(line) for line in (before or "").splitlines()]
    new = [_masked(line) for line in (after or "").splitlines()]
    from_name = path if before is not None else "/dev/null"
    to_name = path if after is not None else "/dev/null"
    yield from difflib.unified_diff(old, new, from_name, to_name, lineterm="", n=2)
    if old == new and before != after:
        yield f"{to_name}: only values of secrets, or ends of lines, differ"


def _masked(line: str) -> str:
    return _SECRET_FLAG.sub(r"\1***", _SECRET.sub(r"\1***", line))


def show(host: Host, path: str, before: str | None, after: str | None) -> None:
    """Logs the diff of one file on its host."""
    for line in lines(path, before, after):
        host.log(format_text(line, _COLOURS.get(line[:1], "white")))
