"""The files that keep a host alive: panics, watchdog, journal, memory guard, and what is wanted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from schema.core.quoting import systemd_argument
from schema.desired.plan import Document
from schema.render.engine_files import UNITS_DIR, render

FORMAT = 1
WANTED_PATH = "/etc/rigbook/host.json"
SYSCTL_PATH = "/etc/sysctl.d/90-rigbook-host.conf"
MANAGER_PATH = "/etc/systemd/system.conf.d/90-rigbook-host.conf"
JOURNAL_PATH = "/etc/systemd/journald.conf.d/90-rigbook-host.conf"
GUARD = "earlyoom.service"
GUARD_PATH = f"{UNITS_DIR}/{GUARD}.d/60-rigbook-host.conf"
PSTORE = "systemd-pstore.service"
# The guard's drop-in is checked as its whole unit, so it is none of these.
PATHS = (WANTED_PATH, SYSCTL_PATH, MANAGER_PATH, JOURNAL_PATH)
# vLLM names its processes so; the API server's own name is vllm.
PREY = "^(VLLM::|vllm$)"
PANICS = {
    "softlockup": {"kernel.softlockup_panic": "1"},
    # A load of 150 GB from a slow disk keeps a task waiting longer than the kernel's own 120 s.
    "hung_task": {"kernel.hung_task_panic": "1", "kernel.hung_task_timeout_secs": "600"},
    "oom": {"vm.panic_on_oom": "1"},
}
OFF = {
    "kernel.softlockup_panic": "0",
    "kernel.hung_task_panic": "0",
    "vm.panic_on_oom": "0",
}


@dataclass(frozen=True)
class HostPlan:
    """What a host is to be: seconds, MiB (0: none), and what was so before the first run."""

    sysctls: Mapping[str, str]
    watchdog_s: int
    journal_mib: int
    guard_mib: int
    former: Mapping[str, str]


def panic_sysctls(panic_s: int, panic_on: tuple[str, ...]) -> dict[str, str]:
    """The kernel's values: `panic_s` seconds from a panic to the reboot, and what makes one."""
    values = {"kernel.panic": str(panic_s), **OFF}
    for name in panic_on:
        values.update(PANICS[name])
    return values


def guard_argv(guard_mib: int) -> tuple[str, ...]:
    """The guard's command line: TERM below that much of MemAvailable, KILL below half of it.

    `-s 100`: swap that is left over does not make it wait (both limits must be passed).
    """
    term = guard_mib * 1024
    limits = ("-M", f"{term},{term // 2}", "-s", "100,100")
    return ("/usr/bin/earlyoom", "-r", "3600", *limits, "--prefer", PREY)


def guard_text(guard_mib: int) -> str:
    """The guard's drop-in."""
    words = guard_argv(guard_mib)
    return render(GUARD_PATH, command=" ".join(map(systemd_argument, words)))


def host_documents(host: HostPlan) -> tuple[Document, ...]:
    """What lands on a host; a part that it does not have leaves its file out."""
    wanted = {
        "format": FORMAT,
        "sysctls": dict(host.sysctls),
        "watchdog_s": host.watchdog_s,
        "journal_mib": host.journal_mib,
        "guard_mib": host.guard_mib,
        "former": dict(host.former),
    }
    text = json.dumps(wanted, indent=1, sort_keys=True) + "\n"
    found = [(WANTED_PATH, text), (JOURNAL_PATH, render(JOURNAL_PATH, **wanted))]
    if host.sysctls:
        found.append((SYSCTL_PATH, render(SYSCTL_PATH, **wanted)))
    if host.watchdog_s:
        found.append((MANAGER_PATH, render(MANAGER_PATH, **wanted)))
    return tuple(Document(path, content, "0644") for path, content in found)
