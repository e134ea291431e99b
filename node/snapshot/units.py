"""The systemd units that the request names, as systemd sees them now, and those that run docker
or vLLM, themselves or by a script: a second supervisor of the same engine shows only there."""

from __future__ import annotations

import glob
import os
import re
import time
from collections.abc import Iterable

from node.core import masking, proc
from node.core.errors import CannotRead, Json
from node.core.parallel import each
from node.core.run import TimedOut, run
from node.rules import secret
from node.rules.patterns import LOGIN_UNIT
from node.snapshot import processes, unit_log
from node.systemd import exec_lines, scripts, unit_files

TIMEOUT_S = 8.0
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
    return [secret.masked_text(word) for word in masking.masked_argv(words)]


def unit(name: str, block: dict[str, list[str]]) -> Json:
    """Gives one unit of its `systemctl show` block, without what its log tells."""
    found = [
        c for step in exec_lines.STEPS for c in exec_lines.commands(step, block.get(step) or [])
    ]
    # of several ExecStart= the last; a oneshot unit may have more
    main = [command for command in found if command.step == "ExecStart"][-1:]
    drop_ins = _last(block, "DropInPaths").split()
    overrides = [unit_files.override(path, proc.read_text(path)) for path in drop_ins]
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
        "ghosts": exec_lines.ghosts(found),
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
        done = run(["systemctl", "show", "-p", ",".join(PROPERTIES), "--", *names], TIMEOUT_S)
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
                if _RUNS_ENGINE.search(text) or any(map(scripts.starting, _EXEC.findall(text))):
                    found.add(name)
    return [*sorted(held), *sorted(found - held)[:MAX_OTHERS]]


def _in_trouble(row: Json) -> bool:
    """Gives True for a unit whose log says what is wrong with it."""
    state = (row["active_state"], row["sub_state"])
    return state[0] in ("failed", "activating") or state[1] == "auto-restart" or row["restarts"]


def read(names: list[str]) -> list[Json]:
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
        inside = (line for step in steps for line in scripts.starting(step) if line != step)
        row["script_words"] = scripts.words(inside)
    troubled = [row for row in rows if _in_trouble(row)]
    told = each(lambda row: unit_log.trouble(str(row["name"])), troubled, 4)
    for row, (line, restarts, errors) in zip(troubled, told, strict=False):
        row.update(last_log_line=line, restart_times=restarts, errors=errors)
    return rows
