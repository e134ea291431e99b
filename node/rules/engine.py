"""A completion judged, memory needed, whose a process is; /dev/shm, heartbeats, restarts."""

from __future__ import annotations

import ipaddress
import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from typing import Any, NamedTuple, Protocol, TypeVar

from node.rules.text import LOGIN_UNIT

# What is asked of an engine and what counts as its answer: for the unit, the watch and verify.
#
# `/health` and `/v1/models` stay 200 while a rank is lost (field-notes.md, "Readiness").

PROMPT = "Say hello."
# Few: it proves that the engine answers, not what it knows.
MAX_TOKENS = 16
# thinking comes first and takes its share of the tokens
MAX_TOKENS_REASONING = 512
# statuses that mean "not yet" while an engine loads or is busy (sparkrun STARTUP_READINESS)
RETRY = frozenset({408, 425, 429, 502, 503, 504})


class Reply(NamedTuple):
    """What came back. `final`: asking again cannot help. `model` is the name that answered."""

    ok: bool
    detail: str
    final: bool = False
    model: str = ""
    wants_key: bool = False
    text: str = ""


def question(model: str, reasoning: bool, template_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Gives the body of the request: a short completion."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": MAX_TOKENS_REASONING if reasoning else MAX_TOKENS,
        "temperature": 0,
    }
    if template_kwargs:
        body["chat_template_kwargs"] = dict(template_kwargs)
    return body


def refused(status: int, text: str) -> Reply:
    """Gives what a status that is not 2xx, with its body, is worth."""
    said = " ".join(text.split())[:200]
    if status == 401:
        return Reply(False, "HTTP 401: the engine lives and wants a key", True, wants_key=True)
    detail = f"HTTP {status}: {said}" if said else f"HTTP {status}"
    return Reply(False, detail, status not in RETRY)


def judge_reply(raw: bytes, reasoning: bool) -> Reply:
    """Gives what the body of a 200 is worth; `reasoning`: the recipe says that thoughts must come.

    Content without a thought is then no answer: the parser that takes the thoughts apart is not
    on, and every client gets them as content. That holds at the unit's start and in the watch as
    it does in verify: where it held in verify alone, a rig was "up" that no deploy accepted.
    Thoughts that used up all tokens are an answer: the engine works.
    """
    try:
        document = json.loads(raw.decode("utf-8"))
        choice = document["choices"][0]
        message = choice["message"]
        content = message.get("content") or ""
        thought = message.get("reasoning") or message.get("reasoning_content") or ""
        model = str(document.get("model") or "")
        if not isinstance(content, str) or not isinstance(thought, str):
            raise TypeError("content is not text")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        said = raw[:200].decode("utf-8", "replace")
        return Reply(False, f"HTTP 200 without a completion: {said!r}", True)
    thinks = reasoning and bool(thought.strip())
    if thinks and choice.get("finish_reason") == "length":
        return Reply(True, f"{len(thought)} characters of thought", model=model, text=content)
    if not content.strip():
        return Reply(False, "the completion is empty", True, model)
    if reasoning and not thinks:
        said = "the reasoning field is empty; the recipe expects it"
        return Reply(False, said, True, model, text=content)
    return Reply(True, f"{len(content)} characters", model=model, text=content)


# The memory that vLLM asks for when it starts, and which GPUs it gets.

GIB = 1 << 30
MIB = 1 << 20
# What a start usually takes of a GB10's memory before vLLM measures it: 110 to 111 GiB available,
# 101.3 to 102.2 seen, over many boots and two drivers (GLM-5.3-Flash-EXL3-2x#47).
USUALLY_TAKEN = 9 * GIB
# More than that is no start's own: something else took memory at the same time.
MOST_TAKEN = 16 * GIB
# vLLM's own CUDA context, made before it measures: 526 MiB on an H200 with driver 580.159.04, up to
# 600 on another machine with the same (tests/system/gpu); less on small cards.
CONTEXT_MIB = 620
# What a driver keeps for itself is less. 35 failed starts held 85 GiB (eugr/spark-vllm-docker#257).
LEAK = 8 * GIB


def is_unified(gpu_name: str) -> bool:
    """Gives True for a GB10, whose memory is the system's (marimo#6822, nvitop#208).

    vLLM then takes MemAvailable for the GPU's memory (vllm#35356).
    """
    return "GB10" in gpu_name


def share_of(total: int, utilization: float) -> int:
    """Gives what vLLM wants free of a total, in the total's unit: it refuses to start below."""
    return ceil(total * utilization)


def card_need(total: int, used: int | None, free: int, utilization: float) -> int:
    """Gives the MiB that vLLM wants free of a card, as nvidia-smi tells its memory in MiB.

    CUDA's total, of which vLLM takes its share, is without what the driver keeps for itself:
    143,155 of an H200's 143,771 MiB.
    """
    return share_of(total if used is None else min(total, used + free), utilization)


def is_leaked(unaccounted: int, short: int, users: int) -> bool:
    """Gives True for memory that failed starts left behind and only a reboot brings back.

    `unaccounted` bytes are in no category of /proc/meminfo, as a GB10's GPU memory is; nobody
    uses the GPU (`users`), and with them the `short` bytes would be there.
    """
    return not users and unaccounted >= max(LEAK, short)


def is_assigned(index: int, uuid: str, devices: Sequence[str] | None) -> bool:
    """Gives True for a GPU that the engine gets; a UUID may be cut short, as CUDA allows."""
    if devices is None:
        return True
    return any(one == str(index) or (one[:1].isalpha() and uuid.startswith(one)) for one in devices)


# Whose process holds a port: our unit's or our container's, or whoever else keeps it alive.
#
# A completion proves an engine, and only the holder of the port tells whose: an engine of a former
# setup answered in place of ours, and the change was called COMMITTED.


class Held(Protocol):
    """A process, or the holder of a port: the unit or the container of its cgroup."""

    @property
    def unit(self) -> str | None:
        """The outermost service of its cgroup, None in a container."""

    @property
    def container_id(self) -> str | None:
        """The container of its cgroup."""


class Listener(Held, Protocol):
    """A listening port with its holder."""

    @property
    def address(self) -> str:
        """The address that it is bound to."""

    @property
    def port(self) -> int:
        """Its number."""


class Box(Protocol):
    """A container, and the units in which a docker client names it (`docker exec`)."""

    @property
    def id(self) -> str:
        """Its whole id."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def restart_policy(self) -> str:
        """When docker starts it again."""

    @property
    def held_by(self) -> Sequence[str]:
        """The units whose docker clients name it now."""


class Service(Protocol):
    """A systemd unit, as far as it tells what it starts and what starts it."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def exec_start(self) -> Sequence[str]:
        """The words of its command."""

    @property
    def exec_start_pre(self) -> Sequence[str]:
        """The commands before it, a line each."""

    @property
    def restart(self) -> str:
        """Its Restart=."""

    @property
    def enabled(self) -> str:
        """Its UnitFileState."""

    @property
    def triggered_by(self) -> Sequence[str]:
        """The timers, sockets and paths that start it."""


B = TypeVar("B", bound=Box)
L = TypeVar("L", bound=Listener)


class End(NamedTuple):
    """How a holder is ended for good: the command, and what would start it again ("": nothing)."""

    command: str
    again: str

    @property
    def text(self) -> str:
        """Both in one line."""
        return f"{self.command} ({self.again})" if self.again else self.command


def same_container(one: str, other: str) -> bool:
    """True for ids of one container; docker and cgroups give them whole or cut to 12 digits."""
    return min(len(one), len(other)) >= 12 and (one.startswith(other) or other.startswith(one))


def is_ours(held: Held, unit: str, container_id: str | None) -> bool:
    """True when it is of our unit, or of the container that our unit runs (None: there is none)."""
    if container_id is not None and held.container_id is not None:
        return same_container(held.container_id, container_id)
    return held.unit == unit


def owner_at(listeners: Iterable[L], port: int, host: str) -> list[L]:
    """Those that a connection to `host` and `port` may reach; every one of them, since several
    processes can share a port (SO_REUSEPORT, which vLLM sets). `host` a name: all of the port.
    """
    return [row for row in listeners if row.port == port and _reaches(row.address, host)]


def _reaches(address: str, host: str) -> bool:
    try:
        bound, asked = ipaddress.ip_address(address), ipaddress.ip_address(host)
    except ValueError:
        return True
    return bound.is_unspecified or bound == asked


def box_of(held: Held, boxes: Iterable[B]) -> B | None:
    """The container of a holder; None where it is in none, or in one that docker does not list."""
    wanted = held.container_id
    return next((b for b in boxes if wanted and same_container(b.id, wanted)), None)


def keepers(held: Held, boxes: Iterable[Box], units: Iterable[Service]) -> list[str]:
    """The units that keep a holder alive: its own, or those that start something in its container.

    `docker stop` ends nothing for long where a unit runs the engine by `docker exec`.
    """
    if held.container_id is None:
        return [] if held.unit is None or LOGIN_UNIT.match(held.unit) else [held.unit]
    box = box_of(held, boxes)
    if box is None:
        return []
    name = box.name.lstrip("/")
    naming = [unit.name for unit in units if name in _words(unit)]
    return list(dict.fromkeys([*box.held_by, *naming]))


def _words(unit: Service) -> set[str]:
    lines = (" ".join(unit.exec_start), *unit.exec_start_pre)
    return {word.strip("'\";&|") for line in lines for word in line.split()}


def end_ownership(held: Held, boxes: Sequence[Box], units: Sequence[Service]) -> End | None:
    """How to end a holder through whoever keeps it alive; None: nobody does."""
    names, box = keepers(held, boxes, units), box_of(held, boxes)
    commands = [f"sudo systemctl stop {shlex.join(names)}"] if names else []
    again = [line for unit in units if unit.name in names for line in _again(unit)]
    if held.container_id is not None:
        name = shlex.quote(box.name.lstrip("/")) if box else held.container_id[:12]
        # The end of a `docker exec` does not end what it started inside the container.
        commands.append(f"sudo docker stop {name}")
        if box is not None and box.restart_policy not in ("no", ""):
            again.append(
                f"docker's restart policy {shlex.quote(box.restart_policy)} starts it again: "
                f"sudo docker update --restart=no {name}"
            )
    return End(" && ".join(commands), "; ".join(again)) if commands else None


def _again(unit: Service) -> list[str]:
    found = []
    if unit.restart not in ("no", ""):
        policy = f"Restart={shlex.quote(unit.restart)} of {shlex.quote(unit.name)}"
        found.append(f"{policy} starts it again, if it is not stopped")
    found += [
        f"{shlex.quote(name)} starts it again: sudo systemctl stop {shlex.quote(name)}"
        for name in unit.triggered_by
    ]
    if unit.enabled in ("enabled", "enabled-runtime"):
        found.append(f"so does the next boot: sudo systemctl disable {shlex.quote(unit.name)}")
    return found


# The names of vLLM's segments in /dev/shm.

# psm_: multiprocessing's; sem.mp-: its semaphores; -cpushm_N: all-reduce between ranks on CPUs,
# named by the ranks' meeting point and the ranks: vllm_dist_0f3a-tp:0-[0-1]-cpushm_0
_NAME = re.compile(
    r"^(?:(?:psm_|sem\.mp-)[A-Za-z0-9_.-]+|[A-Za-z0-9_.:-]+-\[[0-9-]+\]-cpushm_[0-9]+)$"
)
# In a process's maps: a segment's path looks different from outside its container, its name does
# not. Narrower than a name: it is a sign of an engine, and a semaphore is mapped by many programs.
MAPPED = re.compile(
    rb"/(?:psm_[0-9a-f]{6,}|[^/\n]+\]-cpushm_[0-9]+)(?: \(deleted\))?$", re.MULTILINE
)


def is_engines(name: str) -> bool:
    """Gives True for the name of a segment that vLLM makes."""
    return _NAME.match(name) is not None


# How a run says that it lives: each node that it changes notes it, now and then.

# a run notes it so often, in seconds
BEAT_S = 15.0
# a run that noted nothing for so long, in seconds, is dead: a machine that loads weights may stall
# for a minute, and a laptop that slept longer is refused at its next write
DEAD_S = 120.0
# with a lease, the nodes go back by themselves after so many seconds without a sign of life
LEASE_S = 120
# less would end a run for two signs of life that were lost
LEAST_LEASE_S = 45
# where the nodes' keepers ask each other (UDP)
LEASE_PORT = 29530
# the deploy's name of a keeper, where a run says its own
KEEPER = "lease"


# How often rigbook restarts an engine by itself: the watch a silent one, its workers with it.

MOST = 3
WINDOW_S = 6 * 3600.0
