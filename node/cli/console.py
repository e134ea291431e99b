"""The verbs that a person types too: status, journal, undo, lock. They print text or give JSON."""

from __future__ import annotations

import os
import sys

from node.change import journal as journals
from node.change import undo as undoing
from node.cli import status as statuses
from node.cli.request import read, usage
from node.core import signals, validate
from node.core.errors import Json, NodeError
from node.engine.held_stopped import EngineHold
from node.files import host_lock as locks


def _undo_request(args: list[str]) -> tuple[Json, bool]:
    """Gives the undo request of the console's form, and whether text was asked for.

    The form is: rignode undo [ID] [--overwrite PATH]... [--despite ID] [--no-start] [--text].
    """
    out: Json = {}
    words = list(args)
    as_text = False
    while words:
        word = words.pop(0)
        if word == "--text":
            as_text = True
        elif word == "--no-start":
            out["start_units"] = False
        elif word == "--overwrite" and words:
            out.setdefault("overwrite", []).append(os.path.abspath(words.pop(0)))
        elif word == "--despite" and words:
            out["despite"] = words.pop(0)
        elif word.startswith(("{", "-")) or "change" in out:
            raise usage(f"unknown argument {word[:60]!r}")
        else:
            out["change"] = word
    return out, as_text


def undo(args: list[str]) -> Json | None:
    """Undo; prints text for a person and gives None, else gives the answer."""
    if args and not args[0].startswith("{"):
        request, as_text = _undo_request(args)
        if not request:
            request = read([], console=True)
    else:
        request, as_text = read(args, console=True), False
    signals.catch_signals()
    as_text = as_text or (sys.stdout is not None and sys.stdout.isatty())
    if not as_text:
        return undoing.undo(request, EngineHold())
    try:
        print("\n".join(statuses.undo_lines(undoing.undo(request, EngineHold()))))
    except NodeError as error:
        error.spoken = True
        raise
    return None


def status(args: list[str]) -> Json | None:
    """Gives the status as JSON with --json, else prints it as text.

    With `--verify [ID]`: in what the host is not as the journal says of the last change, or that
    one; as text an error where it is not.
    """
    words = [word for word in args if word != "--json"]
    verifies = words[:1] == ["--verify"]
    if len(words) > 2 * verifies or any(word.startswith("-") for word in words[1:]):
        raise usage(f"unknown argument {words[-1][:60]!r}")
    as_json = "--json" in args
    if not verifies:
        seen = statuses.collect()
        lines = [] if as_json else statuses.lines(seen)
    else:
        named = validate.change_id(words[1]) if words[1:] else None
        seen = statuses.verify(named)
        lines = [] if as_json else statuses.verify_lines(seen)
    if as_json:
        return seen
    print("\n".join(lines))
    return None


def journal(args: list[str]) -> Json:
    """Gives all changes, or one whole."""
    body = validate.keys(read(args, console=True), "request", ("change",))
    if body.get("change") is not None:
        return {"change": journals.get(validate.change_id(body["change"]))}
    changes, broken = journals.read_all()
    return {"changes": changes, "broken": broken}


def lock(args: list[str]) -> Json:
    """Gives who holds the lock."""
    validate.keys(read(args, console=True), "request", ())
    is_held, who = locks.held()
    return {"held": is_held, "holder": who}
