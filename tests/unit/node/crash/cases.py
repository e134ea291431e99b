"""Runs that lose power, and what each disk after it must show.

A check raises Lost where something is neither old nor new, or cannot be brought back; Lied where
the program says what is not so.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from node.change.journal import read_all
from node.change.undo import undo
from tests.unit.node.crash.disk import crashes
from tests.unit.node.crash.rebuild import identity_at, rebuild
from tests.unit.node.crash.recorded import OPTIONS, Recording, as_it_lies
from tests.unit.node.support import strace
from tests.unit.node.support.host import Host

SEED = 20261122


class Lost(AssertionError):
    """Something is gone, damaged, or a mix."""


class Lied(AssertionError):
    """What was said is not so."""


@dataclass
class Run:
    """A verb on a host that loses power: what it begins with, and the check of what it leaves."""

    host: Host
    verb: str
    request: dict[str, Any]
    reset: Callable[[], object]
    check: Callable[[bool], str]  # gets whether the verb had answered; gives the end in a word
    # told to leave out, as the proof that the test can fail
    without: Callable[[Any], bool] | None = None
    # Python that does it, where the verb alone cannot be led to the test's folders
    script: str | None = None


@dataclass
class Table:
    """How the disks of one run ended."""

    ends: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    lied: list[str] = field(default_factory=list)

    @property
    def states(self) -> int:
        """How many different disks there were."""
        return sum(self.ends.values()) + len(self.lost) + len(self.lied)


def cut(run: Run) -> Table:
    """Record a run, then let it lose power wherever it can; each disk is repaired and judged."""
    log = run.host.root.parent / "strace.log"
    run.reset()
    before = as_it_lies(run.host.root)
    real = {inode.number: identity_at(run.host.root / path) for path, inode in before.reachable()}
    text = json.dumps(run.request)
    if run.script is None:
        done = strace.traced(run.host, run.verb, text, OPTIONS, log)
    else:
        argv = [sys.executable, "-B", "-c", run.script]
        done = run.host.run(["strace", "-f", "-qq", "-o", str(log), *OPTIONS, *argv])
    assert done.returncode == 0, done.stdout + done.stderr
    recording = Recording(run.host.root, before, ("bin",)).read(log)
    real |= same(recording, run.host.root)
    operations = [done for done in recording.run if run.without is None or not run.without(done)]
    table = Table()
    for crash in crashes(before, operations, recording.kept, SEED):
        rebuild(crash.disk, run.host.root, real)
        try:
            table.ends[run.check(crash.answered)] += 1
        except Lied as error:
            table.lied.append(f"{crash.words}: {error}")
        except Exception as error:
            table.lost.append(f"{crash.words}: {type(error).__name__} {error}")
    return table


def same(recording: Recording, top: Path) -> dict[int, tuple[bytes, bytes]]:
    """Fails unless the model ends where the real run did; gives its inodes' real identities."""
    real = as_it_lies(top)
    rows = [{path: (inode.kind, inode.mode, inode.uid, inode.gid, inode.data, inode.target,
                    inode.xattrs) for path, inode in disk.reachable()}
            for disk in (recording.now, real)]  # fmt: skip
    differ = [path for path in {**rows[0], **rows[1]} if rows[0].get(path) != rows[1].get(path)]
    shown = [(path, rows[0].get(path), rows[1].get(path)) for path in differ[:3]]
    assert not differ, f"the model is not the run: {shown}"
    return {inode.number: identity_at(top / path) for path, inode in recording.now.reachable()}


def journal() -> list[dict[str, Any]]:
    """The changes. Raises Lost where a file of theirs is damaged."""
    changes, broken = read_all()
    if broken:
        raise Lost(f"the journal is damaged: {broken}")
    return changes


def undone(old: object, seen: Callable[[], object]) -> str:
    """One undo, as a person types it: all is old then, or it says that it is not."""
    status = undo({})["status"]
    if status not in (None, "ROLLED_BACK"):
        raise Lost(f"undo ends {status}")
    if seen() != old:
        raise Lied(f"undo says {status}, but there is {seen()}, not {old}")
    return str(status or "nothing begun")
