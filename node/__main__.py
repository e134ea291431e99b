"""The command line: `rignode VERB`, JSON in, JSON out (docs/reference/node.md)."""

from __future__ import annotations

import json
import os
import sys
from typing import Any, List, Optional, Tuple

from node import change, check, journal, lock, status, undo, unitverbs
from node.errors import Json, NodeError, io_reason

VERBS = ("snapshot", "status", "journal", "apply", "file install", "close", "undo", "lock",
         "reap", "shm", "caches", *unitverbs.VERBS)  # fmt: skip
USAGE = f"usage: rignode VERB, one of: {', '.join(VERBS)}"


def usage(message: str) -> NodeError:
    """Gives the error for a command line that cannot be understood (exit status 2)."""
    return NodeError(message, "usage", USAGE, 2)


def read_request(args: List[str], console: bool) -> Json:
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
        text = sys.stdin.buffer.read().decode("utf-8", "replace")
    if not text.strip():
        if console:
            return {}
        raise usage("no JSON object on stdin")
    try:
        value = json.loads(text)
    except ValueError as error:
        raise usage(f"the request is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise usage("the request is not a JSON object")
    return value


def _undo_request(args: List[str]) -> Tuple[Json, bool]:
    """Gives the undo request of the console's form, and whether text was asked for.

    The form is: rignode undo [ID] [--overwrite PATH]... [--no-start] [--text].
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
        elif word.startswith(("{", "-")) or "change" in out:
            raise usage(f"unknown argument {word[:60]!r}")
        else:
            out["change"] = word
    return out, as_text


def _undo(args: List[str]) -> Optional[Json]:
    """Undo; prints text for a person, else gives the answer."""
    change.catch_signals()
    if args and not args[0].startswith("{"):
        request, as_text = _undo_request(args)
        if not request:
            request = read_request([], console=True)
    else:
        request, as_text = read_request(args, console=True), False
    as_text = as_text or sys.stdout.isatty()
    if not as_text:
        return undo.undo(request)
    try:
        print("\n".join(status.undo_lines(undo.undo(request))))
    except NodeError as error:
        raise _Spoken(error) from error
    return None


class _Spoken(Exception):
    """An error to be told as text, to a person."""

    def __init__(self, error: NodeError) -> None:
        super().__init__(str(error))
        self.error = error


def _status(args: List[str]) -> Optional[Json]:
    """Gives the status as JSON with --json, else prints it as text."""
    if args not in ([], ["--json"]):
        raise usage(f"unknown argument {args[0][:60]!r}")
    seen = status.collect()
    if args:
        return seen
    print("\n".join(status.lines(seen)))
    return None


def _journal(args: List[str]) -> Json:
    """Gives all changes, or one whole."""
    body = check.keys(read_request(args, console=True), "request", ("change",))
    if body.get("change") is not None:
        return {"change": journal.get(check.change_id(body["change"]))}
    changes, broken = journal.read_all()
    return {"changes": changes, "broken": broken}


def _lock(args: List[str]) -> Json:
    """Gives who holds the lock; with `-- COMMAND` becomes that command, holding the lock."""
    command: List[str] = []
    if "--" in args:
        at = args.index("--")
        args, command = args[:at], args[at + 1 :]
    request = {} if command and not args else read_request(args, console=True)
    body = check.keys(request, "request", ("wait_s",))
    wait_s = check.number(body.get("wait_s", 2), "wait_s", 0, 86400)
    if not command:
        is_held, who = lock.held()
        return {"held": is_held, "holder": who}
    held = lock.Lock(f"lock -- {os.path.basename(command[0])}", wait_s)
    held.__enter__()
    held.keep_over_exec()
    try:
        os.execvp(command[0], command)
    except OSError as error:
        raise NodeError(f"{command[0]}: {error.strerror}", "usage", "", 2) from None


def _cleaning(verb: str) -> Any:
    """Gives the function of a verb that cleans up; the other verbs do not pay for its imports."""
    from node import caches, reap, shm_clean

    return {"reap": reap.reap, "shm": shm_clean.shm, "caches": caches.caches}[verb]


def dispatch(argv: List[str]) -> Optional[Json]:
    """Run one verb; gives its answer, or None when it has printed text."""
    words = list(argv)
    verb = words.pop(0) if words else ""
    if verb == "file" and words[:1] == ["install"]:
        verb = f"file {words.pop(0)}"
    if verb == "snapshot":
        from node import snapshot  # the other verbs must not pay for its imports

        return snapshot.collect(read_request(words, console=True))
    if verb == "status":
        return _status(words)
    if verb == "journal":
        return {"ok": True, **_journal(words)}
    if verb == "undo":
        answer = _undo(words)
        return None if answer is None else {"ok": True, **answer}
    if verb == "lock":
        return {"ok": True, **_lock(words)}
    changing: Any = {"apply": change.apply, "file install": change.install, "close": change.close}
    if verb in ("reap", "shm", "caches"):
        changing[verb] = _cleaning(verb)
        words = ['{"dry": true}'] if words == ["--dry"] else words
    if verb not in changing:
        raise usage(f"unknown verb {verb[:60]!r}" if verb else "no verb given")
    change.catch_signals()
    return {"ok": True, **changing[verb](read_request(words, console=False))}


def main(argv: List[str]) -> int:
    """Run the command line; gives the exit status: 0, 1 (refused or failed), 2 (bad usage)."""
    if unitverbs.name_of(argv):
        return unitverbs.run(unitverbs.name_of(argv))
    try:
        answer = dispatch(argv)
        code = 0
    except _Spoken as spoken:
        remedy = f"\n{spoken.error.remedy}" if spoken.error.remedy else ""
        print(f"rignode: {spoken.error}{remedy}", file=sys.stderr)
        return spoken.error.exit_status
    except NodeError as error:
        answer, code = error.as_json(), error.exit_status
    except OSError as error:
        answer, code = NodeError(io_reason(error), "io").as_json(), 1
    except Exception as error:
        text = f"a fault of rignode itself: {type(error).__name__}: {error}"
        answer, code = NodeError(text, "internal").as_json(), 1
    if answer is None:
        return code
    try:
        sys.stdout.write(json.dumps(answer, separators=(",", ":")) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # the reader is gone (ssh ended): what was done is in the journal
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
