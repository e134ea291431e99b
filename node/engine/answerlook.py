"""answer look: one real completion, asked from this host, which reaches a Service's address."""

from __future__ import annotations

from typing import Any

from node.core import validate
from node.core.errors import Json
from node.engine.completion import ask
from node.engine.config import endpoint

_KEYS = ("endpoint", "timeout_s")


def ask_engine(request: Any) -> Json:
    """Gives whether a completion came back with content, in words, and whether to ask again."""
    body = validate.keys(request, "request", _KEYS, _KEYS)
    where = endpoint(body["endpoint"], "endpoint")
    reply = ask(where, validate.number(body["timeout_s"], "timeout_s", 1, 600))
    return {
        "answered": reply.ok or reply.wants_key,
        "detail": reply.detail,
        "final": reply.final,
        "model": reply.model,
    }
