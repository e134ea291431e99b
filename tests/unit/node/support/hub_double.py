"""A double of the hub's HTTP API on loopback: a model's info, and its files with ranges.

As huggingface_hub 2.4.0 asks it (hf_api.py: model_info; file_download.py: get_hf_file_metadata).
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "0f1e2d3c4b5a69788796a5b4c3d2e1f001122334"
REPO = "org/tiny"
# What is in LFS has a sha256, as the hub does it for weights.
LFS = (".safetensors", ".gguf", ".bin")


def blob_of(raw: bytes) -> str:
    """git's sha1 of a file."""
    return hashlib.sha1(b"blob %d\0" % len(raw) + raw, usedforsecurity=False).hexdigest()


def sibling(name: str, raw: bytes) -> dict[str, Any]:
    """A file as the hub lists it with `blobs=true`."""
    row: dict[str, Any] = {"rfilename": name, "size": len(raw), "blobId": blob_of(raw)}
    if name.endswith(LFS):
        digest = hashlib.sha256(raw).hexdigest()
        row["lfs"] = {"sha256": digest, "size": len(raw), "pointerSize": 135}
    return row


def listed(files: Mapping[str, bytes]) -> list[dict[str, Any]]:
    """The files as `weights hub` gives them."""
    return [{"name": row["rfilename"], "size": row["size"], "blob": row["blobId"],
             "sha256": row.get("lfs", {}).get("sha256")}
            for row in (sibling(name, raw) for name, raw in files.items())]  # fmt: skip


class Hub:
    """The double. `served` may differ from `files`, which the listing is of; `asked` are the
    requests in order, `tokens` what they were authorized with; `token` None: it asks for none.
    """

    def __init__(self, files: Mapping[str, bytes], token: str | None = None) -> None:
        self.files, self.served = dict(files), dict(files)
        self.token = token
        self.asked: list[str] = []
        self.tokens: set[str | None] = set()
        self.url = ""

    def answer(self, method: str, path: str) -> tuple[int, bytes, dict[str, str]]:
        """Status, body and headers."""
        path = path.partition("?")[0]
        self.asked.append(f"{method} {path}")
        if path in (f"/api/models/{REPO}/revision/{ref}" for ref in ("main", COMMIT)):
            rows = [sibling(name, raw) for name, raw in self.files.items()]
            info = {"id": REPO, "modelId": REPO, "sha": COMMIT, "siblings": rows, "tags": [],
                    "private": False, "downloads": 0, "likes": 0}  # fmt: skip
            return 200, json.dumps(info).encode(), {"Content-Type": "application/json"}
        name = path.removeprefix(f"/{REPO}/resolve/{COMMIT}/")
        if name not in self.served:
            return 404, b"", {"X-Error-Code": "RevisionNotFound"}
        etag = sibling(name, self.files[name]).get("lfs", {}).get("sha256")
        headers = {"ETag": f'"{etag or blob_of(self.files[name])}"', "X-Repo-Commit": COMMIT}
        return 200, self.served[name], headers


@contextmanager
def hub(files: Mapping[str, bytes], token: str | None = None, port: int = 0) -> Iterator[Hub]:
    """The double with these files, until the end."""
    double = Hub(files, token)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            said = self.headers["Authorization"]
            double.tokens.add(said)
            status, body, headers = double.answer(self.command, self.path)
            if double.token and said != f"Bearer {double.token}":
                status, body, headers = 401, b"", {}
            wanted = self.headers["Range"]
            if wanted and status == 200:
                first = int(wanted.removeprefix("bytes=").partition("-")[0])
                headers["Content-Range"] = f"bytes {first}-{len(body) - 1}/{len(body)}"
                status, body = 206, body[first:]
            self.send_response(status)
            for key, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: pytest's output is for failures."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    double.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield double
    finally:
        server.shutdown()
        server.server_close()


# huggingface_hub as far as node/transfer/hub.py uses it, for a venv of the tests.
CLIENT = """
import json, os, urllib.request
class _Row:
    def __init__(self, row):
        self.rfilename, self.size, self.blob_id = row["rfilename"], row["size"], row["blobId"]
        self.lfs = row.get("lfs")
class _Info:
    def __init__(self, said):
        self.sha, self.siblings = said["sha"], [_Row(row) for row in said["siblings"]]
def _get(path, token, first=0):
    request = urllib.request.Request(os.environ["HF_ENDPOINT"] + path)
    if token: request.add_header("Authorization", "Bearer " + token)
    if first: request.add_header("Range", "bytes=%d-" % first)
    return urllib.request.urlopen(request)
class HfApi:
    def model_info(self, repo, revision, files_metadata, token):
        assert files_metadata and os.environ["HF_HUB_OFFLINE"] == "0"
        path = "/api/models/%s/revision/%s?blobs=true" % (repo, revision)
        return _Info(json.load(_get(path, token)))
def hf_hub_download(repo, name, revision, token, local_dir):
    half = os.path.join(local_dir, ".cache", name.replace("/", "-") + ".incomplete")
    os.makedirs(os.path.dirname(half), exist_ok=True)
    there = os.path.getsize(half) if os.path.exists(half) else 0
    whole = os.path.join(local_dir, name)
    if os.path.exists(whole): return whole
    os.makedirs(os.path.dirname(whole), exist_ok=True)
    with _get("/%s/resolve/%s/%s" % (repo, revision, name), token, there) as got:
        with open(half, "ab") as file: file.write(got.read())
    os.rename(half, whole)
"""
