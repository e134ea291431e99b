"""Stand-in for node's tree verbs on one host: it keeps a list of backups and no files."""

from __future__ import annotations

from typing import Any

from node.backup import store
from node.core import validate
from node.core.errors import NodeError
from node.transfer import server

Json = dict[str, Any]
VERSIONS = {"vllm": "0.27.0", "torch": "2.8.0", "cuda": "12.8"}


def row(id_: str, verified: bool = True, **more: object) -> Json:
    """A backup as node lists it."""
    return {
        "id": id_, "usable": True, "problem": None, "verified_unix_s": 1.7e9 if verified else None,
        "tree": "/opt/engine/venv", "real": "/opt/engine/venv",
        "created_unix_s": 1.7e9, "age_s": 7300, "bytes": 800 << 20, "apparent_bytes": 3 << 30,
        "members": 77492, "versions": VERSIONS, "python": "3.12.4", "host": "stand-in", **more,
    }  # fmt: skip


def kept(host: str, id_: str, **more: object) -> Json:
    """A copy as the node that keeps it lists it."""
    return {"host": host, "backup": id_, "place": f"/kept/{host}/{id_}",
            "tree": "/opt/engine/venv", "bytes": 800 << 20, "problem": None, **more}  # fmt: skip


def noted(id_: str, is_here: bool = True, **more: object) -> Json:
    """A copy on another disk of the host, as it notes it."""
    return {"backup": id_, "place": f"/mnt/disk/rigbook/x/{id_}", "unix_s": 1.7e9,
            "is_here": is_here, "tree": "/opt/engine/venv" if is_here else None,
            "bytes": 800 << 20, **more}  # fmt: skip


class TreeDouble:
    """The tree verbs of one host; the newest backup of `rows` holds the tree as it is."""

    def __init__(self, rows: list[Json], name: str, others: list[Json], as_backup: bool) -> None:
        self.rows, self.name = rows, name
        # a copy on a disk of the host has no host
        self.others = [each for each in others if "host" in each]
        self.noted = [each for each in others if "host" not in each]
        self.as_backup = as_backup

    def answer(self, verb: str, request: Json) -> Json:
        """A verb's answer. Raises NodeError as node does."""
        return dict(getattr(self, verb.replace(" ", "_"))(request))

    def tree_list(self, request: Json) -> Json:
        """All backups."""
        return {"backups": self.rows, "partial": [], "working": [], "displaced": []}

    def tree_backup(self, request: Json) -> Json:
        """A new backup, unless the newest is verified."""
        tree = validate.path(request["tree"], "tree")
        known = bool(self.rows) and self.rows[0]["verified_unix_s"] is not None
        about = {"tree": tree, "members": 77492, "apparent_bytes": 3 << 30, "versions": VERSIONS}
        if request.get("dry"):
            assert "documents" not in request, "a reading command shows them to every user"
            validate.sha256(request["documents_sha256"], "documents_sha256")
            held = self.rows[0]["id"] if known else None
            return {"backup": held, "stored": not known, "shares": None, **about}
        made = store.new_id(tree)
        self.rows.insert(0, row(made, verified=False))
        return {"backup": made, "stored": True, "detail": "stored", "bytes": 800 << 20,
                "took_s": 11.0, **about}  # fmt: skip

    def tree_verify(self, request: Json) -> Json:
        """Marks one as verified."""
        for each in self.rows:
            if each["id"] == store.checked_id(request["backup"]):
                each["verified_unix_s"] = 1.7e9
                return {"backup": each["id"], "members": each["members"], "took_s": 7.0}
        raise NodeError("no backup", "no_backup")

    def tree_copy(self, request: Json) -> Json:
        """A copy that was made."""
        place = f"{validate.path(request['to'], 'to')}/rigbook/stand-in/{request['backup']}"
        return {"backup": request["backup"], "place": place, "made": True, "bytes": 800 << 20,
                "took_s": 9.0}  # fmt: skip

    def tree_copies(self, request: Json) -> Json:
        """What it keeps for others."""
        return {"host": self.name, "noted": self.noted, "others": self.others}

    def tree_offer(self, request: Json) -> Json:
        """As node's: checks the request."""
        server.parse_request(request, ["backup", "host"])
        return {"peers": {address: {"done": True} for address in request["peers"]}}

    def tree_receive(self, request: Json) -> Json:
        """One that comes to be kept, or comes back."""
        validate.keys(request, "request", ("backup", "host", "from", "key", "deadline_s"))
        server.parse_address(request["from"])
        place = f"/kept/{request['host']}/{request['backup']}"
        if request["host"] is None:
            self._came(request)
            place = f"/backups/{request['backup']}"
        return {"backup": request["backup"], "place": place, "made": True, "bytes": 800 << 20,
                "resumed_bytes": 0, "damaged": 0, "members": 77492, "took_s": 9.0}  # fmt: skip

    def tree_note(self, request: Json) -> Json:
        """As node's: checks the request."""
        validate.keys(request, "request", ("backup", "place"), ("backup", "place"))
        return {"backup": store.checked_id(request["backup"]), "copies": []}

    def tree_take(self, request: Json) -> Json:
        """One that comes back."""
        self._came(request)
        return {"backup": request["backup"], "place": "/mnt/disk", "members": 77492,
                "took_s": 9.0}  # fmt: skip

    def _came(self, request: Json) -> None:
        self.rows.append(row(store.checked_id(request["backup"])))

    def tree_unpack(self, request: Json) -> Json:
        """One that is unpacked and proven."""
        return {"backup": store.checked_id(request["backup"]), "changed": True, "took_s": 9.0}

    def tree_restore(self, request: Json) -> Json:
        """Brings a known backup back, unless the tree is as it is."""
        found = next(r for r in self.rows if r["id"] == store.checked_id(request["backup"]))
        detail = "the tree is as the backup" if self.as_backup else "bin/vllm is not there"
        files = [] if self.as_backup else ["write /etc/systemd/system/rigbook-engine.service"]
        return {"backup": found["id"], "tree": found["tree"], "real": found["real"],
                "changed": not self.as_backup, "detail": detail, "took_s": 13.0,
                "unpacks": not self.as_backup, "files": files}  # fmt: skip

    def tree_prune(self, request: Json) -> Json:
        """Takes all but the newest."""
        validate.keys(request, "request", ("keep", "displaced", "dry"), ("keep", "displaced"))
        listed = [{"id": each["id"], "bytes": 1 << 20, "why": "stand-in"} for each in self.rows]
        keep = request["keep"]
        if not request.get("dry"):
            self.rows = self.rows[:keep]
        return {"removed": listed[keep:], "kept": listed[:keep], "swept": [],
                "displaced_removed": [], "displaced_kept": [], "freed_bytes": 1 << 20,
                "dry": bool(request.get("dry"))}  # fmt: skip
