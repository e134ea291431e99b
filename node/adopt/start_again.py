"""How something was started, kept with the journal, and started once more.

The environment holds tokens, so it lies among the pre-images (root alone) and not in a step.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from urllib.parse import quote

from node.adopt import box
from node.core import proc
from node.core.errors import CannotRead, Json, NodeError
from node.core.run import TimedOut, run
from node.docker import api
from node.files import atomic, state_dir
from node.reap.find import Candidate
from node.rules.env_text import environment_value

TIMEOUT_S = 30.0
# one that cannot start, because its script is gone, has ended by then
LOOK_AFTER_S = 1.0


def keep(top: Candidate, container: Json | None) -> str:
    """Keep how a process was started; gives the name of the copy. Raises NodeError, CannotRead."""
    pid = top.stat.pid
    argv, environ = proc.argv(pid), proc.environ(pid)
    try:
        cwd, group = os.readlink(f"/proc/{pid}/cwd"), os.stat(f"/proc/{pid}").st_gid
    except OSError as error:
        raise CannotRead(f"pid {pid}: {error.strerror}") from None
    if not argv or not environ:
        raise CannotRead(f"pid {pid}: its command line or environment cannot be read")
    kept = {
        "argv": argv, "environ": environ, "cwd": cwd, "uid": top.uid, "gid": group,
        "privileged": container is not None and _is_privileged(container, pid),
        # what is kept has a random part, so that its name says nothing of a short secret
        "random": secrets.token_hex(16),
    }  # fmt: skip
    return atomic.save_blob(json.dumps(kept).encode())


def _is_privileged(container: Json, pid: int) -> bool:
    """Gives whether a `docker exec --privileged` started this process."""
    for identifier in container.get("ExecIDs") or []:
        row = api.get(f"/exec/{quote(str(identifier))}/json", absent_ok=True)
        if row and row.get("Pid") == pid:
            return bool((row.get("ProcessConfig") or {}).get("privileged"))
    return False


def in_container(name: str, row: Json, digest: str) -> str:
    """Start it in a container that runs; gives it in words. Raises NodeError, CannotRead."""
    kept = json.loads(atomic.load_blob(digest))
    body = {
        "Cmd": kept["argv"],
        "Env": [f"{key}={value}" for key, value in kept["environ"].items()],
        "WorkingDir": kept["cwd"],
        "User": f"{kept['uid']}:{kept['gid']}",
        "Privileged": kept["privileged"],
    }
    made = _asked(name, f"/containers/{quote(row['Id'])}/exec", body, 201)
    identifier = quote(str(made["Id"]))
    _asked(name, f"/exec/{identifier}/start", {"Detach": True, "Tty": False}, 200)
    time.sleep(LOOK_AFTER_S)
    now = api.get(f"/exec/{identifier}/json")
    if not now.get("Running"):
        raise NodeError(
            f"docker exec {name}: what had run there ended at once, with {now.get('ExitCode')}",
            "not_started", f"docker exec {name} ls; bring back what is missing there",
        )  # fmt: skip
    return f"docker exec --detach {box.name_of(row)}"


def _asked(name: str, path: str, body: Json, wanted: int) -> Json:
    status, said = api.ask("POST", path, TIMEOUT_S, body)
    if status != wanted:
        raise NodeError(f"docker exec {name}: {status} {said}", "not_started",
                        f"docker inspect {name}")  # fmt: skip
    try:
        found: Json = json.loads(said) if said else {}
    except ValueError:
        return {}
    return found


def on_host(digest: str) -> str:
    """Start it as a transient unit, with its user and folder; gives the unit. Raises NodeError.

    systemd reads the environment from a file of root's, which goes once it is read.
    """
    kept = json.loads(atomic.load_blob(digest))
    unit = f"rigbook-former-{digest[:8]}.service"
    path = os.path.join(state_dir.root(), f"{unit}.env")
    lines = [f"{key}={environment_value(value)}\n" for key, value in kept["environ"].items()]
    atomic.save_private(path, "".join(lines).encode())
    words = [
        "systemd-run", "--quiet", "--collect", f"--unit={unit}",
        "--description=the engine that rigbook gave back", "--property=Type=exec",
        f"--property=EnvironmentFile={path}", f"--uid={kept['uid']}", f"--gid={kept['gid']}",
        f"--working-directory={kept['cwd']}",
        # env finds the program as its own PATH says; systemd would expand a `$`
        "--", "/usr/bin/env", *(word.replace("$", "$$") for word in kept["argv"]),
    ]  # fmt: skip
    try:
        done = run(words, TIMEOUT_S)
    except (FileNotFoundError, TimedOut) as error:
        raise NodeError(f"systemd-run: {error}", "not_started") from None
    finally:
        os.unlink(path)
    if done.rc != 0:
        raise NodeError(f"systemd-run: {done.last_line()}"[:400], "not_started",
                        f"journalctl -u {unit} -n 40")  # fmt: skip
    return unit
