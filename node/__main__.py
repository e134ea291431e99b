"""The command line: `rignode VERB`, JSON in, JSON out (docs/reference/node.md)."""

from __future__ import annotations

import errno
import importlib
import json
import os
import sys

from node import verbs
from node.core import errors
from node.core.errors import Json, NodeError, OtherProgram, failure
from node.rules.text import printable

# imports of a single verb stand in its function: a snapshot sends and compiles no others


def split(argv: list[str]) -> tuple[str, list[str]]:
    """Gives the verb (of one word or two) and the words behind it. Raises NodeError (usage)."""
    for count in (2, 1):
        verb = " ".join(argv[:count])
        if len(argv) >= count and verb in verbs.ALL:
            return verb, argv[count:]
    raise verbs.request_usage(f"unknown verb {argv[0][:60]!r}" if argv else "no verb given")


def dispatch(argv: list[str]) -> Json | None:
    """Run one verb; gives its answer, or None when it has printed text."""
    verb, words = split(argv)
    if verb == "snapshot":
        return verbs.run(verb, verbs.read_request(words, console=True))
    if verb in verbs.CONSOLE:
        answer: Json | None = verbs.function_of(verb)(words)
        return None if answer is None else {"ok": True, **answer}
    if verb in verbs.READING:
        return {"ok": True, **verbs.run(verb, verbs.read_request(words, console=True))}
    if verb in verbs.WITH_DRY and words == ["--dry"]:
        words = ['{"dry": true}']
    # a person at the console types these with few words or none
    console = verb.startswith("tree ") or verb == "prune"
    asked = verbs.read_request(words, console=console)
    # a changing verb ends in order when its ssh client goes; while it waits for its stdin, at once
    errors.catch_signals()
    return {"ok": True, **verbs.run(verb, asked)}


def _spoken(error: NodeError) -> int:
    """Tell an error to a person; gives the exit status."""
    remedy = f"\n{printable(error.remedy)}" if error.remedy else ""
    print(f"rignode: {printable(str(error))}{remedy}", file=sys.stderr)
    return error.exit_status


def main(argv: list[str]) -> int:
    """Run the command line; gives the exit status: 0, 1 (refused or failed), 2 (bad usage)."""
    if None in (sys.stdin, sys.stdout, sys.stderr):
        # what is opened later must not become one of the three
        while os.open(os.devnull, os.O_RDWR) < 3:
            pass
    if " ".join(argv) in verbs.UNIT:
        code: int = importlib.import_module("node.verbs").run_unit(" ".join(argv))
        return code
    try:
        answer = dispatch(argv)
        code = 0
    except NodeError as error:
        if isinstance(error, OtherProgram) and argv[0] in verbs.HANDED_OVER:
            kept = error.program
            if kept and kept != errors.own_path() and os.path.isfile(kept):
                verbs.hand_over(kept, argv)
        if error.remedy == verbs.USAGE:
            error.remedy += f", one of: {', '.join(verbs.ALL)}"
        if error.spoken:
            return _spoken(error)
        answer, code = failure(error), error.exit_status
    except Exception as error:
        answer, code = failure(error), 1
    text = "" if answer is None else json.dumps(answer, separators=(",", ":")) + "\n"
    return code if _said(text) else code or 1


def _said(text: str) -> bool:
    """Write what is left to say to stdout; gives False when its reader is gone, or its disk full:
    what was done is in the journal.
    """
    try:
        if sys.stdout is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        sys.stdout.write(text)
        sys.stdout.flush()
        return True
    except OSError as error:
        # at its end Python flushes again what could not be written
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        print(f"rignode: the answer cannot be written: {error.strerror}", file=sys.stderr)
        return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
