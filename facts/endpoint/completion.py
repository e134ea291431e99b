"""What the engine answers to a client: asked from the operator's machine, over HTTP.

`/health` and `/v1/models` stay 200 while a rank is lost (field-notes.md, "Readiness"): only a real
chat completion with content proves that a model is served.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from node.rules import completion as rules
from schema.core.secret import Secret

if TYPE_CHECKING:
    import httpx

# a completion is a few KB, /metrics of a vLLM some hundred
MAX_BYTES = 4 << 20
# The environment variable on the operator's machine that holds the endpoint's key, if it has one.
KEY_VARIABLE = "RIGBOOK_API_KEY"


@dataclass(frozen=True)
class Endpoint:
    """Where a rig answers, and what its recipe expects of an answer.

    `key` is what the recipe's secrets give its engine; KEY_VARIABLE goes before it.
    """

    base_url: str
    model: str
    reasoning: bool = False
    chat_template_kwargs: tuple[tuple[str, Any], ...] = ()
    key: Secret | None = None


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
    body = rules.question(endpoint.model, endpoint.reasoning, dict(endpoint.chat_template_kwargs))
    return post(endpoint, body, lambda raw: rules.judge(raw, endpoint.reasoning), timeout_s)


def post(
    endpoint: Endpoint,
    body: Mapping[str, Any],
    judge: Callable[[bytes], rules.Reply],
    timeout_s: float,
) -> Answer:
    """What a request to the chat completions gets; `judge` says what the body of a 200 is worth."""
    # Here, not above: it takes 0.1 s, which a caller that waits for a host has to spare.
    import httpx

    url = f"{endpoint.base_url}/v1/chat/completions"
    began = time.monotonic()
    try:
        with httpx.Client(headers=key_headers(endpoint), trust_env=False) as client:
            limits = httpx.Timeout(timeout_s, connect=3.0)
            response = fetch(client, "POST", url, timeout_s, limits, json=body)
    except httpx.HTTPError as error:
        late = isinstance(error, httpx.ReadTimeout)
        return Answer(False, f"{url}: {type(error).__name__}: {error}".rstrip(": "), late=late)
    if response.status_code != 200:
        reply = rules.refused(response.status_code, response.text)
        more = f"; set {KEY_VARIABLE} to it" if reply.wants_key else ""
        return Answer(False, f"{url}: {reply.detail}{more}", reply.final, reply.wants_key)
    reply = judge(response.content)
    seconds = time.monotonic() - began
    said = f"{reply.detail} in {seconds:.1f} s" if reply.ok else reply.detail
    return Answer(reply.ok, said, reply.final, text=reply.text, model=reply.model, seconds=seconds)


def fetch(
    client: httpx.Client,
    method: str,
    url: str,
    whole_s: float,
    timeout: httpx.Timeout | float,
    **more: Any,
) -> httpx.Response:
    """A response whose body came whole within `whole_s` seconds and MAX_BYTES: whatever holds the
    port may send byte by byte, or without end. Raises httpx.HTTPError.
    """
    import httpx

    ends, raw = time.monotonic() + whole_s, bytearray()
    with client.stream(method, url, timeout=timeout, **more) as response:
        for part in response.iter_bytes():
            raw += part
            if len(raw) > MAX_BYTES:
                raise httpx.DecodingError(f"an answer of more than {MAX_BYTES} bytes")
            if time.monotonic() > ends:
                raise httpx.ReadTimeout(f"the answer is not whole after {whole_s:g} s")
    return httpx.Response(response.status_code, content=bytes(raw))


def key_headers(endpoint: Endpoint) -> dict[str, str]:
    """The key for the endpoint, where there is one; never in argv or data."""
    key = os.environ.get(KEY_VARIABLE) or (endpoint.key.reveal() if endpoint.key else None)
    return {"Authorization": f"Bearer {key}"} if key else {}


def metric_names(endpoint: Endpoint, timeout_s: float = 10.0) -> set[str]:
    """The names of the `vllm:` metrics that the endpoint exposes; empty when it has none.

    Raises httpx.HTTPError when `/metrics` cannot be read.
    """
    import httpx

    url = f"{endpoint.base_url}/metrics"
    response = httpx.get(url, headers=key_headers(endpoint), timeout=timeout_s, trust_env=False)
    response.raise_for_status()
    lines = (line for line in response.text.splitlines() if line.startswith("vllm:"))
    return {line.partition("{")[0].partition(" ")[0] for line in lines}
