"""Stand-in for `several`: each part is answered as if it had been asked alone."""

from __future__ import annotations

import json
from collections.abc import Callable

from node.cli.several import parse_parts
from tests.plans.support.commands import READING, Sent


def answer(command: Sent, alone: Callable[[Sent], tuple[bool, str, str]]) -> tuple[bool, str, str]:
    """What the host says; an answer that is no document takes the place of all."""
    parse_parts(command.request, READING)
    texts = {part.verb: alone(part)[1] for part in command.parts}
    for text in texts.values():
        if not text.startswith("{"):
            return True, text, ""
    parts = {verb: json.loads(text) for verb, text in texts.items()}
    return True, json.dumps({"ok": True, "parts": parts}), ""
