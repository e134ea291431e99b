"""What the engine's /metrics say of its work: how much runs, and marks that move while it works."""

from __future__ import annotations

import http.client
import math
import time
import urllib.error
import urllib.request
from typing import NamedTuple

from node.core.webhook import opener, reason

# the API process gives them without asking the engine; one that is busy may need seconds
TIMEOUT_S = 5.0
MAX_BYTES = 4 << 20
# Every one of them stands still while no step of the engine ends. The two names of the cache's use:
# V1 since 0.10, and the versions before (vllm/v1/metrics/loggers.py, its docs/design/metrics.md).
_STEPS = "vllm:kv_cache_usage_perc"
MARKS = (
    "vllm:iteration_tokens_total_sum",
    "vllm:iteration_tokens_total_count",
    "vllm:generation_tokens_total",
    "vllm:prompt_tokens_total",
    _STEPS,
    "vllm:gpu_cache_usage_perc",
)
_TOKENS = frozenset(MARKS[:4])
RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"


class Scrape(NamedTuple):
    """One reading: requests that run and that wait, and the marks by name.

    `by_step`: a mark moves with each step of a prefill too. The counters of tokens do not: vLLM
    counts a prompt once its last part is done, and gives no statistics of an iteration without an
    output (vllm/v1/engine/async_llm.py); the cache's use grows with each part.
    """

    running: float
    waiting: float
    marks: dict[str, float]
    by_step: bool


def parse(text: str) -> Scrape | None:
    """Gives the reading of the Prometheus text, summed over models and engines.

    None when it lacks the running requests or every counter of tokens: it is not vLLM's.
    """
    sums: dict[str, float] = {}
    for line in text.splitlines():
        name = line.partition("{")[0].partition(" ")[0]
        if name not in MARKS and name not in (RUNNING, WAITING):
            continue
        # labels may hold blanks; behind them stand a value and perhaps a time
        words = line.rpartition("}")[2].split() if "{" in line else line.split()[1:]
        try:
            value = float(words[0])
        except (IndexError, ValueError):
            continue
        if math.isfinite(value):
            sums[name] = sums.get(name, 0.0) + value
    marks = {name: sums[name] for name in MARKS if name in sums}
    if RUNNING not in sums or not _TOKENS & marks.keys():
        return None
    return Scrape(sums[RUNNING], sums.get(WAITING, 0.0), marks, _STEPS in marks)


def made(before: Scrape, after: Scrape) -> float | None:
    """Gives the tokens that were made between two readings; None where they do not say."""
    name = MARKS[2]
    if name not in before.marks or name not in after.marks:
        return None
    return max(0.0, after.marks[name] - before.marks[name])


def fetch(url: str, timeout_s: float = TIMEOUT_S) -> tuple[str | None, str]:
    """Gives (the text, "") of an engine's /metrics, or (None, why not). They need no key."""
    deadline = time.monotonic() + timeout_s
    try:
        with opener().open(f"{url}/metrics", timeout=timeout_s) as response:
            raw = b""
            while len(raw) < MAX_BYTES and (part := response.read1(65536)):
                raw += part
                if time.monotonic() > deadline:
                    raise TimeoutError("timed out")
    except urllib.error.HTTPError as error:
        return None, f"HTTP {error.code}"
    except (OSError, http.client.HTTPException) as error:
        return None, reason(error)
    return raw.decode("utf-8", "replace"), ""


def scrape(url: str) -> Scrape | str:
    """Gives a reading, or why there is none: webhook.NO_ANSWER when nothing came in time."""
    text, why = fetch(url)
    if text is None:
        return why
    return parse(text) or "/metrics is not vLLM's"
