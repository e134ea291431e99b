"""The engine's own counters, from /metrics: what it made between two scrapes, for whom."""

from __future__ import annotations

from dataclasses import dataclass, field

from facts.endpoint.completion import Endpoint, fetch, key_headers
from schema.measure.run import Acceptance

_TOKENS = "vllm:generation_tokens"
_DRAFTS = "vllm:spec_decode_num_drafts"
_DRAFT_TOKENS = "vllm:spec_decode_num_draft_tokens"
_ACCEPTED = "vllm:spec_decode_num_accepted_tokens"
_PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos"
_HITS = "vllm:prefix_cache_hits"
_DECODE = "vllm:request_decode_time_seconds"
_RUNNING, _WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"


class NoMetrics(Exception):
    """/metrics cannot be read: `str()` is one clear line."""


@dataclass(frozen=True)
class Counters:
    """One scrape, summed over the engine's replicas. None: this engine has no such counter.

    `busy` are the requests that run or wait at this moment; `answers` have ended, and took
    `decode_s` from their first token to their last, by the engine's own clock.
    """

    tokens: float | None = None
    hits: float | None = None
    answers: float | None = None
    decode_s: float | None = None
    busy: float = 0.0
    drafts: float | None = None
    draft_tokens: float = 0.0
    accepted: float = 0.0
    per_position: dict[int, float] = field(default_factory=dict)


def scrape(endpoint: Endpoint, timeout_s: float = 10.0) -> Counters:
    """The counters now. Raises NoMetrics."""
    import httpx

    url = f"{endpoint.base_url}/metrics"
    try:
        with httpx.Client(headers=key_headers(endpoint), trust_env=False) as client:
            response = fetch(client, "GET", url, timeout_s, timeout_s)
    except httpx.HTTPError as error:
        raise NoMetrics(f"{url}: {type(error).__name__}: {error}".rstrip(": ")) from None
    if response.status_code != 200:
        raise NoMetrics(f"{url}: HTTP {response.status_code}")
    return read(response.text, url)


def read(text: str, url: str = "/metrics") -> Counters:
    """The counters of a scrape's text. Raises NoMetrics for what is none of a vLLM's."""
    from prometheus_client.parser import text_string_to_metric_families

    sums: dict[str, float] = {}
    positions: dict[int, float] = {}
    try:
        for family in text_string_to_metric_families(text):
            if not family.name.startswith("vllm:"):
                continue
            for name, labels, value, *_ in family.samples:
                if name == f"{_PER_POSITION}_total":
                    at = int(labels.get("position", "-1"))
                    positions[at] = positions.get(at, 0.0) + value
                sums[name] = sums.get(name, 0.0) + value
    except (ValueError, KeyError, IndexError) as error:
        raise NoMetrics(f"{url}: is no text of Prometheus: {error}") from None
    if not sums:
        raise NoMetrics(f"{url} has no vllm: metric; is that a vLLM?")
    return Counters(
        tokens=sums.get(f"{_TOKENS}_total"),
        hits=sums.get(f"{_HITS}_total"),
        answers=sums.get(f"{_DECODE}_count"),
        decode_s=sums.get(f"{_DECODE}_sum"),
        busy=sums.get(_RUNNING, 0.0) + sums.get(_WAITING, 0.0),
        drafts=sums.get(f"{_DRAFTS}_total"),
        draft_tokens=sums.get(f"{_DRAFT_TOKENS}_total", 0.0),
        accepted=sums.get(f"{_ACCEPTED}_total", 0.0),
        per_position=positions,
    )


def acceptance(before: Counters, after: Counters) -> Acceptance | None:
    """What was drafted and accepted between two scrapes; None without speculative decoding, and
    where a counter went back (the engine was started anew between them).
    """
    if before.drafts is None or after.drafts is None:
        return None
    positions = sorted({*before.per_position, *after.per_position})
    taken = [after.per_position.get(p, 0) - before.per_position.get(p, 0) for p in positions]
    found = [
        after.drafts - before.drafts,
        after.draft_tokens - before.draft_tokens,
        after.accepted - before.accepted,
        *taken,
    ]
    if any(value < 0 for value in found):
        return None
    drafts, draft_tokens, accepted, *per_position = (round(value) for value in found)
    return Acceptance(
        drafts=drafts, draft_tokens=draft_tokens, accepted=accepted,
        per_position=tuple(per_position),
    )  # fmt: skip


def made(before: Counters, after: Counters) -> float | None:
    """Tokens that the engine made between two scrapes, for everybody; None: it does not say."""
    if before.tokens is None or after.tokens is None or after.tokens < before.tokens:
        return None
    return after.tokens - before.tokens


def decoded(before: Counters, after: Counters, answers: int) -> float | None:
    """Tokens a second from the first token to the last, over so many answers between two scrapes,
    by the engine's own clock. None: it does not say, or others' answers are among them.
    """
    tokens = made(before, after)
    if tokens is None or None in (before.answers, before.decode_s, after.answers, after.decode_s):
        return None
    seconds = float(after.decode_s or 0) - float(before.decode_s or 0)
    if round(float(after.answers or 0) - float(before.answers or 0)) != answers or seconds <= 0:
        return None
    return (tokens - answers) / seconds
