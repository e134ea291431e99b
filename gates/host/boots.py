"""A reboot that nobody asked for, and a host that does it again and again (D6)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gates.core.check import Observed, answering_nodes, deploy_command
from gates.core.codes import violation
from gates.core.violation import Violation
from gates.host.keeps_alive import DAY_S, Hosts, stamp
from schema.desired.plan import Plan
from schema.machine.host import Boot, HostFacts
from schema.observed.files import ChangeSummary
from schema.observed.snapshot import NodeSnapshot, Unreadable

# So many ends in a day that nobody asked for are hardware, firmware or a driver.
LOOP = 3
# A reboot of last week is no news.
NEWS_S = 7 * DAY_S
_OURS = frozenset({"reboot", "kernel"})
# What names a cause, of the kernel and of NVIDIA's driver, which says it before it hangs the host
# (NVIDIA/open-gpu-kernel-modules issue 1358, NVIDIA/dgx-spark-playbooks issue 97).
_TELLING = re.compile(
    r"Kernel panic|BUG:|Oops|soft lockup|hard LOCKUP|rcu.*stall|blocked for more than"
    r"|Out of memory|NV_ERR_NO_MEMORY|NVRM: Xid|Hardware Error|machine check|sysrq: Trigger"
    r"|watchdog did not stop|I/O error|thermal"
)


def unasked(
    boots: tuple[Boot, ...], changes: tuple[ChangeSummary, ...]
) -> list[tuple[Boot, Boot | None]]:
    """The boots whose end nobody asked for, each with the next one (None: not in the journal).

    rigbook's own reboots are known by its journal, also where their last lines were lost.
    """
    ours = {change.boot_id.replace("-", "") for change in changes if change.deploy in _OURS}
    following = [*boots[1:], None][: len(boots)]
    return [
        (boot, after)
        for boot, after in zip(boots, following, strict=True)
        if boot.asked_for is False and boot.boot_id not in ours
    ]


def last_words(boot: Boot) -> str:
    """The lines that name a cause, the kernel's own record first; else the journal's last one."""
    for lines in (boot.pstore, boot.tail):
        telling = [line for line in lines if _TELLING.search(line)]
        if telling:
            return " | ".join(dict.fromkeys(telling[-3:]))
    if not boot.tail:
        return "none were kept"
    return f"none that names a cause; the journal ends with: {boot.tail[-1]}"


def findings(plan: Plan, observed: Observed, hosts: Hosts) -> list[Violation]:
    """A warning for a reboot that nobody asked for, in its place one for a loop of them."""
    found: list[Violation] = []
    for node, snapshot in answering_nodes(plan, observed):
        facts = hosts[node.name]
        if isinstance(facts, HostFacts) and isinstance(facts.boots, tuple):
            found += _of(plan, node.name, snapshot, facts.boots)
    return found


def _of(
    plan: Plan, node: str, snapshot: NodeSnapshot, boots: tuple[Boot, ...]
) -> Iterator[Violation]:
    now = snapshot.identity.clock_unix_s
    changes = () if isinstance(snapshot.journal, Unreadable) else snapshot.journal.changes
    ends = [(b, n) for b, n in unasked(boots, changes) if 0 <= now - b.last_unix_s < NEWS_S]
    if not ends:
        return
    boot, after = ends[-1]
    evidence = "; ".join(f"{stamp(b.last_unix_s)}: {last_words(b)}" for b, _ in ends[-LOOP:])
    today = [b for b, _ in ends if now - b.last_unix_s < DAY_S]
    if len(today) >= LOOP:
        yield violation(
            "reboot-loop",
            node,
            f"{node} went down {len(today)} times in a day, and nobody asked for it",
            evidence=evidence,
            remedy=f"inspect its hardware, power and cooling; on {node}: sudo journalctl -b -1 -k "
            f"-e; until then take the load off: {deploy_command(plan, 'stop')} -y",
        )
    elif after is not None and after.asked_for is None:
        yield violation(
            "rebooted-unasked",
            node,
            f"{node} rebooted at {stamp(after.first_unix_s)}, which nobody asked for",
            evidence=f"its last line is of {stamp(boot.last_unix_s)}; last words: "
            f"{last_words(boot)}",
            remedy=f"on {node}: sudo journalctl -b -1 -e shows what came before; "
            f"{deploy_command(plan, 'host')} -y keeps more of it the next time",
        )


def lines(hosts: Hosts) -> list[str]:
    """A line for each node whose former boots nobody can tell of."""
    return [
        f"{name}: its journal has no former boot, so how they ended is unknown; deploys/host.py "
        "has it kept"
        for name, facts in hosts.items()
        if isinstance(facts, HostFacts) and isinstance(facts.boots, tuple) and len(facts.boots) < 2
    ]
