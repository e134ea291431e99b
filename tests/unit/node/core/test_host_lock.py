"""One lock a host: a second one is refused by name or waits, and a dead holder holds nothing."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator

import pytest

from node.core import proc
from node.files import host_lock
from tests.unit.node.support.host import NEW, OLD, Host, apply_request, file_step


@pytest.fixture
def holder(host: Host) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lock until its stdin ends."""
    child = host.holding()
    yield child
    child.kill()
    child.communicate()


def test_a_held_lock_refuses_and_names_the_holder(
    host: Host, holder: subprocess.Popen[str]
) -> None:
    path, started = host.file(), time.monotonic()
    answer = host.call("apply", apply_request(file_step(path)))
    assert answer["code"] == "locked" and f"pid {holder.pid} (a test" in answer["error"]
    assert path.read_text() == OLD and time.monotonic() - started < 10
    seen = host.call("lock")
    assert seen["held"] is True and f"pid {holder.pid}" in seen["holder"]
    assert f"lock: held by pid {holder.pid}" in host.run(host.argv("status")).stdout


def test_the_lock_ends_with_its_holder(host: Host, holder: subprocess.Popen[str]) -> None:
    holder.communicate("")
    assert host.call("lock") == {"ok": True, "held": False, "holder": None}


def test_a_killed_holder_holds_nothing(host: Host, holder: subprocess.Popen[str]) -> None:
    holder.kill()
    holder.wait()
    assert (host.state / "lock").read_text() != ""
    assert host.call("lock") == {"ok": True, "held": False, "holder": None}
    assert host.call("apply", apply_request(file_step(host.file())))["changed"] is True


@pytest.mark.parametrize(("wrong", "known"), [
    ({}, True), ({"start_ticks": 1}, False), ({"boot_id": "x"}, False), ({"pid": 0}, False),
])  # fmt: skip
def test_a_holder_is_a_process_of_this_boot_with_its_start_time(
    host: Host, wrong: dict[str, object], known: bool
) -> None:
    """A pid alone is soon another process's."""
    own = proc.stat(os.getpid())
    assert own is not None
    text = {"pid": own.pid, "start_ticks": own.start_ticks, "boot_id": proc.boot_id(),
            "verb": "apply", "since_unix_s": 0, **wrong}  # fmt: skip
    host.state.mkdir()
    (host.state / "lock").write_text(json.dumps(text))
    assert (host_lock.holder() is not None) is known


def test_the_lock_is_not_taken_through_a_link(host: Host) -> None:
    """Its text would be written into whatever the link names."""
    host.call("apply", apply_request(file_step(host.file())))
    victim = host.file("victim")
    (host.state / "lock").unlink()
    (host.state / "lock").symlink_to(victim)
    answer = host.call("apply", apply_request(file_step(host.file("other"))))
    assert answer["ok"] is False and victim.read_text() == OLD


def test_two_applies_at_once_end_as_one_after_the_other(host: Host) -> None:
    paths = [host.file(f"f{n}") for n in range(6)]
    procs = []
    for name in ("change-a", "change-b"):
        request = json.dumps(apply_request(*(file_step(p, f"{name}\n") for p in paths), name=name))
        procs.append(subprocess.Popen(host.argv("apply", request), env=host.environ(),
                                      stdout=subprocess.PIPE, text=True))  # fmt: skip
    answers = [json.loads(proc.communicate(timeout=60)[0]) for proc in procs]
    assert sorted(answer["ok"] for answer in answers) == [False, True]
    (refused,) = [answer for answer in answers if not answer["ok"]]
    assert refused["code"] in ("change_open", "locked")
    assert len({path.read_text() for path in paths}) == 1 and paths[0].read_text() != NEW
