"""Stand-in for vLLM's own client on a host, and for a sample of the host."""

from __future__ import annotations

import os
import signal
from typing import Any

import gevent

Json = dict[str, Any]
# tokens a second of one stream; each round a little more, so that there is a spread
STREAM_TOK_S = 50.0


def answer(verb: str, request: Json, faults: Json) -> Json:
    """What the verb gives; of a load the rounds that were asked for."""
    if verb == "measure load" and faults.get("ctrl-c"):
        os.kill(os.getpid(), signal.SIGINT)
        gevent.sleep(20)
    if verb == "measure sample":
        return {"available": 8 << 30, "page_cache": 1 << 30, "shmem": 1 << 20}
    if verb == "measure keep":
        return {"path": f"/var/lib/rigbook/measurements/{request['id']}.json", "changed": True}
    job = request["job"]
    rows = [_row(number, asked, job["tokens"]) for number, asked in enumerate(job["rounds"])]
    return {"client": "vllm bench serve 0.32.0", "rounds": rows, "error": None}


def _row(number: int, asked: Any, tokens: int) -> Json:
    if isinstance(asked, int):
        cold, cached = ({**_round(1, 1, 1.0), "ttft_s": [wait], "prompt_tokens": [asked]}
                        for wait in (asked / 1000, asked / 20_000))  # fmt: skip
        return {"cold": cold, "cached": cached}
    rate = STREAM_TOK_S + number / 10
    return {"round": _round(len(asked), tokens, tokens / rate)}


def _round(streams: int, tokens: int, seconds: float) -> Json:
    return {
        "seconds": seconds, "tokens": streams * tokens, "failed": 0, "ttft_s": [0.05] * streams,
        "stream_tok_s": [tokens / seconds] * streams, "itl_p50_s": 0.02, "itl_p95_s": 0.03,
        "errors": [], "prompt_tokens": [40] * streams,
    }  # fmt: skip
