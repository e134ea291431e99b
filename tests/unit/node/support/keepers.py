"""Keepers as real processes on loopback, each on a host made of folders, with a line between them
that can be cut or disturbed.

Times are cut short in them (LIVES): a lease of two seconds in place of minutes. What they do is
real: the journal, the undo, the datagrams. systemctl is the stand-in of support/host.py.
"""

from __future__ import annotations

import json
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.unit.node.support.host import OLD, Host, apply_request, change, file_step

ROOT = Path(__file__).resolve().parents[4]
HEAD, WORKER = "spark1", "spark2"
# addresses of the two, and those of the line that each reaches the other by
OWN = {HEAD: "127.0.0.11", WORKER: "127.0.0.12"}
LINE = {HEAD: "127.0.0.21", WORKER: "127.0.0.22"}
BACK = {HEAD: "ROLLED_BACK", WORKER: "ROLLED_BACK"}
RUN = "a1"
LEASE_S = 2.0
LIVES = """\
import os, signal, sys
from node import lease
lease.LEAST_LEASE_S = 0
lease.POLL_S, lease.BEAT_S, lease.REFUSED_S, lease.SILENT_S = 0.1, 0.2, 1.0, 4.0
lease.ANSWER_S = 0.1
dies = sys.argv[1:]
if dies:
    def killed(self, *words):
        os.kill(os.getpid(), signal.SIGKILL)
    setattr(lease.WayBack, dies[0], killed)
lease.run_keeper()
"""


class Line:
    """Takes the datagrams for a host and passes them on, with answers, as `mischief` says."""

    def __init__(self, name: str, port: int, seed: int) -> None:
        self._to = (OWN[name], port)
        self.cut = False
        self.mischief = False
        self._rng = random.Random(seed)
        self._sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._sock.bind((LINE[name], port))
        self._sock.settimeout(0.1)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while not self._over.is_set():
            try:
                raw, sender = self._sock.recvfrom(4096)
            except TimeoutError:
                continue
            if not self.cut:
                threading.Thread(target=self._pass_on, args=(raw, sender), daemon=True).start()

    def _pass_on(self, raw: bytes, sender: tuple[str, int]) -> None:
        """One question and its answers: lost, late or twice where mischief is done."""
        rng, odd = self._rng, self.mischief
        if odd and rng.random() < 0.3:
            return
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.settimeout(0.3)
            sock.connect(self._to)
            try:
                for _ in range(2 if odd and rng.random() < 0.3 else 1):
                    sock.send(raw)
                    answer = sock.recv(4096)
                    if odd:
                        time.sleep(rng.uniform(0, 0.15))
                    self._sock.sendto(answer, sender)
            except OSError:
                return

    def close(self) -> None:
        """Ends the line."""
        self._over.set()
        self._thread.join()
        self._sock.close()


@dataclass
class Pair:
    """Two hosts with one open change each, and their keepers."""

    hosts: dict[str, Host]
    port: int
    lines: dict[str, Line] = field(default_factory=dict)
    keepers: dict[str, subprocess.Popen[str]] = field(default_factory=dict)

    @classmethod
    def made(cls, folder: Path, pyz: Path) -> Pair:
        """Both have the change, and no keeper runs yet."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
            free.bind((LINE[HEAD], 0))
            port = free.getsockname()[1]
        hosts = {}
        for name in (HEAD, WORKER):
            root = folder / name
            (root / "bin").mkdir(parents=True)
            engine = str(root / "node.json")
            env = {"RIGBOOK_ENGINE": engine, "RIGBOOK_CANDIDATE": engine}
            hosts[name] = Host(root, pyz, env=env)
        pair = cls(hosts, port)
        pair.lines = {name: Line(name, port, seed) for seed, name in enumerate(hosts)}
        pair.begin()
        return pair

    def lease(self, name: str, seconds: float = LEASE_S) -> dict[str, Any]:
        """The lease of a host, as a run asks for it."""
        other = WORKER if name == HEAD else HEAD
        return {
            "seconds": seconds, "key": "5" * 64, "node": name, "head": name == HEAD,
            "port": self.port, "addresses": [OWN[name]], "peers": {other: [LINE[other]]},
        }  # fmt: skip

    def begin(self) -> None:
        """A run arms both and writes one file on each; its next sign of life does not come."""
        for name, host in self.hosts.items():
            host.systemctl()
            path = host.file()
            armed = {"change": change(run=RUN), "lease": self.lease(name, 120)}
            assert host.call("lease", armed)["status"] == "OPEN"
            assert host.call("apply", apply_request(file_step(path), run=RUN))["changed"]
            body = {**self.lease(name), "change": "change-1"}
            (host.state / "lease.json").write_text(json.dumps(body))

    def keep(self, name: str, *dies: str) -> subprocess.Popen[str]:
        """Starts a host's keeper, as systemd does; with `dies` it is killed before that act,
        which is after the one before.
        """
        host = self.hosts[name]
        self.keepers[name] = subprocess.Popen(
            [sys.executable, "-c", LIVES, *dies], cwd=ROOT, env=host.environ(), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        return self.keepers[name]

    def journal(self, name: str) -> dict[str, Any]:
        """The change in a host's journal."""
        found: dict[str, Any] = json.loads(
            (self.hosts[name].state / "journal" / "change-1.json").read_text()
        )
        return found

    def beat(self, name: str) -> dict[str, Any]:
        """A sign of life of the run on one host."""
        return self.hosts[name].call("beat", {"change": "change-1", "run": RUN})

    def file(self, name: str) -> str:
        """What lies in the file that the run wrote."""
        return (self.hosts[name].root / "file.conf").read_text()

    def ends(self, timeout_s: float = 30) -> dict[str, str]:
        """Waits until both keepers have ended by themselves; the change's status on each."""
        for name, process in self.keepers.items():
            said = process.communicate(timeout=timeout_s)[0]
            assert process.returncode == 0, (name, said)
        return {name: self.journal(name)["status"] for name in self.hosts}

    def close(self) -> None:
        """Ends what still runs."""
        for process in self.keepers.values():
            process.kill()
            process.wait()
        for line in self.lines.values():
            line.close()


def until(seen: Callable[[], object], timeout_s: float = 15) -> None:
    """Waits until something is so."""
    deadline = time.monotonic() + timeout_s
    while not seen():
        assert time.monotonic() < deadline, "it did not come to it"
        time.sleep(0.05)


def is_back(pair: Pair) -> bool:
    """Whether both files are as the change found them, and nothing of the keepers is left."""
    for name, host in pair.hosts.items():
        assert pair.file(name) == OLD, name
        assert not (host.state / "lease.json").exists(), name
        units = host.state / "units"
        assert not [*units.glob("*.service"), *units.glob("*/*.service")], name
    return True
