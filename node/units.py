"""The systemd units that the request names, as systemd sees them now, and those that run docker
or vLLM, themselves or by a script: a second supervisor of the same engine shows only there."""

from __future__ import annotations

import glob
import json
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from node import processes
from node.core import proc
from node.core.errors import CannotRead, Json, NodeError, io_reason
from node.core.run import TimedOut, run
from node.core.run import each as run_each
from node.core.systemctl import systemctl
from node.docker import store
from node.rules import secret, text
from node.rules.secret import MASK, masked_line, masked_text
from node.rules.text import LOGIN_UNIT

# What a command line of a unit or a crontab starts in the end: scripts are read one level deep.
#
# A unit that runs `bash /home/me/start.sh` names neither vLLM nor docker; the script does.

# a line that starts an engine, or a container that may hold one
_STARTS = re.compile(
    r"vllm|\bdocker(?:-compose)?\s+(?:\S+\s+)*?(?:exec|run|start|restart|up)\b", re.IGNORECASE
)
MAX_BYTES = 64 * 1024
MAX_WORDS = 60
_PATH = re.compile(r"(?:^|(?<=[\s\"'=;&|@:+!(-]))(/[^\s\"';|&<>()]+)")
_NAME = re.compile(r"^[A-Za-z0-9_/][A-Za-z0-9_./-]*$")
# programs of the distribution: no script of somebody's lies there
_SYSTEM = ("/bin/", "/sbin/", "/lib/", "/lib64/", "/usr/bin/", "/usr/sbin/", "/usr/lib/",
           "/usr/libexec/", "/dev/", "/proc/", "/sys/", "/run/")  # fmt: skip


def _text(path: str) -> str:
    """Gives the text of a script; "" for a program, a model's file, a folder, one not there."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return ""
        with open(path, "rb") as file:
            raw = file.read(MAX_BYTES)
    except OSError:
        return ""
    return "" if b"\0" in raw else raw.decode("utf-8", "replace").replace("\\\n", " ")


def starting_lines(line: str) -> list[str]:
    """Gives the lines that start an engine or a container: the command line itself, and those of
    the scripts that it names by an absolute path.
    """
    paths = [p for p in dict.fromkeys(_PATH.findall(line)) if not p.startswith(_SYSTEM)]
    lines = [line, *(row.strip() for path in paths for row in _text(path).splitlines())]
    return [row for row in lines if not row.startswith("#") and _STARTS.search(row)]


def script_words(lines: Iterable[str]) -> list[str]:
    """Gives the plain words of such lines (names and paths), each once.

    Options, assignments and the values of secrets are not among them.
    """
    found: dict[str, None] = {}
    for line in lines:
        told = secret.masked_argv(re.split(r"[\s\"';|&()]+", masked_text(line)))
        found.update(dict.fromkeys(word for word in told if _NAME.match(word)))
    return list(found)[:MAX_WORDS]


# What a systemd unit starts, and which of the files that it names are not there.
#
# Exit status 127 or 203 is a missing file, never an application's crash: the file may be missing
# on
# the host or, behind `docker exec`, inside the container (the third seed's ghost script).

STEPS = ("ExecStartPre", "ExecStart", "ExecStartPost")
_INTERPRETERS = re.compile(r"^(?:ba|da|z|k)?sh$|^python[0-9.]*$|^env$")
# options of `docker exec` that take a value in the next word
_EXEC_VALUES = {"-e", "--env", "-u", "--user", "-w", "--workdir", "--env-file", "--detach-keys"}


class Command(NamedTuple):
    """One command of a unit: its step, the program's path, its words, `-` before it."""

    step: str
    path: str
    words: tuple[str, ...]
    may_fail: bool


def shown_commands(step: str, values: Iterable[str]) -> list[Command]:
    """Gives the commands of an Exec property's values, as `systemctl show` prints them.

    systemd prints argv joined by blanks, so an argument that holds a blank comes apart.
    """
    found: list[Command] = []
    for value in values:
        if "argv[]=" in value:
            path = value.partition("path=")[2].partition(" ;")[0].strip()
            words = value.partition("argv[]=")[2].partition(" ; ignore_errors=")[0]
            may_fail = "; ignore_errors=yes" in value
            found.append(Command(step, path, tuple(words.split()), may_fail))
    return found


def script_of(words: Sequence[str]) -> str | None:
    """Gives the absolute path of the file that an interpreter's command line runs, or None."""
    if not words or not _INTERPRETERS.match(os.path.basename(words[0])):
        return None
    for word in words[1:]:
        if word == "-c" or word == "-m":
            return None
        if word.startswith("/"):
            # `env /usr/bin/x` runs x, `bash /x.sh` reads it: both must be there
            return word
        if not word.startswith("-") and "=" not in word:
            return None
    return None


def inner_command(words: Sequence[str]) -> tuple[str, tuple[str, ...]] | None:
    """Gives (container, command line) of a `docker exec`, or None for anything else."""
    if len(words) < 3 or os.path.basename(words[0]) != "docker" or words[1] != "exec":
        return None
    rest = list(words[2:])
    while rest and rest[0].startswith("-"):
        rest = rest[2:] if rest[0] in _EXEC_VALUES else rest[1:]
    return (rest[0], tuple(rest[1:])) if len(rest) > 1 else None


def ghosts_of(found: Sequence[Command]) -> list[Json]:
    """Gives the files that these commands name and that are not there.

    What cannot be told (docker silent, no such container) is not called missing. A
    command that may fail (`-` before it) stops no start.
    """
    missing: list[Json] = []
    for command in found:
        if command.may_fail:
            continue
        for path in filter(None, (command.path, script_of(command.words))):
            if path.startswith("/") and not os.path.exists(path):
                missing.append({"step": command.step, "path": path, "container": None})
        inside = inner_command(command.words)
        if inside:
            name, words = inside
            paths = [path for path in (words[0], script_of(words)) if path and path.startswith("/")]
            for path in paths:
                if _inside(name, path) is False:
                    missing.append({"step": command.step, "path": path, "container": name})
    return missing


def _inside(name: str, path: str) -> bool | None:
    """Gives whether a container has the file; None when that cannot be told."""
    try:
        return store.stat_mode(store.container_tree(name), path) is not None
    except (CannotRead, NodeError, OSError):
        return None


# Unit files as systemd reads them: where drop-ins lie, which one wins, what an Exec line runs.
#
# systemd tells only what it has loaded; this tells what a unit would be with other files.

# what may stand before the program (systemd.service(5), "Command lines")
_PREFIXES = re.compile(r"^[@\-:+!|]*")
FOLDER_SUFFIX = ".d"
_SPECIFIER = re.compile(r"%[^%]|%$")
_ESCAPES = {"n": "\n", "t": "\t", "s": " ", "\\": "\\", '"': '"', "'": "'"}


class Part(NamedTuple):
    """One file of a unit: its path on this host and its text."""

    path: str
    text: str


class Line(NamedTuple):
    """One effective Exec line: the file that it stands in, and its value."""

    path: str
    value: str


def search_path() -> list[str]:
    """Gives the folders that systemd reads units from, the strongest first. Raises NodeError."""
    found = systemctl("show", "-p", "UnitPath", "--value").split()
    if not found:
        raise NodeError("systemd does not say where it reads units from", "unit_failed")
    return found


def _folders(name: str, search: Sequence[str]) -> Iterator[str]:
    """Gives the drop-in folders of a unit, the strongest first (systemd.unit(5))."""
    stem, dot, kind = name.rpartition(".")
    names = [name]
    at = stem.partition("@")
    if at[1] and at[2]:
        names.append(f"{at[0]}@{dot}{kind}")
    words = at[0].split("-")
    names += [f"{'-'.join(words[:n])}-{dot}{kind}" for n in range(len(words) - 1, 0, -1)]
    for folder in search:
        for each in names:
            yield f"{folder}/{each}.d"
    for folder in search:
        yield f"{folder}/{kind}.d"


def drop_ins(name: str, search: Sequence[str], proposed: dict[str, bytes | None]) -> list[Part]:
    """Gives a unit's drop-ins in the order of reading, as they would be with the proposed files.

    `proposed` maps a path to its bytes, or to None where it is to go. Of equal names the
    strongest folder's counts.
    """
    found: dict[str, Part] = {}
    for folder in _folders(name, search):
        paths = set(glob.glob(glob.escape(folder) + "/*.conf"))
        paths |= {path for path in proposed if os.path.dirname(path) == folder}
        for path in sorted(paths):
            if path in proposed:
                raw = proposed[path]
                if raw is None:
                    continue
                text = raw.decode("utf-8", "replace")
            else:
                text = proc.read_text(path)
            found.setdefault(os.path.basename(path), Part(path, text))
    return [found[name] for name in sorted(found)]


def assignments(text: str) -> Iterator[tuple[str, str, str]]:
    """Gives (section, key, value) of each line, continued lines joined, comments left out."""
    section, held = "", ""
    for raw in text.split("\n"):
        line = raw.strip()
        if line[:1] in ("#", ";"):
            continue
        line = held + line
        if line.endswith("\\"):
            held = line[:-1] + " "
            continue
        held = ""
        if line.startswith("["):
            section = line
        key, equals, value = line.partition("=")
        if equals:
            yield section, key.strip(), value.strip()


def exec_lines(parts: Sequence[Part], step: str) -> list[Line]:
    """Gives the effective lines of an Exec step: an empty one takes away all before it."""
    lines: list[Line] = []
    for part in parts:
        for section, key, value in assignments(part.text):
            if section == "[Service]" and key == step:
                lines = [*lines, Line(part.path, value)] if value else []
    return lines


def override(path: str, text: str) -> Json | None:
    """Gives what a drop-in does to ExecStart, or None when it leaves it alone."""
    values = [
        " ".join(value.split())
        for section, key, value in assignments(text)
        if (section, key) == ("[Service]", "ExecStart")
    ]
    if not values:
        return None
    return {
        "path": path,
        "exec_start": [value for value in values if value],
        "resets": "" in values,
    }


def unit_words(value: str) -> list[str] | None:
    """Gives the words of a command line by systemd's rules, or None when its quotes are open."""
    found: list[str] = []
    word, quote, inside, at = "", "", False, 0
    while at < len(value):
        char = value[at]
        at += 1
        if char == "\\" and at < len(value):
            word += _ESCAPES.get(value[at], "\\" + value[at])
            inside, at = True, at + 1
        elif quote:
            if char == quote:
                quote = ""
            else:
                word += char
        elif char in "\"'":
            quote, inside = char, True
        elif char.isspace():
            if inside:
                found.append(word)
            word, inside = "", False
        else:
            word, inside = word + char, True
    if quote:
        return None
    return [*found, word] if inside else found


def file_commands(parts: Sequence[Part], step: str) -> list[Command]:
    """Gives the effective commands of a step; one whose words only systemd knows is left out.

    Specifiers (%i) and variables (${X}) are not expanded: such a word stays as it stands.
    """
    found: list[Command] = []
    for line in exec_lines(parts, step):
        prefix = _PREFIXES.match(line.value)
        marks = prefix.group() if prefix else ""
        told = unit_words(line.value[len(marks) :])
        if not told or _SPECIFIER.search(told[0].replace("%%", "")):
            continue
        one: list[str] = []
        for word in [*told, ";"]:
            if word != ";":
                one.append(word.replace("%%", "%").replace("$$", "$"))
            elif one:
                argv = one[:1] + one[2:] if "@" in marks else one
                found.append(Command(step, one[0], tuple(argv), "-" in marks))
                one = []
    return found


# What systemd and a unit in trouble logged: restarts of its own, and lines that name an error.

LOG_TIMEOUT_S = 4.0
# systemd's catalog: "Scheduled restart job"
_RESTART_ID = "5eb03494b6584870a536b337290809b3"
MAX_RESTARTS = 20
MAX_ERRORS = 8
_LOOKED_AT = "400"
_ERROR = re.compile(
    r"error|exception|not found|no such file|is a directory|permission denied|traceback"
    r"|out of memory|oom|less than desired|address already in use|killed|cannot|failed",
    re.IGNORECASE,
)
# the launcher's and systemd's own words about a dead child name no cause; the last three stand in
# the log of each start that works (pytorch#159007, vllm's get_ip and set_ulimit)
_NOISE = re.compile(
    r"^\S*File \"|resource_tracker|Main process exited|Failed with result|^\s*\^"
    r"|hostname of the client socket cannot be retrieved|Failed to get the IP address"
    r"|Found ulimit of \d+ and failed to automatically increase"
)


def _journal(*words: str) -> list[str]:
    """Gives the lines of one journalctl call, oldest first; none when it fails. Raises TimedOut.

    Asked for newest first: with --since and -n, systemd 252 gives the OLDEST lines otherwise.
    """
    try:
        done = run(["journalctl", "-q", "-r", "--no-pager", *words], LOG_TIMEOUT_S)
    except FileNotFoundError:
        return []
    return done.out.splitlines()[::-1] if done.rc == 0 else []


def log_between(unit: str, since: int, until: int) -> list[str]:
    """Gives what the unit's processes logged between two Unix times, oldest first; none when that
    takes too long.
    """
    match = "_SYSTEMD_UNIT=" + unit
    try:
        return _journal(match, "-o", "cat", "--since", f"@{since}", "--until", f"@{until}")
    except TimedOut:
        return []


def last_line(unit: str) -> str | None:
    """Gives the last line the unit's own processes logged, else systemd's last about it."""
    for match in (["_SYSTEMD_UNIT=" + unit], ["-u", unit]):
        lines = [line for line in _journal(*match, "-n", "1", "-o", "cat") if line.strip()]
        if lines:
            return masked_line(lines[-1].strip())[:500]
    return None


def restarts(unit: str) -> list[float]:
    """Gives when systemd restarted the unit by itself in the last day, oldest first, Unix time."""
    found: list[float] = []
    lines = _journal(
        "UNIT=" + unit, "MESSAGE_ID=" + _RESTART_ID, "--since", "-1day",
        "-n", str(MAX_RESTARTS), "-o", "json", "--output-fields=N_RESTARTS",
    )  # fmt: skip
    for line in lines:
        try:
            found.append(int(json.loads(line)["__REALTIME_TIMESTAMP"]) / 1e6)
        except (ValueError, KeyError, TypeError):
            continue
    return sorted(found)


def error_lines(lines: list[str]) -> list[str]:
    """Gives the last distinct lines that name an error, masked, each cut to 300 characters."""
    kept: list[str] = []
    for line in reversed(lines):
        text = masked_line(line.strip())[:300]
        if _ERROR.search(text) and not _NOISE.search(text) and text not in kept:
            kept.append(text)
        if len(kept) == MAX_ERRORS:
            break
    return kept[::-1]


def with_root_cause(lines: list[str]) -> list[str]:
    """Gives the lines that name an error, the root cause of the last start that has one first."""
    errors, cause = error_lines(lines), None
    for at in range(len(lines) - 1, -1, -1):
        # a start begins with the line of vLLM's version; systemd's own line where it has none
        if at == 0 or "vLLM API server version" in lines[at] or lines[at].startswith("Starting "):
            cause = text.find_root_cause(lines[at:])
            if cause:
                break
    return [masked_line(cause.line())[:400], *errors] if cause else errors


def log_trouble(unit: str) -> tuple[str | None, list[float], list[str]]:
    """Gives a unit's last log line (or that it was not read), its restarts and its errors."""
    try:
        lines = _journal("-u", unit, "-n", _LOOKED_AT, "-o", "cat", "--since", "-1day")
        return last_line(unit), restarts(unit), with_root_cause(lines)
    except TimedOut as error:
        return f"its log was not read: {error}", [], []


UNITS_TIMEOUT_S = 8.0
MAX_OTHERS = 20
FOLDERS = ("/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system",
           "/usr/lib/systemd/system", "/lib/systemd/system")  # fmt: skip
_RUNS_ENGINE = re.compile(
    r"^Exec\w+=.*(?:vllm|/docker\s+(?:exec|run|start|compose)\b)", re.MULTILINE | re.IGNORECASE
)
_EXEC = re.compile(r"^Exec\w+=(.+)$", re.MULTILINE)
_EXIT_KINDS = {"1": "exited", "2": "killed", "3": "dumped"}
PROPERTIES = (
    "Id", "Names", "LoadState", "ActiveState", "SubState", "UnitFileState", "FragmentPath",
    "DropInPaths", "ExecStart", "ExecStartPre", "ExecStartPost", "Restart", "NRestarts", "Result",
    "ExecMainStatus", "ExecMainCode", "MainPID", "TriggeredBy",
    "ActiveEnterTimestampMonotonic", "StateChangeTimestampMonotonic", "NeedDaemonReload",
)  # fmt: skip


def blocks(text: str) -> list[dict[str, list[str]]]:
    """Gives the blocks of `systemctl show`, one a unit: the values of each property, in order."""
    found: list[dict[str, list[str]]] = []
    for block in text.split("\n\n"):
        values: dict[str, list[str]] = {}
        for line in block.splitlines():
            name, equals, value = line.partition("=")
            if equals:
                values.setdefault(name, []).append(value)
        if values:
            found.append(values)
    return found


def _last(block: dict[str, list[str]], name: str) -> str:
    """Gives the last value of a property, or ""."""
    return (block.get(name) or [""])[-1]


def _since(block: dict[str, list[str]]) -> float | None:
    """Gives when the unit entered its present state, in Unix seconds."""
    active = _last(block, "ActiveState") in ("active", "reloading")
    name = "ActiveEnter" if active else "StateChange"
    usec = int(_last(block, f"{name}TimestampMonotonic") or 0)
    if not usec:
        return None
    # To a tenth: the two clocks are read one after the other, and two looks must agree.
    return round(time.time() - (time.clock_gettime(time.CLOCK_MONOTONIC) - usec / 1e6), 1)


def _masked(words: Iterable[str]) -> list[str]:
    """Gives a command line without its secrets: other people's units are shown to anybody."""
    return [secret.masked_text(word) for word in secret.masked_argv(words)]


def unit(name: str, block: dict[str, list[str]]) -> Json:
    """Gives one unit of its `systemctl show` block, without what its log tells."""
    found = [c for step in STEPS for c in shown_commands(step, block.get(step) or [])]
    # of several ExecStart= the last; a oneshot unit may have more
    main = [command for command in found if command.step == "ExecStart"][-1:]
    drop_ins = _last(block, "DropInPaths").split()
    overrides = [override(path, proc.read_text(path)) for path in drop_ins]
    return {
        "name": name,
        "load_state": _last(block, "LoadState"),
        "active_state": _last(block, "ActiveState"),
        "sub_state": _last(block, "SubState"),
        "enabled": _last(block, "UnitFileState"),
        "fragment": _last(block, "FragmentPath") or None,
        "drop_ins": drop_ins,
        "exec_start": _masked(main[0].words) if main else [],
        "exec_start_exists": os.access(main[0].path, os.X_OK) if main else None,
        "restart": _last(block, "Restart"),
        "restarts": int(_last(block, "NRestarts") or 0),
        "result": _last(block, "Result"),
        "exit_status": int(_last(block, "ExecMainStatus") or 0),
        "exit_kind": _EXIT_KINDS.get(_last(block, "ExecMainCode"), ""),
        "main_pid": int(_last(block, "MainPID") or 0) or None,
        "since_unix_s": _since(block),
        "needs_reload": _last(block, "NeedDaemonReload") == "yes",
        "exec_start_pre": [" ".join(_masked(c.words)) for c in found if c.step == "ExecStartPre"],
        "ghosts": ghosts_of(found),
        "overrides": [found for found in overrides if found],
        "last_log_line": None,
        "restart_times": [],
        "errors": [],
        "triggered_by": _last(block, "TriggeredBy").split(),
        "script_words": [],
    }


def show(names: list[str]) -> list[dict[str, list[str]]]:
    """Gives one block of properties for each named unit. Raises CannotRead."""
    try:
        done = run(["systemctl", "show", "-p", ",".join(PROPERTIES), "--", *names], UNITS_TIMEOUT_S)
    except FileNotFoundError:
        raise CannotRead("systemctl not found") from None
    except TimedOut as error:
        raise CannotRead(str(error)) from None
    found = blocks(done.out)
    if done.rc != 0 or len(found) != len(names):
        raise CannotRead(f"systemctl show: {done.last_line()}")
    return found


def holders() -> set[str]:
    """Gives the units of the system's own manager that a process of an engine belongs to."""
    groups = (proc.cgroup(pid) for pid in proc.pids() if processes.is_engine(proc.argv(pid)))
    found = {unit for unit in map(proc.unit_of, filter(_of_system, groups)) if unit}
    return {unit for unit in found if not LOGIN_UNIT.match(unit)}


def _of_system(cgroup: str) -> bool:
    """Gives False for a unit of somebody's own manager (systemctl --user)."""
    return cgroup.startswith("/system.slice/")


def others(named: list[str]) -> list[str]:
    """Gives the service units, not named ones, whose files or drop-ins run docker or vLLM, or a
    script that does, and those that an engine runs under.
    """
    held = holders() - set(named)
    found: set[str] = set()
    for folder in FOLDERS:
        for pattern in ("*.service", "*.service.d/*.conf"):
            for path in glob.glob(f"{folder}/{pattern}"):
                holder = path if pattern == "*.service" else os.path.dirname(path)[: -len(".d")]
                name = os.path.basename(holder)
                # a template is no unit, and a link is another name of one
                if name in named or "@." in name or os.path.islink(path):
                    continue
                text = proc.read_text(path).replace("\\\n", " ")
                if _RUNS_ENGINE.search(text) or any(map(starting_lines, _EXEC.findall(text))):
                    found.add(name)
    return [*sorted(held), *sorted(found - held)[:MAX_OTHERS]]


def _in_trouble(row: Json) -> bool:
    """Gives True for a unit whose log says what is wrong with it."""
    state = (row["active_state"], row["sub_state"])
    return state[0] in ("failed", "activating") or state[1] == "auto-restart" or row["restarts"]


def read_units(names: list[str]) -> list[Json]:
    """Gives the named units, in their order, then the others that run docker or vLLM.

    A named one that is not there has load_state not-found.
    """
    extra = others(names)
    wanted = [*names, *extra]
    if not wanted:
        return []
    rows = list(map(unit, wanted, show(wanted)))
    for row in rows[len(names) :]:
        steps = [" ".join(row["exec_start"]), *row["exec_start_pre"]]
        inside = (line for step in steps for line in starting_lines(step) if line != step)
        row["script_words"] = script_words(inside)
    troubled = [row for row in rows if _in_trouble(row)]
    told = run_each(lambda row: log_trouble(str(row["name"])), troubled, 4)
    for row, (line, restarts, errors) in zip(troubled, told, strict=False):
        row.update(last_log_line=line, restart_times=restarts, errors=errors)
    return rows


# The lines of the crontabs that start an engine or a container: another supervisor (cron(8)).

SYSTEM = "/etc/crontab"
FOLDER = "/etc/cron.d"
# Debian's; only root reads it
USERS = "/var/spool/cron/crontabs"
# cron leaves files of other names alone (cron(8), "/etc/cron.d")
_READ = re.compile(r"^[A-Za-z0-9_-]+$")
_SETTING = re.compile(r"^[A-Za-z_]\w*\s*=")


def _files() -> Iterator[tuple[str, str | None]]:
    """Gives (path, user) of each crontab; the user is None where its lines name one."""
    yield SYSTEM, None
    for path in sorted(glob.glob(f"{FOLDER}/*")):
        if _READ.match(os.path.basename(path)):
            yield path, None
    for path in sorted(glob.glob(f"{USERS}/*")):
        yield path, os.path.basename(path)


def _lines(path: str) -> list[str]:
    """Gives a crontab's lines; none when there is no such file. Raises CannotRead."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().splitlines()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return []
    except OSError as error:
        raise CannotRead(f"{path}: {io_reason(error)}") from None


def masked_cron(text: str) -> str:
    """Gives a command line's text with the values of secrets masked; runs of blanks become one."""
    told = secret.masked_argv(text.split())
    rows = (word.partition("=") for word in told)
    return " ".join(
        f"{name}={MASK}" if equals and secret.is_secret(name.strip("'\""), value)
        else name + equals + value
        for name, equals, value in rows
    )  # fmt: skip


def read_cron() -> list[Json]:
    """Gives the lines that start an engine or a container, scripts read one level deep.

    Raises CannotRead for a crontab that is there and cannot be read.
    """
    found: list[Json] = []
    for path, owner in _files():
        for number, raw in enumerate(_lines(path), 1):
            line = raw.strip()
            if not line or line.startswith("#") or _SETTING.match(line):
                continue
            at_boot = line.startswith("@reboot")
            parts = line.split(None, (1 if line.startswith("@") else 5) + (owner is None))
            lines = starting_lines(parts[-1])
            if lines:
                found.append({
                    "file": path,
                    "line": number,
                    "user": owner or parts[-2],
                    "at_boot": at_boot,
                    "text": masked_cron(line),
                    "words": script_words(lines),
                })  # fmt: skip
    return found
