"""Who answers for an engine process: a live supervisor, or nobody (then it is an orphan)."""

from __future__ import annotations

import contextlib
import json
import os
import re
from typing import Any, NamedTuple

from node.core import proc
from node.core.errors import CannotRead, Json, NodeError
from node.core.systemctl import BOOTED, inspect_unit
from node.docker import api
from node.reap.find import Candidate, ProcessView, namespace

_LIVE = ("active", "activating", "reloading", "deactivating", "maintenance")
# what a person starts over these outlives the login; the unit does not answer for it
_LOGIN = re.compile(
    r"^(?:sshd?|getty|serial-getty|console-getty|container-getty)(?:@.*)?\.service$"
)
_FOREIGN = re.compile(r"/machine\.slice/|kubepods|/lxc|libpod|crio|cri-containerd")
_SERVICE = re.compile(r"/([^/]+\.service)(?=/|$)")
_USER_MANAGER = re.compile(r"/(user@\d+\.service)(?:/|$)")
_HELPER = re.compile(r"^from multiprocessing\.(?:forkserver|spawn|resource_tracker) import")


class Verdicted(NamedTuple):
    """A candidate with the judgement: orphan or not, ours and live, and why in words."""

    candidate: Candidate
    is_orphan: bool
    is_own: bool
    why: str

    def as_json(self) -> Json:
        """Gives the identity with the reason."""
        return {**self.candidate.as_json(), "why": self.why}


class Owners:
    """The supervisors of this host, each asked once. Takes our unit and container by name."""

    def __init__(self, our_unit: str, our_container: str) -> None:
        self.our_unit = our_unit
        self.our_container = our_container
        self._units: dict[str, str] = {}
        self._containers: dict[str, Any] = {}
        self.own_namespace = namespace("self")
        self.own_container = proc.container_of(proc.cgroup(os.getpid()))

    def unit_state(self, name: str) -> str:
        """Gives a unit's ActiveState, or "unknown"."""
        if name not in self._units:
            self._units[name] = "unknown"
            if os.path.isdir(BOOTED):
                with contextlib.suppress(NodeError):
                    self._units[name] = str(inspect_unit(name)["active"]) or "unknown"
        return self._units[name]

    def container(self, identifier: str) -> Any:
        """Gives docker's own view of a container, or None for none. Raises CannotRead."""
        if identifier not in self._containers:
            if not os.path.exists(api.SOCKET):
                raise CannotRead("docker does not run here")
            path = f"/containers/{identifier}/json"
            self._containers[identifier] = api.get(path, absent_ok=True)
        return self._containers[identifier]

    def our_container_id(self) -> str | None:
        """Gives the id of our container, or None when there is none or docker does not say."""
        try:
            row = self.container(self.our_container)
        except CannotRead:
            return None
        return str(row["Id"]) if row else None


def own_ancestors(stats: dict[int, proc.Stat]) -> set[int]:
    """Gives this process and those above it."""
    found: set[int] = set()
    pid = os.getpid()
    while pid > 0 and pid not in found:
        found.add(pid)
        pid = stats[pid].ppid if pid in stats else 0
    return found


def _allowed_uids() -> set[int]:
    """Gives whose processes may be ended: root's, ours, and those of who called us by sudo."""
    found = {0, os.geteuid()} if os.geteuid() == 0 else {os.geteuid()}
    sudo = os.environ.get("SUDO_UID", "")
    return found | ({int(sudo)} if sudo.isdigit() and os.geteuid() == 0 else set())


def judge_all(view: ProcessView, owners: Owners) -> list[Verdicted]:
    """Gives every candidate with its judgement, ascending by pid."""
    ancestors = own_ancestors(view.stats)
    return [
        _judge(candidate, view, owners, ancestors)
        for _, candidate in sorted(view.candidates.items())
    ]


def _judge(one: Candidate, view: ProcessView, owners: Owners, ancestors: set[int]) -> Verdicted:
    """Gives the judgement of one candidate."""

    def spared(why: str, own: bool = False) -> Verdicted:
        return Verdicted(one, False, own, f"{why} ({signs})")

    signs = "; ".join(one.signs)
    if one.stat.pid in ancestors or one.stat.pid == 1:
        return spared("it is this program or one of its own ancestors")
    identifier = proc.container_of(one.cgroup)
    if one.namespace != owners.own_namespace or identifier not in (None, owners.own_container):
        judged = _in_container(one, identifier, owners)
    elif _USER_MANAGER.search(one.cgroup):
        judged = (False, False, f"{_USER_MANAGER.findall(one.cgroup)[0]} answers for it")
    elif _FOREIGN.search(one.cgroup):
        judged = (False, False, f"it belongs to another container runtime: {one.cgroup[:120]}")
    else:
        judged = _in_unit(one, view, owners)
    orphan, own, why = judged
    if not orphan:
        return spared(why, own)
    if not one.is_proven:
        return spared("not proven to be an engine")
    return Verdicted(one, True, False, f"{why} ({signs})")


def _in_container(one: Candidate, identifier: str | None, owners: Owners) -> Any:
    """Gives (orphan, own, why) of a process in a container or another pid namespace."""
    inside = one.namespace != owners.own_namespace
    if identifier is None:
        return False, False, "it lives in another pid namespace, which answers for it"
    short = identifier[:12]
    try:
        row = owners.container(identifier)
    except CannotRead as error:
        return False, False, f"whether its container {short} lives is not known: {error}"
    if row is None:
        if inside or "docker" not in one.cgroup:
            return False, False, f"its container {short} is another runtime's"
        return True, False, f"its container {short} is gone"
    name, state = str(row["Name"]).lstrip("/"), row["State"]
    if not any(state.get(key) for key in ("Running", "Paused", "Restarting")):
        return True, False, f"its container {name} is {state.get('Status')}"
    if name != owners.our_container:
        return False, False, f"the container {name} runs and answers for it"
    now = owners.unit_state(owners.our_unit)
    if now in (*_LIVE, "unknown"):
        return False, True, f"the container {name} of {owners.our_unit} ({now}) answers for it"
    return True, False, f"the container {name} runs, but {owners.our_unit} is {now}"


def _in_unit(one: Candidate, view: ProcessView, owners: Owners) -> Any:
    """Gives (orphan, own, why) of a process of this pid namespace, by its unit or its parents."""
    services = _SERVICE.findall(one.cgroup)
    if services and not _LOGIN.match(services[0]):
        now = owners.unit_state(services[0])
        own = services[0] == owners.our_unit
        if now in (*_LIVE, "unknown"):
            return False, own, f"the unit {services[0]} ({now}) answers for it"
        # our own unit's engine runs as the user that the recipe names
        if not own and one.uid not in _allowed_uids():
            return False, False, f"left over from {services[0]}, but another user's (uid {one.uid})"
        return True, False, f"left over from {services[0]}, which is {now}"
    if one.uid not in _allowed_uids():
        return False, False, f"it belongs to another user (uid {one.uid})"
    return _by_parents(one, view)


def _by_parents(one: Candidate, view: ProcessView) -> Any:
    """Gives (orphan, own, why) by who is above the engine's uppermost process."""
    top = one.stat
    while True:
        parent = view.stats.get(top.ppid)
        if top.ppid == 0:
            return False, False, "it was started from outside this pid namespace"
        if parent is None:
            return False, False, f"its parent pid {top.ppid} went while we looked"
        above = view.candidates.get(parent.pid)
        if not (above and above.is_proven) and not _is_helper(parent.pid):
            break
        top = parent
    name = f"pid {parent.pid} ({parent.comm})"
    # a child has its parent's session or one of its own: another one says that it was adopted
    adopted = parent.pid == 1 or top.session not in (top.pid, parent.session)
    if not adopted and not _is_user_init(parent):
        return False, False, f"its parent {name} lives and answers for it"
    uppermost = view.candidates.get(top.pid)
    leader = view.stats.get(top.session)
    if uppermost and uppermost.is_server and leader and leader.pid != top.pid:
        return False, False, f"the shell that started it lives: pid {leader.pid} ({leader.comm})"
    serves = _served(top.pid, view) if uppermost and uppermost.is_server else []
    if serves and not set(serves) & set(view.holders):
        named = json.dumps({"ports": serves[:1]})
        return False, False, (f"it serves on port {serves[0]}, started by hand, its shell is gone; "
                              f"to end it: rignode reap '{named}'")  # fmt: skip
    return True, False, f"its parent is gone, it was left to {name}"


def _served(top: int, view: ProcessView) -> list[int]:
    """Gives the ports on which a process or one below it listens."""

    def below(pid: int) -> bool:
        seen: set[int] = set()
        while pid != top and pid in view.stats and pid not in seen:
            seen.add(pid)
            pid = view.stats[pid].ppid
        return pid == top

    return sorted(port for port, pids in view.listening.items() if any(map(below, pids)))


def _is_helper(pid: int) -> bool:
    """Gives True for a process of Python's multiprocessing, which stands between two engine's."""
    argv = proc.argv(pid)
    return len(argv) > 2 and argv[1] == "-c" and bool(_HELPER.match(argv[2]))


def _is_user_init(stat: proc.Stat) -> bool:
    """Gives True for `systemd --user`, which adopts what its user's logins leave."""
    return stat.comm == "systemd" and "--user" in proc.argv(stat.pid)
