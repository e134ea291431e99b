"""One cell: a deploy interrupted at its moment, ONE more run of the same, and what the rig is then.

A cell that ends outside of the table leaves what replays it in build/chaos/SEED/DEPLOY-NUMBER.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass

import pytest

from tests.system.lease.rigs import Rig
from tests.system.rehearsal import ROOT
from tests.system.sweep.blows import MISSED, end, strike
from tests.system.sweep.plan import DEPLOYS, Cell

# what a run takes at most on a machine that others use, and a VM's emulated one
RUN_S = 1200
TRIES = 3
LOGS = ROOT / "build" / "chaos"
COMMITTED, ROLLED_BACK = "COMMITTED", "ROLLED_BACK"


class Case:
    """A deploy under test on a rig: what it is told, and how one sees that it did it."""

    deploy = ""
    wanted = COMMITTED
    # whether a run after the one that worked changes nothing
    repeats = True

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.full_s = 0.0

    def prepare(self) -> None:
        """Makes that there is something to change."""

    def data(self) -> Sequence[str]:
        """The KEY=VALUE of the next runs."""
        return ()

    def around(self) -> AbstractContextManager[None]:
        """What holds during the runs."""
        return nullcontext()

    def prove(self) -> None:
        """Fails unless the thing itself is as it was asked for."""

    def run(self) -> tuple[int, str, float]:
        """A whole run: exit status, what it printed, seconds."""
        began = time.monotonic()
        process = self.rig.start(self.deploy, *self.data())
        code, text = ended(process)
        return code, text, time.monotonic() - began

    def measure(self) -> None:
        """How long a whole run takes that is not interrupted; once."""
        if not self.full_s:
            self.prepare()
            with self.around():
                code, text, self.full_s = self.run()
            assert code == 0, text
            self.prove()


@dataclass(frozen=True)
class Row:
    """A cell's end."""

    cell: Cell
    at_s: float
    of_s: float
    line: str
    hit: str
    operator: str
    took_up: str
    again_s: float
    status: str
    fault: str


ROWS: list[Row] = []


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """A run's exit status and what it printed; one that does not end is killed and said so."""
    try:
        text = process.communicate(timeout=RUN_S)[0]
    except subprocess.TimeoutExpired:
        end(process)
        return -1, f"{process.communicate()[0]}\nit did not end within {RUN_S} s"
    finally:
        # an interrupt of the tests themselves leaves no operator at work
        if process.poll() is None:
            end(process)
    return process.returncode, text


def settled(rig: Rig, wanted: str) -> str:
    """The newest change's status on the hosts that have it; fails where one is unsettled, or where
    a host's own look at it finds another thing than its journal says."""
    rows = {name: rig.changes(name) for name in rig.names}
    every = [row for found in rows.values() for row in found]
    unsettled = [f"{row['id']} {row['status']}" for row in every
                 if row["status"] in ("OPEN", "INCONSISTENT")]  # fmt: skip
    assert not unsettled, f"left: {', '.join(unsettled)}"
    newest = max(every, key=lambda row: float(row["opened_unix_s"]))
    for name, found in rows.items():
        for row in found:
            if row["id"] == newest["id"]:
                assert row["status"] == wanted, f"{name}: {row['id']} is {row['status']}"
                said = rig.root(name, f"rignode status --json --verify {row['id']}")
                assert not (lines := json.loads(said)["lines"]), f"{name}: {'; '.join(lines)}"
    return wanted


def run(case: Case, cell: Cell) -> Row:
    """Runs a cell; its row is kept for the table. Fails with all that replays it.

    A run that was over before its moment is a new measure, and the cell is made once more.
    """
    case.measure()
    logs: dict[str, str] = {}
    for _ in range(TRIES):
        case.prepare()
        with case.around():
            row = _interrupted(case, cell, logs)
        if row.fault or row.hit != MISSED:
            break
    ROWS.append(row)
    print(f"SWEEP {row}")
    if row.fault:
        folder = _keep(case, row, logs)
        raise AssertionError(
            f"{cell.name}, {cell.kind} at {row.at_s:.1f} s of {row.of_s:.0f}: {row.fault}\n"
            f"again: make chaos SEED={cell.seed} ONLY={cell.name}   logs: {folder}"
        )
    return row


def _interrupted(case: Case, cell: Cell, logs: dict[str, str]) -> Row:
    rig, full_s = case.rig, case.full_s
    at_s = cell.part * full_s
    name = rig.names[int(cell.host * len(rig.names))]
    process, others = rig.start(case.deploy, *case.data()), []

    def second() -> None:
        others.append(rig.start(case.deploy, *case.data()))

    began = time.monotonic()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(at_s)
        case.full_s = time.monotonic() - began
    before = process.poll()
    hit, again_s, took_up, status, fault = "", 0.0, "", "", ""
    try:
        if before is not None:
            hit = MISSED
        elif cell.kind == "operator killed":
            end(process)
            hit = "its process group"
        else:
            hit = strike(rig, cell.kind, name, second, lambda: process.poll() is not None)
    except (AssertionError, OSError, RuntimeError) as error:
        fault = f"the interrupt itself: {error}"
    code, text = ended(process)
    logs["operator.log"] = text
    operator = "killed" if code == -9 else f"exit {code}"
    for number, other in enumerate(others):
        other_code, logs[f"second-{number}.log"] = ended(other)
        operator += f", the second exit {other_code}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    try:
        assert code != -1, f"the operator did not end: {text[-500:]}"
        again, said, again_s = case.run()
        logs["again.log"] = said
        took_up = next((line.strip() for line in said.splitlines() if "change " in line and (
            "takes up" in line or "closes it there" in line)), "")  # fmt: skip
        assert again == 0, f"one more run ends with {again}: {said.strip()[-700:]}"
        status = settled(rig, case.wanted)
        case.prove()
        if case.repeats:
            code, text, _ = case.run()
            logs["third.log"] = text
            assert code == 0 and no_change(text), f"a third run changes: {text[-700:]}"
    except (AssertionError, OSError, RuntimeError, ValueError) as error:
        fault = fault or str(error)
    took_up = "undone first" if "undoes" in took_up else "goes on" if took_up else "-"
    return Row(cell, at_s, full_s, lines[-1] if lines else "nothing said", hit, operator,
               took_up, again_s, status, fault)  # fmt: skip


def no_change(text: str) -> bool:
    """Whether pyinfra's grand total has no host with a change or an error."""
    rows = [line.split() for line in text.splitlines() if line.strip().startswith("Grand total")]
    return bool(rows) and rows[-1][-3:-1] == ["-", "-"]


def _keep(case: Case, row: Row, logs: dict[str, str]) -> str:
    """Leaves what replays a cell: its moment, what was printed, each host's journal."""
    folder = LOGS / str(row.cell.seed) / row.cell.name.replace(":", "-")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cell.json").write_text(json.dumps(asdict(row), indent=1) + "\n")
    for name, text in logs.items():
        (folder / name).write_text(text)
    for name in case.rig.names:
        with contextlib.suppress(Exception):
            journal = case.rig.root(name, "cat /var/lib/rigbook/journal/*.json; rignode status",
                                    check=False)  # fmt: skip
            (folder / f"{name}-journal.txt").write_text(journal)
    return os.path.relpath(folder, ROOT)


def table(rows: Sequence[Row] = ROWS) -> list[str]:
    """A row a deploy, a column a kind: how many ended, and with which status; then each cell."""
    kinds = list(dict.fromkeys(kind for found in DEPLOYS.values() for kind in found))
    deploys = [name for name in DEPLOYS if any(row.cell.deploy == name for row in rows)]
    hits = [row for row in rows if row.hit != MISSED or row.fault]
    good = sum(not row.fault for row in hits)
    missed = len(rows) - len(hits)
    seeds = ", ".join(dict.fromkeys(str(row.cell.seed) for row in rows))
    lines = [
        f"{len(hits)} interrupts, seed {seeds}: {good} were as asked after one more run, "
        f"{len(hits) - good} outside" + (f"; {missed} had nothing to hit" if missed else ""),
        f"| deploy | {' | '.join(kinds)} |",
        "|---|" + "---|" * len(kinds),
    ]
    for deploy in deploys:
        words = []
        for kind in kinds:
            found = [r for r in hits if r.cell.deploy == deploy and r.cell.kind == kind]
            bad = sum(bool(row.fault) for row in found)
            ends = sorted({row.status for row in found if not row.fault})
            words.append(f"{len(found)} {', '.join(ends)}{f', {bad} FAULT' if bad else ''}"
                         if found else "-")  # fmt: skip
        lines.append(f"| {deploy} | {' | '.join(words)} |")
    lines += [
        "",
        "| cell | interrupt | after | of | the operator's last line | operator | taken up | "
        "one more run | status |",
        "|---|---|---|---|---|---|---|---|---|",
        *(
            f"| {r.cell.name} | {r.cell.kind}{f' ({r.hit})' if r.hit == MISSED else ''} | "
            f"{r.at_s:.1f} s | {r.of_s:.0f} s | {r.line[:50]} | {r.operator} | {r.took_up} | "
            f"{r.again_s:.0f} s | {r.status}{' FAULT' if r.fault else ''} |"
            for r in rows
        ),
    ]
    return lines + [f"FAULT {r.cell.name}: {r.fault.splitlines()[0]}" for r in rows if r.fault]


def show(terminalreporter: pytest.TerminalReporter) -> None:
    """The table at the end of a run, whatever passed."""
    for line in table() if ROWS else ():
        terminalreporter.write_line(line)
