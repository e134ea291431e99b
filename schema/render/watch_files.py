"""The files of a watch: what is asked, how often, and who is told (node/watch/config.py reads
it).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import ceil
from typing import Protocol

from schema.desired.plan import Document, Plan
from schema.render.engine_files import UNITS_DIR, render
from schema.render.node_json import endpoint

FORMAT = 1
WATCH_SERVICE = "rigbook-watch.service"
WATCH_TIMER = "rigbook-watch.timer"
WATCH_PATH = "/etc/rigbook/watch.json"
SERVICE_PATH = f"{UNITS_DIR}/{WATCH_SERVICE}"
TIMER_PATH = f"{UNITS_DIR}/{WATCH_TIMER}"
# No engine makes no token for less than this and is called silent: a step may wait for a page of
# weights or for a kernel that is not compiled yet.
LEAST_SILENCE_S = 120
# An eighth of the slowest prefill that was measured on these rigs (190,000 tokens at 797 tok/s).
PREFILL_TOKENS_S = 100
# What vLLM takes where the recipe does not say: the largest of its defaults, and a long context.
BATCHED_TOKENS, MODEL_LEN = 16384, 262144


class Watching(Protocol):
    """What watch is asked for: WatchData of schema.inputs.runbook_data, or of a Kubernetes rig."""

    @property
    def url(self) -> str | None: ...
    @property
    def model(self) -> str | None: ...
    @property
    def misses(self) -> int: ...
    @property
    def webhook(self) -> str | None: ...
    @property
    def webhook_file(self) -> str | None: ...
    @property
    def interval(self) -> int: ...
    @property
    def restart(self) -> bool: ...
    @property
    def silent_s(self) -> int | None: ...
    @property
    def textfile(self) -> str | None: ...


def watch_documents(plan: Plan, node: str, data: Watching) -> tuple[Document, ...]:
    """What lands on the node that watches: its configuration (root's alone), service and timer."""
    asked = endpoint(plan.rig, plan.recipe)
    if data.url is not None and plan.deployment is None:
        asked["url"] = data.url.rstrip("/")
    if data.model is not None and plan.deployment is None:
        asked["model"] = data.model
    document = {
        "format": FORMAT,
        "rig": plan.rig.name,
        "node": node,
        "endpoint": asked,
        "misses": data.misses,
        "webhook": data.webhook,
        "webhook_file": data.webhook_file,
        "textfile": data.textfile,
        "silence": _silence(plan, node, data),
        "deployment": _deployment(plan),
    }
    text = json.dumps(document, indent=1, sort_keys=True, allow_nan=False) + "\n"
    verb = "watch" if plan.deployment is None else "watch pod"
    values = {"rig": plan.rig.name, "interval": data.interval, "verb": verb}
    return (
        Document(WATCH_PATH, text, "0600"),
        Document(SERVICE_PATH, render(SERVICE_PATH, **values), "0644"),
        Document(TIMER_PATH, render(TIMER_PATH, **values), "0644"),
    )


def _silence(plan: Plan, node: str, data: Watching) -> dict[str, object] | None:
    """How long the node's own engine may be silent; None where another endpoint is asked."""
    if plan.deployment is None and (data.url is not None or node != plan.rig.head.name):
        return None
    # what a chart's engine takes is not known: the longest of vLLM's defaults
    step, prompt = limits({} if plan.deployment is not None else plan.specs[node].flags)
    given = data.silent_s
    return {"step_s": given or step, "prompt_s": given or prompt, "restart": data.restart}


def _deployment(plan: Plan) -> dict[str, object] | None:
    """Which Deployment it is and how it is asked (node/kube/watched.py reads it)."""
    chart = plan.deployment
    if chart is None:
        return None
    keys = ("kubectl", "kubeconfig", "namespace", "deployment", "container", "url", "service",
            "port", "key_file")  # fmt: skip
    return {key: getattr(chart, key) for key in keys}


def limits(flags: Mapping[str, object]) -> tuple[int, int]:
    """Seconds that the longest prefill of these flags explains: of one step, of a whole prompt."""
    prompt = _number(flags.get("max_model_len"), MODEL_LEN)
    step = min(_number(flags.get("max_num_batched_tokens"), BATCHED_TOKENS), prompt)
    if str(flags.get("enable_chunked_prefill", True)).lower() == "false":
        step = prompt
    seconds = [max(LEAST_SILENCE_S, ceil(tokens / PREFILL_TOKENS_S)) for tokens in (step, prompt)]
    return seconds[0], seconds[1]


def _number(value: object, default: int) -> int:
    """A whole number of tokens; vLLM also takes 128k and -1, which say less than the default."""
    text = str(value)
    return int(text) if text.isdigit() else default
