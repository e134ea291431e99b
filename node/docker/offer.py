"""An image offered to another node."""

from __future__ import annotations

import base64
import contextlib
import hmac
import http.server
import json
import os
import re
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from node.core import dirfd
from node.core.dirfd import BLOCK
from node.core.errors import CannotRead, Json, NodeError
from node.docker import api, store
from node.rules.text import DIGEST, digest_of
from node.transfer import protocol

# Images of the containerd store, read out of containerd's content store without docker.
#
# A blob is a file there that its sha256 names: an index, a manifest, a config, or a layer as it
# came
# from its registry. Given on as they are, they make the same image under the same digest.

_STORE = "io.containerd.content.v1.content/blobs/sha256"
MAX_DOCUMENT = 8 << 20
# an index may name an index; no image is deeper
_DEEPEST = 4


class Content(protocol.Source):
    """An image of the containerd store: its documents in the listing, its layers as items."""

    def __init__(self, root: str, want: Json) -> None:
        """`want`: the image's id, which is the digest of its index or manifest, and its layers.

        Raises NodeError (`image_store`): no such image, or a part of it is not in the store.
        """
        self._folder = os.path.join(root, _STORE)
        documents = self._documents(want["id"], want["layers"], 0)
        if documents is None:
            raise NodeError(
                f"containerd's store has no image {want['id'][:19]} of these layers",
                "image_store", "docker image inspect it; or give it from another node: from=NODE",
            )  # fmt: skip
        self._listed = [base64.b64encode(raw).decode("ascii") for raw in documents]
        # a layer that is in the image twice is one blob
        rows = {str(row["digest"]): int(row["size"]) for row in json.loads(documents[-2])["layers"]}
        self._blobs = list(rows.items())
        for digest, size in self._blobs:
            self._require(digest, size)

    def _path(self, digest: str) -> str:
        if not DIGEST.match(digest):
            raise NodeError(f"{digest[:80]!r} is not a digest", "image_store")
        return os.path.join(self._folder, digest[7:])

    def _require(self, digest: str, size: int) -> None:
        try:
            there = os.lstat(self._path(digest)).st_size
        except FileNotFoundError:
            there = -1
        if there != size:
            raise NodeError(
                f"layer {digest[:19]} is not whole in {self._folder}: containerd leaves out a "
                "layer that another image had unpacked already",
                "image_store", "give it from another node: from=NODE; or pull it here again",
            )  # fmt: skip

    def _document(self, digest: str) -> bytes | None:
        """Gives a small blob, checked; None where the store does not have it."""
        path = self._path(digest)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        with os.fdopen(fd, "rb") as file:
            raw = file.read(MAX_DOCUMENT)
        if digest_of(raw) != digest:
            raise NodeError(f"{path} is damaged", "image_store", "pull the image again")
        return raw

    def _documents(self, digest: str, layers: list[str], depth: int) -> list[bytes] | None:
        """Gives what leads to the image of these layers, its manifest and config the last two."""
        raw = self._document(digest)
        if raw is None or depth > _DEEPEST:
            return None
        said: Any = json.loads(raw)
        for row in said.get("manifests") or []:
            below = self._documents(str(row["digest"]), layers, depth + 1)
            if below is not None:
                return [raw, *below]
        if "layers" not in said:
            return None
        config = self._document(str(said["config"]["digest"]))
        if config is None or _diff_ids(config) != layers:
            return None
        return [raw, config]

    def listing(self) -> Json:
        """Gives the documents, the one that the image's digest names first, and the layers' blobs
        with their sizes."""
        return {"documents": self._listed, "blobs": [list(row) for row in self._blobs]}

    def size(self, item: int) -> int:
        """Gives the length of a layer's blob."""
        return self._blobs[item][1]

    def blocks(self, item: int, offset: int) -> Iterator[bytes]:
        """Gives a layer's blob; what was read does not stay in the page cache."""
        fd = os.open(self._path(self._blobs[item][0]), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(fd, "rb", buffering=0) as file, dirfd.Passing(fd) as passing:
            file.seek(offset)
            for chunk in iter(lambda: file.read(BLOCK), b""):
                offset += len(chunk)
                yield chunk
                passing.upto(offset)

    def passed(self, item: int, sha256: str) -> None:
        """Its digest is known."""

    def sha256(self, item: int, tick: Callable[[], None]) -> str:
        """Gives the sha256 of a layer's blob."""
        return self._blobs[item][0][7:]


def _diff_ids(config: bytes) -> Any:
    said: Any = json.loads(config)
    return (said.get("rootfs") or {}).get("diff_ids") if isinstance(said, dict) else None


# A read-only OCI distribution endpoint on 127.0.0.1, for one docker pull of one image.
#
# docker takes plain HTTP from loopback alone. So the endpoint is at the taking end, and what it
# answers with comes over the proven stream from the giving node (node/transfer). It knows one
# repository, by digest; a name that it was not made with is not looked for anywhere.

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


def image_blob(size: int, item: int) -> Served:
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


# This host's image store, and an image as it has it: docker's own (overlay2), or containerd's.


@dataclass(frozen=True)
class Store:
    """This host's image store: its folder, and whether it is containerd's."""

    root: str
    containerd: bool


def find_store() -> Store:
    """Gives docker's image store. Raises NodeError (`image_store`) for a kind that is not known."""
    try:
        info = api.get("/info")
    except CannotRead as error:
        raise NodeError(str(error), "docker") from None
    root = api.containerd(info)
    if root is not None:
        return Store(root, True)
    driver, root = str(info.get("Driver", "")), str(info.get("DockerRootDir", ""))
    if driver != store.OVERLAY2 or not os.path.isdir(os.path.join(root, "image", store.OVERLAY2)):
        raise NodeError(f"docker's store here is {driver or 'unknown'}, neither {store.OVERLAY2}"
                        " nor containerd", "image_store",
                        "docker pull the image on each node")  # fmt: skip
    return Store(root, False)


class Stored(protocol.Source):
    """An image of docker's own store (overlay2)."""

    def __init__(self, root: str, want: Json) -> None:
        self._want = want
        chains = store.overlay2_chains(want["layers"])
        self._config = store.raw_config(root, want["id"])
        self._layers = [
            store.Layer(root, chain, layer)
            for chain, layer in zip(chains, want["layers"], strict=True)
        ]

    def listing(self) -> Json:
        """Gives the config as it is stored; what it hashes to is the image's id."""
        return {"config": base64.b64encode(self._config).decode("ascii")}

    def size(self, item: int) -> int:
        """Gives the length of a layer's tar."""
        return self._layers[item].size()

    def blocks(self, item: int, offset: int) -> Iterator[memoryview]:
        """Gives a layer's tar."""
        return self._layers[item].blocks(offset)

    def passed(self, item: int, sha256: str) -> None:
        """Its diff id is known."""

    def sha256(self, item: int, tick: Callable[[], None]) -> str:
        """Gives the layer's diff id."""
        return str(self._want["layers"][item])[7:]


def stored_in(own: Store, want: Json) -> protocol.Source:
    """Gives the image `want` (its id and its layers) as this host's store has it."""
    kind = Content if own.containerd else Stored
    return kind(own.root, want)
