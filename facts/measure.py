"""Load of the engine's own client, asked for on the rig's head: read-only for the host."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError
from pyinfra.api import State

from facts.endpoint.completion import Endpoint, key_headers
from facts.rignode.call import AskFailed, ask_node
from schema.core.base import Frozen
from schema.core.parse import misfit
from schema.desired.plan import CONTAINER, Plan
from schema.measure.run import Count, Round

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
