"""One cell: a change under a lease, a loss in its middle, and what the rig is at the end.

RIGBOOK_LEASE=serve:cable,kernel selects cells by deploy and by the beginning of a loss.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass

from tests.system.engine.steps import wait_until
from tests.system.lease.losses import LASTS_S, LEASE_S, LOSSES, Loss
from tests.system.lease.rigs import Rig

TAKEN_BACK = "TAKEN_BACK"
ENDS = {"COMMITTED": "new", "ROLLED_BACK": "old", TAKEN_BACK: "old, taken back at once"}
DEPLOYS = ("serve", "restart", "upgrade", "kernel", "unit", "weights")
CHOSEN = os.environ.get("RIGBOOK_LEASE", "")
# an engine's start on a machine that others use, and a host's boot
START_S = 600
BEGIN_S = 900
# how long the operator's process runs between two looks
SLICE_S = 0.3
# from the call to a loss that is made
MADE_S = 4
# what a host says of a cell that failed
EVIDENCE = (
    "date; uptime; df -h /var/lib/rigbook; rignode status; systemctl list-units --all 'rigbook*' "
    "| cat; ls /etc/systemd/system; journalctl -b -u 'rigbook-lease*' -n 60 --no-pager; "
    "ls -l /var/lib/rigbook /var/lib/rigbook/journal"
)
# a timer is late by up to a minute without it
EXACT = "--timer-property=AccuracySec=100ms"


@dataclass(frozen=True)
class Row:
    """A cell's end: the change's status, seconds from the loss to an answer, what was wrong."""

    deploy: str
    loss: str
    status: str
    seconds: float
    fault: str


ROWS: list[Row] = []


def cells(deploy: str) -> list[str]:
    """The losses that are chosen for a deploy."""
    if not CHOSEN:
        return list(LOSSES)
    found = []
    for part in CHOSEN.split(","):
        name, _, loss = part.partition(":")
        if name not in DEPLOYS or not any(row.startswith(loss) for row in LOSSES):
            raise ValueError(f"RIGBOOK_LEASE: {part}: there are {DEPLOYS} and {tuple(LOSSES)}")
        found += [row for row in LOSSES if name == deploy and row.startswith(loss)]
    return list(dict.fromkeys(found))


def _newest(rig: Rig, name: str) -> str:
    rows = rig.changes(name)
    return str(rows[0]["id"]) if rows else ""


def _begun(rig: Rig, known: dict[str, str]) -> bool:
    """Whether each host has an open change, and a step of it is done on one of them."""
    rows = [rig.changes(name)[:1] for name in rig.names]
    fresh = [row[0] for name, row in zip(rig.names, rows, strict=True)
             if row and row[0]["id"] != known[name] and row[0]["status"] == "OPEN"]  # fmt: skip
    return len(fresh) == len(rig.names) and any(row["steps"] for row in fresh)


def _to_its_middle(
    rig: Rig, deploy: str, process: subprocess.Popen[str], known: dict[str, str]
) -> None:
    """Lets the operator's process run until a step is done and the change is open, and leaves it
    stopped there.

    Where changes are short it stands still during each look as well.
    """
    until = time.monotonic() + BEGIN_S
    while time.monotonic() < until:
        os.killpg(process.pid, signal.SIGCONT)
        time.sleep(SLICE_S)
        if process.poll() is not None:
            raise AssertionError(f"{deploy} ended before its middle: {process.communicate()[0]}")
        if rig.short:
            os.killpg(process.pid, signal.SIGSTOP)
        if _begun(rig, known):
            os.killpg(process.pid, signal.SIGSTOP)
            return
    raise AssertionError(f"{deploy} is in its middle: not within {BEGIN_S} s")


def _lose(rig: Rig, loss: Loss, process: subprocess.Popen[str]) -> None:
    names = rig.names if loss.where == "all" else rig.names[-1:]
    if loss.operator == "killed":
        os.killpg(process.pid, signal.SIGKILL)
    for name in names if loss.script else ():
        login = rig.root(name, "logname 2>/dev/null || echo $SUDO_USER").strip()
        script = loss.script.replace("{jump}", rig.jump).format(
            s=LASTS_S, operator=rig.operator(name), peers=" ".join(rig.peers(name)), login=login
        )
        quoted = "'" + script.replace("'", "'\\''") + "'"
        # a moment later: this connection is to end in order
        rig.root(name, f"systemd-run --collect --on-active=2 {EXACT} bash -c {quoted}")
    if loss.power:
        rig.power(names[-1], loss.power)
    if loss.operator == "lives":
        time.sleep(MADE_S)
        os.killpg(process.pid, signal.SIGCONT)


def _settled(rig: Rig, change: str) -> str | None:
    """The status that all hosts have the change in, once no keeper is left; None: not yet.

    TAKEN_BACK: the step that the loss fell into took itself back, and the change with it.
    """
    seen = set()
    for name in rig.names:
        try:
            rows = rig.changes(name)
            if "rigbook-lease.service" in rig.root(name, "ls /etc/systemd/system"):
                return None
        except (
            AssertionError,
            LookupError,
            ValueError,
            OSError,
            subprocess.SubprocessError,
            RuntimeError,
        ):
            return None  # the host cannot be reached yet
        seen |= {str(row["status"]) for row in rows if row["id"] == change}
    if not seen:
        return TAKEN_BACK
    return seen.pop() if len(seen) == 1 and "OPEN" not in seen else None


def run(rig: Rig, deploy: str, loss_name: str, *data: str) -> Row:
    """One cell; its row is kept for the table. Fails where the end is not old or new, whole and
    true.
    """
    loss = LOSSES[loss_name]
    for name in rig.names if loss.before else ():
        rig.root(name, loss.before)
    known = {name: _newest(rig, name) for name in rig.names}
    process, began = rig.start(deploy, *data, f"lease={LEASE_S}"), time.monotonic()
    try:
        _to_its_middle(rig, deploy, process, known)
        change = _newest(rig, rig.names[0])
        began = time.monotonic()
        _lose(rig, loss, process)
        wait_until("the change is settled", LASTS_S + LEASE_S + START_S,
                   lambda: _settled(rig, change) is not None, 5)  # fmt: skip
        status = str(_settled(rig, change))
        wait_until("an answer", START_S, rig.answers, 2)
        took = time.monotonic() - began
    except (AssertionError, OSError, RuntimeError, ValueError, subprocess.SubprocessError) as error:
        took, said = time.monotonic() - began, f"{error}".partition("\n")[0]
        ROWS.append(Row(deploy, loss_name, "", took, said or type(error).__name__))
        for name in rig.names:
            with contextlib.suppress(Exception):
                print(
                    f"LEASE {deploy}, {loss_name}: {name}: {rig.root(name, EVIDENCE, check=False)}"
                )
        raise
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGCONT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=LASTS_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        for name in rig.names if loss.after else ():
            rig.root(name, loss.after)
    row = Row(deploy, loss_name, status, took, _fault(rig, change, status))
    ROWS.append(row)
    print(f"LEASE {row}")
    assert not row.fault, row
    return row


def _fault(rig: Rig, change: str, status: str) -> str:
    """What is not as the status says; "" when it is true on every host."""
    if status not in ENDS:
        return f"the change is {status}"
    for name in rig.names if status != TAKEN_BACK else ():
        text = rig.root(name, f"rignode status --json --verify {change}")
        if lines := json.loads(text)["lines"]:
            return f"{name}: {'; '.join(lines)}"
    return ""


def table() -> list[str]:
    """The table, a row a loss and a column a deploy."""
    found = {(row.loss, row.deploy): row for row in ROWS}
    good = sum(not row.fault for row in ROWS)
    lines = [
        f"{len(ROWS)} cells of {len(LOSSES) * len(DEPLOYS)}, lease {LEASE_S} s: {good} ended old "
        "and answering, or new and proven",
        f"| loss | {' | '.join(DEPLOYS)} |",
        "|---|" + "---|" * len(DEPLOYS),
    ]
    for loss in LOSSES:
        words = []
        for deploy in DEPLOYS:
            row = found.get((loss, deploy))
            end = ENDS.get(row.status, "?") if row else "-"
            words.append(
                f"{end} {row.seconds:.0f} s{' FAULT' if row.fault else ''}" if row else "-"
            )
        lines.append(f"| {loss} | {' | '.join(words)} |")
    return lines + [f"FAULT {row.deploy}: {row.loss}: {row.fault}" for row in ROWS if row.fault]
