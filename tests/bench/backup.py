"""`python -m tests.bench backup`: backup and restore against plain tar and zstd.

On one real tree of 3 GB or more, everything in turn in each round, so that a busy minute of the
machine meets all of it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from lab import core, engine
from tests.bench.rig import SPREAD, Part, Row, in_seconds, in_times, machine, ratios, table, today

ROOT = Path(__file__).resolve().parents[2]
LEVEL = 1
MAX_BACKUP, MAX_RESTORE, MAX_MB = 1.10, 1.15, 200
MIN_BYTES = 3 * 10**9


@dataclass
class Figures:
    """Seconds and bytes, one entry a round."""

    plain_backup: list[float] = field(default_factory=list)
    backup: list[float] = field(default_factory=list)
    plain_restore: list[float] = field(default_factory=list)
    restore: list[float] = field(default_factory=list)
    verify: list[float] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)


class Bench:
    """One tree, copied into a folder of its own, where it is backed up and restored."""

    def __init__(self, tree: Path, folder: Path) -> None:
        self.folder = folder
        self.tree = folder / "engine" / "tree"
        self.out = folder / "out"
        self.tree.mkdir(parents=True)
        self.copies = self.count = self.bytes = 0
        while self.bytes < MIN_BYTES:
            # zstd -1 looks back a megabyte: it does not see that it had the same a gigabyte ago
            self.copies += 1
            subprocess.run(["cp", "-a", str(tree), str(self.tree / str(self.copies))], check=True)
            seen = [path.lstat() for path in self.tree.rglob("*")]
            self.count, self.bytes = len(seen), sum(info.st_size for info in seen)
        self.environ = {**os.environ, "RIGBOOK_STATE": str(folder / "state")}

    def plain_backup(self) -> float:
        """Seconds of tar and zstd -T0 with the same level, and of the flush."""
        (self.folder / "plain.tar.zst").unlink(missing_ok=True)
        line = 'tar -cf - -C "$1" . | zstd -q -"$3" -T0 -o "$2" && sync "$2"'
        return self._shell(line, self.tree, self.folder / "plain.tar.zst", LEVEL)

    def plain_restore(self) -> float:
        """Seconds of zstd -d and tar x, and of the flush."""
        shutil.rmtree(self.out, ignore_errors=True)
        self.out.mkdir()
        line = 'zstd -q -dc "$1" | tar -xf - -C "$2" && sync -f "$2"'
        return self._shell(line, self.folder / "plain.tar.zst", self.out)

    def node(self, verb: str, request: dict[str, object]) -> tuple[float, int, dict[str, object]]:
        """Seconds of a verb, the most memory of all its processes together, and its answer."""
        self._settle()
        began = time.monotonic()
        child = subprocess.Popen(
            [sys.executable, "-m", "node", *verb.split(), json.dumps(request)],
            cwd=ROOT, env=self.environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        watch = _Memory(child.pid)
        raw, _ = child.communicate()
        took = time.monotonic() - began
        answer: dict[str, object] = json.loads(raw)
        if not answer["ok"]:
            raise RuntimeError(f"{verb}: {answer}")
        return took, watch.end(), answer

    def _shell(self, line: str, *arguments: object) -> float:
        self._settle()
        began = time.monotonic()
        command = ["bash", "-o", "pipefail", "-ec", line, "-", *map(str, arguments)]
        subprocess.run(command, check=True, env={**os.environ, "LC_ALL": "C"})
        return time.monotonic() - began

    def _settle(self) -> None:
        """Nothing of the last measurement is still on its way to the disk."""
        subprocess.run(["sync"], check=True)


class _Memory:
    """The largest sum of the resident memory of a process and all below it, looked at often."""

    def __init__(self, pid: int) -> None:
        self.most = 0
        self._pid, self._over = pid, False
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        while not self._over:
            self.most = max(self.most, self._sum(self._pid))
            time.sleep(0.05)

    def _sum(self, pid: int) -> int:
        try:
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            below = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except (OSError, IndexError):
            return 0
        return pages * os.sysconf("SC_PAGE_SIZE") + sum(self._sum(int(child)) for child in below)

    def end(self) -> int:
        """The most bytes that were seen."""
        self._over = True
        self._thread.join()
        return self.most


def measured(bench: Bench, rounds: int) -> Figures:
    """All figures, interleaved."""
    figures = Figures()
    for number in range(1, rounds + 1):
        print(f"round {number} of {rounds}", flush=True)
        figures.plain_backup.append(bench.plain_backup())
        seconds, most, answer = bench.node("tree backup", {"tree": str(bench.tree)})
        figures.backup.append(seconds)
        figures.memory.append(most)
        figures.verify.append(bench.node("tree verify", {})[0])
        figures.plain_restore.append(bench.plain_restore())
        shutil.rmtree(bench.out)
        change = {"id": f"bench-{number}", "deploy": "bench", "operator": "bench"}
        wanted = {"backup": answer["backup"], "change": change, "force": True}
        seconds, most, _ = bench.node("tree restore", wanted)
        figures.restore.append(seconds)
        figures.memory.append(most)
        bench.node("close", {"change": change["id"], "status": "COMMITTED"})
        shutil.rmtree(bench.folder / "state" / "backups")
        bench.node("tree prune", {"keep": 1, "displaced": True})
    return figures


def rows(figures: Figures) -> list[Row]:
    """The table."""
    backup = ratios(figures.backup, figures.plain_backup)
    restore = ratios(figures.restore, figures.plain_restore)
    most = max(figures.memory) / 10**6
    return [
        Row(f"plain tar into zstd -{LEVEL} -T0, flushed", in_seconds(figures.plain_backup)),
        Row("tree backup", in_seconds(figures.backup)),
        Row(
            "backup against plain tar and zstd",
            in_times(backup),
            f"≤ {MAX_BACKUP:.2f}",
            median(backup) <= MAX_BACKUP,
        ),
        Row("plain zstd -d into tar x, flushed", in_seconds(figures.plain_restore)),
        Row("tree restore, with the trade of places", in_seconds(figures.restore)),
        Row(
            "restore against plain zstd and tar",
            in_times(restore),
            f"≤ {MAX_RESTORE:.2f}",
            median(restore) <= MAX_RESTORE,
        ),
        Row("tree verify", in_seconds(figures.verify)),
        Row("memory, all processes together", f"{most:.0f} MB", "≤ 200 MB", most <= MAX_MB),
    ]


def tree_of_the_lab() -> Path:
    """The cached venv of the lab's tower; RuntimeError says how to make one."""
    found = sorted(core.load_settings().images.glob(f"tower-*/layer{engine.HOST_VENV}"))
    if not found:
        raise RuntimeError(
            "there is no venv to measure with: name one with --tree, or make the lab's: "
            "python -m lab up --tower"
        )
    return found[-1]


def part(tree: Path | None, work: Path | None, rounds: int) -> Part:
    """The section of docs/benchmarks.md and its rows; RuntimeError when it could not be measured.

    `work`: a folder with room for four times the tree.
    """
    where = machine()
    with tempfile.TemporaryDirectory(prefix="rigbook-bench-", dir=work) as folder:
        bench = Bench(tree or tree_of_the_lab(), Path(folder))
        listed = rows(measured(bench, rounds))
        size = f"{bench.count} entries, {bench.bytes / 10**9:.1f} GB"
        what = "one venv" if bench.copies == 1 else f"{bench.copies} copies of a venv"
    text = f"""Measured {today()} on {where}: {what} with the real vLLM
({size}). {rounds} rounds, everything in turn in each, the disk flushed before each and in each
figure. Run again: `python -m tests.bench backup`.

{table(listed)}
{SPREAD}

- plain: `tar -cf - | zstd -{LEVEL} -T0` and `zstd -dc | tar -xf -`, with the same level and the
  same flush. A backup also walks the tree twice, hashes what it writes, and lists every member; a
  restore checks every header, the hash and every entry, and trades places.
- What binds a restore is the proof: of one copy of the venv (2.1 GB, 15.3 s) 5.5 s went into zstd
  and tar, 1.2 s into the flush, 7.8 s into reading every file back from the disk and hashing it,
  with 9.3 s of processor.
- memory: node with tar and zstd together, looked at twenty times a second.
"""
    return Part("Backup and restore", text, listed)
