"""Whether a host is still as deploys/host.py left it, what killed what, and what may be armed.

The facts are the doctor's and host.py's own; no serving run asks for them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from gates.core.check import MIB, Observed, answering_nodes, deploy_command, gib
from gates.core.codes import section_unreadable, violation
from gates.core.violation import Violation
from schema.desired.plan import Plan
from schema.machine.host import HostFacts, HostSettings, HostWanted, Kill
from schema.observed.snapshot import Unreadable
from schema.render.host_files import OFF, PANICS, guard_argv

Hosts = Mapping[str, HostFacts | Unreadable]
DAY_S = 86400.0
# An engine that serves keeps its own distance from the guard's limit, or a busy hour ends it.
APART = 1.5
# the titles of vLLM's processes, and what they are named before they set them
ENGINES = ("VLLM::", "vllm", "python", "ray")
INSTALL = (
    "sudo systemctl mask --runtime earlyoom.service && sudo apt-get install -y earlyoom && "
    "sudo systemctl unmask --runtime earlyoom.service"
)


def differences(now: HostSettings, wanted: HostWanted) -> list[str]:
    """In what a host is not as it is wanted, a line each."""
    found = [
        f"{name} is {now.sysctls.get(name, 'not in this kernel')}, not {value}"
        for name, value in wanted.sysctls.items()
        if now.sysctls.get(name) != value
    ]
    if wanted.watchdog_s:
        if now.runtime_watchdog_s != wanted.watchdog_s:
            found.append(f"PID 1's watchdog is {now.runtime_watchdog_s:g} s, not "
                         f"{wanted.watchdog_s} s")  # fmt: skip
        if all(device.state == "inactive" for device in now.watchdogs):
            names = ", ".join(device.name for device in now.watchdogs)
            found.append(f"nobody holds a watchdog open ({names or 'there is none'})")
    if not now.journal.persistent:
        found.append("the journal is kept in memory alone")
    if wanted.guard_mib:
        running = now.guard.argv
        if running is None:
            found.append("the memory guard does not run")
        elif running[1:] != guard_argv(wanted.guard_mib)[1:]:
            found.append(f"the memory guard runs with {' '.join(running[1:])[:120]}")
    return found


def command(plan: Plan, wanted: HostWanted) -> str:
    """The run that brings a host back to what is wanted there, with the keys that say so."""
    on = [name for name, values in PANICS.items() if set(values.items()) <= wanted.sysctls.items()]
    keys = [f"journal_mib={wanted.journal_mib}"]
    if wanted.sysctls.keys() >= OFF.keys():
        keys += [f"panic={wanted.sysctls.get('kernel.panic', 10)}"]
        keys += [f"panic_on={','.join(on)}" if on else "panic_on=[]"]
    if wanted.watchdog_s:
        keys.append(f"watchdog={wanted.watchdog_s}")
    keys += [f"memory_guard_mib={wanted.guard_mib}"] if wanted.guard_mib else []
    keys.append(f"memory_guard={'true' if wanted.guard_mib else 'false'}")
    return deploy_command(plan, "host", *keys)


def findings(plan: Plan, observed: Observed, hosts: Hosts) -> list[Violation]:
    """What the doctor says of each node that answered; what could not be read is told as such."""
    found: list[Violation] = []
    for node, snapshot in answering_nodes(plan, observed):
        facts = hosts[node.name]
        if isinstance(facts, Unreadable):
            found.append(section_unreadable(node.name, "host", facts))
            continue
        for part in ("settings", "boots", "kills"):
            seen = getattr(facts, part)
            if isinstance(seen, Unreadable):
                why = Unreadable(unreadable=f"{part}: {seen.unreadable}")
                found.append(section_unreadable(node.name, "host", why))
        if isinstance(facts.settings, HostSettings):
            found += _drift(plan, node.name, facts.settings)
        if isinstance(facts.kills, tuple):
            found += _kills(plan, node.name, facts.kills, snapshot.identity.clock_unix_s)
    return found


def _drift(plan: Plan, node: str, now: HostSettings) -> Iterator[Violation]:
    wrong = differences(now, now.wanted) if now.wanted else []
    if now.wanted and wrong:
        yield violation(
            "host-differs",
            node,
            f"{node} is no longer set up as host.py left it: {wrong[0]}",
            evidence="; ".join(wrong),
            remedy=f"{command(plan, now.wanted)} -y",
        )


def stamp(unix_s: float) -> str:
    """A time as a person reads it."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(unix_s))


def _kills(plan: Plan, node: str, kills: tuple[Kill, ...], now: float) -> Iterator[Violation]:
    """What memory ended in the last day; other containers' own limits are their business."""
    last = [
        kill
        for kill in kills
        if 0 <= now - kill.unix_s < DAY_S
        and (not kill.why.startswith("Memory cgroup") or kill.process.startswith(ENGINES))
    ]
    if not last:
        return
    newest = last[-1]
    pid = f" (pid {newest.pid})" if newest.pid else ""
    yield violation(
        "memory-kill",
        node,
        f"memory ran out on {node}: {newest.by} killed {newest.process}{pid} at "
        f"{stamp(newest.unix_s)}" + (f", {len(last)} kills in a day" if len(last) > 1 else ""),
        evidence="; ".join(f"{stamp(k.unix_s)} {k.by}: {k.process}: {k.why}" for k in last[-3:]),
        remedy="lower gpu_memory_utilization in the recipe, or end what else holds memory, then "
        f"{deploy_command(plan, 'serve')} -y",
    )


def armable(
    node: str, now: HostSettings, guard_mib: int, available: int | None
) -> Iterator[Violation]:
    """What is in the way of a memory guard on a node. `available`: bytes of MemAvailable while the
    engine serves; None where it does not, and nothing can be told.
    """
    if now.guard.program is None:
        yield violation(
            "guard-missing",
            node,
            f"{node} has no earlyoom, which is the memory guard",
            evidence="no program earlyoom on PATH",
            remedy=f"on {node}: {INSTALL}",
        )
    if available is not None and available < APART * guard_mib * MIB:
        fits = int(available / MIB / APART)
        yield violation(
            "guard-tight",
            node,
            f"the engine of {node} serves with {gib(available)} available: a guard at "
            f"{guard_mib} MiB would end it in use",
            evidence=f"MemAvailable is less than {APART:g} times {guard_mib} MiB",
            remedy="lower gpu_memory_utilization in the recipe and serve again"
            + (f", or take --data memory_guard_mib={fits}" if fits >= 64 else ""),
        )
