"""How fast an engine decodes one stream or several, measured from the operator's machine over HTTP.

A recovery that nobody measured was called one at 71.4 tok/s against 79.4 (incident B8). Always the
same: the same prompt, the same number of tokens, median of several.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from facts.endpoint.completion import Endpoint, key_headers

PROMPT = "Count from one to one hundred in words."
TOKENS = 96
RUNS = 5
TIMEOUT_S = 120.0
# Of a round of several streams: those above the engine's max_num_seqs wait for the others.
ROUND_TIMEOUT_S = 900.0
# Tokens of a chunk at most, on average: a draft model's guesses come together.
MOST_A_CHUNK = 8
# Of the time from the request to the last token, the stream takes at least this: the prompt is
# short, so prefill is soon over. A burst that is read on a busy machine takes some of it, too.
LEAST_SHARE = 0.2
_TEXTS = ("content", "reasoning", "reasoning_content")


class NotMeasured(Exception):
    """The engine gave no such answer: `str()` is one clear line."""


class NotReached(NotMeasured):
    """This machine has no way to the port: that says nothing about the engine."""


@dataclass(frozen=True)
class Rate:
    """Decoded tokens a second: median, lowest and highest of `runs` measurements, and `each`."""

    tokens_per_s: float
    low: float
    high: float
    runs: int
    each: tuple[float, ...] = ()

    def __str__(self) -> str:
        spread = f"{self.low:.1f} to {self.high:.1f}"
        return f"{self.tokens_per_s:.1f} tok/s (median of {self.runs}, {spread})"


def measure(endpoint: Endpoint, runs: int = RUNS, tokens: int = TOKENS) -> Rate:
    """The rate, after one run that is not counted: the first request of a start is its slowest.

    Raises NotMeasured, and NotReached where not even the first request found a listener.
    """
    _one(endpoint, tokens, PROMPT)
    try:
        return measure_by(endpoint, [PROMPT] * runs, tokens)
    except NotReached as error:
        raise NotMeasured(str(error)) from None


def measure_by(endpoint: Endpoint, prompts: Sequence[str], tokens: int) -> Rate:
    """As `measure`, of an engine that is warm, a run a prompt. Of drafts, each prompt has as many
    accepted as its answer is easy to guess.
    """
    rates = [_one(endpoint, tokens, prompt) for prompt in prompts]
    return Rate(statistics.median(rates), min(rates), max(rates), len(rates), tuple(rates))


def aggregate(endpoint: Endpoint, streams: int, tokens: int, runs: int = RUNS) -> Rate:
    """The rate of all of several streams together, prefill included, as the recipes' baselines were
    measured: whole answers of `tokens` tokens each, after one round that is not counted.

    Raises NotMeasured.
    """
    rates = [_round(endpoint, streams, tokens) for _ in range(runs + 1)][1:]
    return Rate(statistics.median(rates), min(rates), max(rates), runs, tuple(rates))


def _round(endpoint: Endpoint, streams: int, tokens: int) -> float:
    began = time.monotonic()
    with ThreadPoolExecutor(streams) as pool:
        asked = [pool.submit(_answered, endpoint, tokens) for _ in range(streams)]
        counts = [one.result() for one in asked]
    return _rate(sum(counts), time.monotonic() - began, endpoint.base_url)


def _answered(endpoint: Endpoint, tokens: int) -> int:
    """How many tokens a whole answer has."""
    import httpx

    url = f"{endpoint.base_url}/v1/chat/completions"
    timeout = httpx.Timeout(ROUND_TIMEOUT_S, connect=3.0)
    try:
        response = httpx.post(
            url, json=_question(endpoint, tokens), headers=key_headers(endpoint), timeout=timeout,
            trust_env=False,
        )  # fmt: skip
    except httpx.HTTPError as error:
        raise NotMeasured(f"{url}: {type(error).__name__}: {error}".rstrip(": ")) from None
    if response.status_code != 200:
        raise NotMeasured(f"{url}: HTTP {response.status_code}: {response.text[:200]}")
    return _counted(response, url)


def _question(endpoint: Endpoint, tokens: int, prompt: str = PROMPT) -> dict[str, Any]:
    """The request: the same number of tokens each time, whatever the model would say."""
    body: dict[str, Any] = {
        "model": endpoint.model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,  # vLLM's own
    }
    if endpoint.chat_template_kwargs:
        body["chat_template_kwargs"] = dict(endpoint.chat_template_kwargs)
    return body


def _one(endpoint: Endpoint, tokens: int, prompt: str) -> float:
    """Tokens a second from the first token to the last (prefill is no part of it).

    Tokens that came all at once were held back on their way (an API server that gets no CPU hands
    out together what the engine made meanwhile): then from the request on, prefill included.
    """
    import httpx

    body = _question(endpoint, tokens, prompt)
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    url = f"{endpoint.base_url}/v1/chat/completions"
    timeout = httpx.Timeout(TIMEOUT_S, connect=3.0)
    began = time.monotonic()
    try:
        with httpx.stream(
            "POST", url, json=body, headers=key_headers(endpoint), timeout=timeout, trust_env=False
        ) as response:
            if response.status_code != 200:
                said = response.read()[:200].decode("utf-8", "replace")
                raise NotMeasured(f"{url}: HTTP {response.status_code}: {said}")
            if "event-stream" not in response.headers.get("content-type", ""):
                return _whole(response, url, began)
            return _streamed(response, url, began)
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise NotReached(f"{url}: {type(error).__name__}: {error}".rstrip(": ")) from None
    except httpx.HTTPError as error:
        raise NotMeasured(f"{url}: {type(error).__name__}: {error}".rstrip(": ")) from None


def _streamed(response: Any, url: str, began: float) -> float:
    first = last = 0.0
    counted = 0
    said = None
    for line in response.iter_lines():
        data = line.removeprefix("data:").strip()
        if not line.startswith("data:") or data == "[DONE]":
            continue
        if time.monotonic() - began > TIMEOUT_S:
            raise NotMeasured(f"{url}: no end of the answer within {TIMEOUT_S:.0f} s")
        try:
            chunk = json.loads(data)
            usage, choices = chunk.get("usage"), chunk.get("choices") or []
        except (ValueError, AttributeError):
            raise NotMeasured(f"{url}: a chunk that is no JSON: {data[:80]!r}") from None
        said = usage["completion_tokens"] if usage else said
        delta = (choices[0].get("delta") or {}) if choices else {}
        if _is_token(delta):
            last = time.monotonic()
            first = first or last
            counted += 1
    tokens = said or counted
    if counted * MOST_A_CHUNK < tokens or last - first < (last - began) * LEAST_SHARE:
        return _rate(tokens, last - began, url)
    return _rate(tokens - 1, last - first, url)


def _is_token(delta: dict[str, Any]) -> bool:
    """Whether a chunk brings a token: one that is a part of a character has an empty text. What
    names the role may be sent before the first token is made.
    """
    texts = [delta[key] for key in _TEXTS if isinstance(delta.get(key), str)]
    return any(texts) or (bool(texts) and "role" not in delta)


def _whole(response: Any, url: str, began: float) -> float:
    """An endpoint that does not stream: prefill counts as well."""
    response.read()
    return _rate(_counted(response, url), time.monotonic() - began, url)


def _counted(response: Any, url: str) -> int:
    try:
        return int(response.json()["usage"]["completion_tokens"])
    except (ValueError, KeyError, TypeError):
        raise NotMeasured(f"{url}: the answer does not say how many tokens it has") from None


def _rate(tokens: int, seconds: float, url: str) -> float:
    if tokens < 1 or seconds <= 0:
        raise NotMeasured(f"{url}: too few tokens to measure with")
    return tokens / seconds
