"""What an endpoint said to the doctor's short questions, asked from the operator's machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# refused: nobody listens; disconnected: the line was cut in mid-answer; status: an HTTP error.
Failure = Literal["refused", "timeout", "disconnected", "status", "empty"]


@dataclass(frozen=True)
class Probe:
    """The answers of one endpoint. Statuses are HTTP statuses, None where none came.

    `failure` is how the chat completion failed, None when it had content. `served` are the names
    that /v1/models lists. `generated` is how many tokens the engine made for anybody while the
    probe waited (of /metrics), None when that is not known. `not_here`: a line about an engine that
    answers its own host, and not this machine.
    """

    url: str
    detail: str
    failure: Failure | None = None
    status: int | None = None
    health: int | None = None
    models: int | None = None
    served: tuple[str, ...] = ()
    generated: float | None = None
    seconds: float = 0.0
    not_here: str = ""
