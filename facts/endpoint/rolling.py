"""Rolling replacement: N answers under way at any time, for a set time; each end begins the next.

Neither vLLM's client nor ours of single rounds keeps a load up for a time (docs/adr/0029).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gevent

from facts.endpoint.completion import Endpoint, key_headers

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
