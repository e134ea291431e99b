"""One real chat completion, asked with the standard library: the only proof that a model serves.

`/health` and `/v1/models` stay 200 while a rank is lost (field-notes.md, "Readiness").
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from typing import Any, NamedTuple

from node.core.errors import Json
from node.core.webhook import opener, reason
from node.engine.config import Endpoint

PROMPT = "Say hello."
MAX_TOKENS = 16
# thinking comes first and takes its share of the tokens
MAX_TOKENS_REASONING = 512
# statuses that mean "not yet" while an engine loads or is busy (sparkrun STARTUP_READINESS)
RETRY = frozenset({408, 425, 429, 502, 503, 504})
MAX_BYTES = 1 << 20


class Reply(NamedTuple):
    """What came back. `final`: asking again cannot help. `model` is the name that answered."""

    ok: bool
    detail: str
    final: bool = False
    model: str = ""
    wants_key: bool = False


def question(endpoint: Endpoint) -> Json:
    """Gives the body of the request: a short completion."""
    body: Json = {
        "model": endpoint.model,
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": MAX_TOKENS_REASONING if endpoint.reasoning else MAX_TOKENS,
        "temperature": 0,
    }
    if endpoint.chat_template_kwargs:
        body["chat_template_kwargs"] = endpoint.chat_template_kwargs
    return body


def ask(endpoint: Endpoint, timeout_s: float) -> Reply:
    """Asks for a completion and waits at most about `timeout_s` seconds for it."""
    request = urllib.request.Request(
        f"{endpoint.url}/v1/chat/completions",
        data=json.dumps(question(endpoint)).encode("utf-8"),
        headers={"Content-Type": "application/json"},
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
    return refused(error.code, said)


def refused(status: int, text: str) -> Reply:
    """Gives what a status that is not 2xx, with its body, is worth."""
    said = " ".join(text.split())[:200]
    if status == 401:
        return Reply(False, "HTTP 401: the engine lives and wants a key", True, "", True)
    detail = f"HTTP {status}: {said}" if said else f"HTTP {status}"
    return Reply(False, detail, status not in RETRY)


def judge(raw: bytes, endpoint: Endpoint, seconds: float) -> Reply:
    """Gives what a 200 is worth: a completion with content, or with nothing but thinking so far."""
    try:
        document = json.loads(raw.decode("utf-8"))
        choice = document["choices"][0]
        message = choice["message"]
        content = str(message.get("content") or "").strip()
        thought = message.get("reasoning") or message.get("reasoning_content") or ""
        model = str(document.get("model") or "")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return Reply(False, f"HTTP 200 without a completion: {raw[:120]!r}", final=True)
    cut = choice.get("finish_reason") == "length" and bool(str(thought).strip())
    if content or (endpoint.reasoning and cut):
        return Reply(True, f"{model} answered in {seconds:.1f} s", False, model)
    return Reply(False, "the completion is empty", True, model)
