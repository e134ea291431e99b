"""`python -m tests.bench streams`: what two ends of a transfer can do where neither disk nor wire
is the bound.

On this machine, without the lab: giver and taker are processes of node on loopback, each on its own
half of the cores, their files in a tmpfs.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.rig import SPREAD, Part, Row, in_rate, machine, table, today

ROOT = Path(__file__).resolve().parents[2]
TMPFS = Path("/dev/shm")
FILES = 8
GOAL = 3e9
Json = dict[str, object]


@dataclass
class Figures:
    """Bytes a second, one entry a round."""

    plain: list[float] = field(default_factory=list)
    one_core: list[float] = field(default_factory=list)
    unknown: list[float] = field(default_factory=list)
    known: list[float] = field(default_factory=list)


class Ends:
    """A giver with files and a taker with room, each with a state of its own."""

    def __init__(self, folder: Path, megabytes: int) -> None:
        self._folder, self._bytes = folder, megabytes * (1 << 20)
        cores = sorted(os.sched_getaffinity(0))
        half = max(1, len(cores) // 2)
        self._cores = {"giver": cores[:half], "taker": cores[half:] or cores}
        self.source, self.target = folder / "source", folder / "target"
        self.source.mkdir()
        block = os.urandom(64 << 20)
        for number in range(FILES):
            with (self.source / f"model-{number}.bin").open("wb") as file:
                for part in range(self._bytes // FILES // len(block)):
                    # no two blocks are the same: their first bytes say which they are
                    file.write(b"%016d" % (number * 1000 + part) + block[16:])

    def _start(self, end: str, verb: str, request: Json) -> subprocess.Popen[str]:
        started = subprocess.Popen(
            [sys.executable, "-m", "node", *verb.split()], cwd=ROOT, text=True,
            env={**os.environ, "RIGBOOK_STATE": str(self._folder / f"{end}-state")},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.sched_setaffinity(started.pid, self._cores[end])
        assert started.stdin is not None
        started.stdin.write(json.dumps(request))
        started.stdin.close()
        started.stdin = None
        return started

    def moved(self, number: int) -> float:
        """Bytes a second of one transfer into an empty place, from the first block to the last;
        RuntimeError with node's own words."""
        shutil.rmtree(self.target, ignore_errors=True)
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port = int(sock.getsockname()[1])
        key, place = secrets.token_hex(32), {"address": "127.0.0.1", "port": port, "device": None}
        change = {"id": f"bench-{number}", "deploy": "bench", "operator": "bench"}
        offer: Json = {"listen": place, "peers": ["127.0.0.1"], "key": key}
        giver = self._start("giver", "weights offer", {**offer, "path": str(self.source)})
        take: Json = {"change": change, "path": str(self.target), "owner": "root", "from": place}
        taker = self._start("taker", "weights receive", {**take, "key": key, "streams": FILES})
        answer = json.loads(taker.communicate()[0])
        giver.communicate()
        if not answer["ok"]:
            raise RuntimeError(f"weights receive: {answer}")
        shutil.rmtree(self._folder / "taker-state")
        return self._bytes / float(answer["wire_s"])

    def forget(self) -> None:
        """Nobody knows the files' hashes."""
        shutil.rmtree(self.source / ".rigbook", ignore_errors=True)

    def one_core(self) -> float:
        """Bytes a second of sha256 alone, on one core."""
        line = (
            "import hashlib,time;b=bytes(1<<20);h=hashlib.sha256();t=time.monotonic()\n"
            "for _ in range(512): h.update(b)\nprint(512*len(b)/(time.monotonic()-t))"
        )
        done = subprocess.run([sys.executable, "-c", line], check=True, capture_output=True)
        return float(done.stdout)

    def plain(self) -> float:
        """Bytes a second of one plain stream over loopback, read from a file and written to one."""
        out = self._folder / "plain"
        receive = (
            "import socket,sys\ns=socket.create_server(('127.0.0.1',0));"
            "print(s.getsockname()[1],flush=True);c,_=s.accept();b=bytearray(1<<20)\n"
            f"with open({str(out)!r},'wb',buffering=0) as f:\n"
            " while n:=c.recv_into(b): f.write(memoryview(b)[:n])"
        )
        taker = subprocess.Popen([sys.executable, "-c", receive], stdout=subprocess.PIPE, text=True)
        os.sched_setaffinity(taker.pid, self._cores["taker"])
        assert taker.stdout is not None
        port = int(taker.stdout.readline())
        began = time.monotonic()
        with socket.create_connection(("127.0.0.1", port)) as line:
            for path in sorted(self.source.glob("*.bin")):
                with path.open("rb", buffering=0) as file:
                    line.sendfile(file)
        taker.communicate()
        took = time.monotonic() - began
        out.unlink()
        return self._bytes / took


@contextmanager
def _ends(megabytes: int) -> Iterator[Ends]:
    """The two ends; RuntimeError where the tmpfs has no room for both copies."""
    room = shutil.disk_usage(TMPFS).free
    if room < 3 * megabytes * (1 << 20):
        raise RuntimeError(f"{TMPFS} has {room >> 20} MiB free; 3 times {megabytes} are needed")
    with tempfile.TemporaryDirectory(prefix="rigbook-bench-", dir=TMPFS) as text:
        yield Ends(Path(text), megabytes)


def measured(rounds: int, megabytes: int) -> Figures:
    """All figures, each of them in each round."""
    figures = Figures()
    with _ends(megabytes) as ends:
        for number in range(1, rounds + 1):
            print(f"round {number} of {rounds}", flush=True)
            figures.plain.append(ends.plain())
            figures.one_core.append(ends.one_core())
            ends.forget()
            figures.unknown.append(ends.moved(2 * number))
            figures.known.append(ends.moved(2 * number + 1))
    return figures


def rows(figures: Figures) -> list[Row]:
    """The table."""
    best = sorted(figures.known)[len(figures.known) // 2]
    return [
        Row("one plain stream, file to file", in_rate(figures.plain)),
        Row("sha256 on one core", in_rate(figures.one_core)),
        Row(f"weights in {FILES} streams, hashes known to nobody", in_rate(figures.unknown)),
        Row(f"weights in {FILES} streams, hashes known", in_rate(figures.known),
            f"≥ {GOAL / 1e6:.0f} MB/s", best >= GOAL),
    ]  # fmt: skip


def part(rounds: int, megabytes: int = 4096) -> Part:
    """The section of docs/benchmarks.md and its rows; RuntimeError when it was not measured."""
    where = machine()
    listed = rows(measured(rounds, megabytes))
    text = f"""Measured {today()} on {where}: {megabytes} MB in {FILES} files,
giver and taker on loopback, each on its own half of the cores, files in a tmpfs. {rounds} rounds.
Run again: `python -m tests.bench streams`.

{table(listed)}
{SPREAD}

- Each byte is read, hashed and sent by one end, and hashed, compared and written by the other. With
  fewer than {2 * FILES} cores the streams share them.
"""
    return Part("Two ends without disk and wire", text, listed)
