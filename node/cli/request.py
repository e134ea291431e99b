"""The request of a verb: a JSON object as the last argument, or on stdin."""

from __future__ import annotations

import json
import os
import sys

from node.core.errors import Json, NodeError

USAGE = "usage: rignode VERB"
# what stdin held, for a program that takes this one's place
_stdin = b""


def usage(message: str) -> NodeError:
    """Gives the error for a command line that cannot be understood (exit status 2)."""
    return NodeError(message, "usage", USAGE, 2)


def read(args: list[str], console: bool) -> Json:
    """Gives the JSON object of the last argument, else of stdin; {} at a terminal.

    A console verb with nothing on stdin gets {} as well.
    """
    if args:
        if len(args) > 1 or not args[0].startswith("{"):
            raise usage(f"unknown argument {args[0][:60]!r}")
        text = args[0]
    elif sys.stdin is None or sys.stdin.isatty():
        text = ""
    else:
        global _stdin
        _stdin = sys.stdin.buffer.read()
        text = _stdin.decode("utf-8", "replace")
    if not text.strip():
        if console:
            return {}
        raise usage("no JSON object on stdin")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise usage(f"the request is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise usage("the request is not a JSON object")
    return value


def hand_over(program: str, argv: list[str]) -> None:
    """Become another version of the program, which is asked the same, also by stdin."""
    if _stdin:
        fd = os.memfd_create("request", 0)
        with os.fdopen(fd, "wb", closefd=False) as file:
            file.write(_stdin)
        os.lseek(fd, 0, os.SEEK_SET)
        os.dup2(fd, 0)
    os.execv(sys.executable, [sys.executable, "-I", "-B", program, *argv])
