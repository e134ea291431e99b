"""Who answers for an engine process, for each kind of supervisor; what is unknown is spared."""

from __future__ import annotations

from typing import Any

import pytest

from node.core.errors import CannotRead
from node.core.proc import Stat
from node.reap import ownership
from node.reap.find import Candidate, ProcessView, is_server
from node.reap.ownership import Owners, judge_all

UNIT = "rigbook-engine.service"
CID = "c" * 64
DOCKER = f"/system.slice/docker-{CID}.scope"
RUNNING = {"Id": CID, "Name": "/rigbook-engine", "State": {"Running": True, "Status": "running"}}
OTHER = {**RUNNING, "Name": "/their-engine"}
PAUSED = {**RUNNING, "State": {"Paused": True, "Status": "paused"}}
RESTARTING = {**RUNNING, "State": {"Restarting": True, "Status": "restarting"}}
EXITED = {**RUNNING, "State": {"Running": False, "Status": "exited"}}
INIT = Stat(pid=1, comm="systemd", state="S", ppid=0, session=1, start_ticks=1, rss=1)


def stat(pid: int, ppid: int = 1, session: int = 50, comm: str = "x") -> Stat:
    """A process's stat."""
    return Stat(pid, comm, "S", ppid, session, 100 + pid, 1)


def judge(
    monkeypatch: pytest.MonkeyPatch, cgroup: str, *, units: dict[str, str] | None = None,
    container: Any = None, inside: bool = False, server: bool = False,
    above: tuple[Stat, ...] = (), ppid: int = 1, uid: int = 0,
    listening: dict[int, list[int]] | None = None, wanted: tuple[int, ...] = (),
) -> tuple[bool, bool, str]:  # fmt: skip
    """The judgement of an engine process with pid 100: orphan, ours and live, why."""
    one = Candidate(stat(100, ppid), "boot", uid, "VLLM::Worker", "/usr/bin/python3", cgroup,
                    "pid:[2]" if inside else "pid:[1]", ("title",), True, server)  # fmt: skip

    class Fixed(Owners):
        """Supervisors with the answers of the test."""

        def unit_state(self, name: str) -> str:
            return (units or {}).get(name, "unknown")

        def container(self, identifier: str) -> Any:
            if isinstance(container, Exception):
                raise container
            return container

    owners = Fixed(UNIT, "rigbook-engine")
    owners.own_namespace, owners.own_container = "pid:[1]", None
    monkeypatch.setattr(ownership, "_is_helper", lambda pid: False)
    monkeypatch.delenv("SUDO_UID", raising=False)
    stats = {row.pid: row for row in (INIT, *above, one.stat)}
    ports = listening or {}
    holders = {port: ports[port] for port in wanted if port in ports}
    (found,) = judge_all(ProcessView(stats, {100: one}, holders, [], ports), owners)
    return found.is_orphan, found.is_own, found.why


@pytest.mark.parametrize(("container", "units", "wanted", "words"), [
    (RUNNING, {UNIT: "active"}, (False, True), "the container rigbook-engine of"),
    (RUNNING, {UNIT: "activating"}, (False, True), "answers for it"),
    (RUNNING, {}, (False, True), "(unknown) answers for it"),
    (RUNNING, {UNIT: "failed"}, (True, False), f"runs, but {UNIT} is failed"),
    (OTHER, {UNIT: "inactive"}, (False, False), "the container their-engine runs"),
    (PAUSED, {UNIT: "active"}, (False, True), "answers for it"),
    (RESTARTING, {UNIT: "active"}, (False, True), "answers for it"),
    (EXITED, {UNIT: "active"}, (True, False), "its container rigbook-engine is exited"),
    (CannotRead("no answer in 8 s"), {}, (False, False), "is not known: no answer in 8 s"),
    (None, {}, (False, False), "is another runtime's"),
])  # fmt: skip
def test_containers(
    monkeypatch: pytest.MonkeyPatch, container: Any, units: dict[str, str],
    wanted: tuple[bool, bool], words: str,
) -> None:  # fmt: skip
    found = judge(monkeypatch, DOCKER, container=container, units=units, inside=True)
    assert found[:2] == wanted and words in found[2]


def test_a_container_that_shares_the_hosts_pids_and_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert judge(monkeypatch, DOCKER)[0] is True
    pod = f"/kubepods.slice/kubepods-pod1.slice/cri-containerd-{CID}.scope"
    assert judge(monkeypatch, pod)[0] is False


@pytest.mark.parametrize(("cgroup", "units", "wanted", "words"), [
    (f"/system.slice/{UNIT}", {UNIT: "active"}, (False, True), "(active) answers for it"),
    (f"/system.slice/{UNIT}", {UNIT: "deactivating"}, (False, True), "answers for it"),
    (f"/system.slice/{UNIT}", {UNIT: "inactive"}, (True, False), "which is inactive"),
    (f"/system.slice/{UNIT}", {}, (False, True), "(unknown) answers for it"),
    ("/system.slice/other.service", {"other.service": "active"}, (False, False), "other.service"),
    ("/system.slice/other.service/sub", {"other.service": "failed"}, (True, False), "is failed"),
    ("/user.slice/user-1.slice/user@1.service/app.slice/vllm.service",
     {"vllm.service": "inactive"}, (False, False), "user@1.service answers"),
    ("/machine.slice/machine-a.scope/payload", {}, (False, False), "another container runtime"),
    ("/system.slice/ssh.service", {"ssh.service": "active"}, (True, False), "its parent is gone"),
    ("/user.slice/user-0.slice/session-4.scope", {}, (True, False), "its parent is gone"),
])  # fmt: skip
def test_units_and_sessions(
    monkeypatch: pytest.MonkeyPatch, cgroup: str, units: dict[str, str],
    wanted: tuple[bool, bool], words: str,
) -> None:  # fmt: skip
    found = judge(monkeypatch, cgroup, units=units)
    assert found[:2] == wanted and words in found[2]


@pytest.mark.parametrize(("above", "ppid", "server", "orphan", "words"), [
    ((), 1, False, True, "left to pid 1 (systemd)"),
    ((stat(50, comm="bash"),), 50, False, False, "its parent pid 50 (bash) lives"),
    # adopted by a subreaper: the session is neither its own nor the adopter's
    ((stat(60, session=60, comm="agent"),), 60, False, True, "left to pid 60 (agent)"),
    ((stat(50, comm="bash"),), 1, True, False, "the shell that started it lives: pid 50"),
    ((stat(50, comm="bash"),), 1, False, True, "left to pid 1"),
    ((), 1, True, True, "left to pid 1"),
    ((), 0, False, False, "from outside this pid namespace"),
    ((), 77, False, False, "went while we looked"),
])  # fmt: skip
def test_parents(
    monkeypatch: pytest.MonkeyPatch, above: tuple[Stat, ...], ppid: int, server: bool,
    orphan: bool, words: str,
) -> None:  # fmt: skip
    found = judge(monkeypatch, "/", above=above, ppid=ppid, server=server)
    assert found[0] is orphan and words in found[2]


@pytest.mark.parametrize(("server", "listening", "wanted", "orphan", "words"), [
    (True, {8011: [100]}, (), False, "it serves on port 8011"),
    (True, {8011: [100]}, (8000, 29501), False, "it serves on port 8011"),
    (True, {8011: [100]}, (8011,), True, "its parent is gone"),
    # of several API servers the children listen; one of them holds a port of ours
    (True, {8011: [101], 29501: [102]}, (8000,), False, "it serves on port 8011"),
    (True, {8011: [101], 29501: [102]}, (29501,), True, "its parent is gone"),
    (True, {8011: [7]}, (), True, "its parent is gone"),
    # an engine's process that lost its server listens for nobody
    (False, {29501: [100]}, (), True, "its parent is gone"),
])  # fmt: skip
def test_a_server_by_hand(
    monkeypatch: pytest.MonkeyPatch, server: bool, listening: dict[int, list[int]],
    wanted: tuple[int, ...], orphan: bool, words: str,
) -> None:  # fmt: skip
    children = (stat(101, ppid=100), stat(102, ppid=101), stat(7))
    found = judge(monkeypatch, "/", server=server, above=children, listening=listening,
                  wanted=wanted)  # fmt: skip
    assert found[0] is orphan and words in found[2]


def test_another_users_process_is_spared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A oneshot unit with KillMode=process leaves it to its user; our own engine's user is ours."""
    assert "another user" in judge(monkeypatch, "/", uid=4321)[2]
    theirs = judge(monkeypatch, "/system.slice/alice.service",
                   units={"alice.service": "inactive"}, uid=4321)  # fmt: skip
    assert theirs[0] is False and "another user's (uid 4321)" in theirs[2]
    ours = judge(monkeypatch, f"/system.slice/{UNIT}", units={UNIT: "inactive"}, uid=4321)
    assert ours[0] is True
    monkeypatch.setattr(ownership, "_allowed_uids", lambda: {0, 4321})
    assert judge(monkeypatch, "/", uid=4321)[0] is True


@pytest.mark.parametrize(("argv", "wanted"), [
    (("python3", "/opt/vllm/bin/vllm", "serve", "/m"), True),
    (("/opt/vllm/bin/vllm", "serve"), True),
    (("python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "m"), True),
    (("python3", "-m", "vllm.entrypoints.cli.main", "serve", "m"), True),
    (("python3", "/opt/vllm/bin/vllm", "bench", "serve"), False), (("vllm", "chat"), False),
    (("bash", "-c", "vllm serve /m"), False), (("docker", "run", "image", "vllm", "serve"), False),
    (("vim", "/opt/vllm/bin/vllm"), False), (("VLLM::EngineCore",), False),
])  # fmt: skip
def test_what_serves_a_model(argv: tuple[str, ...], wanted: bool) -> None:
    assert is_server(argv) is wanted
