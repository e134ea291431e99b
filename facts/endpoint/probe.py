"""A short look at an endpoint, for the doctor: bounded, and careful to tell silence from work.

Not facts.endpoint.completion.ask: that waits for a whole answer of a reasoning model; here one
token of any kind is proof enough, because the whole look has to end in seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import httpx

from facts.endpoint.completion import Endpoint, fetch, key_headers
from node.rules.completion import PROMPT
from schema.observed.endpoint_probe import Failure, Probe

# A token or two of content or of reasoning; a long answer would only cost time.
MAX_TOKENS = 4
SIDE_TIMEOUT_S = 2.0
_GENERATED = "vllm:generation_tokens_total"


def probe(endpoint: Endpoint, budget_s: float = 5.0) -> Probe:
    """What the endpoint says to /health, /v1/models and one small chat, within `budget_s` seconds.

    Nothing is asked further where nobody listens. After a chat that came to nothing in its time one
    more second may go to /metrics, which tells a queue from a hang.
    """
    started = time.monotonic()

    def left(at_most: float = SIDE_TIMEOUT_S) -> float:
        return max(0.2, min(at_most, started + budget_s - time.monotonic()))

    headers = key_headers(endpoint)
    with httpx.Client(base_url=endpoint.base_url, headers=headers, trust_env=False) as client:
        try:
            health = _get(client, "/health", left()).status_code
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            detail = f"{endpoint.base_url}: no connection from this machine ({error})"
            return Probe(endpoint.base_url, detail, "refused", seconds=time.monotonic() - started)
        except httpx.HTTPError:
            health = None
        # A server that hangs at /health would only take the time of the one question that counts.
        models, served = _models(client, left()) if health is not None else (None, ())
        before = _generated(client, left()) if health is not None else None
        failure, status, detail = _chat(client, endpoint, left(budget_s))
        waited = time.monotonic() - started
        after = None if failure != "timeout" or before is None else _generated(client, 1.0)
    return Probe(
        url=endpoint.base_url,
        detail=detail,
        failure=failure,
        status=status,
        health=health,
        models=models,
        served=served,
        generated=None if before is None or after is None else after - before,
        seconds=waited,
    )


def _get(client: httpx.Client, path: str, timeout_s: float) -> httpx.Response:
    return fetch(client, "GET", path, timeout_s, timeout_s)


def _quietly(call: Callable[[], httpx.Response]) -> httpx.Response | None:
    try:
        return call()
    except httpx.HTTPError:
        return None


def _models(client: httpx.Client, timeout_s: float) -> tuple[int | None, tuple[str, ...]]:
    response = _quietly(lambda: _get(client, "/v1/models", timeout_s))
    if response is None:
        return None, ()
    try:
        return response.status_code, tuple(str(m["id"]) for m in response.json()["data"])
    except (ValueError, KeyError, TypeError):
        return response.status_code, ()


def _generated(client: httpx.Client, timeout_s: float) -> float | None:
    """Tokens that the engine has made since its start, over all models of /metrics."""
    response = _quietly(lambda: _get(client, "/metrics", timeout_s))
    if response is None or response.status_code != 200:
        return None
    try:
        lines = [x for x in response.text.splitlines() if x.startswith(_GENERATED)]
        return sum(float(line.rpartition(" ")[2]) for line in lines) if lines else None
    except ValueError:
        return None


def _chat(
    client: httpx.Client, endpoint: Endpoint, timeout_s: float
) -> tuple[Failure | None, int | None, str]:
    """One chat of a few tokens: how it failed (None: it did not), its status, a line about it."""
    body: dict[str, Any] = {
        "model": endpoint.model,
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
    }
    url = f"{endpoint.base_url}/v1/chat/completions"
    started = time.monotonic()
    try:
        response = fetch(client, "POST", "/v1/chat/completions", timeout_s, timeout_s, json=body)
    except httpx.TimeoutException:
        return "timeout", None, f"{url}: no answer in {timeout_s:.1f} s"
    except httpx.HTTPError as error:
        said = f"{type(error).__name__}: {error}".rstrip(": ")
        return "disconnected", None, f"{url}: {said}"
    status = response.status_code
    if status != 200:
        key = "; the engine lives and wants a key" if status == 401 else ""
        return "status", status, f"{url}: HTTP {status}{key}: {response.text[:200]}"
    if not _has_words(response):
        return "empty", status, f"{url}: no word in the answer: {response.text[:200]}"
    return None, status, f"a first answer in {time.monotonic() - started:.1f} s"


def _has_words(response: httpx.Response) -> bool:
    """True when the completion holds content or reasoning of any kind."""
    try:
        message = response.json()["choices"][0]["message"]
        said = (message.get(key) for key in ("content", "reasoning", "reasoning_content"))
        return any(isinstance(text, str) and text.strip() for text in said)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return False
