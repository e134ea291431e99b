"""What the engine answers to a client: asked from the operator's machine, over HTTP.

`/health` and `/v1/models` stay 200 while a rank is lost (field-notes.md, "Readiness"): only a real
chat completion with content proves that a model is served.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx

# The environment variable on the operator's machine that holds the endpoint's key, if it has one.
KEY_VARIABLE = "RIGBOOK_API_KEY"
PROMPT = "Say hello."
# Few: it proves that the engine answers, not what it knows. A reasoning model thinks first.
MAX_TOKENS = 8
MAX_TOKENS_REASONING = 512
# Statuses that mean "not yet" while an engine loads or is busy; 500 means broken (sparkrun).
RETRY_STATUSES = frozenset({408, 425, 429, 502, 503, 504})


@dataclass(frozen=True)
class Endpoint:
    """Where a rig answers, and what its recipe expects of an answer."""

    base_url: str
    model: str
    reasoning: bool = False
    chat_template_kwargs: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Answer:
    """What came back. `final` is true when asking again cannot help (HTTP 4xx and 500); `alive`
    when the engine only wants a key (401): it runs, and a restart would not change that; `late`
    when it took the question and gave nothing back in time: it hangs, or a queue is before us.
    """

    ok: bool
    detail: str
    final: bool = False
    alive: bool = False
    late: bool = False
    text: str = ""
    model: str = ""
    seconds: float = 0.0


def ask(endpoint: Endpoint, timeout_s: float = 120.0) -> Answer:
    """One real chat completion: ok when it has content (and reasoning where that is expected)."""
    body: dict[str, Any] = {
        "model": endpoint.model,
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": MAX_TOKENS_REASONING if endpoint.reasoning else MAX_TOKENS,
        "temperature": 0,
    }
    if endpoint.chat_template_kwargs:
        body["chat_template_kwargs"] = dict(endpoint.chat_template_kwargs)
    # Here, not above: it takes 0.1 s, which a caller that waits for a host has to spare.
    import httpx

    url = f"{endpoint.base_url}/v1/chat/completions"
    try:
        response = httpx.post(
            url,
            json=body,
            headers=key_headers(),
            timeout=httpx.Timeout(timeout_s, connect=3.0),
            trust_env=False,
        )
    except httpx.HTTPError as error:
        late = isinstance(error, httpx.ReadTimeout)
        return Answer(False, f"{url}: {type(error).__name__}: {error}".rstrip(": "), late=late)
    if response.status_code == 401:
        wants = f"401: the engine lives and wants a key; set {KEY_VARIABLE} to it"
        return Answer(False, f"{url}: {wants}", final=True, alive=True)
    if response.status_code != 200:
        final = response.status_code not in RETRY_STATUSES
        return Answer(False, f"{url}: HTTP {response.status_code}: {response.text[:200]}", final)
    return _read(response, endpoint)


def key_headers() -> dict[str, str]:
    """The operator's key for the endpoint, where there is one; never in argv or data."""
    key = os.environ.get(KEY_VARIABLE)
    return {"Authorization": f"Bearer {key}"} if key else {}


def _read(response: httpx.Response, endpoint: Endpoint) -> Answer:
    try:
        document = response.json()
        choice = document["choices"][0]
        message = choice["message"]
        text = message.get("content") or ""
        reasoning = message.get("reasoning") or message.get("reasoning_content") or ""
        model = str(document.get("model", ""))
        if not isinstance(text, str) or not isinstance(reasoning, str):
            raise TypeError("content is not text")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return Answer(False, f"HTTP 200 without a completion: {response.text[:200]!r}", final=True)
    seconds = response.elapsed.total_seconds()
    if endpoint.reasoning and reasoning.strip() and choice.get("finish_reason") == "length":
        # It thought until its tokens were used up: an answer, as for the unit
        # (node/engine/completion.py).
        said = f"{len(reasoning)} characters of thought in {seconds:.1f} s"
        return Answer(True, said, text=text, model=model, seconds=seconds)
    if not text.strip():
        return Answer(False, "the completion is empty", final=True, model=model, seconds=seconds)
    if endpoint.reasoning and not reasoning.strip():
        return Answer(
            False,
            "the reasoning field is empty; the recipe expects it",
            final=True,
            text=text,
            model=model,
            seconds=seconds,
        )
    said = f"{len(text)} characters in {seconds:.1f} s"
    return Answer(True, said, text=text, model=model, seconds=seconds)


def metric_names(endpoint: Endpoint, timeout_s: float = 10.0) -> set[str]:
    """The names of the `vllm:` metrics that the endpoint exposes; empty when it has none.

    Raises httpx.HTTPError when `/metrics` cannot be read.
    """
    import httpx

    url = f"{endpoint.base_url}/metrics"
    response = httpx.get(url, headers=key_headers(), timeout=timeout_s, trust_env=False)
    response.raise_for_status()
    lines = (line for line in response.text.splitlines() if line.startswith("vllm:"))
    return {line.partition("{")[0].partition(" ")[0] for line in lines}
