"""engine answer: what this host's engine says to a completion now, asked on the host itself."""

from __future__ import annotations

from typing import Any

from node.core import validate
from node.core.errors import Json
from node.core.webhook import NO_ANSWER
from node.engine import config
from node.engine.await_answer import ask_now
from node.watch import metrics
from node.watch.metrics import Scrape


def answer(request: Any) -> Json:
    """Gives the reply; its own key goes to our engine alone. `made`: where nothing came in time,
    the tokens that it made for others meanwhile (null: it does not say). Read-only.
    """
    body = validate.keys(request, "request", ("timeout_s",), ("timeout_s",))
    seconds = validate.number(body["timeout_s"], "timeout_s", 1, 600)
    engine = config.load()
    url = engine.endpoint.url if engine.endpoint else ""
    before = metrics.scrape(url) if url else ""
    reply = ask_now(engine, seconds)
    late, made = reply.detail == NO_ANSWER, None
    after = metrics.scrape(url) if late else before
    if late and isinstance(before, Scrape) and isinstance(after, Scrape):
        made = metrics.made(before, after)
    return {"answered": reply.ok, "detail": reply.detail, "final": reply.final,
            "model": reply.model, "wants_key": reply.wants_key, "late": late, "made": made,
            "where": url}  # fmt: skip
