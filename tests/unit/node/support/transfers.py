"""Two real ends of a transfer on loopback: processes of the zipapp, and files that travel."""

from __future__ import annotations

import json
import os
import random
import secrets
import signal
import socket
import socketserver
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from node.rules.text import digest_of
from node.transfer import protocol
from tests.unit.node.support.host import Host, change

# What of a file is in the page cache now, as util-linux's fincore says; and how to empty it.


def resident(*paths: Path) -> int:
    """The bytes of these files that are in the page cache."""
    argv = ["fincore", "--bytes", "--noheadings", "--output", "RES", *map(str, paths)]
    out = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    return sum(int(word) for word in out.split())


def empty(*paths: Path) -> None:
    """Takes these files out of the page cache; fails where that does not work."""
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    assert resident(*paths) == 0


# containerd's content store as files.

BLOBS = "io.containerd.content.v1.content/blobs/sha256"


@dataclass
class Store:
    """A content store as containerd lays it out."""

    root: Path
    blobs: dict[str, bytes] = field(default_factory=dict)

    def put(self, raw: bytes) -> str:
        """Stores a blob; its digest."""
        name = digest_of(raw)
        self.path(name).parent.mkdir(parents=True, exist_ok=True)
        self.path(name).write_bytes(raw)
        return name

    def path(self, name: str) -> Path:
        """A blob's file."""
        return self.root / BLOBS / name[7:]

    def document(self, **said: Any) -> str:
        """Stores a document; its digest."""
        return self.put(json.dumps(said).encode())

    def manifest(self, diff_ids: list[str], layers: list[bytes], **config: Any) -> str:
        """Stores an image; the digest of its manifest."""
        made = self.document(rootfs={"diff_ids": diff_ids}, **config)
        rows = [{"digest": self.put(raw), "size": len(raw)} for raw in layers]
        return self.document(config={"digest": made}, layers=rows)

    def read(self, name: str) -> Any:
        """A document of the store."""
        return json.loads(self.path(name).read_bytes())


# Stand-ins (labelled) for an endpoint and for docker's socket, and a real receiver of notices.


class Server:
    """An HTTP server on a loopback port. `reply` gives status and body of a request's JSON; `keys`
    holds the Authorization of each. `page` is what a GET brings, None: 404.
    """

    def __init__(self, reply: Callable[[dict[str, Any]], tuple[int, object]]) -> None:
        self.reply = reply
        self.got: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.keys: list[str | None] = []
        self.page: Callable[[], str] | None = None
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.got.append(body)
                server.paths.append(self.path)
                server.keys.append(self.headers["Authorization"])
                status, answer = server.reply(body)
                raw = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                if status in (301, 302):
                    self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def do_GET(self) -> None:
                raw = b"" if server.page is None else server.page().encode()
                self.send_response(404 if server.page is None else 200)
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        # a client that was killed or gave up is part of some tests
        self._http.__dict__["handle_error"] = lambda *_: None
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def right(self) -> bool:
        """Whether the request that is answered now has the engine's own key."""
        return self.keys[-1:] == ["Bearer sk-its-own"]

    def close(self) -> None:
        """Stop listening: a connect is refused from now on."""
        self._http.shutdown()
        self._http.server_close()


def completion(text: str | None = "hello", model: str = "tiny", **message: object) -> object:
    """The body of a chat completion."""
    choice = {"message": {"content": text, **message}, "finish_reason": "length"}
    return {"model": model, "choices": [choice]}


@contextmanager
def serving(reply: Callable[[dict[str, Any]], tuple[int, object]]) -> Iterator[Server]:
    """A server for the time of a test."""
    server = Server(reply)
    try:
        yield server
    finally:
        server.close()


def http_answer(status: int, document: object = None) -> bytes:
    """A whole answer of HTTP/1.0, without a body where there is no document."""
    raw = b"" if document is None else json.dumps(document).encode()
    return f"HTTP/1.0 {status} said\r\nContent-Length: {len(raw)}\r\n\r\n".encode() + raw


class DockerSocket(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """A server on a unix socket: `reply` gives the bytes for `METHOD /path`."""

    daemon_threads = True

    def __init__(self, path: Path, reply: Callable[[str], bytes]) -> None:
        self.seen: list[str] = []
        docker = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                asked = self.rfile.readline().decode().rpartition(" ")[0]
                while self.rfile.readline().strip():
                    pass
                docker.seen.append(asked)
                self.wfile.write(reply(asked))

        super().__init__(str(path), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()


@contextmanager
def docker_socket(path: Path, reply: Callable[[str], bytes]) -> Iterator[DockerSocket]:
    """A stand-in for docker's socket for the time of a block."""
    server = DockerSocket(path, reply)
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        path.unlink()


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
