"""weights hub, weights download: a model's files from the hub onto one node, at one commit.

The hub's own client brings them (node/transfer/hub.py), as the weights' owner, into a folder
in `.rigbook/`; it goes on where it was cut off. Here each file is compared with what the hub says
of it: its sha256, or for one that is not in LFS its git blob's sha1. Then they get their names as
files do that come from another node (node/transfer/weights_set.py).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any, NamedTuple

from node.change import journal, transaction
from node.core import dirfd, owner, run, validate
from node.core.errors import Json, NodeError
from node.core.owner import SHELL, Owner
from node.transfer import manifest, protocol, spool, weights_set

# The hub's own client (huggingface_hub), run where the engine has it: in its image, or its venv.
#
# What it is asked stands in its stdin, the token too: no user of the host reads it in a command
# line.

DOCKER = "/usr/bin/docker"
CONTAINER = "rigbook-download"
IN_CONTAINER = "/rigbook-download"
POLL_S = 0.5
_ANSWER = "RIGBOOK-HUB "
# The recipe's engine is offline, and caches would be left behind.
_ENV = {
    "HF_HUB_OFFLINE": "0",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_XET_CHUNK_CACHE_SIZE_BYTES": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
}
PROGRAM = (
    f"ANSWER = {_ANSWER!r}\n"
    + """\
import json, os, sys
asked = json.load(sys.stdin)
token = asked["token"] or False
try:
    os.environ.update(asked["environ"])
    from huggingface_hub import HfApi, hf_hub_download
    if asked["names"] is None:
        info = HfApi().model_info(asked["repo"], revision=asked["revision"], files_metadata=True,
                                  token=token)
        rows = []
        for one in info.siblings:
            lfs = one.lfs or {}
            sha256 = lfs.get("sha256") if isinstance(lfs, dict) else lfs.sha256
            rows.append({"name": one.rfilename, "size": one.size, "blob": one.blob_id,
                         "sha256": sha256})
        said = {"commit": info.sha, "files": rows}
    else:
        from concurrent.futures import ThreadPoolExecutor
        def bring(name):
            hf_hub_download(asked["repo"], name, revision=asked["revision"], token=token,
                            local_dir=asked["folder"])
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(bring, asked["names"]))
        said = {}
except BaseException as error:
    text = " ".join(f"{type(error).__name__}: {error}".split())
    said = {"error": text.replace(token or "\\0", "***")[:600]}
print(ANSWER + json.dumps(said), flush=True)
os._exit(0)
"""
)


class Place(NamedTuple):
    """Where the client is: `image`, or the folder `venv`; who runs it, by name and ids."""

    image: str | None
    venv: str | None
    user: str
    uid: int
    gid: int


def ask_hub(
    place: Place,
    wanted: Mapping[str, Any],
    environ: Mapping[str, str],
    folder: str | None,
    ended: Callable[[], str | None],
    tick: Callable[[], None] = lambda: None,
) -> Json:
    """Gives what the client answers to `wanted` (repo, revision, names, token).

    `folder` is where files come; `ended` gives why it has to stop, `tick` is called meanwhile.
    Raises NodeError (`hub`) with the client's own words.
    """
    here = IN_CONTAINER if place.image else folder
    # a look downloads nothing, and has no folder
    env = {**environ, **_ENV, **({"HF_HOME": f"{here}/.cache"} if folder else {})}
    asked = json.dumps({**wanted, "environ": env, "folder": here}).encode()
    # Downloads have a lock, so one of this name is what a killed run left: it would write beside.
    name = CONTAINER if folder else f"rigbook-hub-{os.getpid()}"
    if place.image is not None:
        if folder:
            _remove(name)
        child = _in_container(place, place.image, folder, name)
    else:
        python = os.path.join(str(place.venv), "bin", "python")
        child = Owner(str(place.venv), place.user).start(
            [python, "-c", PROGRAM], {}, subprocess.PIPE
        )
    return _answer(*_wait(child, asked, ended, tick, name if place.image else None))


def _in_container(
    place: Place, image: str, folder: str | None, name: str
) -> subprocess.Popen[bytes]:
    mount = ["-v", f"{folder}:{IN_CONTAINER}"] if folder else []
    words = [DOCKER, "run", "--rm", "--init", "-i", "--name", name, "--pull", "never",
             "--network", "host", "--user", f"{place.uid}:{place.gid}", "-e", "HOME=/tmp",
             "-e", "NVIDIA_VISIBLE_DEVICES=void", *mount,
             "--entrypoint", "/bin/bash", image, "-c", SHELL, CONTAINER, PROGRAM]  # fmt: skip
    try:
        return subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=run.environment(), start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise NodeError(f"{DOCKER}: {error.strerror}", "hub") from None


def _remove(name: str) -> None:
    with contextlib.suppress(OSError, run.TimedOut):
        run.run([DOCKER, "rm", "-f", name], 60)


def _wait(
    child: subprocess.Popen[bytes],
    asked: bytes,
    ended: Callable[[], str | None],
    tick: Callable[[], None],
    container: str | None,
) -> tuple[str, str]:
    """Gives what the client printed, and its last line of error. Raises NodeError (`interrupted`)
    where it has to stop."""
    found: list[tuple[bytes, bytes]] = []
    talk = threading.Thread(target=lambda: found.append(child.communicate(asked)), daemon=True)
    talk.start()
    while talk.is_alive():
        why = ended()
        if why:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            if container:
                _remove(container)
            raise NodeError(f"the download stopped: {why}", "interrupted")
        tick()
        talk.join(POLL_S)
    out, err = found[0] if found else (b"", b"")
    done = run.Done(child.returncode, "", err.decode("utf-8", "replace"))
    return out.decode("utf-8", "replace"), done.last_line()


def _answer(out: str, last: str) -> Json:
    lines = [line for line in out.splitlines() if line.startswith(_ANSWER)]
    try:
        said: Json = json.loads(lines[-1][len(_ANSWER) :])
    except (IndexError, ValueError):
        said = {"error": f"the hub's client did not answer: {last[:300]}"}
    if "error" in said:
        raise NodeError(
            str(said["error"]), "hub",
            "401, 403 or 404: the name, the revision, and the token (secrets: HF_TOKEN in the "
            "recipe); else the node's way to the hub. What came is kept: run it again",
        )  # fmt: skip
    return said


def since(started: float) -> float:
    """Gives the seconds since `started`, of time.monotonic()."""
    return round(time.monotonic() - started, 1)


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


def _place(body: Json) -> Place:
    owner = dirfd.owner_of(validate.name(body["owner"], "owner"))
    if ("image" in body) == ("venv" in body):
        raise validate.bad("give 'image' or 'venv', one of them")
    image = validate.image(body["image"], "image") if "image" in body else None
    venv = validate.path(body["venv"], "venv") if "venv" in body else None
    return Place(image, venv, body["owner"], owner.uid, owner.gid)


def _wanted(body: Json, names: list[str] | None) -> Json:
    """Gives what the client is asked; the token of a file of this host is read here."""
    rows = owner.parse_secrets([body["token"]] if body.get("token") else [], "token")
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

    said = ask_hub(_place(body), _wanted(body, None), _environ(body), None, late)
    return {"commit": str(said.get("commit")), "files": said.get("files"),
            "took_s": since(started)}  # fmt: skip


def _parse(request: Json) -> Json:
    keys = ("change", "path", "files", "deadline_s", *_WHERE)
    body = validate.keys(request, "request", keys, ("change", "path", "files", *_WHERE[:3]))
    _matching(body["revision"], "revision", _COMMIT)
    rows = validate.array(body["files"], "files", manifest.MAX_FILES)
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
    alive = protocol.ParentWatch()
    started = time.monotonic()

    def ended() -> str | None:
        late = time.monotonic() - started > body["deadline_s"]
        return f"not done in {body['deadline_s']:g} s" if late else alive.gone()

    with spool.TransferLock("weights"), contextlib.ExitStack() as stack:
        answer = _Download(body, ended, stack).run()
    return {**answer, "took_s": since(started)}


class _Download:
    """One repository on its way into one folder."""

    def __init__(
        self, body: Json, ended: Callable[[], str | None], stack: contextlib.ExitStack
    ) -> None:
        self._body, self._ended, self._stack = body, ended, stack
        self._place = _place(body)
        self._owner = dirfd.Owner(self._place.uid, self._place.gid)
        self._folder = manifest.Folder(body["path"])
        self._stage = _STAGE + body["revision"]
        self._hashes: dict[str, manifest.Hash] = {}

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
            log.begin(weights_set.SET_OP, stage=weights_set.FETCH, change=change["id"],
                      path=self._body["path"], owner=[*self._owner], count=len(todo),
                      bytes=size)  # fmt: skip
        fd = self._stack.enter_context(dirfd.folder(self._folder.path, self._owner))
        own = self._stack.enter_context(self._folder.own())
        weights_set.require_replaceable(fd, self._folder.path, [row["name"] for row in todo])
        manifest.free_former(self._body["path"], change["id"])
        come = weights_set.Parts(own, todo, self._folder.only)
        self._fetch(own, [row for row in todo if come.whole(row) is None])
        self._verify(own, todo, come)
        wanted = [{"name": row["name"], "part": come.whole(row)} for row in todo]
        with self._opened() as log:
            weights_set.switch_set(log, log.begin(weights_set.SET_OP), wanted, [])
        shutil.rmtree(os.path.join(self._folder.path, manifest.OWN, self._stage))
        for row, done in zip(todo, wanted, strict=True):
            self._hashes[row["name"]] = weights_set.hash_of_post(come.digest(row), done["post"])
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
            found = manifest.hash_of(file, row["name"])
            self._hashes[row["name"]] = found
            return _is_it(row, found, file)

    def _fetch(self, own: int, rows: list[Json]) -> None:
        """Has the client bring files into a folder of the owner's in our own."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._stage, 0o700, dir_fd=own)
            os.chown(self._stage, *self._owner, dir_fd=own, follow_symlinks=False)
        for name in os.listdir(own):
            if name.startswith(_STAGE) and name != self._stage:  # of another commit
                shutil.rmtree(os.path.join(self._folder.path, manifest.OWN, name))
        folder = os.path.join(self._folder.path, manifest.OWN, self._stage)
        size, there = sum(row["size"] for row in rows), _bytes(folder)
        spool.require_room([(folder, max(0, size - there))])
        progress = spool.Progress("weights", size, min(size, there))

        def tick() -> None:
            progress.add(min(size, _bytes(folder)) - progress.done)

        wanted = _wanted(self._body, [row["name"] for row in rows])
        try:
            if rows:
                ask_hub(self._place, wanted, _environ(self._body), folder, self._ended, tick)
        finally:
            progress.end()

    def _verify(self, own: int, todo: list[Json], come: weights_set.Parts) -> None:
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
                found = manifest.hash_of(file, row["name"], tick)
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


def _is_it(row: Json, found: manifest.Hash, file: IO[bytes]) -> bool:
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
