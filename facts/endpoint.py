"""The OpenAI endpoint asked."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import httpx

from node.rules import engine
from node.rules.engine import PROMPT
from schema.artifact import Failure, Probe
from schema.core import Secret

# The engine's endpoint: a completion, a short probe, the speed of an answer.

# What the engine answers to a client: asked from the operator's machine, over HTTP.
#
# `/health` and `/v1/models` stay 200 while a rank is lost (field-notes.md, "Readiness"): only a
# real
# chat completion with content proves that a model is served.

# a completion is a few KB, /metrics of a vLLM some hundred
MAX_BYTES = 4 << 20
WANTS_KEY = (401, 403)
# The environment variable on the operator's machine that holds the endpoint's key, if it has one.
KEY_VARIABLE = "RIGBOOK_API_KEY"


@dataclass(frozen=True)
class Endpoint:
    """Where a rig answers, and what its recipe expects of an answer.

    `key` is what the recipe's secrets give its engine; KEY_VARIABLE goes before it. `ours`: the
    node said that our own engine holds the port. Who else holds it gets no key.
    """

    base_url: str
    model: str
    reasoning: bool = False
    chat_template_kwargs: tuple[tuple[str, Any], ...] = ()
    key: Secret | None = None
    ours: bool = False

    def held_by_ours(self) -> Endpoint:
        """The same, once a look at the node has shown our own engine there."""
        return replace(self, ours=True)


@dataclass(frozen=True)
class Answer:
    """What came back. `final` is true when asking again cannot help (HTTP 4xx and 500); `alive`
    when the engine only wants a key (401): it runs, and a restart would not change that; `late`
    when it took the question and gave nothing back in time: it hangs, or a queue is before us.
    `not_from_here`: the node asked its own engine, where this machine got no answer; `made`: tokens
    that it made for others meanwhile, where it says so. `status`: of HTTP, where one came that was
    not 200.
    """

    ok: bool
    detail: str
    final: bool = False
    alive: bool = False
    late: bool = False
    made: float | None = None
    text: str = ""
    model: str = ""
    seconds: float = 0.0
    not_from_here: bool = False
    status: int | None = None


def ask(endpoint: Endpoint, timeout_s: float = 120.0) -> Answer:
    """One real chat completion: ok when it has content (and reasoning where that is expected)."""
    body = engine.question(endpoint.model, endpoint.reasoning, dict(endpoint.chat_template_kwargs))
    return post(endpoint, body, lambda raw: engine.judge_reply(raw, endpoint.reasoning), timeout_s)


def post(
    endpoint: Endpoint,
    body: Mapping[str, Any],
    judge: Callable[[bytes], engine.Reply],
    timeout_s: float,
) -> Answer:
    """What a request to the chat completions gets; `judge` says what the body of a 200 is worth.

    It goes without the key first; with it where that was refused and the port is our engine's.
    """
    # Here, not above: it takes 0.1 s, which a caller that waits for a host has to spare.
    import httpx

    url = f"{endpoint.base_url}/v1/chat/completions"
    began = time.monotonic()
    try:
        with httpx.Client(trust_env=False) as client:
            limits = httpx.Timeout(timeout_s, connect=3.0)
            response = fetch_completion(client, "POST", url, timeout_s, limits, json=body)
            if response.status_code in WANTS_KEY and (key := key_headers(endpoint)):
                response = fetch_completion(
                    client, "POST", url, timeout_s, limits, json=body, headers=key
                )
    except httpx.HTTPError as error:
        late = isinstance(error, httpx.ReadTimeout)
        return Answer(False, f"{url}: {type(error).__name__}: {error}".rstrip(": "), late=late)
    if response.status_code != 200:
        reply = engine.refused(response.status_code, response.text)
        more = f"; set {KEY_VARIABLE} to it" if reply.wants_key else ""
        status = response.status_code
        return Answer(
            False, f"{url}: {reply.detail}{more}", reply.final, reply.wants_key, status=status
        )
    reply = judge(response.content)
    seconds = time.monotonic() - began
    said = f"{reply.detail} in {seconds:.1f} s" if reply.ok else reply.detail
    return Answer(reply.ok, said, reply.final, text=reply.text, model=reply.model, seconds=seconds)


def fetch_completion(
    client: httpx.Client,
    method: str,
    url: str,
    whole_s: float,
    timeout: httpx.Timeout | float,
    **more: Any,
) -> httpx.Response:
    """A response that came whole, its headers too, within `whole_s` seconds and MAX_BYTES: whatever
    holds the port may send byte by byte, or without end. Raises httpx.HTTPError.
    """
    import httpx

    ends, raw = time.monotonic() + whole_s, bytearray()
    more["headers"] = {**more.get("headers", {}), "Connection": "close"}
    late = httpx.ReadTimeout(f"the answer is not whole after {whole_s:g} s")
    lines: list[socket.socket] = []

    def connected(name: str, info: Mapping[str, Any]) -> None:
        if name == "connection.connect_tcp.complete":
            lines.append(info["return_value"].get_extra_info("socket"))

    def cut() -> None:
        # httpx limits each read alone: one that drips a header is ended from outside
        for line in lines:
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(whole_s, cut)
    timer.daemon = True
    timer.start()
    try:
        with client.stream(
            method, url, timeout=timeout, extensions={"trace": connected}, **more
        ) as response:
            for part in response.iter_bytes():
                raw += part
                if len(raw) > MAX_BYTES:
                    raise httpx.DecodingError(f"an answer of more than {MAX_BYTES} bytes")
        # what was cut may look like its end
        if time.monotonic() > ends:
            raise late
    except httpx.TransportError:
        if lines and time.monotonic() > ends:
            raise late from None
        raise
    finally:
        timer.cancel()
    return httpx.Response(response.status_code, content=bytes(raw), request=response.request)


def key_headers(endpoint: Endpoint) -> dict[str, str]:
    """The key for the endpoint, where there is one and our engine has the port; never in argv."""
    if not endpoint.ours:
        return {}
    key = os.environ.get(KEY_VARIABLE) or (endpoint.key.reveal() if endpoint.key else None)
    return {"Authorization": f"Bearer {key}"} if key else {}


def metric_names(endpoint: Endpoint, timeout_s: float = 10.0) -> set[str]:
    """The names of the `vllm:` metrics that the endpoint exposes; empty when it has none.

    Raises httpx.HTTPError when `/metrics` cannot be read.
    """
    import httpx

    url = f"{endpoint.base_url}/metrics"
    with httpx.Client(headers=key_headers(endpoint), trust_env=False) as client:
        response = fetch_completion(client, "GET", url, timeout_s, timeout_s)
    response.raise_for_status()
    lines = (line for line in response.text.splitlines() if line.startswith("vllm:"))
    return {line.partition("{")[0].partition(" ")[0] for line in lines}


# A short look at an endpoint, for the doctor: bounded, and careful to tell silence from work.
#
# Not facts.endpoint.ask: that waits for a whole answer of a reasoning model; here one
# token of any kind is proof enough, because the whole look has to end in seconds.

# A token or two of content or of reasoning; a long answer would only cost time.
PROBE_MAX_TOKENS = 4
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
    return fetch_completion(client, "GET", path, timeout_s, timeout_s)


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
        "max_tokens": PROBE_MAX_TOKENS,
        "temperature": 0,
    }
    url = f"{endpoint.base_url}/v1/chat/completions"
    started = time.monotonic()
    try:
        response = fetch_completion(
            client, "POST", "/v1/chat/completions", timeout_s, timeout_s, json=body
        )
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


# A tool call of the engine that can be run: asked from the operator's machine, over HTTP.
#
# A model without its tool parser answers a chat well, and gives its calls as text
# (hermes-agent#15453); a parser may hand on arguments that are cut off (vllm#22885, vllm#55495) or
# empty (vllm PR#54686).

NAME, ARGUMENT = "get_weather", "city"
TOOL_PROMPT = f"What is the weather in Paris now? Call {NAME}."
# thoughts come first
TOOL_CALL_MAX_TOKENS = 1024
TOOL = {
    "type": "function",
    "function": {
        "name": NAME,
        "description": "Gives the weather in a city at this moment.",
        "parameters": {
            "type": "object",
            "properties": {ARGUMENT: {"type": "string", "description": "The city's name."}},
            "required": [ARGUMENT],
        },
    },
}


def ask_for_call(endpoint: Endpoint, timeout_s: float = 120.0) -> Answer:
    """One chat completion with a tool: ok when it comes as a call whose arguments fit the tool.

    The model is free to call it (`auto`): only then its own parser has to find the call.
    """
    body = engine.question(endpoint.model, False, dict(endpoint.chat_template_kwargs))
    body |= {
        "messages": [{"role": "user", "content": TOOL_PROMPT}],
        "max_tokens": TOOL_CALL_MAX_TOKENS,
    }
    return post(endpoint, {**body, "tools": [TOOL], "tool_choice": "auto"}, judge, timeout_s)


def judge(raw: bytes) -> engine.Reply:
    """What the body of a 200 is worth as a call of the tool."""
    try:
        choice = json.loads(raw.decode("utf-8"))["choices"][0]
        message = choice["message"]
        calls = message.get("tool_calls") or []
        functions = [call["function"] for call in calls]
        found = next((f for f in functions if f["name"] == NAME), None)
        content = str(message.get("content") or "")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        said = raw[:200].decode("utf-8", "replace")
        return engine.Reply(False, f"HTTP 200 without a completion: {said!r}", True)
    if found is not None:
        problem = _misfit(found.get("arguments"))
        if problem:
            return engine.Reply(False, f"the call of {NAME} cannot be run: {problem}", True)
        return engine.Reply(True, f"a call of {NAME} with arguments that fit")
    if functions:
        return engine.Reply(False, f"the call is of {functions[0]['name']!r}, not of {NAME}", True)
    if choice.get("finish_reason") == "length":
        return engine.Reply(False, f"no call within {TOOL_CALL_MAX_TOKENS} tokens", True)
    if NAME in content:
        why = "the call came as text: the tool parser is off, or another model's"
        return engine.Reply(False, f"{why}: {content[:120]!r}", True)
    return engine.Reply(False, f"the model called no tool, it said {content[:120]!r}", True)


def _misfit(arguments: Any) -> str | None:
    """Why the arguments are none of the tool's; None where they fit."""
    try:
        values = json.loads(arguments)
    except (ValueError, TypeError, RecursionError):
        return f"its arguments are no JSON: {str(arguments)[:120]!r}"
    if not isinstance(values, dict):
        return f"its arguments are no map: {str(arguments)[:120]!r}"
    city = values.get(ARGUMENT)
    if not isinstance(city, str) or not city.strip():
        return f"it lacks {ARGUMENT}: {str(arguments)[:120]!r}"
    return None
