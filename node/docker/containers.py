"""The few things that the engine's unit does to its own container (Docker Engine API)."""

from __future__ import annotations

import json
import time
from urllib.parse import quote

from node.core.errors import CannotRead, NodeError
from node.docker import api

# docker answers a forced removal when the processes are gone, which a stuck driver delays
REMOVE_TIMEOUT_S = 60.0
PING_TIMEOUT_S = 5.0


def call(method: str, path: str, timeout_s: float) -> tuple[int, str]:
    """Gives status and message of one API call. Raises CannotRead when docker does not answer."""
    status, body = api.call(method, path, timeout_s)
    try:
        said = str(json.loads(body.decode("utf-8"))["message"])
    except (ValueError, KeyError, TypeError):
        said = ""
    return status, said


def answers() -> bool:
    """Gives True when docker takes requests."""
    try:
        return call("GET", "/_ping", PING_TIMEOUT_S)[0] == 200
    except CannotRead:
        return False


def _require_answer() -> None:
    """Asks for a ping before a call that may wait for a minute. Raises CannotRead.

    docker.socket takes connections while no docker runs, and a docker that died is started again
    only when the engine's unit has ended: a caller inside that unit would wait for itself.
    """
    if not answers():
        raise CannotRead("docker does not answer")


def is_running(name: str) -> bool:
    """Gives True while a container of that name runs. Raises CannotRead."""
    row = api.get(f"/containers/{quote(name, safe='')}/json", absent_ok=True)
    return row is not None and bool(row["State"].get("Running"))


def identifier(name: str) -> str | None:
    """Gives the id of a container of that name; None when there is none. Raises CannotRead."""
    row = api.get(f"/containers/{quote(name, safe='')}/json", absent_ok=True)
    return None if row is None else str(row["Id"])


def stop(name: str, grace_s: int) -> bool:
    """Ends a container: TERM, after `grace_s` seconds KILL; gives False when none ran.

    Raises CannotRead, and NodeError (`container`) with docker's own words.
    """
    _require_answer()
    path = f"/containers/{quote(name, safe='')}/stop?t={grace_s}"
    status, said = call("POST", path, grace_s + 20.0)
    if status not in (204, 304, 404):
        raise NodeError(f"docker stop {name}: {status} {said}", "container")
    return status == 204


def remove(name: str) -> bool:
    """Removes a container, running or not; gives False when there was none.

    Raises CannotRead, and NodeError (`container`) when it is still there after a minute.
    """
    _require_answer()
    deadline = time.monotonic() + REMOVE_TIMEOUT_S
    path = f"/containers/{quote(name, safe='')}?force=true"
    removed = False
    while True:
        status, said = call("DELETE", path, REMOVE_TIMEOUT_S)
        if status == 404:
            return removed
        removed = True
        if status == 204:
            return True
        # 409: --rm removes it at this moment
        if time.monotonic() > deadline:
            raise NodeError(f"docker rm -f {name}: {status} {said}", "container")
        time.sleep(0.5)
