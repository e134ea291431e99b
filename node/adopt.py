"""Steps that end a former engine, and start it again at an undo."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from collections.abc import Collection
from typing import Any, NamedTuple
from urllib.parse import quote

from node import orphans, reap, units
from node.change.apply import FileKind
from node.change.journal import DONE, UNDONE, UNKNOWN, subject
from node.change.kinds import POST, PRE, UNIT, Kind, Seen, Steps, differing
from node.core import files, proc, systemctl, validate
from node.core.errors import CannotRead, Json, NodeError
from node.docker import api
from node.orphans import TITLE, Candidate
from node.rules.secret import masked_argv, masked_text
from node.rules.text import LOGIN_UNIT

# Taking an engine over from who runs it by other means, with the way back (docs/adr/0025).
#
# Each kind ends one thing that starts or keeps such an engine, and starts it again at an undo.

# A container that somebody else made: looked at, found again by a change that knew it before.

_PROJECT, _SERVICE = "com.docker.compose.project", "com.docker.compose.service"


def inspect_box(name: str) -> Json | None:
    """Gives docker's own words about a container by name or id, None for none. CannotRead."""
    row: Json | None = api.get(f"/containers/{quote(name, safe='')}/json", absent_ok=True)
    return row


def require_box(name: str) -> Json:
    """Gives the same of a container that must be there. Raises NodeError (`no_container`)."""
    row = inspect_box(name)
    if row is None:
        raise NodeError(f"there is no container {name}", "no_container")
    return row


def name_of(row: Json) -> str:
    """Gives a container's name without docker's slash."""
    return str(row["Name"]).lstrip("/")


def known_by(row: Json) -> Json:
    """Gives what a step records of a container, for `find`: no value of its environment."""
    labels = row["Config"].get("Labels") or {}
    service = [labels.get(_PROJECT), labels.get(_SERVICE)]
    return {"id": row["Id"], "made": _made(row), "compose": service if all(service) else None}


def find_box(name: str, known: Json) -> Json | None:
    """Gives the container that a step recorded, also where it was made again as it was; None when
    it is gone. Raises NodeError (`other_container`) for another one of its name, and CannotRead.

    compose gives a container that it makes again the labels of its project and service.
    """
    row = inspect_box(name)
    if row is None and known["compose"]:
        wanted = [f"{label}={value}" for label, value in
                  zip((_PROJECT, _SERVICE), known["compose"], strict=True)]  # fmt: skip
        filters = quote(json.dumps({"label": wanted}))
        listed = api.get(f"/containers/json?all=1&filters={filters}")
        row = inspect_box(str(listed[0]["Id"])) if len(listed) == 1 else None
    if row is None or row["Id"] == known["id"] or _made(row) == known["made"]:
        return row
    raise NodeError(
        f"the container {name} is another one now: it was made anew, with another image, command, "
        "environment or mounts",
        "other_container",
        f"docker inspect {name}; bring the former one back, then: rignode undo",
    )


def is_running(row: Json | None) -> bool:
    """Gives True while the container of this look runs."""
    return bool(row and row["State"].get("Running"))


def _made(row: Json) -> str:
    """Gives a hash over how a container was made.

    compose makes the same one again with its variables and mounts in another order.
    """
    config: Json = row["Config"]
    names = sorted(str(item).partition("=")[0] for item in config.get("Env") or [])
    mounts: list[Any] = sorted(
        [str(mount.get("Source", "")), str(mount.get("Destination", "")), bool(mount.get("RW"))]
        for mount in row.get("Mounts") or []
    )
    parts = [row.get("Image"), row.get("Path"), row.get("Args"), config.get("User"), names, mounts]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


# The engines that run by other means on this host, with all that belongs to each. Reads only.


class Started(NamedTuple):
    """What somebody started: its uppermost process, the servers below it, and all of them."""

    top: Candidate
    servers: tuple[Candidate, ...]
    all: tuple[Candidate, ...]


def candidate(pid: int) -> Candidate | None:
    """Gives a process with its identity, None when it is gone. No sign is looked for."""
    stat, uid = proc.stat(pid), proc.uid(pid)
    if stat is None or uid is None or orphans.is_dead(stat):
        return None
    # a read of its command line would wait as long as it does, under the host's lock
    argv = () if stat.state == "D" and orphans.is_stuck(stat) else proc.argv(pid)
    return Candidate(
        stat, proc.boot_id(), uid, argv[0] if argv else stat.comm, proc.exe(pid),
        proc.cgroup(pid), orphans.pid_namespace(pid), (), True, orphans.is_server(argv),
    )  # fmt: skip


def in_container(identifier: str, main_pid: int) -> list[Started]:
    """Gives what `docker exec` started in a container that has an engine below it.

    `main_pid` is the container's own main process, which is left alone with what it started.
    """
    pids = (pid for pid in proc.pids() if proc.container_of(proc.cgroup(pid)) == identifier)
    inside = {pid: one for pid in pids if (one := candidate(pid))}
    tops: dict[int, list[Candidate]] = {}
    for one in inside.values():
        if one.is_server and (top := _top(one.stat.pid, inside, {main_pid})) != main_pid:
            tops.setdefault(top, []).append(one)
    # ranks whose server is gone hang below the container's first process
    ranks = {pid: one for pid, one in inside.items() if one.argv0.startswith(TITLE)}
    strays = [one for pid, one in ranks.items() if _top(pid, inside, {main_pid}) not in tops]
    return [_started(inside[top], servers, inside, strays) for top, servers in tops.items()]


def on_host(pid: int) -> list[Started]:
    """Gives the engine of this pid that a login's shell started, none when it is no such engine."""
    one = candidate(pid)
    if one is None or not one.is_server or proc.container_of(one.cgroup):
        return []
    unit = proc.unit_of(one.cgroup)
    if unit is not None and not LOGIN_UNIT.match(unit):
        return []
    everything = {found.stat.pid: found for each in proc.pids() if (found := candidate(each))}
    return [_started(one, [one], everything, [])]


def _top(pid: int, inside: dict[int, Candidate], below: Collection[int]) -> int:
    """Gives the uppermost process above `pid` that is still inside and is none of `below`.

    One below the main process itself gives that.
    """
    top = pid
    while True:
        parent = inside[top].stat.ppid
        if parent in below:
            return parent if inside[top].stat.session == inside[parent].stat.session else top
        if parent not in inside:
            return top
        top = parent


def _started(
    top: Candidate, servers: list[Candidate], among: dict[int, Candidate], strays: list[Candidate]
) -> Started:
    """Gives a start with every process below its uppermost one."""
    found = {top.stat.pid: top}
    while True:
        more = {pid: one for pid, one in among.items()
                if one.stat.ppid in found and pid not in found}  # fmt: skip
        if not more:
            break
        found.update(more)
    found.update({one.stat.pid: one for one in strays})
    return Started(top, tuple(servers), tuple(found.values()))


# The step that stops a container that is itself the engine; undo starts it again.

# as long as the stop of our own unit waits for TERM
GRACE_S = 30
START_TIMEOUT_S = 60.0


def start_container_step(row: Json) -> str:
    """Start a container; gives the command in words. Raises NodeError (`container`)."""
    name = name_of(row)
    status, said = api.call_said("POST", f"/containers/{quote(row['Id'])}/start", START_TIMEOUT_S)
    if status not in (204, 304):
        raise NodeError(
            f"docker start {name}: {status} {said}", "container", f"docker logs --tail 40 {name}"
        )
    return f"docker start {name}"


def _refuse_lost(name: str, row: Json) -> None:
    """Raise NodeError (`container_lost`) for a container that docker removes when it stops."""
    if row["HostConfig"].get("AutoRemove"):
        raise NodeError(
            f"the container {name} was made with --rm: a stop removes it, and nothing could bring "
            "it back; nothing was stopped",
            "container_lost",
            f"make it anew without --rm, or stop it yourself: docker stop {name}",
        )


class ContainerKind(Kind):
    """A container that is stopped, with its engine as the main process."""

    keys = required = ("container",)
    phase = UNIT
    # an engine was ended: the caller looks, and undoes the change as a whole
    taken_back = False

    def parse(self, step: Json, where: str) -> Json:
        """Gives the step with every value checked."""
        name = validate.image(step["container"], f"{where}.container")
        return {"op": self.op, "container": name}

    def describe(self, entry: Json) -> str:
        """Names the container."""
        return f"stop container {subject(entry)}"

    def plan(self, step: Json, seen: Seen) -> tuple[bool, str]:
        """Gives whether it runs, and may be stopped."""
        row = inspect_box(step["container"])
        if row is None or not is_running(row):
            return False, "does not run"
        _refuse_lost(step["container"], row)
        return True, "is stopped"

    def do(self, step: Json, steps: Steps) -> tuple[bool, str]:
        """Record which container runs, and stop it."""
        name, row = step["container"], inspect_box(step["container"])
        if row is None or not is_running(row):
            return False, "does not run"
        _refuse_lost(name, row)
        entry = self.record(steps, container=name, known=known_by(row),
                            pre={"active": "active"})  # fmt: skip
        api.stop_container(row["Id"], GRACE_S)
        steps.finish(entry)
        return True, f"docker stop {name}"

    def recover(self, entry: Json, rows: list[Json]) -> str:
        """Docker has stopped it or has not."""
        return UNDONE if is_running(self._row(entry)) else DONE

    def _row(self, entry: Json) -> Json | None:
        return find_box(entry["container"], entry["known"])

    def resume(self, rows: list[Json], start_it: bool) -> tuple[list[str], bool]:
        """Start it again, whoever made it anew meanwhile. Raises NodeError when it is gone."""
        entry = rows[-1]
        row = self._row(entry)
        if is_running(row):
            return [], False
        if row is None:
            name = entry["container"]
            raise NodeError(
                f"the container {name} is gone: it cannot be started again",
                "no_container",
                f"make it again as it was, then: docker start {name}",
            )
        return ([start_container_step(row)], False) if start_it else ([], True)

    def verify(self, entry: Json, side: str) -> list[str]:
        """Gives whether it runs, where that is not as recorded."""
        wanted = side == PRE and entry["pre"]["active"] == "active"
        runs = is_running(self._row(entry))
        words = "runs" if runs else "does not run"
        return [] if runs == wanted else [f"container {entry['container']} {words}"]


# The step that comments lines of a crontab out. In the journal it is a step on the file.

MARK = "# taken over by rigbook: "
MOST = 100


class CrontabKind(Kind):
    """Lines that would start an engine, by number and by what was seen there."""

    keys = required = ("path", "lines")
    plans_ahead = True

    def parse(self, step: Json, where: str) -> Json:
        """Gives the step with every value checked."""
        rows = []
        for n, row in enumerate(validate.array(step["lines"], f"{where}.lines", MOST)):
            at, names = f"{where}.lines[{n}]", ("line", "text")
            body = validate.keys(row, at, names, names)
            number = int(validate.number(body["line"], f"{at}.line", 1, 1 << 20))
            rows.append({"line": number, "text": validate.text(body["text"], f"{at}.text", 4096)})
        return {"op": self.op, "path": validate.path(step["path"], f"{where}.path"), "lines": rows}

    def plan(self, step: Json, seen: Seen) -> tuple[bool, str]:
        """Gives whether a line is still to be commented out."""
        changed, _ = FileKind("file").plan(self._as_file(step), seen)
        return changed, "comments out " + ", ".join(f"line {row['line']}" for row in step["lines"])

    def do(self, step: Json, steps: Steps) -> tuple[bool, str]:
        """Write the file with these lines commented out; its owner and mode stay."""
        return FileKind("file").do(self._as_file(step), steps)

    def _as_file(self, step: Json) -> Json:
        """Gives the step on the file, from what lies there now."""
        path = step["path"]
        kept: list[bytes] = []
        with files.Folder(path) as folder:
            now = files.read_entry(folder, kept.append)
        if now["kind"] != "file":
            raise NodeError(f"{path} is a {now['kind']}, not a crontab", "not_a_file")
        lines = kept[0].decode("utf-8", "surrogateescape").split("\n")
        for row in step["lines"]:
            n = row["line"] - 1
            text = lines[n] if n < len(lines) else ""
            if text.startswith(MARK) and units.masked_cron(text[len(MARK) :]) == row["text"]:
                continue
            if units.masked_cron(text) != row["text"]:
                raise NodeError(
                    f"{path}: line {row['line']} is not what was seen: it was edited meanwhile",
                    "changed_meanwhile", "look at the file, then run again",
                )  # fmt: skip
            lines[n] = MARK + text
        return {
            "op": "file",
            "path": path,
            "raw": "\n".join(lines).encode("utf-8", "surrogateescape"),
            "owner": files.Owner(int(now["mode"], 8), now["uid"], now["gid"]),
            "expect_sha256": now["sha256"],
            "validate": None,
            "keep": False,
            "sensitive": True,
        }


# The step that takes a container's restart policy away, so that docker starts it no more.

POLICIES = ("no", "always", "unless-stopped", "on-failure")
TIMEOUT_S = 30.0


def _policy(row: Json) -> Json:
    """Gives a container's policy in docker's own words; an absent one is "no"."""
    found = row["HostConfig"].get("RestartPolicy") or {}
    return {"Name": found.get("Name") or "no",
            "MaximumRetryCount": int(found.get("MaximumRetryCount") or 0)}  # fmt: skip


def _set(row: Json, policy: Json) -> None:
    path = f"/containers/{quote(row['Id'])}/update"
    status, said = api.ask("POST", path, TIMEOUT_S, {"RestartPolicy": policy})
    if status != 200:
        about = f"docker update --restart {policy['Name']} {name_of(row)}"
        raise NodeError(f"{about}: {status} {said}", "container")


class RestartPolicyKind(Kind):
    """A container's restart policy; `pre` and `post` as docker names them."""

    keys = required = ("container", "policy")

    def parse(self, step: Json, where: str) -> Json:
        """Gives the step with every value checked."""
        return {
            "op": self.op,
            "container": validate.image(step["container"], f"{where}.container"),
            "policy": validate.choice(step["policy"], f"{where}.policy", POLICIES),
        }

    def plan(self, step: Json, seen: Seen) -> tuple[bool, str]:
        """Gives whether docker has another policy for the container."""
        now = _policy(require_box(step["container"]))["Name"]
        return now != step["policy"], f"{now} becomes {step['policy']}"

    def do(self, step: Json, steps: Steps) -> tuple[bool, str]:
        """Record the policy that it has, and set the wanted one."""
        name, row = step["container"], require_box(step["container"])
        now, wanted = _policy(row), {"Name": step["policy"], "MaximumRetryCount": 0}
        if now["Name"] == wanted["Name"]:
            return False, "as wanted"
        entry = self.record(steps, container=name, known=known_by(row), pre=now, post=wanted)
        _set(row, wanted)
        steps.finish(entry)
        return True, f"{now['Name']} became {wanted['Name']}"

    def about(self, entry: Json) -> str:
        """Gives the policy of that container: its start is another step's."""
        return f"restart policy of {subject(entry)}"

    def describe(self, entry: Json) -> str:
        """Names the container."""
        return self.about(entry)

    def recover(self, entry: Json, rows: list[Json]) -> str:
        """Docker sets a policy or does not."""
        row = find_box(entry["container"], entry["known"])
        states = {False: UNKNOWN, True: DONE}
        now = _policy(row) if row else None
        return UNDONE if now == entry["pre"] else states[now == entry["post"]]

    def revert(self, entry: Json, overwrite: bool) -> str:
        """Put the policy back, unless somebody has set another one since."""
        row = find_box(entry["container"], entry["known"])
        if row is None:
            return self.leave(entry, "left alone: the container is gone")
        now = _policy(row)
        if now == entry["pre"]:
            return "was as before"
        # one that compose made again has the policy of its file already, or none of ours
        if now != entry["post"]:
            return self.leave(entry, f"left alone: somebody has set it to {now['Name']} since")
        _set(row, entry["pre"])
        return f"{entry['pre']['Name']} again"

    def verify(self, entry: Json, side: str) -> list[str]:
        """Gives the policy where it is not the recorded one."""
        row = find_box(entry["container"], entry["known"])
        if row is None:
            return [f"the container {entry['container']} is gone"]
        return differing(self.about(entry), _policy(row)["Name"], entry[side]["Name"])


# The step that ends an engine which somebody started by hand: in a container, or on the host.
#
# The container stays. Undo does not start it again: it tells the command for the operator to type,
# or
# leaves that to the unit which had started it and which the same undo starts.

# vLLM ends its workers by itself; our own unit waits as long
TERM_S = 30.0
REST_S, KILL_S = 5.0, 5.0
MAX_ROUNDS = 4


def _alive(entry: Json) -> list[Candidate]:
    """Gives those of the recorded processes that still are."""
    found: list[Candidate] = []
    for row in entry["processes"]:
        one = candidate(row["pid"]) if row["boot_id"] == proc.boot_id() else None
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
    ended = reap.end_process(above, REST_S, KILL_S) + reap.end_process(servers, TERM_S, KILL_S)
    ended += reap.end_process(rest, REST_S, KILL_S)
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
            found = on_host(step["pid"])
            return [one for one in found if one.top.stat.start_ticks == step["start_ticks"]], None
        row = inspect_box(name)
        if row is None or not is_running(row):
            return [], row
        return in_container(str(row["Id"]), int(row["State"]["Pid"])), row

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
            known=known_by(row) if row else None,
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
            row = find_box(rows[-1]["container"], rows[-1]["known"])
            ran += [start_container_step(row)] if row and not is_running(row) else []
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
        old = [f"cat {files.blob_folder()}/{digest}" for digest in entry.get("kept", ())]
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
