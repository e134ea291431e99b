"""Two real ends of a transfer on loopback: processes of the zipapp, and files that travel."""

from __future__ import annotations

import json
import os
import random
import secrets
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from node.transfer import protocol
from tests.unit.node.support.host import Host, change

HERE = "127.0.0.1"
USER = "root"


def free_port() -> int:
    """A port that nobody holds now."""
    with socket.socket() as sock:
        sock.bind((HERE, 0))
        return int(sock.getsockname()[1])


def listening(port: int, address: str = HERE) -> bool:
    """Whether somebody accepts connections there."""
    try:
        socket.create_connection((address, port), 0.5).close()
    except OSError:
        return False
    return True


def wait_for(check: Callable[[], object], seconds: float = 20) -> None:
    """Waits until `check` holds."""
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def files(folder: Path, **sizes: int) -> dict[str, bytes]:
    """Files of random bytes, the same ones at every run; `_` in a name stands for `.`."""
    folder.mkdir(parents=True, exist_ok=True)
    made = {}
    for name, size in sizes.items():
        made[name.replace("_", ".")] = random.Random(name).randbytes(size)
        (folder / name.replace("_", ".")).write_bytes(made[name.replace("_", ".")])
    return made


def content(folder: Path) -> dict[str, bytes]:
    """The visible files of a folder, by name."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*"))
            if p.is_file() and ".rigbook" not in p.parts}  # fmt: skip


@dataclass
class Ends:
    """A giver and a taker, each with a state of its own, and what they are told."""

    giver: Host
    taker: Host
    source: Path
    target: Path
    port: int = field(default_factory=free_port)
    key: str = field(default_factory=lambda: secrets.token_hex(32))
    # the port that the taker calls, where a meddler stands in between
    via: int | None = None

    def place(self) -> dict[str, Any]:
        """Where the taker finds the giver."""
        return {"address": HERE, "port": self.via or self.port, "device": None}

    @contextmanager
    def meddled(self, spoil: Callable[[int, int, bytes], bytes | None]) -> Iterator[Meddler]:
        """All that the taker gets passes through `spoil` (see Meddler)."""
        meddler = Meddler(self.port, spoil)
        self.via = meddler.port
        try:
            yield meddler
        finally:
            self.via = None
            meddler.close()

    def offer(self, **more: object) -> dict[str, Any]:
        """The giver's request."""
        listen = {"address": HERE, "port": self.port, "device": None}
        return {"listen": listen, "peers": [HERE], "key": self.key, "deadline_s": 60,
                "path": str(self.source), **more}  # fmt: skip

    def receive(self, **more: object) -> dict[str, Any]:
        """The taker's request."""
        return {"change": change(), "path": str(self.target), "owner": USER,
                "from": self.place(), "key": self.key, **more}  # fmt: skip

    def start(self, host: Host, verb: str, request: dict[str, Any]) -> subprocess.Popen[str]:
        """A verb that runs on."""
        started = subprocess.Popen(
            host.argv(verb), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=host.environ(),
        )  # fmt: skip
        assert started.stdin is not None
        started.stdin.write(json.dumps(request))
        started.stdin.close()
        started.stdin = None
        return started

    @contextmanager
    def offering(self, **more: object) -> Iterator[subprocess.Popen[str]]:
        """The giver at work; it is ended where the test leaves it running."""
        started = self.start(self.giver, "weights offer", self.offer(**more))
        try:
            yield started
        finally:
            started.kill()
            started.communicate()

    def killed_taker(self, at: int, how: int = signal.SIGKILL) -> None:
        """A transfer over a slow link whose taker ends by a signal once `at` bytes are there."""
        with self.meddled(slow), self.offering():
            taker = self.start(self.taker, "weights receive", self.receive())
            kill_when(taker, lambda: self.part_bytes() > at, how)
            taker.communicate()

    def parts(self) -> list[Path]:
        """What lies half-done beside the target."""
        return sorted((self.target / ".rigbook").glob("*.part"))

    def part_bytes(self) -> int:
        """The bytes of all parts."""
        return sum(path.stat().st_size for path in self.parts())

    def move(self, **more: object) -> tuple[dict[str, Any], dict[str, Any]]:
        """A whole transfer: what the taker and the giver answer."""
        with self.offering() as offer:
            got = self.taker.call("weights receive", self.receive(**more))
            return got, answer(offer)


@contextmanager
def giver(play: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """A double of a giver that proves itself and then does `play(line)` on each connection."""
    key, port = secrets.token_hex(32), free_port()
    listener = socket.create_server((HERE, port))

    def serve() -> None:
        while True:
            try:
                near, _ = listener.accept()
                line = protocol.accept_handshake(near, key)
                play(line)
                line.close()
            except (OSError, protocol.WireError):
                if listener.fileno() < 0:
                    return

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield {"address": HERE, "port": port, "device": None}, key
    finally:
        listener.close()


def answer(started: subprocess.Popen[str], timeout: float = 20) -> dict[str, Any]:
    """What a verb that ran on answers in the end."""
    out, _ = started.communicate(timeout=timeout)
    found: dict[str, Any] = json.loads(out)
    return found


class Meddler:
    """Stands between the two ends and passes bytes on; `spoil` may change or cut what comes.

    `spoil(connection, offset, data)` gets the giver's bytes and gives what to pass on, or None
    to cut the connection.
    """

    def __init__(self, port: int, spoil: Callable[[int, int, bytes], bytes | None]) -> None:
        self.port = free_port()
        self._behind, self._spoil = port, spoil
        self._listener = socket.create_server((HERE, self.port))
        self.connections = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
                if not self.connections:  # the giver may still start
                    wait_for(lambda: listening(self._behind))
            except (OSError, AssertionError):
                return
            try:
                far = socket.create_connection((HERE, self._behind))
            except OSError:
                near.close()  # nobody is there any more
                continue
            self.connections += 1
            for one, other, number in ((near, far, None), (far, near, self.connections)):
                threading.Thread(target=self._pass, args=(one, other, number), daemon=True).start()

    def _pass(self, one: socket.socket, other: socket.socket, number: int | None) -> None:
        offset = 0
        try:
            while data := one.recv(65536):
                passed = data if number is None else self._spoil(number, offset, data)
                if passed is None:
                    break
                offset += len(data)
                other.sendall(passed)
        except OSError:
            pass
        for sock in (one, other):
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def close(self) -> None:
        """No new connections."""
        self._listener.close()


class Once:
    """Spoils what comes past `after` bytes of a connection, `times` times in all: `change` gives
    what is passed on instead, or None to cut the connection."""

    def __init__(self, after: int, change: Callable[[bytes], bytes | None], times: int = 1) -> None:
        self.after, self.change, self.left = after, change, times

    def __call__(self, connection: int, offset: int, data: bytes) -> bytes | None:
        if offset <= self.after or not self.left:
            return data
        spoilt = self.change(data)
        self.left -= spoilt != data
        return spoilt


def flipped(data: bytes) -> bytes:
    """The bytes with one bit of their middle turned."""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def slow(connection: int, offset: int, data: bytes) -> bytes:
    """A link of about 10 MB/s, so that there is a middle to break it in."""
    time.sleep(len(data) / 10e6)
    return data


def memory_peak_kb(pid: int) -> int:
    """The most memory that a process ever had resident, in kB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1])
    raise AssertionError("no VmHWM")


def kill_when(started: subprocess.Popen[str], seen: Callable[[], object], how: int) -> None:
    """Ends a process by a signal in the middle of its work."""
    wait_for(seen)
    os.kill(started.pid, how)
    started.wait(10)
