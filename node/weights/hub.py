"""weights hub, weights download: a model's files from the hub onto one node, at one commit.

The hub's own client brings them (node/weights/hub_client.py), as the weights' owner, into a folder
in `.rigbook/`; it goes on where it was cut off. Here each file is compared with what the hub says
of it: its sha256, or for one that is not in LFS its git blob's sha1. Then they get their names as
files do that come from another node (node/weights/set_step.py).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any

from node.change import journal, transaction
from node.core import validate
from node.core.errors import Json, NodeError
from node.files import dirfd, secret_env
from node.transfer import server, spool
from node.weights import beside, hub_client, parts, set_step
from node.weights import manifest as manifests

_REPO = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9][A-Za-z0-9._-]{0,95})?\Z")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}\Z")
_COMMIT = re.compile(r"[0-9a-f]{40}\Z")
_STAGE = "hub-"
LOOK_S = 120
_WHERE = ("repo", "revision", "owner", "image", "venv", "environ", "token")
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def _matching(value: Any, where: str, pattern: re.Pattern[str]) -> str:
    found = validate.text(value, where)
    if not pattern.match(found) or ".." in found:
        raise validate.bad(f"{where}: {found[:80]!r} is not allowed")
    return found


def _place(body: Json) -> hub_client.Place:
    owner = dirfd.owner_of(validate.name(body["owner"], "owner"))
    if ("image" in body) == ("venv" in body):
        raise validate.bad("give 'image' or 'venv', one of them")
    image = validate.image(body["image"], "image") if "image" in body else None
    venv = validate.path(body["venv"], "venv") if "venv" in body else None
    return hub_client.Place(image, venv, body["owner"], owner.uid, owner.gid)


def _wanted(body: Json, names: list[str] | None) -> Json:
    """Gives what the client is asked; the token of a file of this host is read here."""
    rows = secret_env.parse([body["token"]] if body.get("token") else [], "token")
    token = rows[0].value if rows else ""
    revision = _matching(body["revision"], "revision", _REVISION)
    repo = _matching(body["repo"], "repo", _REPO)
    return {"repo": repo, "revision": revision, "names": names, "token": token}


def _environ(body: Json) -> dict[str, str]:
    return {str(name): str(value) for name, value in dict(body.get("environ", {})).items()}


def look(request: Json) -> Json:
    """`weights hub`: the commit that a revision is, and its files as the hub has them: `name`,
    `size`, and `sha256` (of LFS) or `blob` (git's sha1). Raises NodeError (`hub`).
    """
    body = validate.keys(request, "request", _WHERE, ("repo", "revision", "owner"))
    started = time.monotonic()

    def late() -> str | None:
        return f"no answer in {LOOK_S} s" if time.monotonic() - started > LOOK_S else None

    said = hub_client.ask(_place(body), _wanted(body, None), _environ(body), None, late)
    return {"commit": str(said.get("commit")), "files": said.get("files"),
            "took_s": hub_client.since(started)}  # fmt: skip


def _parse(request: Json) -> Json:
    keys = ("change", "path", "files", "deadline_s", *_WHERE)
    body = validate.keys(request, "request", keys, ("change", "path", "files", *_WHERE[:3]))
    _matching(body["revision"], "revision", _COMMIT)
    rows = validate.array(body["files"], "files", manifests.MAX_FILES)
    for n, row in enumerate(rows):
        name = validate.text(row.get("name"), f"files[{n}].name")
        if name.startswith((".", "/")) or os.path.normpath(name) != name or "/." in name:
            raise validate.bad(f"files[{n}].name: {name[:80]!r} is not allowed")
        validate.number(row.get("size"), f"files[{n}].size", 0, 1 << 50)
        if row.get("sha256") is not None:
            validate.sha256(row["sha256"], f"files[{n}].sha256")
        else:
            _matching(row.get("blob"), f"files[{n}].blob", _COMMIT)
    return {
        **body,
        "change": journal.parse_change(body["change"]),
        "path": validate.path(body["path"], "path"),
        # `probe` names a part: another content is another part
        "files": [{**row, "probe": row.get("sha256") or row["blob"]} for row in rows],
        "deadline_s": validate.number(body.get("deadline_s", 86400), "deadline_s", 1, 86400),
    }


def download(request: Json) -> Json:
    """`weights download`: the named files of a repository at a commit, each verified. Raises
    NodeError; what had come stays beside the weights for the next run.
    """
    body = _parse(request)
    alive = server.ParentWatch()
    started = time.monotonic()

    def ended() -> str | None:
        late = time.monotonic() - started > body["deadline_s"]
        return f"not done in {body['deadline_s']:g} s" if late else alive.gone()

    with spool.TransferLock("weights"), contextlib.ExitStack() as stack:
        answer = _Download(body, ended, stack).run()
    return {**answer, "took_s": hub_client.since(started)}


class _Download:
    """One repository on its way into one folder."""

    def __init__(
        self, body: Json, ended: Callable[[], str | None], stack: contextlib.ExitStack
    ) -> None:
        self._body, self._ended, self._stack = body, ended, stack
        self._place = _place(body)
        self._owner = dirfd.Owner(self._place.uid, self._place.gid)
        self._folder = manifests.Folder(body["path"])
        self._stage = _STAGE + body["revision"]
        self._hashes: dict[str, manifests.Hash] = {}

    def run(self) -> Json:
        """Brings what lacks; gives the figures."""
        change = self._body["change"]
        if journal.find(change["id"]):
            with self._opened():
                pass  # finishes the names that a killed run had begun to switch
        todo = self._lacking()
        size = sum(row["size"] for row in todo)
        figures = {"files": [row["name"] for row in todo], "bytes": size, "changed": bool(todo)}
        if not todo:
            if self._hashes:
                self._folder.save(self._hashes)
            return figures
        with self._opened() as log:
            log.begin(set_step.OP, stage=set_step.FETCH, change=change["id"],
                      path=self._body["path"], owner=[*self._owner], count=len(todo),
                      bytes=size)  # fmt: skip
        fd = self._stack.enter_context(dirfd.folder(self._folder.path, self._owner))
        own = self._stack.enter_context(self._folder.own())
        set_step.require_replaceable(fd, self._folder.path, [row["name"] for row in todo])
        beside.free_former(self._body["path"], change["id"])
        come = parts.Parts(own, todo, self._folder.only)
        self._fetch(own, [row for row in todo if come.whole(row) is None])
        self._verify(own, todo, come)
        wanted = [{"name": row["name"], "part": come.whole(row)} for row in todo]
        with self._opened() as log:
            set_step.switch(log, log.begin(set_step.OP), wanted, [])
        shutil.rmtree(os.path.join(self._folder.path, manifests.OWN, self._stage))
        for row, done in zip(todo, wanted, strict=True):
            self._hashes[row["name"]] = set_step.hash_of_post(come.digest(row), done["post"])
        self._folder.save(self._hashes)
        return figures

    def _opened(self) -> contextlib.AbstractContextManager[transaction.Transaction]:
        return transaction.opened(self._body["change"], "weights download")

    def _lacking(self) -> list[Json]:
        """Gives the files that are not there as the hub has them."""
        if not os.path.isdir(self._folder.path):
            return list(self._body["files"])
        own = {row["name"]: row for row in self._folder.list()}
        return [row for row in self._body["files"]
                if row["name"] not in own or not self._same(row, own[row["name"]])]  # fmt: skip

    def _same(self, row: Json, there: Json) -> bool:
        if row["size"] != there["size"]:
            return False
        if there["sha256"] and row.get("sha256"):
            return bool(there["sha256"] == row["sha256"])
        with self._folder.opened(row["name"]) as file:
            found = manifests.hash_of(file, row["name"])
            self._hashes[row["name"]] = found
            return _is_it(row, found, file)

    def _fetch(self, own: int, rows: list[Json]) -> None:
        """Has the client bring files into a folder of the owner's in our own."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._stage, 0o700, dir_fd=own)
            os.chown(self._stage, *self._owner, dir_fd=own, follow_symlinks=False)
        for name in os.listdir(own):
            if name.startswith(_STAGE) and name != self._stage:  # of another commit
                shutil.rmtree(os.path.join(self._folder.path, manifests.OWN, name))
        folder = os.path.join(self._folder.path, manifests.OWN, self._stage)
        size, there = sum(row["size"] for row in rows), _bytes(folder)
        spool.require_room([(folder, max(0, size - there))])
        progress = spool.Progress("weights", size, min(size, there))

        def tick() -> None:
            progress.add(min(size, _bytes(folder)) - progress.done)

        wanted = _wanted(self._body, [row["name"] for row in rows])
        try:
            if rows:
                hub_client.ask(self._place, wanted, _environ(self._body), folder, self._ended, tick)
        finally:
            progress.end()

    def _verify(self, own: int, todo: list[Json], come: parts.Parts) -> None:
        """Takes each file that came into our own folder, where nobody else writes, and reads it.
        Raises NodeError (`not_the_same`)."""
        rows = [row for row in todo if come.whole(row) is None]
        progress = spool.Progress("weights", sum(row["size"] for row in rows))
        progress.at("sha256")

        def tick(count: int) -> None:
            why = self._ended()
            if why:
                raise NodeError(f"the download stopped: {why}", "interrupted")
            progress.add(count)

        def one(row: Json) -> None:
            part = come.part(row)
            self._take(own, row["name"], part)
            with _regular(own, part) as file:
                found = manifests.hash_of(file, row["name"], tick)
                if not _is_it(row, found, file):
                    os.unlink(part, dir_fd=own)
                    raise NodeError(f"{row['name']}: what came is not what the hub says of it",
                                    "not_the_same", "run it again: it is fetched anew")  # fmt: skip
            come.complete(row, found.sha256)

        try:
            with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
                list(pool.map(one, rows))
        finally:
            progress.end()

    def _take(self, own: int, name: str, part: str) -> None:
        """Gives a staged file its name in our own folder, through no link."""
        where, last = os.path.split(f"{self._stage}/{name}")
        try:
            with dirfd.inside(own, where, self._folder.path) as folder:
                os.rename(last, part, src_dir_fd=folder, dst_dir_fd=own)
        except FileNotFoundError:
            raise NodeError(f"the hub's client brought no {name}", "hub", "run it again") from None


@contextlib.contextmanager
def _regular(folder: int, name: str) -> Iterator[IO[bytes]]:
    """Gives a file of a folder, opened. Raises NodeError for a link, or what is no file."""
    try:
        fd = os.open(name, _READ, dir_fd=folder)
    except OSError as error:
        raise NodeError(f"{name}: {error.strerror}", "not_a_file") from None
    with os.fdopen(fd, "rb", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise NodeError(f"{name} is no file", "not_a_file")
        yield file


def _is_it(row: Json, found: manifests.Hash, file: IO[bytes]) -> bool:
    """Gives whether a file is what the hub says: by its sha256, else by its git blob's sha1."""
    if found.size != row["size"]:
        return False
    if row.get("sha256"):
        return bool(found.sha256 == row["sha256"])
    digest = hashlib.sha1(b"blob %d\0" % found.size, usedforsecurity=False)
    file.seek(0)
    for chunk in iter(lambda: file.read(1 << 20), b""):
        digest.update(chunk)
    return bool(digest.hexdigest() == row["blob"])


def _bytes(folder: str) -> int:
    """Gives the bytes of all files below a folder, half ones too."""
    total = 0
    for here, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(here, name)).st_blocks * 512
    return total
