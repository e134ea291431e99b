"""The incidents that a twin can hold, by their codes in docs/incidents.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lab.hosts.consoles import Hosts
from lab.rehearsal.incidents import breaks

BOTH = frozenset({"container", "venv"})
PAIR = frozenset({"pair"})
TOWER = frozenset({"venv"})
NO_ORPHAN = "pgrep -f '^VLLM::Worker_TP1 -c|^VLLM::EngineCore -c' || true"


@dataclass(frozen=True)
class Rig:
    """The twin that is broken: its hosts in rank order and what its recipe names."""

    hosts: Hosts
    names: tuple[str, ...]
    inventory: str
    recipe: Mapping[str, Any]
    user: str

    @property
    def head(self) -> str:
        """The node that answers clients."""
        return self.names[0]

    @property
    def last(self) -> str:
        """The last rank; on one host it is the head."""
        return self.names[-1]

    @property
    def weights(self) -> str:
        """Where the weights lie on a host."""
        path = str(self.recipe["weights"]["path"])
        return f"/home/{self.user}{path[1:]}" if path.startswith("~") else path

    @property
    def kinds(self) -> frozenset[str]:
        """What rows of the table it can hold: those of its runtime, and of several nodes."""
        runtime = "container" if "container" in self.recipe else "venv"
        return frozenset({runtime, *(["pair"] if len(self.names) > 1 else [])})

    @property
    def other_profile(self) -> str:
        """A profile that is not the default."""
        names: list[str] = list(self.recipe["profiles"])
        return next(name for name in names if name != self.recipe["default_profile"])


@dataclass(frozen=True)
class Incident:
    """One incident: how it is dealt and judged.

    `on`: the kinds of rig that can hold it. `tells`: what somebody noticed, not why. `codes`: the
    findings of which the doctor must name one while it is broken, and none afterwards. `mends`:
    what mends it: a runbook with its --data, or by hand `HOST: COMMAND`, where HOST is head or
    last. `left`: a command that must print nothing on any host at the end.
    """

    code: str
    on: frozenset[str]
    tells: str
    broken: Callable[[Rig], None]
    codes: tuple[str, ...]
    mends: tuple[str, ...]
    left: str = "true"


def _stopped_without_program(rig: Rig) -> None:
    breaks.stop(rig.hosts, rig.names)
    breaks.lost_program(rig.hosts, rig.head, str(rig.recipe["venv"]["path"]))


def _stopped_with_a_ghost(rig: Rig) -> None:
    breaks.stop(rig.hosts, rig.names)
    breaks.ghost_of_our_unit(rig.hosts, rig.head)


def _killed_operator(rig: Rig) -> None:
    profile = f"profile={rig.other_profile}"
    breaks.killed_operator(rig.hosts, rig.head, rig.inventory, "serve", "--data", profile)


def _stopped_with_an_orphan(rig: Rig, title: str, port: int) -> None:
    breaks.stop(rig.hosts, rig.names)
    breaks.orphan(rig.hosts, rig.head, port, title)


ROWS = (
    Incident(
        "A2", PAIR, "it still answers; a colleague copied a model onto one node this morning",
        lambda rig: breaks.weights_of_another_loader(rig.hosts, rig.last, rig.weights, rig.user),
        ("weights-magic", "weights-differ"), ("weights",),
    ),
    Incident(
        "B2", TOWER, "the service is down, and nvidia-smi says that a card is in use",
        lambda rig: _stopped_with_an_orphan(rig, "VLLM::Worker_TP1", 29777),
        ("engine-orphan", "engine-down"), ("restart",), NO_ORPHAN,
    ),
    Incident(
        "B3", TOWER, "it was restarted after somebody tidied up with pip, and stays down",
        _stopped_without_program,
        ("venv-entry-missing",), ("remedy venv-entry-missing", "serve"),
    ),
    Incident(
        "C1", PAIR, "it still answers; the image was rebuilt on one node at night",
        lambda rig: breaks.rebuilt_image(
            rig.hosts, rig.last, str(rig.recipe["container"]["image"])
        ),
        ("image-differs",), ("image",),
    ),
    Incident(
        "C5", PAIR, "a node was started by hand from a note; since then no client gets an answer",
        lambda rig: breaks.relaunch(rig.hosts, rig.last, "/--headless/d"),
        ("worker-not-headless",), ("serve",),
    ),
    Incident(
        "C6", BOTH, "somebody ended the engine with pkill; it does not come up any more",
        lambda rig: _stopped_with_an_orphan(rig, "VLLM::EngineCore", 29778),
        ("engine-orphan", "engine-down"), ("restart",), NO_ORPHAN,
    ),
    Incident(
        "C7", BOTH, "it was relaunched with a flag pasted into a shell; it answers no more, or "
        "otherwise than before",
        lambda rig: breaks.lose_quotes(rig.hosts, rig.head),
        ("json-quotes-lost", "drift"), ("serve",),
    ),
    Incident(
        "C8", BOTH, "it serves and is slower than last week; nothing stands in any log",
        lambda rig: breaks.relaunch(rig.hosts, rig.head, r"s/\(--max-num-seqs\) [0-9]*/\1 1/"),
        ("drift",), ("serve",),
    ),
    Incident(
        "C10", PAIR, "after a stop it does not start: DistNetworkError … EADDRINUSE",
        lambda rig: _stopped_with_an_orphan(rig, "VLLM::Worker_TP1", 29501),
        ("engine-orphan", "port-taken"), ("restart",), NO_ORPHAN,
    ),
    Incident(
        "C12", BOTH, "it serves; /dev/shm grows from one restart to the next",
        lambda rig: breaks.stale_segment(rig.hosts, rig.head),
        ("shm-stale",), ("restart",), f"ls /dev/shm | grep {breaks.SEGMENT} || true",
    ),
    Incident(
        "C13", BOTH, "it was down all day; the unit is tried again and again, and the engine has "
        "written no line",
        _stopped_with_a_ghost,
        ("unit-ghost", "script-ghost"), ("serve",),
        f"grep -l {breaks.GHOST} {breaks.UNIT_FILE} || true",
    ),
    Incident(
        "C14", BOTH, "after a relaunch by hand it dies, or answers with half the context",
        lambda rig: breaks.drift(rig.hosts, rig.names),
        ("forbidden-env", "drift"), ("serve",),
        f"sudo grep WORKER_MULTIPROC {breaks.ENVIRONMENT} || true",
    ),
    Incident(
        "C16", BOTH, "clients have been asking the paid cloud for hours; nobody was told",
        lambda rig: breaks.disable(rig.hosts, rig.names),
        ("unit-disabled", "engine-down"), ("serve",),
    ),
    Incident(
        "D5", BOTH, "/health says 200, and no completion ends",
        lambda rig: breaks.freeze(rig.hosts, rig.head),
        ("no-answer", "cannot-answer", "wedged-pair", "wedged-silent"), ("restart",),
        "ps -eo stat=,comm= | grep '^T.*VLLM' || true",
    ),
    Incident(
        "D16", BOTH, "the laptop that was changing the profile went to sleep, and is gone",
        _killed_operator,
        ("change-open",), ("rollback",),
    ),
)  # fmt: skip
HELD = {row.code: row for row in ROWS}
