"""The document of one measurement: what was measured, on what, and under which load."""

from __future__ import annotations

from statistics import fmean
from typing import Annotated, Literal

from pydantic import Field, JsonValue

from schema.core.base import Frozen
from schema.core.types import Name
from schema.observed.health import GpuHealth

Seconds = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=0)]


class Round(Frozen):
    """One round: each stream gets one whole answer. Of the streams that failed only the count."""

    seconds: Seconds
    tokens: Count
    failed: Count = 0
    # of each answer: to its first token, and its tokens a second from then on
    ttft_s: tuple[Seconds, ...] = ()
    stream_tok_s: tuple[Seconds, ...] = ()
    # between two chunks of one answer, over all answers; a chunk may hold several tokens
    itl_p50_s: Seconds | None = None
    itl_p95_s: Seconds | None = None

    @property
    def tokens_per_s(self) -> float:
        """Tokens a second over all streams, prefill included."""
        return self.tokens / self.seconds if self.seconds else 0.0


class Point(Frozen):
    """Rounds at one concurrency, after one that is not counted (`warm_up`)."""

    streams: Annotated[int, Field(ge=1)]
    tokens: Annotated[int, Field(ge=1)]
    thinking: bool | None = None
    warm_up: Round | None = None
    rounds: tuple[Round, ...] = ()
    errors: tuple[str, ...] = ()

    @property
    def rates(self) -> tuple[float, ...]:
        """Tokens a second of each round in which no answer failed."""
        return tuple(r.tokens_per_s for r in self.rounds if not r.failed and r.tokens)

    @property
    def failed(self) -> int:
        """Answers that failed, in all rounds."""
        return sum(r.failed for r in self.rounds)

    @property
    def name(self) -> str:
        """What it is called in a table."""
        thoughts = {None: "", True: ", thinking", False: ", not thinking"}[self.thinking]
        return f"{self.streams} stream{'s' if self.streams > 1 else ''}{thoughts}"


class Prefill(Frozen):
    """Seconds to the first token of prompts of one length, new ones and the same ones again.

    `hits`: tokens that the engine found in its prefix cache the second time, by its own count.
    """

    tokens: Annotated[int, Field(ge=1)]
    cold_s: tuple[Seconds, ...] = ()
    cached_s: tuple[Seconds, ...] = ()
    hits: Count | None = None

    @property
    def cold_tok_s(self) -> float | None:
        """Prompt tokens a second of new prompts."""
        return self.tokens / fmean(self.cold_s) if self.cold_s and fmean(self.cold_s) else None

    @property
    def cached_tok_s(self) -> float | None:
        """The same of prompts that it has seen; None where none was found in its cache."""
        mean = fmean(self.cached_s) if self.cached_s else 0.0
        return self.tokens / mean if mean and self.hits else None


class Acceptance(Frozen):
    """Speculative decoding between two scrapes of the engine's counters."""

    drafts: Count
    draft_tokens: Count
    accepted: Count
    per_position: tuple[Count, ...] = ()

    @property
    def rate(self) -> float | None:
        """Accepted tokens of those that were drafted."""
        return self.accepted / self.draft_tokens if self.draft_tokens else None

    @property
    def length(self) -> float | None:
        """Tokens a step: the engine's own one and those accepted."""
        return 1 + self.accepted / self.drafts if self.drafts else None

    @property
    def unconditional(self) -> tuple[float, ...]:
        """Of all drafts, the share whose token at this position was accepted; what vLLM logs."""
        return tuple(n / self.drafts for n in self.per_position) if self.drafts else ()

    @property
    def conditional(self) -> tuple[float, ...]:
        """Of the drafts whose token before was accepted, the share; what the seed calls it."""
        before = (self.drafts, *self.per_position)
        return tuple(n / b if b else 0.0 for n, b in zip(self.per_position, before, strict=False))


class Other(Frozen):
    """The same measured by another client in the same run: one stream, tokens a second.

    What the engine's own clock says of the same answers: `off` is the share by which this client's
    rate is above that, `first_off` the first client's. None: the engine does not say, or others
    asked.
    """

    client: str
    rates: tuple[float, ...]
    off: float | None = None
    first_off: float | None = None


class Sample(Frozen):
    """A node at one moment, bytes and degrees Celsius; a GPU without memory of its own: none."""

    at_s: Seconds
    available: Count | None = None
    page_cache: Count | None = None
    shmem: Count | None = None
    gpus: tuple[GpuHealth, ...] = ()
    vram: Count | None = None
    problem: str | None = None


class Machine(Frozen):
    """A node during the run."""

    node: str
    kernel: str | None = None
    driver: str | None = None
    samples: tuple[Sample, ...] = ()


class Subject(Frozen):
    """What was measured: the same in two runs that may be compared."""

    rig: str
    recipe: str
    recipe_sha256: str
    profile: str | None
    model: str
    argv: tuple[str, ...]
    image: str | None = None


class Start(Frozen):
    """Seconds from the command that started the engine."""

    port_s: Seconds | None = None
    http_s: Seconds | None = None
    first_token_s: Seconds | None = None


class BenchRun(Frozen):
    """One bench. `complete` False: it was cut off, and holds what was measured until then.

    `doubts` say why its figures may not be the engine's own; `reference` are the recipe's published
    baselines, which nobody measured here.
    """

    format: Literal[1] = 1
    kind: Literal["bench"] = "bench"
    id: Name
    began: str
    seconds: Seconds = 0.0
    complete: bool = False
    client: str
    operator: str
    subject: Subject
    start: Start | None = None
    cold: bool | None = None
    doubts: tuple[str, ...] = ()
    points: tuple[Point, ...] = ()
    prefill: tuple[Prefill, ...] = ()
    acceptance: Acceptance | None = None
    # tool calls that a bench of 0.2.0 asked for: its document can be read, and nobody looks at them
    tools: tuple[dict[str, JsonValue], ...] = Field((), exclude=True)
    other: Other | None = None
    machines: tuple[Machine, ...] = ()
    reference: tuple[dict[str, JsonValue], ...] = ()


class SoakRun(Frozen):
    """One soak: answers one after the other at `streams` at a time, and the nodes meanwhile.

    `asked_s` is the time that was asked for, `seconds` the time that it ran.
    """

    format: Literal[1] = 1
    kind: Literal["soak"] = "soak"
    id: Name
    began: str
    asked_s: Seconds
    seconds: Seconds = 0.0
    complete: bool = False
    operator: str
    subject: Subject
    streams: Annotated[int, Field(ge=1)]
    completed: Count = 0
    failed: Count = 0
    tokens: Count = 0
    errors: tuple[str, ...] = ()
    slowest_s: Seconds | None = None
    doubts: tuple[str, ...] = ()
    acceptance: Acceptance | None = None
    machines: tuple[Machine, ...] = ()
