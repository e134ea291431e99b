"""A read-only OCI distribution endpoint on 127.0.0.1, for one docker pull of one image.

docker takes plain HTTP from loopback alone. So the endpoint is at the taking end, and what it
answers with comes over the proven stream from the giving node (node/transfer). It knows one
repository, by digest; a name that it was not made with is not looked for anywhere.
"""

from __future__ import annotations

import base64
import contextlib
import hmac
import http.server
import json
import re
import secrets
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from node.core.errors import Json, NodeError
from node.rules.oci_layout import digest_of

HOST = "127.0.0.1"
REPOSITORY = "rigbook-pull"
# docker asks for three blobs at a time
MAX_CONNECTIONS = 32
_SILENCE_S = 60.0
_USER = "rigbook"
_PATH = re.compile(rf"/v2/{REPOSITORY}/(manifests|blobs)/(sha256:[0-9a-f]{{64}})\Z")
_RANGE = re.compile(r"bytes=(\d{1,19})-(\d{0,19})\Z")
# the first byte of a TLS handshake
_TLS = b"\x16"
_BLOB = "application/octet-stream"
Write = Callable[[memoryview], None]
# Item of the giver, first byte, end, and where the bytes go.
Fetch = Callable[[int, int, int, Write], None]


@dataclass(frozen=True)
class Served:
    """What a digest names: its length, and its bytes, or the giver's item that has them."""

    size: int
    kind: str
    raw: bytes | None = None
    item: int = -1


def document(raw: bytes) -> Served:
    """Gives an index, a manifest or a config as it is served. Raises ValueError for no JSON."""
    said: Any = json.loads(raw)
    kind = _BLOB
    if isinstance(said, dict) and ("manifests" in said or "layers" in said):
        shape = "index" if "manifests" in said else "manifest"
        kind = str(said.get("mediaType") or f"application/vnd.oci.image.{shape}.v1+json")
    return Served(len(raw), kind, raw)


def blob(size: int, item: int) -> Served:
    """Gives a layer as it is served: it stays with the giver."""
    return Served(size, _BLOB, None, item)


class Endpoint:
    """The endpoint, open for as long as it is entered; `port` is what the kernel gave it."""

    def __init__(self, content: dict[str, Served], fetch: Fetch) -> None:
        """`content` by digest; `fetch` writes a part of one of the giver's items."""
        self._content, self._fetch = content, fetch
        self._password = secrets.token_hex(32)
        self._room = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._lock = threading.Lock()
        self.port = 0
        # why a blob could not be given, in better words than docker's
        self.error: Exception | None = None
        # the blobs of the giver that were asked for
        self.asked: set[str] = set()
        self._server: Any = None

    def __enter__(self) -> Endpoint:
        endpoint = self

        class Handler(_Handler):
            """One connection to this endpoint."""

            of = endpoint

        self._server = _Server((HOST, 0), Handler, self._room)
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True).start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def name(self) -> str:
        """The repository as docker is asked to pull it."""
        return f"{HOST}:{self.port}/{REPOSITORY}"

    @property
    def header(self) -> str:
        """The value of X-Registry-Auth, which has docker show the one-time password."""
        said = {
            "username": _USER,
            "password": self._password,
            "serveraddress": f"{HOST}:{self.port}",
        }
        return base64.urlsafe_b64encode(json.dumps(said).encode()).decode("ascii")

    def knows(self, header: str) -> bool:
        """Gives whether an Authorization header has the one-time password."""
        wanted = base64.b64encode(f"{_USER}:{self._password}".encode())
        kind, _, said = header.partition(" ")
        return kind.lower() == "basic" and hmac.compare_digest(
            wanted, said.strip().encode("latin-1", "replace")
        )

    def find(self, path: str) -> tuple[str, Served] | None:
        """Gives digest and content of a path, or None."""
        match = _PATH.match(path.partition("?")[0])
        found = self._content.get(match[2]) if match else None
        if match is None or found is None or (match[1] == "manifests" and found.kind == _BLOB):
            return None
        return match[2], found

    def give(self, digest: str, found: Served, first: int, end: int, write: Write) -> bool:
        """Writes a part of the content; gives whether all of it went."""
        if found.raw is not None:
            write(memoryview(found.raw)[first:end])
            return True
        with self._lock:
            self.asked.add(digest)
        try:
            self._fetch(found.item, first, end, write)
        except NodeError as error:
            self.error = error
            return False
        return True


class _Server(http.server.ThreadingHTTPServer):
    """Threads that end with the program; no more connections at once than there is room for."""

    daemon_threads = True
    block_on_close = False

    def __init__(
        self, where: tuple[str, int], handler: Any, room: threading.BoundedSemaphore
    ) -> None:
        self._room = room
        super().__init__(where, handler)

    def server_bind(self) -> None:
        # not HTTPServer's, which asks a name server for its own name
        socket.socket.bind(self.socket, self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = HOST, self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A caller that hangs up is no error of this program."""


class _Handler(http.server.BaseHTTPRequestHandler):
    """GET and HEAD of /v2/, manifests and blobs."""

    of: Endpoint
    protocol_version = "HTTP/1.1"
    timeout = _SILENCE_S

    def handle_one_request(self) -> None:
        """Takes a request; to a TLS greeting says in plain HTTP that this is none.

        With the containerd store docker tries TLS first, on loopback too, and plain HTTP after an
        answer that begins with HTTP/ (crypto/tls, RecordHeaderError).
        """
        try:
            came: Any = self.rfile
            if came.peek(1)[:1] == _TLS:
                self.wfile.write(b"HTTP/1.0 400 Bad Request\r\n\r\n")
                self.close_connection = True
                return
        except OSError:
            self.close_connection = True
            return
        super().handle_one_request()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: stdout is the program's answer."""

    def version_string(self) -> str:
        """Gives what the Server header says."""
        return "rigbook"

    def do_HEAD(self) -> None:
        """Answers without the content."""
        self._answer(False)

    def do_GET(self) -> None:
        """Answers with the content."""
        self._answer(True)

    def _answer(self, whole: bool) -> None:
        if not self.of.knows(self.headers.get("Authorization", "")):
            more = {"WWW-Authenticate": 'Basic realm="rigbook"'}
            self._refuse(401, "UNAUTHORIZED", "another transfer's, or none's", whole, more)
            return
        if self.path.partition("?")[0] in ("/v2/", "/v2"):
            self._head(200, {"Content-Type": "application/json", "Content-Length": "2"})
            if whole:
                self.wfile.write(b"{}")
            return
        found = self.of.find(self.path)
        if found is None:
            self._refuse(404, "NOT_FOUND", "not of this transfer", whole, {})
            return
        digest, content = found
        first, end = self._span(content.size)
        if first >= end and content.size:
            more = {"Content-Range": f"bytes */{content.size}"}
            self._refuse(416, "RANGE_INVALID", f"it has {content.size} bytes", whole, more)
            return
        part = (first, end) != (0, content.size)
        said = {"Content-Type": content.kind, "Content-Length": str(end - first),
                "Docker-Content-Digest": digest, "Accept-Ranges": "bytes"}  # fmt: skip
        if part:
            said["Content-Range"] = f"bytes {first}-{end - 1}/{content.size}"
        self._head(206 if part else 200, said)
        if whole and not self.of.give(digest, content, first, end, self._write):
            self.close_connection = True

    def _write(self, block: memoryview) -> None:
        self.wfile.write(block)

    def _span(self, size: int) -> tuple[int, int]:
        """Gives first byte and end of what is asked for; a form that is not known asks for all."""
        match = _RANGE.match(self.headers.get("Range", ""))
        if match is None:
            return 0, size
        last = int(match[2]) if match[2] else size - 1
        return int(match[1]), min(last + 1, size)

    def _head(self, status: int, said: dict[str, str]) -> None:
        self.send_response(status)
        self.send_header("Docker-Distribution-API-Version", "registry/2.0")
        for name, value in said.items():
            self.send_header(name, value)
        self.end_headers()

    def _refuse(
        self, status: int, code: str, message: str, whole: bool, more: dict[str, str]
    ) -> None:
        raw = json.dumps({"errors": [{"code": code, "message": message}]}).encode()
        self._head(status, {"Content-Type": "application/json",
                            "Content-Length": str(len(raw)), **more})  # fmt: skip
        if whole:
            with contextlib.suppress(OSError):
                self.wfile.write(raw)


def manifest_of(config: bytes, layers: list[tuple[str, int]]) -> bytes:
    """Gives a manifest of uncompressed layers, each by its diff id and length.

    For an image whose store keeps none. The same image makes the same one.
    """
    oci = "application/vnd.oci.image"
    said: Json = {
        "schemaVersion": 2,
        "mediaType": f"{oci}.manifest.v1+json",
        "config": {
            "mediaType": f"{oci}.config.v1+json",
            "digest": digest_of(config),
            "size": len(config),
        },
        "layers": [
            {"mediaType": f"{oci}.layer.v1.tar", "digest": digest, "size": size}
            for digest, size in layers
        ],
    }
    return json.dumps(said, separators=(",", ":")).encode()
