"""How a host is kept alive, as node's `host` tells it. Times are Unix seconds, sizes bytes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from schema.core.base import Frozen
from schema.observed.snapshot import Unreadable

# systemd-detect-virt's words for what shares its kernel with another host.
CONTAINERS = frozenset(
    {"systemd-nspawn", "docker", "podman", "lxc", "lxc-libvirt", "openvz", "proot", "pouch",
     "rkt", "container-other"}
)  # fmt: skip


class Watchdog(Frozen):
    """A watchdog device. `state` is active while somebody holds it open; None: not told."""

    name: str
    identity: str | None
    state: str | None
    timeout_s: int | None


class JournalKept(Frozen):
    """Whether the journal outlives a boot, and what it takes on the disk."""

    persistent: bool
    bytes: int


class Guard(Frozen):
    """The memory guard (earlyoom): its program, and the words it runs with; None: it does not."""

    program: str | None
    argv: tuple[str, ...] | None


class HostWanted(Frozen):
    """What deploys/host.py wants of a host, as it lies there in /etc/rigbook/host.json.

    `watchdog_s` and `guard_mib` 0: none. `former` are the kernel's values before the first run.
    """

    format: Literal[1] = 1
    sysctls: dict[str, str]
    watchdog_s: Annotated[int, Field(ge=0)]
    journal_mib: Annotated[int, Field(ge=1)]
    guard_mib: Annotated[int, Field(ge=0)]
    former: dict[str, str] = Field(default_factory=dict)


class HostSettings(Frozen):
    """The settings as they are now.

    `runtime_watchdog_s` is PID 1's own, 0 for none. `pstore` is what keeps the kernel's last words
    over a crash. `sshd_oom_score_adj` is that of the sshd that listens; None: systemd listens.
    """

    virtual: str
    watchdogs: tuple[Watchdog, ...]
    runtime_watchdog_s: float
    sysctls: dict[str, str]
    journal: JournalKept
    pstore: str | None
    guard: Guard
    sshd_oom_score_adj: int | None
    wanted: HostWanted | None

    @property
    def contained(self) -> bool:
        """Whether its kernel is another host's."""
        return self.virtual in CONTAINERS


class Boot(Frozen):
    """One boot. `asked_for`: whether its end was; None for the boot that runs.

    `tail` are its last lines in the journal, `pstore` what the kernel kept of its crash.
    """

    boot_id: str
    first_unix_s: float
    last_unix_s: float
    asked_for: bool | None
    tail: tuple[str, ...]
    pstore: tuple[str, ...]


class Kill(Frozen):
    """A process (of systemd-oomd: a cgroup) that was killed because memory ran out."""

    unix_s: float
    by: Literal["kernel", "earlyoom", "systemd-oomd"]
    process: str
    pid: int | None
    why: str


class HostFacts(Frozen):
    """All of it; the boots and kills oldest first."""

    format: Literal[1]
    settings: HostSettings | Unreadable
    boots: tuple[Boot, ...] | Unreadable
    kills: tuple[Kill, ...] | Unreadable
    took_s: float
