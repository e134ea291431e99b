"""`python -m tests.bench moving`: an image from lab1 to lab2, against the seed's pipe.

On the lab, as root, with the engine's image on lab1. The baseline is `docker save | ssh | docker
load` from lab1 to lab2 over the fabric, ssh with its default cipher, in the same run, alternating
with ours. It removes the image from lab2 before each cold move.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from lab.core import ENGINE_IMAGE
from tests.bench.rig import (
    SPREAD,
    Part,
    Row,
    in_seconds,
    in_times,
    machine,
    ratios,
    table,
    timed,
    today,
)
from tests.system.rehearsal import Lab

KEY = "/root/.ssh/rigbook-bench"
SSH = f"ssh -i {KEY} -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
ADD_LAYER = """set -e
id=$(sudo docker create {image} true)
head -c 1000000 /dev/urandom > /tmp/layer && sudo docker cp /tmp/layer $id:/layer >/dev/null
sudo docker commit $id {image} >/dev/null && sudo docker rm $id >/dev/null && rm /tmp/layer
"""
# A copy of libraries that the image holds: real files, of the kind that such images are made of.
# It is then as large as with the triton that the lab leaves out (3.7 GB).
MORE = """set -e
test $(sudo docker image inspect -f '{{{{.Size}}}}' {image}) -ge 3500000000 || printf '%s\\n' \\
    'FROM {image}' 'WORKDIR /opt/vllm/lib/python3.11/site-packages' \\
    'RUN mkdir /opt/more && cp -a torch vllm llvmlite /opt/more/' 'WORKDIR /' |
    sudo docker build -q --network host -t {image} -
"""
# The memory of all of node's processes on a host, in kB, looked at five times a second.
WATCH = """
import glob, sys, time
most = 0
while True:
    now = 0
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            if b"rignode" in open(path, "rb").read():
                now += int(open(path[:-7] + "statm").read().split()[1]) * 4
        except (OSError, ValueError, IndexError):
            pass
    most = max(most, now)
    open("/tmp/rss.out", "w").write(str(most))
    time.sleep(0.2)
"""
TIMES_COLD, TIMES_LAYER, LAYER_S, MAX_WIRE, MAX_COMMANDS, MAX_MB = 2.5, 25, 1.5, 5, 2, 200


@dataclass
class Figures:
    """Seconds, one entry a round; MB; bytes a second."""

    pipe: list[float] = field(default_factory=list)
    ours: list[float] = field(default_factory=list)
    wire_s: list[float] = field(default_factory=list)
    node_s: list[float] = field(default_factory=list)
    save: list[float] = field(default_factory=list)
    wire: list[float] = field(default_factory=list)
    load: list[float] = field(default_factory=list)
    layer_pipe: list[float] = field(default_factory=list)
    layer: list[float] = field(default_factory=list)
    layer_node: list[float] = field(default_factory=list)
    layer_mb: list[float] = field(default_factory=list)
    nothing: list[float] = field(default_factory=list)
    commands: int = 0
    memory: int = 0
    size: float = 0.0


class Moves:
    """The two ways on the lab's two hosts."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.giver, self.taker = (lab.hosts[name].fabric_address for name in ("lab1", "lab2"))
        lab.ssh("lab1", f"sudo sh -c 'mkdir -p /root/.ssh; test -f {KEY} || "
                f"ssh-keygen -q -t ed25519 -N \"\" -f {KEY}'")  # fmt: skip
        public = lab.ssh("lab1", f"sudo cat {KEY}.pub")
        lab.ssh("lab2", "cat >> ~/.ssh/authorized_keys", stdin=public + "\n")
        self.said = ""

    def close(self) -> None:
        """No key stays that lets one host into the other."""
        self.lab.ssh("lab2", "sed -i '/root@lab1$/d' ~/.ssh/authorized_keys")
        self.lab.ssh("lab1", f"sudo rm -f {KEY} {KEY}.pub")

    def grow(self, image: str) -> float:
        """Brings the image on the giver to 3 GB and more, once; gives its bytes."""
        self.lab.ssh("lab1", "bash -s", stdin=MORE.format(image=image))
        return float(self.lab.ssh("lab1", f"sudo docker image inspect -f '{{{{.Size}}}}' {image}"))

    def away(self, image: str) -> None:
        """The taker has no such image, and nothing is left to write back."""
        # a displaced image would keep the layers
        script = (
            f"sudo docker rmi -f {image} $(sudo docker images -q rigbook-kept) >/dev/null 2>&1; "
            "sudo docker image prune -f >/dev/null"
        )
        self.lab.ssh("lab2", f"{script}; sync")
        self.lab.ssh("lab1", "sync")

    def pipe(self, image: str) -> float:
        """The seed's way."""
        command = f"sudo sh -c 'docker save {image} | {SSH} rig@{self.taker} sudo docker load'"
        return timed(lambda: self.lab.ssh("lab1", command))

    def save(self, image: str) -> float:
        """docker save alone."""
        return timed(lambda: self.lab.ssh("lab1", f"sudo docker save {image} > /dev/null"))

    def wire(self, megabytes: int) -> float:
        """ssh with its default cipher alone: as many bytes, nothing read and nothing written."""
        command = f"head -c {megabytes}M /dev/zero | {SSH} rig@{self.taker} 'cat > /dev/null'"
        return timed(lambda: self.lab.ssh("lab1", f"sudo sh -c {command!r}"))

    def load(self, image: str) -> float:
        """docker load alone, from a file on the taker's disk that was just written."""
        path = "/var/tmp/bench-image.tar"
        self.lab.ssh("lab1", f"sudo sh -c 'docker save {image} | {SSH} rig@{self.taker} "
                     f"\"sudo tee {path} >/dev/null; sync\"'")  # fmt: skip
        took = timed(lambda: self.lab.ssh("lab2", f"sudo docker load -q -i {path}"))
        self.lab.ssh("lab2", f"sudo rm -f {path}")
        return took

    def ours(self, *data: str) -> float:
        """The deploy, with the start of the command line; what it said stays in `said`."""
        words = [word for pair in data for word in ("--data", pair)]

        def work() -> None:
            done = self.lab.pyinfra("image", *words)
            if done.rc != 0:
                raise RuntimeError(f"the deploy failed: {done.text[-300:]}")
            self.said = done.text

        return timed(work)

    def figure(self, pattern: str) -> float:
        """A figure of what the deploy said last."""
        found = re.search(pattern, self.said)
        if not found:
            raise RuntimeError(f"the deploy did not say {pattern!r}: {self.said[-300:]}")
        return float(found[1])

    def commands(self) -> int:
        """The most remote commands that a run with nothing to do asks of a host."""
        with tempfile.TemporaryDirectory() as folder:
            counts = Path(folder) / "counts.json"
            line = ["-m", "tests.bench.count_execs", str(counts), "inventory/lab.py",
                    "deploys/image.py", "-y"]  # fmt: skip
            if self.lab.run(sys.executable, *line).rc != 0:
                raise RuntimeError("the deploy failed with nothing to do")
            return max(int(count) for count in json.loads(counts.read_text()).values())

    @contextmanager
    def watched(self, figures: Figures) -> Iterator[None]:
        """Notes the most memory that node's processes have on a host meanwhile."""
        pids = {}
        for host in ("lab1", "lab2"):
            self.lab.ssh(host, "cat > /tmp/watch.py", stdin=WATCH)
            started = "nohup sudo python3 /tmp/watch.py >/dev/null 2>&1 & echo $!"
            pids[host] = self.lab.ssh(host, started)
        try:
            yield
        finally:
            for host, pid in pids.items():
                most = int(self.lab.ssh(host, f"sudo kill {pid}; cat /tmp/rss.out")) * 1024
                figures.memory = max(figures.memory, most)


def measured(moves: Moves, rounds: int) -> Figures:
    """All figures, the two ways by turns, so that a busy minute meets both."""
    figures = Figures(size=moves.grow(ENGINE_IMAGE))
    for number in range(1, rounds + 1):
        print(f"round {number} of {rounds}", flush=True)
        moves.away(ENGINE_IMAGE)
        figures.pipe.append(moves.pipe(ENGINE_IMAGE))
        moves.away(ENGINE_IMAGE)
        with moves.watched(figures):
            figures.ours.append(moves.ours())
        figures.wire_s.append(moves.figure(r"on the wire in ([\d.]+) s"))
        figures.node_s.append(moves.figure(r"in all ([\d.]+) s"))
        figures.nothing.append(moves.ours())
        moves.lab.ssh("lab1", "bash -s", stdin=ADD_LAYER.format(image=ENGINE_IMAGE))
        figures.layer.append(moves.ours("from=lab1"))
        figures.layer_node.append(moves.figure(r"in all ([\d.]+) s"))
        figures.layer_mb.append(moves.figure(r"([\d.]+) MB on the wire"))
        moves.lab.ssh("lab1", "bash -s", stdin=ADD_LAYER.format(image=ENGINE_IMAGE))
        figures.layer_pipe.append(moves.pipe(ENGINE_IMAGE))
    figures.save.append(moves.save(ENGINE_IMAGE))
    figures.wire.append(moves.wire(round(figures.size / (1 << 20))))
    moves.away(ENGINE_IMAGE)
    figures.load.append(moves.load(ENGINE_IMAGE))
    moves.ours("from=lab1")
    figures.commands = moves.commands()
    return figures


def rows(figures: Figures) -> list[Row]:
    """The table."""
    cold = ratios(figures.pipe, figures.ours)
    layer = ratios(figures.layer_pipe, figures.layer)
    wire = max(figures.layer_mb)
    most = figures.memory / 10**6
    return [
        Row("cold, the seed's pipe: docker save, ssh, docker load", in_seconds(figures.pipe)),
        Row("cold, image.py, with the start of the command line", in_seconds(figures.ours)),
        Row("cold, against the pipe", in_times(cold, "faster"),
            f"≥ {TIMES_COLD}", median(cold) >= TIMES_COLD),
        Row("of image.py: the wire, while docker registers", in_seconds(figures.wire_s)),
        Row("of image.py: all of it on the taking node", in_seconds(figures.node_s)),
        Row("of the pipe: docker save alone", in_seconds(figures.save)),
        Row("of the pipe: ssh alone, as many bytes", in_seconds(figures.wire)),
        Row("of the pipe: docker load alone, from a file", in_seconds(figures.load)),
        Row("one layer of 1 MB on top, the pipe", in_seconds(figures.layer_pipe)),
        Row("one layer of 1 MB on top, image.py", in_seconds(figures.layer),
            f"≤ {LAYER_S} s", median(figures.layer) <= LAYER_S),
        Row("one layer, against the pipe", in_times(layer, "faster"),
            f"≥ {TIMES_LAYER}", median(layer) >= TIMES_LAYER),
        Row("one layer: on the taking node", in_seconds(figures.layer_node)),
        Row("one layer: on the wire", f"{wire:.1f} MB", f"≤ {MAX_WIRE} MB", wire <= MAX_WIRE),
        Row("nothing to do, image.py", in_seconds(figures.nothing)),
        Row("nothing to do: remote commands a host", str(figures.commands),
            f"≤ {MAX_COMMANDS}", figures.commands <= MAX_COMMANDS),
        Row("memory of node on a host, cold move", f"{most:.0f} MB",
            f"≤ {MAX_MB} MB", most <= MAX_MB),
    ]  # fmt: skip


def part(rounds: int) -> Part:
    """The section of docs/benchmarks.md and its rows; RuntimeError when it was not measured."""
    where, moves = machine(), Moves(Lab())
    try:
        figures = measured(moves, rounds)
        listed = rows(figures)
    except AssertionError as error:
        raise RuntimeError(str(error)[-500:]) from None
    finally:
        moves.close()
    load = f"load average {os.getloadavg()[0]:.1f} after"
    text = f"""Measured {today()} on {where}, {load}: the lab's real vLLM
image of {figures.size / 1e9:.2f} GB (a layer of 2.38 GB, 50,000 files; one of 1.4 GB that copies
some of its libraries; small ones of earlier rounds on top), from lab1 to lab2
over the lab's fabric (a veth pair, MTU 9000). Rounds: {rounds}, the two ways by turns in each.
Run again on a lab with its engine: `python -m tests.bench moving`.

{table(listed)}
{SPREAD}

- Both hosts, the operator and whatever else ran share the two cores. Of the pipe, docker save,
  both ends of ssh and docker load compete for them; of image.py the giver, the taker and docker.
- What binds the layer of 1 MB is not the layer: of 2.4 s, timed by its lines on 2026-11-26 beside
  a running engine, the command line and ssh took 0.7 s, the look at both stores 0.5 s, the move
  0.5 s (0.2 s of it on the taker), the proof on both nodes 0.6 s.
- memory: all of node's processes on the worse host, five times a second.
"""
    return Part("An image over the fabric", text, listed)
