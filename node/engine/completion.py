"""One real chat completion, asked with the standard library: the only proof that a model serves."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from typing import Any

from node.core.errors import Json
from node.core.webhook import opener, reason
from node.engine.config import Endpoint
from node.rules import completion as rules
from node.rules.completion import Reply

MAX_BYTES = 1 << 20


def question(endpoint: Endpoint) -> Json:
    """Gives the body of the request: a short completion."""
    return rules.question(endpoint.model, endpoint.reasoning, endpoint.chat_template_kwargs)


def ask(endpoint: Endpoint, timeout_s: float, key: str | None = None) -> Reply:
    """Asks for a completion, with the engine's key, and waits at most about `timeout_s` seconds."""
    headers = {"Content-Type": "application/json"}
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    request = urllib.request.Request(
        f"{endpoint.url}/v1/chat/completions",
        data=json.dumps(question(endpoint)).encode("utf-8"),
        headers=headers,
    )
    started = time.monotonic()
    try:
        with opener().open(request, timeout=timeout_s) as response:
            raw = _read(response, started + timeout_s)
    except urllib.error.HTTPError as error:
        return _refused(error)
    except (OSError, http.client.HTTPException) as error:
        return Reply(False, reason(error))
    return judge(raw, endpoint, time.monotonic() - started)


def _read(response: Any, deadline: float) -> bytes:
    """Gives the body; a server that sends it byte by byte runs into the deadline."""
    raw = b""
    while len(raw) < MAX_BYTES:
        part = response.read1(65536)
        if not part:
            break
        raw += part
        if time.monotonic() > deadline:
            raise TimeoutError("timed out")
    return raw


def _refused(error: urllib.error.HTTPError) -> Reply:
    """Gives the reply of an HTTP status that is not 2xx."""
    try:
        said = error.read(2000).decode("utf-8", "replace")
    except (OSError, http.client.HTTPException):
        said = ""
    return rules.refused(error.code, said)


def judge(raw: bytes, endpoint: Endpoint, seconds: float) -> Reply:
    """Gives what a 200 is worth, in words with the seconds that it took."""
    reply = rules.judge(raw, endpoint.reasoning)
    return (
        reply._replace(detail=f"{reply.model} answered in {seconds:.1f} s") if reply.ok else reply
    )
