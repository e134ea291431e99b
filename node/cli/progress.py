"""`rignode progress`: how far the transfers of this host are, for a person at the console."""

from __future__ import annotations

from node.cli.request import usage
from node.core.errors import Json
from node.transfer import spool


def console(args: list[str]) -> Json | None:
    """Prints a line for each transfer of this host."""
    if args:
        raise usage(f"unknown argument {args[0][:60]!r}")
    print("\n".join(spool.progress_lines()))
    return None
