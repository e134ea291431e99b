"""How long an engine takes from its start to a port, to HTTP, and to the first token."""

from __future__ import annotations

import json
import socket
import time
from typing import Any
from urllib.parse import urlsplit

import gevent

from facts.endpoint.completion import Endpoint, key_headers
from node.rules.completion import question
from schema.measure.run import Start

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
