"""The step that ends an engine which somebody started by hand: in a container, or on the host.

The container stays. Undo does not start it again: it tells the command for the operator to type, or
leaves that to the unit which had started it and which the same undo starts.
"""

from __future__ import annotations

import os
import shlex

from node.adopt import box, processes
from node.adopt.container_step import start
from node.adopt.processes import Started
from node.core import proc, systemctl, validate
from node.core.errors import CannotRead, Json, NodeError
from node.core.masking import masked_argv
from node.core.step_kind import POST, UNIT, Kind, Seen, Steps
from node.core.step_state import DONE, UNDONE, UNKNOWN, subject
from node.files import state_dir
from node.reap import terminate
from node.reap.find import Candidate
from node.rules.secret import masked_text

# vLLM ends its workers by itself; our own unit waits as long
TERM_S = 30.0
REST_S, KILL_S = 5.0, 5.0
MAX_ROUNDS = 4


def _alive(entry: Json) -> list[Candidate]:
    """Gives those of the recorded processes that still are."""
    found: list[Candidate] = []
    for row in entry["processes"]:
        one = processes.candidate(row["pid"]) if row["boot_id"] == proc.boot_id() else None
        if one is not None and one.stat.start_ticks == row["start_ticks"]:
            found.append(one)
    return found


def _end(started: list[Candidate], servers: list[Candidate]) -> None:
    """End processes: a shell above the servers first, because it might start them again; then the
    servers, which end their workers; then the rest. Raises NodeError for one that stays.
    """
    pids = {one.stat.pid for one in servers}
    above = [one for one in started if one.stat.pid in {row.stat.ppid for row in servers} - pids]
    rest = [one for one in started if one not in above and one.stat.pid not in pids]
    ended = terminate.end(above, REST_S, KILL_S) + terminate.end(servers, TERM_S, KILL_S)
    ended += terminate.end(rest, REST_S, KILL_S)
    stays = [f"pid {one.candidate.stat.pid}" for one in ended if one.how == "alive"]
    if stays:
        raise NodeError(
            f"{', '.join(stays)} does not end, not by KILL either: it waits in the kernel",
            "not_ended", "a reboot ends it; before: rignode undo",
        )  # fmt: skip


def _command(top: Candidate, container: str | None) -> str:
    """Gives what somebody typed to start it, quoted for a shell; secrets are masked, and what its
    environment had is not in it. Raises CannotRead.
    """
    pid = top.stat.pid
    argv = [masked_text(word) for word in masked_argv(proc.argv(pid))]
    try:
        folder, group = os.readlink(f"/proc/{pid}/cwd"), os.stat(f"/proc/{pid}").st_gid
    except OSError as error:
        raise CannotRead(f"pid {pid}: {error.strerror}") from None
    if not argv:
        raise CannotRead(f"pid {pid}: its command line cannot be read")
    if container is None:
        return f"cd {shlex.quote(folder)} && {shlex.join(argv)}"
    about = [f"--user={top.uid}:{group}", f"--workdir={folder}", container]
    return shlex.join(["docker", "exec", "--detach", *about, *argv])


class EngineKind(Kind):
    """An engine that is no container's main process and no unit's, with all that it started."""

    keys = ("container", "pid", "start_ticks")
    phase = UNIT
    # an engine was ended: the caller looks, and undoes the change as a whole
    taken_back = False

    def parse(self, step: Json, where: str) -> Json:
        """Gives the step with every value checked: a container, or a process of the host."""
        if ("container" in step) == ("pid" in step) or ("pid" in step) != ("start_ticks" in step):
            raise validate.bad(f"{where}: give 'container', or 'pid' with 'start_ticks'")
        if "container" in step:
            name = validate.image(step["container"], f"{where}.container")
            return {"op": self.op, "container": name}
        return {
            "op": self.op,
            "pid": int(validate.number(step["pid"], f"{where}.pid", 2, 1 << 22)),
            "start_ticks": int(
                validate.number(step["start_ticks"], f"{where}.start_ticks", 0, 1 << 62)
            ),
        }

    def describe(self, entry: Json) -> str:
        """Says what was ended."""
        return f"end the {subject(entry)}"

    def plan(self, step: Json, seen: Seen) -> tuple[bool, str]:
        """Gives whether such an engine runs."""
        found, _ = self._look(step)
        tops = ", ".join(f"pid {one.top.stat.pid}" for one in found)
        return bool(found), f"ends {tops}" if found else "none runs"

    def _look(self, step: Json) -> tuple[list[Started], Json | None]:
        """Gives the engines of this step as they run now, and the container's inspection."""
        name = step.get("container")
        if name is None:
            found = processes.on_host(step["pid"])
            return [one for one in found if one.top.stat.start_ticks == step["start_ticks"]], None
        row = box.inspect(name)
        if row is None or not box.is_running(row):
            return [], row
        return processes.in_container(str(row["Id"]), int(row["State"]["Pid"])), row

    def do(self, step: Json, steps: Steps) -> tuple[bool, str]:
        """Record the command line of each, and end it."""
        found, row = self._look(step)
        if not found:
            return False, "none runs"
        name = step.get("container")
        everything = [one for started in found for one in started.all]
        servers = [one for started in found for one in started.servers]
        entry = self.record(
            steps,
            engine=f"engine in container {name}" if name else f"engine of pid {step['pid']}",
            container=name,
            known=box.known_by(row) if row else None,
            commands=[_command(one.top, name) for one in found],
            processes=[one.as_json() for one in everything],
            servers=[one.stat.pid for one in servers],
            by=_units_that_ran(steps.rows),
        )
        for _ in range(MAX_ROUNDS):
            # one that took its title meanwhile was not signalled: it is looked at anew
            left = _alive(entry)
            _end(left, [one for one in left if one.stat.pid in entry["servers"]])
            if not left:
                break
        # what a unit or a loop started again meanwhile, and what hung below somebody else
        again, _ = self._look(step)
        if again:
            raise NodeError(
                f"the {entry['engine']} was started again while it was ended: pid "
                f"{again[0].top.stat.pid}; something that was not found starts it",
                "started_again", "find it: systemctl status PID; crontab -l",
            )  # fmt: skip
        steps.finish(entry)
        return True, f"ended {len(everything)} processes"

    def recover(self, entry: Json, rows: list[Json]) -> str:
        """All are gone, or none is; one that was ended half-way is neither."""
        left = len(_alive(entry))
        return DONE if left == 0 else UNDONE if left == len(entry["processes"]) else UNKNOWN

    def quiesce(self, rows: list[Json]) -> list[str]:
        """Start the container, which only waits and which no policy has brought back after a boot,
        because the unit's start comes first; end what a kill has left half ended.
        """
        ran: list[str] = []
        if rows[-1]["container"]:
            row = box.find(rows[-1]["container"], rows[-1]["known"])
            ran += [start(row)] if row and not box.is_running(row) else []
        for entry in rows:
            left = _alive(entry)
            if left and len(left) < len(entry["processes"]):
                _end(left, [one for one in left if one.stat.pid in entry["servers"]])
                ran.append(f"ended the rest of the {entry['engine']}")
        return ran

    def resume(self, rows: list[Json], start_it: bool) -> tuple[list[str], bool]:
        """Tell the command that starts it, where it does not run and no unit starts it."""
        entry = rows[-1]
        entry.pop("left", None)
        if entry["by"]:
            return [f"{', '.join(entry['by'])} starts it"], False
        if self._runs(entry):
            return [], False
        # 0.2.0 kept the command line in a file
        old = [f"cat {state_dir.blob_folder()}/{digest}" for digest in entry.get("kept", ())]
        how = "; ".join(entry.get("commands") or old)
        return [self.leave(entry, f"was started by hand; to start it again: {how}")], False

    def about(self, entry: Json) -> str:
        """Gives the engine."""
        return f"the {subject(entry)}"

    def verify(self, entry: Json, side: str) -> list[str]:
        """Gives whether it runs where it was ended. An undo does not start it, so that nothing is
        compared with what was before.
        """
        runs = side == POST and self._runs(entry)
        return [f"the {entry['engine']} runs"] if runs else []

    def _runs(self, entry: Json) -> bool:
        return bool(self._look(entry)[0] if entry["container"] else _alive(entry))


def _units_that_ran(rows: list[Json]) -> list[str]:
    """Gives the units that this change stopped before, and that its undo therefore starts."""
    return [row["unit"] for row in rows
            if row["op"] == "unit" and row["active"] == "stop"
            and systemctl.is_running(row["pre"])]  # fmt: skip
