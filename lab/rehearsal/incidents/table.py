"""The incidents that a twin can hold, by their codes in docs/incidents.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lab.core.settings import ENGINE_VERSION
from lab.engine import stand_ins
from lab.engine.venv_wheels import BROKEN_VERSION, OTHER_VERSION
from lab.hosts.consoles import Hosts
from lab.rehearsal.incidents import breaks

BOTH = frozenset({"container", "venv"})
PAIR = frozenset({"pair"})
TOWER = frozenset({"venv"})
IMAGE = frozenset({"pair with patches and modules"})
OLD, OTHER, BROKEN = (f"{version}+cpu" for version in (ENGINE_VERSION, OTHER_VERSION,
                                                       BROKEN_VERSION))  # fmt: skip
# in `mends`: the id of the copy on the second disk, and the head's name
KEPT_COPY, HEAD = "COPY-ID", "HEAD-NODE"
FROM_HEAD = f"{{}} --data from={HEAD}"
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
        pair = PAIR if len(self.names) > 1 else frozenset()
        parts = {"patches", "modules"} <= self.recipe.keys()
        return frozenset({runtime}) | pair | (IMAGE if pair and parts else frozenset())

    @property
    def venv(self) -> Mapping[str, str]:
        """Path and wheels of a tower's venv."""
        found: Mapping[str, str] = self.recipe["venv"]
        return found

    def patch(self, number: int) -> str:
        """The id of one of the recipe's patches; 0 is the first, -1 the last."""
        return str(self.recipe["patches"][number]["id"])

    @property
    def other_profile(self) -> str:
        """A profile that is not the default."""
        names: list[str] = list(self.recipe["profiles"])
        return next(name for name in names if name != self.recipe["default_profile"])


def _nothing(_: Rig) -> None:
    """The lab has nothing to put back."""


@dataclass(frozen=True)
class Incident:
    """One incident: how it is dealt and judged.

    `on`: the kinds of rig that can hold it; one will do. `tells`: what somebody noticed, not why.
    `codes`: the findings of which the doctor must name one while it is broken, and none afterwards.
    `mends`: runbooks with their --data, or `remedy CODE`: the command of that finding, by hand.
    `left`: a command that must print nothing on any host at the end. `after`: puts back what of the
    lab was taken. `warns`: its finding may stay as a warning, as of a unit that is off.
    """

    code: str
    on: frozenset[str]
    tells: str
    broken: Callable[[Rig], None]
    codes: tuple[str, ...]
    mends: tuple[str, ...]
    left: str = "true"
    after: Callable[[Rig], None] = _nothing
    warns: bool = False


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


def _image_with(rig: Rig, texts: Mapping[str, str]) -> None:
    image = str(rig.recipe["container"]["image"])
    breaks.image_of_other_files(rig.hosts, rig.last, image, texts)


def _patched(rig: Rig, number: int, times: int) -> None:
    _image_with(rig, stand_ins.files(rig.recipe, {rig.patch(number): times}))


def _without_submodules(rig: Rig) -> None:
    texts = stand_ins.files(rig.recipe)
    _image_with(rig, {path: text for path, text in texts.items() if "/include/" not in path})


def _upgraded_by_hand(rig: Rig) -> None:
    breaks.backed_up(rig.inventory)
    breaks.pip_install(rig.hosts, rig.head, rig.venv, BROKEN)


def _another_version_and_no_wheel(rig: Rig) -> None:
    breaks.backed_up(rig.inventory)
    breaks.pip_install(rig.hosts, rig.head, rig.venv, OTHER)
    breaks.lose_wheel(rig.hosts, rig.head, rig.venv["wheels"], OLD)


def _lost_disk(rig: Rig) -> None:
    breaks.second_disk(rig.hosts, rig.head)
    breaks.backed_up(rig.inventory)
    breaks.backed_up(rig.inventory, "--data", f"to={breaks.DISK}")
    breaks.stop(rig.hosts, rig.names)
    breaks.lose_disk(rig.hosts, rig.head, rig.venv["path"])


ROWS = (
    Incident(
        "A2", PAIR, "it still answers; a colleague copied a model onto one node this morning",
        lambda rig: breaks.weights_of_another_loader(rig.hosts, rig.last, rig.weights, rig.user),
        ("weights-magic", "weights-differ"), (FROM_HEAD.format("weights"),),
    ),
    Incident(
        "B1", TOWER, "somebody upgraded it by hand in the night: NCCL error, again and again",
        _upgraded_by_hand,
        ("venv-version", "version-broken", "crash-loop"), ("restore",),
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
        "B5", TOWER, "the version that somebody installed is worse, and pip does not find the "
        "wheel of the one that was there",
        _another_version_and_no_wheel,
        ("venv-version",), ("restore",),
        after=lambda rig: breaks.find_wheel(rig.hosts, rig.head, rig.venv["wheels"]),
    ),
    Incident(
        "C1", PAIR, "it still answers; the image was rebuilt on one node at night",
        lambda rig: breaks.rebuilt_image(
            rig.hosts, rig.last, str(rig.recipe["container"]["image"])
        ),
        ("image-differs",), (FROM_HEAD.format("image"),),
    ),
    Incident(
        "C2", IMAGE, "it still answers; a container of one node's new image says: cutlass.h: No "
        "such file",
        _without_submodules, ("module-missing",), (FROM_HEAD.format("image"),),
    ),
    Incident(
        "C3", IMAGE, "it still answers; a container of one node's new image dies in its profile "
        "run, and somebody wants to serve it with --enforce-eager",
        lambda rig: _patched(rig, -1, 0), ("patch-missing",), (FROM_HEAD.format("image"),),
    ),
    Incident(
        "C4", IMAGE, "it still answers; after the last such pull of the image both nodes hung "
        "while the experts loaded",
        lambda rig: _patched(rig, 0, 0), ("patch-missing",), (FROM_HEAD.format("image"),),
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
        lambda rig: breaks.relaunch(rig.hosts, rig.head, breaks.with_flag("max-num-seqs", 1)),
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
        "C15", IMAGE, "it still answers; a container of one node's image says: UnboundLocalError: "
        "local variable 'w13' referenced before assignment",
        lambda rig: _patched(rig, 0, 3), ("patch-doubled",), (FROM_HEAD.format("image"),),
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
        "D15", BOTH, "it serves; last evening somebody stopped another engine's unit by hand",
        lambda rig: breaks.old_unit(rig.hosts, rig.last),
        ("second-unit",), ("remedy second-unit",),
        f"systemctl is-enabled {breaks.OLD_UNIT} | grep -x enabled || true",
        after=lambda rig: breaks.no_old_unit(rig.hosts, rig.last), warns=True,
    ),
    Incident(
        "D16", BOTH, "the laptop that was changing the profile went to sleep, and is gone",
        _killed_operator,
        ("change-open",), ("rollback",),
    ),
    Incident(
        "D17", PAIR, "it still answers; a copy of the weights to one node broke off last week",
        lambda rig: breaks.file_of_another_revision(rig.hosts, rig.last, rig.weights),
        ("weights-differ",), (FROM_HEAD.format("weights"),),
    ),
    Incident(
        "D18", TOWER, "the engine's disk died; a new one is in and empty, the second disk is well",
        _lost_disk,
        ("venv-missing", "engine-down"),
        (f"backup --data take={KEPT_COPY} --data from={breaks.DISK}", "restore"),
        after=lambda rig: breaks.no_second_disk(rig.hosts, rig.head),
    ),
)  # fmt: skip
HELD = {row.code: row for row in ROWS}
