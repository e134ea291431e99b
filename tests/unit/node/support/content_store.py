"""containerd's content store as files, and a stand-in for the docker that has it (labelled)."""

from __future__ import annotations

import http.server
import io
import json
import socketserver
import tarfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from node.rules.oci_layout import digest_of

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


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


class Docker:
    """Stand-in for a docker with the containerd store: names, inspection, load, tag, rmi."""

    def __init__(self, folder: Path) -> None:
        self.store = Store(folder / "containerd")
        (self.store.root / BLOBS).mkdir(parents=True)
        self.names: dict[str, str] = {}
        self.images: set[str] = set()
        self.socket = str(folder / "docker.sock")
        self.loads = 0
        docker = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def address_string(self) -> str:
                return ""

            def log_message(self, *words: object) -> None:
                """Says nothing."""

            def _answer(self) -> None:
                url = urlsplit(self.path)
                status, said = docker.call(
                    self.command, unquote(url.path), parse_qs(url.query), self._body()
                )
                raw = json.dumps(said).encode() + b"\n"
                self.send_response(status)
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def _body(self) -> bytes | None:
                """The body; None for one that is cut."""
                if self.headers.get("Transfer-Encoding") != "chunked":
                    return self.rfile.read(int(self.headers.get("Content-Length", 0)))
                found = []
                while line := self.rfile.readline():
                    size = int(line, 16)
                    found.append(self.rfile.read(size))
                    self.rfile.readline()
                    if not size:
                        return b"".join(found)
                return None

            do_GET = do_POST = do_DELETE = _answer

        self.server = _Server(self.socket, Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def end(self) -> None:
        """Listens no more."""
        self.server.shutdown()
        self.server.server_close()

    def have(self, image_id: str, *names: str) -> str:
        """Takes in an image of the store under these names."""
        self.images.add(image_id)
        self.names.update(dict.fromkeys(names, image_id))
        return image_id

    def lose(self) -> None:
        """All images go with their content, as after docker rmi and on a new disk."""
        self.names, self.images = {}, set()
        for path in (self.store.root / BLOBS).iterdir():
            path.unlink()

    def resolve(self, reference: str) -> str | None:
        """The image of an id, a tag, or a name by digest whose repository has a tag on it."""
        repository, _, name = reference.partition("@")
        if name:
            tags = [tag for tag, found in self.names.items() if found == name]
            known = any(tag.rpartition(":")[0] == repository for tag in tags)
            return name if known and name in self.images else None
        found = self.names.get(reference, reference)
        return found if found in self.images else None

    def inspect(self, image_id: str) -> dict[str, Any]:
        """docker's inspection."""
        config = self.store.read(self.store.read(image_id)["config"]["digest"])
        tags = sorted(tag for tag, found in self.names.items() if found == image_id)
        return {
            "Id": image_id, "RepoTags": tags, "Size": 100, "Architecture": "amd64", "Os": "linux",
            "RepoDigests": [f"{tag.rpartition(':')[0]}@{image_id}" for tag in tags],
            "RootFS": {"Layers": config["rootfs"]["diff_ids"]}, "Config": config.get("config"),
        }  # fmt: skip

    def call(
        self, method: str, path: str, query: dict[str, list[str]], body: bytes | None
    ) -> tuple[int, Any]:
        """One call of the API."""
        if path == "/info":
            status = [["driver-type", "io.containerd.snapshotter.v1"]]
            root = str(self.store.root.parent / "docker")
            return 200, {"Driver": "overlayfs", "DriverStatus": status, "DockerRootDir": root}
        if path == "/images/json":
            return 200, [{"Id": image, "Size": 300} for image in self.images]
        if path == "/images/load":
            return (200, self._load(body)) if body is not None else (400, {"message": "cut"})
        reference = path.removeprefix("/images/").removesuffix("/json").removesuffix("/tag")
        image = self.resolve(reference)
        if image is None:
            return 404, {"message": "no such image"}
        if method == "GET":
            return 200, self.inspect(image)
        if method == "POST":
            self.names[f"{query['repo'][0]}:{query['tag'][0]}"] = image
            return 201, ""
        self.names.pop(reference, None)
        return 200, ""

    def _load(self, body: bytes) -> dict[str, str]:
        """What a load of an OCI layout comes to: each blob is checked by its name."""
        self.loads += 1
        with tarfile.open(fileobj=io.BytesIO(body), mode="r:") as tar:
            files = {info.name: tar.extractfile(info) for info in tar if info.isreg()}
            read = {name: file.read() for name, file in files.items() if file}
        for name, raw in read.items():
            if name.startswith("blobs/") and digest_of(raw)[7:] != name.rpartition("/")[2]:
                return {"error": f"{name} is not what its name says"}
        blobs = [self.store.put(raw) for name, raw in read.items() if name.startswith("blobs/")]
        (row,) = json.loads(read["index.json"])["manifests"]
        config = json.loads(read["manifest.json"])[0]["Config"]
        assert row["digest"] in blobs and config in read
        self.images.add(row["digest"])
        return {"stream": f"Loaded image ID: {row['digest']}\n"}
