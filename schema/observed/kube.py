"""A Deployment and its pods, as `node kube look` reports them."""

from __future__ import annotations

from schema.core.base import Frozen
from schema.observed.snapshot import Unreadable


class Rollout(Frozen):
    """How far a rollout is; `failed`: its own progress deadline has passed."""

    done: bool
    failed: bool
    words: str
    wanted: int
    generation: int


class Variable(Frozen):
    """Where a variable stands (`env`, `args`, `command`, `unclear`) and its value, None: unset; or
    where one of an edit's two texts does, and which.
    """

    kind: str
    index: int
    value: str | None
    why: str | None


class Live(Frozen):
    """What a pod's processes on the host have of the variables; 0 processes: none is seen there."""

    processes: int
    values: dict[str, tuple[str, ...]]


class Pod(Frozen):
    """One pod of a Deployment. `stuck`: why waiting for it is useless. `age_s`: since its node took
    it, None: not yet.
    """

    name: str
    uid: str
    hash: str
    phase: str
    leaving: bool
    ready: int
    containers: int
    restarts: int
    waiting: str | None
    stuck: str | None
    log: tuple[str, ...]
    live: Live
    age_s: float | None = None


class Change(Frozen):
    """One value that the server's dry run changes."""

    path: str
    before: str | None
    after: str | None


class Guarded(Frozen):
    """/etc/rigbook/limit.json: what was set in a container and edited in its command line, whether
    a URL is told (or the file that has it), and a line for each value that differs.
    """

    container: str
    values: dict[str, str]
    edits: dict[str, str]
    webhook: bool
    webhook_file: str | None
    differs: tuple[str, ...]


class KubeLook(Frozen):
    """A Deployment as it is; `changes`: what the asked-for patch would change, None: not asked.

    `guard`: what a guard watches in this Deployment, None: nothing.
    """

    name: str
    uid: str
    resource_version: str
    container: str
    containers: tuple[str, ...]
    rollout: Rollout
    variables: dict[str, Variable]
    pods: tuple[Pod, ...]
    event: str | None
    changes: tuple[Change, ...] | None
    guard: Guarded | Unreadable | None = None


class ModelFile(Frozen):
    """A model file's own header in words; `broken`: why it is not whole."""

    path: str
    size: int | None
    format: str | None
    said: str
    broken: str | None


class ModelFiles(Frozen):
    """The headers of the files that were asked for, in their order."""

    files: tuple[ModelFile, ...]


class HostAnswer(Frozen):
    """What came back when the host asked for a completion; `final`: asking again is useless.
    `wants_key`: 401, the engine lives and the key that was sent, or none, is not its own.

    `where`: what was asked, where the host had to find that out. Of rigbook's own engine:
    `wants_key`, `late` (nothing came in time), `made` (tokens for others meanwhile).
    """

    answered: bool
    detail: str
    final: bool
    model: str
    where: str = ""
    wants_key: bool = False
    late: bool = False
    made: float | None = None
