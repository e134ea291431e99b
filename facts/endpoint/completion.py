"""What the engine answers to a client: asked from the operator's machine, over HTTP.

`/health` and `/v1/models` stay 200 while a rank is lost (field-notes.md, "Readiness"): only a real
chat completion with content proves that a model is served.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from node.rules import completion as rules
from schema.core.secret import Secret

if TYPE_CHECKING:
    import httpx

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
    body = rules.question(endpoint.model, endpoint.reasoning, dict(endpoint.chat_template_kwargs))
    return post(endpoint, body, lambda raw: rules.judge(raw, endpoint.reasoning), timeout_s)


def post(
    endpoint: Endpoint,
    body: Mapping[str, Any],
    judge: Callable[[bytes], rules.Reply],
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
            response = fetch(client, "POST", url, timeout_s, limits, json=body)
            if response.status_code in WANTS_KEY and (key := key_headers(endpoint)):
                response = fetch(client, "POST", url, timeout_s, limits, json=body, headers=key)
    except httpx.HTTPError as error:
        late = isinstance(error, httpx.ReadTimeout)
        return Answer(False, f"{url}: {type(error).__name__}: {error}".rstrip(": "), late=late)
    if response.status_code != 200:
        reply = rules.refused(response.status_code, response.text)
        more = f"; set {KEY_VARIABLE} to it" if reply.wants_key else ""
        status = response.status_code
        return Answer(
            False, f"{url}: {reply.detail}{more}", reply.final, reply.wants_key, status=status
        )
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
        response = fetch(client, "GET", url, timeout_s, timeout_s)
    response.raise_for_status()
    lines = (line for line in response.text.splitlines() if line.startswith("vllm:"))
    return {line.partition("{")[0].partition(" ")[0] for line in lines}
