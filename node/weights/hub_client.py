"""The hub's own client (huggingface_hub), run where the engine has it: in its image, or its venv.

What it is asked stands in its stdin, the token too: no user of the host reads it in a command line.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from node.core import run as runs
from node.core.engine_python import SHELL
from node.core.errors import Json, NodeError
from node.core.run_as_owner import Owner

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


def ask(
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
            env=runs.environment(), start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise NodeError(f"{DOCKER}: {error.strerror}", "hub") from None


def _remove(name: str) -> None:
    with contextlib.suppress(OSError, runs.TimedOut):
        runs.run([DOCKER, "rm", "-f", name], 60)


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
    done = runs.Done(child.returncode, "", err.decode("utf-8", "replace"))
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
