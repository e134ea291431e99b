"""Which deploys are interrupted, how and when: all of it follows from a seed.

RIGBOOK_CHAOS_SEED=N repeats a sweep; RIGBOOK_CHAOS_N is the number of its interrupts;
RIGBOOK_CHAOS=serve,upgrade:7 has these deploys alone, or this one cell of them.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass

SEED = int(os.environ.get("RIGBOOK_CHAOS_SEED") or random.SystemRandom().randrange(10**6))
NUMBER = int(os.environ.get("RIGBOOK_CHAOS_N") or 60)
CHOSEN = os.environ.get("RIGBOOK_CHAOS", "")

ON_HOSTS = (
    "operator killed",
    "node killed",
    "connection killed",
    "two operators",
    "dockerd killed",
    "reboot -ff",
    "power cut",
)
ON_PAIR = (*ON_HOSTS, "the pair's timer")
ON_ONE = tuple(kind for kind in ON_HOSTS if kind != "dockerd killed")
ON_VM = ("operator killed", "two operators", "node killed", "reboot -ff", "power cut")
# The deploys of a sweep, and what may happen to each. A power cut of the VM is QEMU killed.
DEPLOYS = {
    "unit": ON_HOSTS,
    "weights": ON_HOSTS,
    "image": ON_HOSTS,
    "libvgpu": ON_ONE,
    "serve": ON_PAIR,
    "restart": ON_PAIR,
    "rollback": ON_PAIR,
    "upgrade": ON_ONE,
    "kernel": ON_VM,
}


@dataclass(frozen=True)
class Cell:
    """One interrupt: of which deploy, how, at which part of a whole run's time, on which host."""

    seed: int
    deploy: str
    number: int
    kind: str
    part: float
    host: float

    @property
    def name(self) -> str:
        """What RIGBOOK_CHAOS calls it."""
        return f"{self.deploy}:{self.number}"


def cell(seed: int, deploy: str, number: int, kinds: tuple[str, ...] = ()) -> Cell:
    """A cell by its number: of each kind as many, the rest drawn. The moments are uniform."""
    among = list(kinds or DEPLOYS[deploy])
    random.Random(f"{seed} {deploy}").shuffle(among)
    draw = random.Random(f"{seed} {deploy} {number}")
    kind = among[number % len(among)]
    return Cell(seed, deploy, number, kind, draw.uniform(0, 1), draw.uniform(0, 1))


def cells(deploy: str, chosen: str = CHOSEN, number: int = NUMBER, seed: int = SEED) -> list[Cell]:
    """The chosen cells of a deploy; the interrupts are spread evenly over the deploys."""
    parts = [part.partition(":") for part in (chosen or ",".join(DEPLOYS)).split(",")]
    for name, _, at in parts:
        if name not in DEPLOYS or (at and not at.isdigit()):
            raise ValueError(f"RIGBOOK_CHAOS: {name}:{at}: there are {', '.join(DEPLOYS)}")
    single = [int(at) for name, _, at in parts if name == deploy and at]
    whole = list(dict.fromkeys(name for name, _, at in parts if not at))
    share = 0
    if deploy in whole:
        share = number // len(whole) + (whole.index(deploy) < number % len(whole))
    return [cell(seed, deploy, at) for at in (*range(share), *single)]
