"""What the engine answers to a client: asked from the operator's machine, over HTTP.

`/health` and `/v1/models` stay 200 while a rank is lost (field-notes.md, "Readiness"): only a real
chat completion with content proves that a model is served.
"""

from __future__ import annotations

import http.client
import json
import os
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

# The environment variable on the operator's machine that holds the endpoint's key, if it has one.
KEY_VARIABLE = "RIGBOOK_API_KEY"
CONNECT_S = 3.0
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
    when the engine only wants a key (401): it runs, and a restart would not change that.
    """

    ok: bool
    detail: str
    final: bool = False
    alive: bool = False
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
    url = f"{endpoint.base_url}/v1/chat/completions"
    started = time.monotonic()
    try:
        status, text = _post(url, body, timeout_s)
    except _NoAnswer as error:
        return Answer(False, f"{url}: {error}")
    if status == 401:
        wants = f"401: the engine lives and wants a key; set {KEY_VARIABLE} to it"
        return Answer(False, f"{url}: {wants}", final=True, alive=True)
    if status != 200:
        return Answer(False, f"{url}: HTTP {status}: {text[:200]}", status not in RETRY_STATUSES)
    return _read(text, time.monotonic() - started, endpoint)


class _NoAnswer(Exception):
    """Why there is no HTTP answer."""


def _post(url: str, body: dict[str, Any], timeout_s: float) -> tuple[int, str]:
    """Status and text of one POST, which no proxy sees; _NoAnswer says why there is none."""
    # Not httpx, whose import takes 0.07 s of every run that changes nothing.
    to = urlsplit(url)
    kind = http.client.HTTPSConnection if to.scheme == "https" else http.client.HTTPConnection
    connection = kind(to.hostname or "", to.port, timeout=CONNECT_S)
    headers = {"Content-Type": "application/json", "Accept": "*/*", **_headers()}
    try:
        try:
            connection.connect()
        except TimeoutError:
            raise _NoAnswer(f"ConnectTimeout: none within {CONNECT_S:g} s") from None
        except OSError as error:
            raise _NoAnswer(f"ConnectError: {error}") from None
        connection.sock.settimeout(timeout_s)
        connection.request("POST", to.path, json.dumps(body).encode(), headers)
        response = connection.getresponse()
        return response.status, response.read().decode("utf-8", "replace")
    except TimeoutError:
        raise _NoAnswer(f"ReadTimeout: nothing within {timeout_s:g} s") from None
    except (OSError, http.client.HTTPException) as error:
        raise _NoAnswer(f"{type(error).__name__}: {error}".rstrip(": ")) from None
    except ValueError:
        # Without the error's own words: they hold the key.
        raise _NoAnswer(f"{KEY_VARIABLE} holds what no header can") from None
    finally:
        connection.close()


def _headers() -> dict[str, str]:
    """The operator's key for the endpoint, where there is one; never in argv or data."""
    key = os.environ.get(KEY_VARIABLE)
    return {"Authorization": f"Bearer {key}"} if key else {}


def _read(said: str, seconds: float, endpoint: Endpoint) -> Answer:
    try:
        document = json.loads(said)
        message = document["choices"][0]["message"]
        text = message.get("content") or ""
        reasoning = message.get("reasoning") or message.get("reasoning_content") or ""
        model = str(document.get("model", ""))
        if not isinstance(text, str) or not isinstance(reasoning, str):
            raise TypeError("content is not text")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return Answer(False, f"HTTP 200 without a completion: {said[:200]!r}", final=True)
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
    detail = f"{len(text)} characters in {seconds:.1f} s"
    return Answer(True, detail, text=text, model=model, seconds=seconds)


def metric_names(endpoint: Endpoint, timeout_s: float = 10.0) -> set[str]:
    """The names of the `vllm:` metrics that the endpoint exposes; empty when it has none.

    Raises httpx.HTTPError when `/metrics` cannot be read.
    """
    import httpx

    url = f"{endpoint.base_url}/metrics"
    response = httpx.get(url, headers=_headers(), timeout=timeout_s, trust_env=False)
    response.raise_for_status()
    lines = (line for line in response.text.splitlines() if line.startswith("vllm:"))
    return {line.partition("{")[0].partition(" ")[0] for line in lines}
