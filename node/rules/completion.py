"""What is asked of an engine and what counts as its answer: for the unit, the watch and verify.

`/health` and `/v1/models` stay 200 while a rank is lost (field-notes.md, "Readiness").
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

PROMPT = "Say hello."
# Few: it proves that the engine answers, not what it knows.
MAX_TOKENS = 16
# thinking comes first and takes its share of the tokens
MAX_TOKENS_REASONING = 512
# statuses that mean "not yet" while an engine loads or is busy (sparkrun STARTUP_READINESS)
RETRY = frozenset({408, 425, 429, 502, 503, 504})


class Reply(NamedTuple):
    """What came back. `final`: asking again cannot help. `model` is the name that answered."""

    ok: bool
    detail: str
    final: bool = False
    model: str = ""
    wants_key: bool = False
    text: str = ""


def question(model: str, reasoning: bool, template_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Gives the body of the request: a short completion."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": MAX_TOKENS_REASONING if reasoning else MAX_TOKENS,
        "temperature": 0,
    }
    if template_kwargs:
        body["chat_template_kwargs"] = dict(template_kwargs)
    return body


def refused(status: int, text: str) -> Reply:
    """Gives what a status that is not 2xx, with its body, is worth."""
    said = " ".join(text.split())[:200]
    if status == 401:
        return Reply(False, "HTTP 401: the engine lives and wants a key", True, wants_key=True)
    detail = f"HTTP {status}: {said}" if said else f"HTTP {status}"
    return Reply(False, detail, status not in RETRY)


def judge(raw: bytes, reasoning: bool) -> Reply:
    """Gives what the body of a 200 is worth; `reasoning`: the recipe says that thoughts must come.

    Content without a thought is then no answer: the parser that takes the thoughts apart is not
    on, and every client gets them as content. That holds at the unit's start and in the watch as
    it does in verify: where it held in verify alone, a rig was "up" that no deploy accepted.
    Thoughts that used up all tokens are an answer: the engine works.
    """
    try:
        document = json.loads(raw.decode("utf-8"))
        choice = document["choices"][0]
        message = choice["message"]
        content = message.get("content") or ""
        thought = message.get("reasoning") or message.get("reasoning_content") or ""
        model = str(document.get("model") or "")
        if not isinstance(content, str) or not isinstance(thought, str):
            raise TypeError("content is not text")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        said = raw[:200].decode("utf-8", "replace")
        return Reply(False, f"HTTP 200 without a completion: {said!r}", True)
    thinks = reasoning and bool(thought.strip())
    if thinks and choice.get("finish_reason") == "length":
        return Reply(True, f"{len(thought)} characters of thought", model=model, text=content)
    if not content.strip():
        return Reply(False, "the completion is empty", True, model)
    if reasoning and not thinks:
        said = "the reasoning field is empty; the recipe expects it"
        return Reply(False, said, True, model, text=content)
    return Reply(True, f"{len(content)} characters", model=model, text=content)
