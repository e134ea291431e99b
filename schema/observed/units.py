"""Units of systemd, and what is wrong with them.

Sections of the snapshot (schema/observed/snapshot.py, which says what its units are).
"""

from __future__ import annotations

from schema.core.base import Frozen


class GhostFile(Frozen):
    """A file that a unit's `step` (ExecStart, ExecStartPre …) names and that is not there.

    `container` is the container inside which it is missing (`docker exec`), None for the host.
    """

    step: str
    path: str
    container: str | None = None


class Override(Frozen):
    """What a drop-in does to ExecStart: its lines, and whether an empty one resets it first."""

    path: str
    exec_start: tuple[str, ...]
    resets: bool


class Unit(Frozen):
    """A systemd unit as systemd sees it now (effective values, drop-ins applied).

    Beyond the units that the request named, the snapshot holds those whose unit files run
    docker or vLLM. `exit_kind` is how the main process ended (exited, killed, dumped).
    `restart_times` are the restarts that systemd scheduled by itself, oldest first, at most 20
    of the last day; `errors` the lines of the unit's log that name one, secrets masked. Both
    are read for a unit in trouble only. `triggered_by` are the timers, sockets and paths that
    start it. `script_words` are names and paths in the lines of its scripts that start an engine or
    a container.
    """

    name: str
    load_state: str
    active_state: str
    sub_state: str
    enabled: str
    fragment: str | None
    drop_ins: tuple[str, ...]
    exec_start: tuple[str, ...]
    exec_start_exists: bool | None
    restart: str
    restarts: int
    result: str
    exit_status: int
    main_pid: int | None
    since_unix_s: float | None
    needs_reload: bool
    last_log_line: str | None
    exit_kind: str = ""
    exec_start_pre: tuple[str, ...] = ()
    ghosts: tuple[GhostFile, ...] = ()
    overrides: tuple[Override, ...] = ()
    restart_times: tuple[float, ...] = ()
    errors: tuple[str, ...] = ()
    triggered_by: tuple[str, ...] = ()
    script_words: tuple[str, ...] = ()


class Watched(Frozen):
    """What the watch of a host last saw of its engine. Times are Unix seconds.

    `silent`: why it counts as silent, in words, None: it does not; `evidence` says where the bundle
    lies. `restarts` are those for silence, `stood_down_unix_s` is since when there are no more.
    """

    status: str
    looked_unix_s: float
    silent: str | None = None
    evidence: str | None = None
    restarts: tuple[float, ...] = ()
    stood_down_unix_s: float | None = None


class CronLine(Frozen):
    """A line of a crontab that starts an engine or a container, by itself or by a script.

    `line` counts from 1. `at_boot`: @reboot. `text` has the values of secrets masked; `words` are
    the names and paths in what it starts.
    """

    file: str
    line: int
    user: str
    at_boot: bool
    text: str
    words: tuple[str, ...]
