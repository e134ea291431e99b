"""`python -m tests.bench.moving`: an image and weights from lab1 to lab2, against the seed's pipe.

On the lab, as root, with the engine's image on lab1. The baseline is `docker save | ssh | docker
load` from lab1 to lab2 over the fabric, ssh with its default cipher, in the same run, alternating
with ours. Prints the table. It removes the image from lab2 before each cold move.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import time
from collections.abc import Callable

from lab.settings import ENGINE_IMAGE, MODEL_PATH
from tests.rehearsal import Lab

KEY = "/root/.ssh/rigbook-bench"
SSH = f"ssh -i {KEY} -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
ADD_LAYER = """set -e
id=$(sudo docker create {image} true)
head -c 1000000 /dev/urandom > /tmp/layer && sudo docker cp /tmp/layer $id:/layer >/dev/null
sudo docker commit $id {image} >/dev/null && sudo docker rm $id >/dev/null && rm /tmp/layer
"""
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


def timed(work: Callable[[], object]) -> float:
    """Seconds that `work` takes."""
    started = time.monotonic()
    work()
    return time.monotonic() - started


class Moves:
    """The two ways on the lab's two hosts."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.giver, self.taker = (lab.hosts[name].fabric_address for name in ("lab1", "lab2"))
        lab.ssh("lab1", f"sudo sh -c 'mkdir -p /root/.ssh; test -f {KEY} || "
                f"ssh-keygen -q -t ed25519 -N \"\" -f {KEY}'")  # fmt: skip
        public = lab.ssh("lab1", f"sudo cat {KEY}.pub")
        lab.ssh("lab2", "cat >> ~/.ssh/authorized_keys", stdin=public + "\n")
        self.lines: list[str] = []

    def close(self) -> None:
        """No key stays that lets one host into the other."""
        self.lab.ssh("lab2", "sed -i '/root@lab1$/d' ~/.ssh/authorized_keys")
        self.lab.ssh("lab1", f"sudo rm -f {KEY} {KEY}.pub")

    def away(self, image: str) -> None:
        """The taker has no such image, and nothing is left to write back."""
        script = (
            f"sudo docker rmi -f {image} >/dev/null 2>&1; sudo docker image prune -f >/dev/null"
        )
        self.lab.ssh("lab2", f"{script}; sync")
        self.lab.ssh("lab1", "sync")

    def pipe(self, image: str) -> float:
        """The seed's way."""
        command = f"sudo sh -c 'docker save {image} | {SSH} rig@{self.taker} sudo docker load'"
        return timed(lambda: self.lab.ssh("lab1", command))

    def ours(self, *data: str) -> float:
        """The deploy, with the start of the command line."""
        words = [word for pair in data for word in ("--data", pair)]

        def work() -> None:
            done = self.lab.pyinfra("image", *words)
            if done.rc != 0:
                raise RuntimeError(f"the deploy failed: {done.text[-300:]}")
            self.lines += re.findall(r"\d+ layers, .*", done.text)

        return timed(work)

    def raw(self, megabytes: int) -> float:
        """Bytes a second of one plain stream between the hosts, nothing read or written."""
        for host in ("lab1", "lab2"):
            self.lab.ssh(host, "cat > /tmp/raw.py", stdin=RAW)
        self.lab.ssh("lab2", "nohup python3 /tmp/raw.py take "
                     f"{self.taker} 0 > /tmp/raw.out 2>&1 & sleep 1")  # fmt: skip
        self.lab.ssh("lab1", f"python3 /tmp/raw.py give {self.taker} {megabytes}")
        time.sleep(1)
        return float(self.lab.ssh("lab2", "cat /tmp/raw.out"))

    def disk(self, megabytes: int) -> float:
        """Bytes a second that the taker's disk takes, flushed."""
        path = f"{MODEL_PATH}/disk.probe"
        command = f"sudo dd if=/dev/zero of={path} bs=1M count={megabytes} conv=fsync 2>/dev/null"
        took = timed(lambda: self.lab.ssh("lab2", f"{command}; sync"))
        self.lab.ssh("lab2", f"sudo rm -f {path}")
        return megabytes * (1 << 20) / took

    def weights(self, megabytes: int) -> float:
        """Bytes a second of the weights' transfer itself, as its own line says."""
        name = f"{MODEL_PATH}/bench.bin"
        self.lab.ssh("lab1", f"sudo sh -c 'rm -f {name}*; for n in 1 2 3 4; do head -c "
                     f"{megabytes // 4}M /dev/urandom > {name}$n; done; sync'")  # fmt: skip
        self.lab.ssh("lab2", f"sudo rm -f {name}*; sync")
        done = self.lab.pyinfra("weights", "--data", "from=lab1")
        for host in ("lab1", "lab2"):
            self.lab.ssh(host, f"sudo rm -f {name}*")
        found = re.search(r"\((\d+) MB/s\)", done.text)
        if done.rc != 0 or not found:
            raise RuntimeError(f"the deploy failed: {done.text[-300:]}")
        return float(found[1]) * 1e6


def main(arguments: list[str]) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.moving", description=__doc__)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--weights-mb", type=int, default=1024)
    asked = parser.parse_args(arguments)
    moves, rows = Moves(Lab()), {}
    try:
        for _ in range(asked.rounds):
            for name, work in (
                ("cold, the seed's pipe", lambda: moves.pipe(ENGINE_IMAGE)),
                ("cold, ours", moves.ours),
            ):
                moves.away(ENGINE_IMAGE)
                rows.setdefault(name, []).append(work())
            for name, work in (
                ("one layer of 1 MB, the seed's pipe", lambda: moves.pipe(ENGINE_IMAGE)),
                ("one layer of 1 MB, ours", lambda: moves.ours("from=lab1")),
            ):
                moves.lab.ssh("lab1", "bash -s", stdin=ADD_LAYER.format(image=ENGINE_IMAGE))
                rows.setdefault(name, []).append(work())
            rows.setdefault("nothing to do, ours", []).append(moves.ours())
        rates = {
            "one plain TCP stream": moves.raw(asked.weights_mb),
            "the taker's disk, flushed": moves.disk(asked.weights_mb),
            "weights, ours": moves.weights(asked.weights_mb),
        }
    except (RuntimeError, AssertionError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    finally:
        moves.close()
    print("\n".join(["", "| what | seconds (median) |", "|---|---|"]))
    for name, seconds in rows.items():
        print(f"| {name} | {statistics.median(seconds):.1f} |")
    for name, rate in rates.items():
        print(f"| {name} | {rate / 1e6:.0f} MB/s |")
    print(json.dumps(rows), *moves.lines, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
