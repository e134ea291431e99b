"""Load of the engine's own client, asked for on the rig's head: read-only for the host."""

from __future__ import annotations

import json
import socket
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import gevent
from pydantic import ValidationError
from pyinfra.api import State

from facts.endpoint import Endpoint, fetch_completion, key_headers
from facts.node import AskFailed, ask_node
from node.rules.engine import question
from schema.core import Frozen, misfit
from schema.measure import Acceptance, Count, Round, Start
from schema.plan import CONTAINER, Plan

# The engine's own counters, from /metrics: what it made between two scrapes, for whom.

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
            response = fetch_completion(client, "GET", url, timeout_s, timeout_s)
    except httpx.HTTPError as error:
        raise NoMetrics(f"{url}: {type(error).__name__}: {error}".rstrip(": ")) from None
    if response.status_code != 200:
        raise NoMetrics(f"{url}: HTTP {response.status_code}")
    return read_engine_metrics(response.text, url)


def read_engine_metrics(text: str, url: str = "/metrics") -> Counters:
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


# How fast an engine decodes one stream or several, measured from the operator's machine over HTTP.
#
# A recovery that nobody measured was called one at 71.4 tok/s against 79.4 (incident B8). Always
# the
# same: the same prompt, the same number of tokens, median of several.

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


# Rolling replacement: N answers under way at any time, for a set time; each end begins the next.
#
# Neither vLLM's client nor ours of single rounds keeps a load up for a time (docs/adr/0029).

ANSWER_TIMEOUT_S = 900.0
# An endpoint that refuses at once would be asked a thousand times a second.
PAUSE_S = 1.0
MOST_ERRORS = 20


@dataclass
class Tally:
    """What came so far; `errors` are the first ones that differ."""

    completed: int = 0
    failed: int = 0
    tokens: int = 0
    slowest_s: float | None = None
    errors: list[str] = field(default_factory=list)

    def fail(self, why: str) -> None:
        """Counts a failure."""
        self.failed += 1
        if why not in self.errors and len(self.errors) < MOST_ERRORS:
            self.errors.append(why)


class Rolling:
    """A load of `streams` answers at a time, until `stop` or the end of a `with` block.

    `prompt` gives, by the number of a question, the tokens that its answer may have and its text.
    """

    def __init__(
        self, endpoint: Endpoint, streams: int, prompt: Callable[[int], tuple[int, str]]
    ) -> None:
        self.tally = Tally()
        self._endpoint, self._prompt, self._streams = endpoint, prompt, streams
        self._next, self._going = 0, True
        self._jobs: list[Any] = []

    def __enter__(self) -> Rolling:
        self._jobs = [gevent.spawn(self._stream) for _ in range(self._streams)]
        return self

    def __exit__(self, *_: object) -> None:
        gevent.killall(self._jobs)

    def stop(self, wait_s: float) -> None:
        """Asks nothing further, and waits for what is under way for `wait_s` seconds at most."""
        self._going = False
        gevent.joinall(self._jobs, timeout=wait_s)

    def _stream(self) -> None:
        while self._going:
            number, self._next = self._next, self._next + 1
            before = self.tally.failed
            self._ask(*self._prompt(number))
            if self.tally.failed > before:
                gevent.sleep(PAUSE_S)

    def _ask(self, tokens: int, text: str) -> None:
        import httpx

        body: dict[str, Any] = {
            "model": self._endpoint.model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": tokens,
        }
        if self._endpoint.chat_template_kwargs:
            body["chat_template_kwargs"] = dict(self._endpoint.chat_template_kwargs)
        url = f"{self._endpoint.base_url}/v1/chat/completions"
        began = time.monotonic()
        try:
            response = httpx.post(
                url, json=body, headers=key_headers(self._endpoint), trust_env=False,
                timeout=httpx.Timeout(ANSWER_TIMEOUT_S, connect=10.0),
            )  # fmt: skip
            if response.status_code != 200:
                self.tally.fail(f"HTTP {response.status_code}: {response.text[:160]}")
                return
            made = int(response.json()["usage"]["completion_tokens"])
        except httpx.HTTPError as error:
            self.tally.fail(f"{type(error).__name__}: {error}".rstrip(": "))
            return
        except (ValueError, KeyError, TypeError):
            self.tally.fail("HTTP 200 without a count of tokens")
            return
        took = time.monotonic() - began
        self.tally.completed += 1
        self.tally.tokens += made
        self.tally.slowest_s = max(self.tally.slowest_s or 0.0, took)


# How long an engine takes from its start to a port, to HTTP, and to the first token.

POLL_S = 0.5
TOKEN_S = 60.0


class StartTimes:
    """Watches an endpoint from now on, until `stop`; `found` is what was seen so far."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.found = Start()
        self._endpoint, self._began = endpoint, time.monotonic()
        self._job: Any = gevent.spawn(self._watch)

    def stop(self) -> Start:
        """Ends the watch; gives what was seen."""
        self._job.kill()
        return self.found

    def held_by_ours(self) -> None:
        """From now on the first token is asked for with the key, where one is wanted."""
        self._endpoint = self._endpoint.held_by_ours()

    def _watch(self) -> None:
        for key, seen in (
            ("port_s", self._port),
            ("http_s", self._http),
            ("first_token_s", self._token),
        ):
            while not seen():
                gevent.sleep(POLL_S)
            took = round(time.monotonic() - self._began, 2)
            self.found = self.found.model_copy(update={key: took})

    def _port(self) -> bool:
        where = urlsplit(self._endpoint.base_url)
        try:
            socket.create_connection((where.hostname or "", where.port or 80), 2.0).close()
        except OSError:
            return False
        return True

    def _http(self) -> bool:
        import httpx

        try:
            url = f"{self._endpoint.base_url}/health"
            return httpx.get(url, timeout=2.0, trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False

    def _token(self) -> bool:
        import httpx

        where = self._endpoint
        body = question(where.model, False, dict(where.chat_template_kwargs))
        body |= {"stream": True, "max_tokens": 4}
        try:
            with httpx.stream(
                "POST", f"{where.base_url}/v1/chat/completions", json=body,
                headers=key_headers(where), timeout=TOKEN_S, trust_env=False,
            ) as response:  # fmt: skip
                if response.status_code != 200:
                    return False
                return any(_has_token(line) for line in response.iter_lines())
        except httpx.HTTPError:
            return False


def _has_token(line: str) -> bool:
    """Whether a line of a stream holds a part of an answer."""
    try:
        choices = json.loads(line.removeprefix("data:")).get("choices") or [{}]
        delta = choices[0].get("delta") or choices[0].get("message") or {}
    except (ValueError, AttributeError, IndexError, TypeError):
        return False
    return any(delta.get(key) for key in ("content", "reasoning", "reasoning_content"))


# What the start of the client takes on a slow disk, on top of its rounds.
IMPORT_S = 120


class ClientRound(Round):
    """A round as the client tells it."""

    errors: tuple[str, ...] = ()
    prompt_tokens: tuple[Count, ...] = ()

    def plain(self) -> Round:
        """The same without what a document keeps once a point."""
        return Round(**{key: getattr(self, key) for key in Round.model_fields})


class Row(Frozen):
    """A round of answers, or a prompt asked twice."""

    round: ClientRound | None = None
    cold: ClientRound | None = None
    cached: ClientRound | None = None


class Loaded(Frozen):
    """What the client measured. `error`: why it was cut short."""

    client: str
    rounds: tuple[Row, ...] = ()
    error: str | None = None


def load(
    state: State,
    plan: Plan,
    endpoint: Endpoint,
    tokens: int,
    rounds: list[list[str]] | list[int],
    seed: str,
    seconds: int,
) -> Loaded:
    """Runs rounds by vLLM's client on the head. Raises AskFailed with one clear line.

    `rounds`: the prompts that are asked at the same time, or a length in tokens of a prompt that is
    asked twice. `tokens` of each answer; `seconds` at most for all of them.
    """
    head = plan.rig.head
    spec = plan.specs[head.name]
    flags = spec.flags
    model = spec.argv[2]
    job = {
        "url": endpoint.base_url,
        "model": model,
        "name": endpoint.model,
        "tokenizer": str(flags.get("tokenizer") or model),
        "mode": str(flags.get("tokenizer_mode") or "auto"),
        "trust": bool(flags.get("trust_remote_code")),
        "template": dict(endpoint.chat_template_kwargs),
        "tokens": tokens,
        "seed": seed,
        "rounds": rounds,
    }
    limit = min(3600, seconds + IMPORT_S)
    request: dict[str, Any] = {"job": job, "seconds": limit, "environ": spec.environ}
    if spec.venv is not None:
        request |= {"venv": spec.venv, "user": spec.user}
    else:
        request["container"] = CONTAINER
    bearer = key_headers(endpoint).get("Authorization")
    if bearer:
        request["key"] = bearer.removeprefix("Bearer ")
    host = state.inventory.get_host(head.name)
    answer = ask_node(state, host, "measure load", request, limit + 30)
    try:
        return Loaded.model_validate(answer)
    except ValidationError as error:
        raise AskFailed(f"{head.name}: measure load: the answer {misfit(error)}") from None
