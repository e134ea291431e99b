"""`python -m tests.bench weights`: a folder of weights from lab1 to lab2, against disk and wire.

On the lab. In each round, one after the other: one plain TCP stream, the taker's disk, the weights
of which nobody knows a hash, and the same once more, now that the giver knows them.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from lab.core import MODEL_PATH
from tests.bench.rig import (
    MB,
    SPREAD,
    Part,
    Row,
    in_rate,
    in_share,
    machine,
    ratios,
    table,
    timed,
    today,
)
from tests.system.rehearsal import Lab

RAW = """
import socket, sys, time
address, port, count = sys.argv[2], 29690, int(sys.argv[3])
block = bytes(1 << 20)
if sys.argv[1] == "take":
    server = socket.create_server((address, port))
    near, _ = server.accept()
    into, got, began = bytearray(1 << 20), 0, time.monotonic()
    while n := near.recv_into(into):
        got += n
    print(got / (time.monotonic() - began))
else:
    far = socket.create_connection((address, port), 10)
    for _ in range(count):
        far.sendall(block)
"""

FILES = 4
SHARE = 0.95
MOST_CACHED = 64 * MB
NAME = f"{MODEL_PATH}/bench.bin"


@dataclass
class Figures:
    """Bytes a second, one entry a round; bytes of the giver's files in the page cache."""

    raw: list[float] = field(default_factory=list)
    disk: list[float] = field(default_factory=list)
    unknown: list[float] = field(default_factory=list)
    known: list[float] = field(default_factory=list)
    cached: int = 0
    grown: int = 0


def _raw(lab: Lab, megabytes: int) -> float:
    """Bytes a second of one plain stream between the hosts, nothing read or written."""
    taker = lab.hosts["lab2"].fabric_address
    for host in ("lab1", "lab2"):
        lab.ssh(host, "cat > /tmp/raw.py", stdin=RAW)
    lab.ssh("lab2", f"nohup python3 /tmp/raw.py take {taker} 0 > /tmp/raw.out 2>&1 & sleep 1")
    lab.ssh("lab1", f"python3 /tmp/raw.py give {taker} {megabytes}")
    time.sleep(1)
    return float(lab.ssh("lab2", "cat /tmp/raw.out"))


def _disk(lab: Lab, megabytes: int) -> float:
    """Bytes a second that the taker's disk takes past the page cache, flushed."""
    path = f"{MODEL_PATH}/disk.probe"
    command = (
        f"sudo dd if=/dev/zero of={path} bs=4M count={megabytes // 4} oflag=direct conv=fsync "
        "2>/dev/null"
    )
    took = timed(lambda: lab.ssh("lab2", f"{command}; sync"))
    lab.ssh("lab2", f"sudo rm -f {path}")
    return megabytes * (1 << 20) / took


def _moved(lab: Lab) -> float:
    """Bytes a second of one transfer into an empty place, as the deploy's own line says."""
    lab.ssh("lab2", f"sudo rm -f {NAME}*; sync")
    done = lab.pyinfra("weights", "--data", "from=lab1")
    found = re.search(r"\((\d+) MB/s\)", done.text)
    if done.rc != 0 or not found:
        raise RuntimeError(f"the deploy failed: {done.text[-300:]}")
    return float(found[1]) * MB


def _cached() -> int:
    """Bytes in the page cache; the hosts of the lab share this machine's."""
    found = re.search(r"^Cached: +(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def measured(lab: Lab, rounds: int, megabytes: int) -> Figures:
    """All figures, each of them in each round."""
    figures = Figures()
    each = megabytes // FILES
    try:
        for number in range(1, rounds + 1):
            print(f"round {number} of {rounds}", flush=True)
            lab.ssh("lab1", f"sudo sh -c 'rm -f {NAME}*; for n in $(seq {FILES}); do "
                    f"head -c {each}M /dev/urandom > {NAME}$n; done; sync'")  # fmt: skip
            figures.raw.append(_raw(lab, megabytes))
            figures.disk.append(_disk(lab, megabytes))
            figures.unknown.append(_moved(lab))
            figures.known.append(_moved(lab))
        # the hosts' page cache is this machine's; a container may not drop it
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("1\n")
        before = _cached()
        _moved(lab)
        figures.grown = _cached() - before
        told = lab.ssh("lab1", f"sudo fincore --bytes --noheadings --output RES {NAME}*")
        figures.cached = sum(int(word) for word in told.split())
    finally:
        for host in ("lab1", "lab2"):
            lab.ssh(host, f"sudo rm -f {NAME}*")
    return figures


def rows(figures: Figures) -> list[Row]:
    """The table."""
    bound = [min(pair) for pair in zip(figures.raw, figures.disk, strict=True)]
    listed = [
        Row("one plain TCP stream", in_rate(figures.raw)),
        Row("the taker's disk, written past the page cache and flushed", in_rate(figures.disk)),
    ]
    for name, rates in (("known", figures.known), ("known to nobody", figures.unknown)):
        shares = ratios(rates, bound)
        listed += [
            Row(f"weights, hashes {name}", in_rate(rates)),
            Row(f"weights, hashes {name}: against the lower of the two", in_share(shares),
                f"≥ {100 * SHARE:.0f} %", median(shares) >= SHARE),
        ]  # fmt: skip
    return [
        *listed,
        Row("files that were in no page cache: of the giver's in it afterwards",
            f"{figures.cached / MB:.0f} MB", f"≤ {MOST_CACHED / MB:.0f} MB",
            figures.cached <= MOST_CACHED),
        Row("growth of the whole page cache meanwhile", f"{figures.grown / MB:.0f} MB"),
    ]  # fmt: skip


def part(rounds: int, megabytes: int = 4096) -> Part:
    """The section of docs/benchmarks.md and its rows; RuntimeError when it was not measured."""
    where = machine()
    try:
        listed = rows(measured(Lab(), rounds, megabytes))
    except AssertionError as error:
        raise RuntimeError(str(error)[-500:]) from None
    load = f"load average {os.getloadavg()[0]:.1f} after"
    text = f"""Measured {today()} on {where}, {load}: {megabytes} MB in {FILES} files
of random bytes, from lab1 to lab2 over the lab's fabric (a veth pair, MTU 9000). {rounds} rounds.
Run again on a lab: `python -m tests.bench weights`.

{table(listed)}
{SPREAD}

- The rate is the deploy's own, from the first block to the last name, of files that were just
  written, so from the giver's page cache: both hosts' disk is one. Both ends, the operator and the
  disk share the two cores. Where nobody knows the hashes, each end takes the sha256 of all bytes.
- At the end the page cache is dropped and the files are moved once more; what of the giver's is in
  it afterwards is counted by fincore. The hosts of the lab share one kernel, so the growth of the
  whole page cache is that of both ends.
"""
    return Part("Weights over the fabric", text, listed)
