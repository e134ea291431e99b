"""Stand-in for docker's API: containers with a state and a policy."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from node.docker import api

ID, OTHER = "a" * 64, "b" * 64
Json = dict[str, Any]


def box(name: str = "vllm_ds4", **changes: Any) -> Json:
    """A container as GET /containers/ID/json gives it (moby, api/swagger.yaml)."""
    host = {
        "AutoRemove": False,
        "RestartPolicy": {"Name": "unless-stopped", "MaximumRetryCount": 0},
    }
    row: Json = {
        "Id": ID, "Name": f"/{name}", "Image": "sha256:" + "1" * 64, "Path": "sleep",
        "Args": ["infinity"], "ExecIDs": None, "Mounts": [],
        "State": {"Running": True, "Pid": 1, "Status": "running"},
        "Config": {"Env": ["PATH=/bin", "HF_HOME=/models"], "Labels": {}, "User": ""},
        "HostConfig": host,
    }  # fmt: skip
    for path, value in changes.items():
        *parents, last = path.split("__")
        at = row
        for key in parents:
            at = at[key]
        at[last] = value
    return row


class Docker:
    """Containers by name. `asked` holds the calls that change something, `refuses` a status for
    those of a path's end.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *boxes: Json) -> None:
        self.boxes = {str(row["Name"]).lstrip("/"): row for row in boxes}
        self.asked: list[str] = []
        self.refuses: dict[str, int] = {}
        monkeypatch.setattr(api, "call_docker", self.call)

    def row(self, name: str) -> Json | None:
        """A container by name or id."""
        return next((row for key, row in self.boxes.items() if name in (key, row["Id"])), None)

    def call(
        self, method: str, path: str, timeout_s: float, body: bytes = b""
    ) -> tuple[int, bytes]:
        """As node.docker.api.call_docker."""
        url = urlsplit(path)
        words = [unquote(word) for word in url.path.strip("/").split("/")]
        if method == "GET":
            found = self._get(words, parse_qs(url.query))
            return (404, b"{}") if found is None else (200, json.dumps(found).encode())
        self.asked.append(f"{words[0]} {words[-1]}")
        if words[-1] in self.refuses:
            return self.refuses[words[-1]], b'{"message": "docker says no"}'
        return self._post(words, json.loads(body or b"{}"))

    def _get(self, words: list[str], query: dict[str, list[str]]) -> Any:
        if words[0] == "_ping":
            return "OK"
        if words[1] != "json":
            return self.row(words[1])
        wanted = dict(item.split("=") for item in json.loads(query["filters"][0])["label"])
        return [{"Id": row["Id"]} for row in self.boxes.values()
                if wanted.items() <= row["Config"]["Labels"].items()]  # fmt: skip

    def _post(self, words: list[str], body: Json) -> tuple[int, bytes]:
        row = self.row(words[1])
        assert row is not None
        if words[2] == "update":
            row["HostConfig"]["RestartPolicy"] = body["RestartPolicy"]
            return 200, b'{"Warnings": null}'
        row["State"]["Running"] = words[2] == "start"
        return 204, b""
