"""Any state of the journal: listed in its order, and nothing in it wedges a node."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from node.change import close, journal, kinds
from node.core import systemctl
from node.core.errors import NodeError
from node.systemd import hold
from tests.unit.node.support import strace
from tests.unit.node.support.host import NEW, OLD, Host, apply_request, file_step, unsigned


def write(host: Host, name: str, **more: Any) -> Path:
    """A change's file, as the journal has it."""
    row = {"format": 1, "number": 1, "id": name, "deploy": "serve", "operator": "tester@here",
           "waivers": [], "blob": None, "status": "COMMITTED", "opened_unix_s": 1000.0,
           "saved_unix_s": 1000.0, "closed_unix_s": None, "boot_id": "b", "reason": None,
           "steps": [], **more}  # fmt: skip
    folder = host.state / "journal"
    folder.mkdir(parents=True, exist_ok=True)
    (path := folder / f"{name}.json").write_text(json.dumps(row))
    return path


def test_no_unsettled_change_vanishes_behind_twenty(host: Host) -> None:
    """The 20th was INCONSISTENT and the 21st OPEN: the one took the other's place."""
    for n in range(30):
        status = {19: "INCONSISTENT", 20: "OPEN", 29: "INCONSISTENT"}.get(n, "COMMITTED")
        write(host, f"change-{n}", opened_unix_s=2000.0 - n, status=status)
    seen = journal.summary_section()["changes"]
    assert [row["id"] for row in seen if row["status"] != "COMMITTED"] == [
        "change-19", "change-20", "change-29"]  # fmt: skip
    assert len(seen) == 20 and [row["id"] for row in seen[:3]] == [
        "change-0", "change-1", "change-2"]  # fmt: skip
    for n in range(25):
        write(host, f"more-{n}", opened_unix_s=3000.0 - n, status="INCONSISTENT")
    unsettled = [
        row for row in journal.summary_section()["changes"] if row["status"] != "COMMITTED"
    ]
    assert len(unsettled) == 28


def test_a_clock_that_was_set_back_between_two_changes(host: Host) -> None:
    """Fault 68: the older change was undone, and the open one stayed open."""
    first, second = host.file("first"), host.file("second")
    host.call("apply", apply_request(file_step(first)))
    host.call("close", {"change": "change-1", "status": "INCONSISTENT", "reason": "no answer"})
    path = host.state / "journal" / "change-1.json"
    found = unsigned(path)
    # as if it had been opened by a clock that went a day ahead
    found["opened_unix_s"] += 86400
    path.write_text(json.dumps(found))
    host.call("apply", apply_request(file_step(second), name="change-2"))
    assert [row["id"] for row in host.call("journal")["changes"]] == ["change-2", "change-1"]
    assert [row["id"] for row in journal.summary_section()["changes"]] == ["change-2", "change-1"]
    assert host.call("undo")["change"] == "change-2"
    assert (first.read_text(), second.read_text()) == (NEW, OLD)
    assert host.call("undo")["change"] == "change-1" and first.read_text() == OLD


def test_a_disk_error_on_one_old_journal_file(host: Host, tmp_path: Path) -> None:
    path = host.file()
    host.call("apply", apply_request(file_step(path)))
    old = write(host, "change-0", opened_unix_s=1.0)
    options = ["-P", str(old), "-e", "trace=read,pread64", "-e", "inject=read,pread64:error=EIO"]
    done = strace.traced(host, "undo", "{}", options, tmp_path / "log")
    answer = json.loads(done.stdout)
    assert "INJECTED" in (tmp_path / "log").read_text()
    assert answer.get("status") == "ROLLED_BACK" and path.read_text() == OLD, answer
    done = strace.traced(host, "journal", "{}", options, tmp_path / "log")
    assert json.loads(done.stdout)["broken"] == [f"{old}: Input/output error"]


def test_close_lifts_the_hold_of_a_run_that_was_killed(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The drop-in stayed, and the engine could not start until a reboot."""
    host.systemctl()
    monkeypatch.setenv("PATH", host.environ()["PATH"])
    monkeypatch.setattr(systemctl, "BOOTED", str(host.root / "run"))
    for status in ("COMMITTED", "INCONSISTENT", "ROLLED_BACK"):
        drop_in = host.root / "run" / "engine.service.d" / hold.FILE
        drop_in.parent.mkdir(parents=True)
        drop_in.write_text("[Unit]\n")
        write(host, status, status="OPEN", held=[str(drop_in)])
        done = close.close({"change": status, "status": status})["change"]
        assert not drop_in.exists() and "held" not in done, status
        assert "held" not in journal.get(status)


KNOWN = {"id": "1", "made": "2", "compose": None}
TEMP = ".rigbook-t"
ROWS: dict[str, dict[str, Any]] = {
    "file": {"path": "/x/f", "pre": {"kind": "absent"}, "post": {"kind": "absent"}, "temp": TEMP},
    "directory": {"path": "/x/f", "pre": {"kind": "absent"}, "post": {}, "temp": TEMP},
    "link": {"path": "/x/l", "pre": {"kind": "absent"}, "post": {}, "temp": TEMP},
    "tree": {"path": "/x/t", "source": None, "displaced": "/x/d", "pre": {}, "post": {}},
    "unit": {"unit": "e.service", "enabled": None, "active": "stop", "pre": {}},
    "grub": {"folder": "/x", "saved": None, "next": None, "pre": {}, "post": {}},
    "hold": {"packages": ["p"], "held": True},
    "packages": {"rows": [{"name": "p", "old": None, "new": "1", "arch": "all", "old_arch": None}],
                 "module": "m", "version": "1", "kernels": {"6.1": None}, "automatic": [],
                 "loaded": None},
    "wol": {"nic": "eth9", "letters": "g", "pre": "d"},
    "sysctl": {"values": {"kernel.panic": "9"}, "pre": {"kernel.panic": "8"}},
    "reread": {"what": "manager"},
    "kube": {"path": "/k", "kubectl": "kubectl", "kubeconfig": None, "namespace": "n",
             "deployment": "d", "container": "c", "uid": "u", "edit": {}, "pre": {},
             "post": {}},
    "tag": {"image": "a:b", "pre": None, "post": "c", "kept": None},
    "tool": {"tool": "t", "tree": "/x", "argv": [], "pack": "0" * 64, "before": {}},
    "work": {"path": "/x/.rigbook-w", "pre": {"kind": "absent"}, "used": False},
    "restart_policy": {"container": "c", "known": KNOWN, "pre": {}, "post": {}},
    "container": {"container": "c", "known": KNOWN, "pre": {}},
    "former_engine": {"engine": "e", "container": "c", "known": KNOWN, "commands": [],
                      "processes": [], "servers": [], "by": []},
    "weights_set": {"path": "/x", "displaced": "displaced-c", "files": [], "stage": "switch",
                    "change": "change-1", "owner": [0, 0], "folders": [], "was_half": False},
}  # fmt: skip
DAMAGED = [(op, key) for op, row in ROWS.items() for key in ("", *row)]


def test_every_kind_that_an_undo_reverts_has_a_row_here() -> None:
    """A crontab's is a file's."""
    passed = {op for op in kinds.KINDS if kinds.get(op).irreversible and not kinds.get(op).keys}
    assert set(kinds.KINDS) - passed - {"absent", "crontab"} <= set(ROWS)


@pytest.mark.parametrize(("op", "key"), DAMAGED)
def test_recover_never_raises_and_every_journal_reaches_a_final_status(
    host: Host, op: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that lacks a key, or is of another type: it is unknown, and the change can be ended."""
    monkeypatch.setenv("PATH", str(host.bin))
    for value in (None, 7):
        row = {"op": op, "state": "intent", **ROWS[op]}
        if key and value is None:
            del row[key]
        elif key:
            row[key] = value
        write(host, "change-1", status="OPEN", steps=[row])
        try:
            done = close.close({"change": "change-1", "status": "INCONSISTENT", "reason": "seen"})
        except NodeError as error:
            # of a type that no program wrote: the file is named, and goes out of the journal
            assert value == 7 and error.code == "journal_broken"
            assert f"change-1.json: steps[0].{key} is 7" in str(error)
            continue
        (now,) = done["change"]["steps"][:1]
        assert now["state"] in ("unknown", "undone", "done", "intent", "failed"), now
        assert now["state"] != "unknown" or now["why"]


@pytest.mark.parametrize(("op", "key"), [row for row in DAMAGED if row[1]])
def test_an_undo_of_a_damaged_row_is_one_clear_line(host: Host, op: str, key: str) -> None:
    row = {"op": op, "state": "done", **ROWS[op]}
    del row[key]
    write(host, "change-1", status="OPEN", steps=[row])
    answer = host.call("undo")
    assert answer["ok"] or answer["code"] != "internal", answer
    assert host.call("close", {"change": "change-1", "status": "INCONSISTENT", "reason": "x"})[
        "ok"
    ] or journal.get("change-1")["status"] in ("INCONSISTENT", "ROLLED_BACK")


GONE = "/usr/local/lib/rigbook/rignode-9c9.pyz"


def test_what_another_program_wrote_is_refused_with_its_name(host: Host) -> None:
    path = host.file()
    host.call("apply", apply_request(file_step(path)))
    program = json.loads((host.state / "journal" / "change-1.json").read_text())["program"]
    assert program == str(host.pyz)
    write(host, "change-1", status="OPEN", program=GONE, steps=[{"op": "quota", "state": "done"}])
    for verb, body in (("undo", {}), ("close", {"change": "change-1", "status": "INCONSISTENT"})):
        answer = host.call(verb, body)
        assert answer["code"] == "unknown_kind" and "rignode-9c9.pyz" in answer["error"], answer
        assert "that program is gone" in answer["remedy"] and "tester@here" in answer["remedy"]
    write(host, "change-1", status="OPEN", format=2)
    answer = host.call("undo")
    assert answer["code"] == "unknown_format" and "ls -t /usr/local/lib/rigbook" in answer["remedy"]


def test_a_clock_that_was_set_back_does_not_let_an_undo_under_an_open_change(host: Host) -> None:
    """The older change, undone by its id, would cut across the newer one."""
    path = host.file("first")
    host.call("apply", apply_request(file_step(path)))
    host.call("close", {"change": "change-1", "status": "INCONSISTENT", "reason": "no answer"})
    entry = host.state / "journal" / "change-1.json"
    found = unsigned(entry)
    found["opened_unix_s"] += 86400
    entry.write_text(json.dumps(found))
    host.call("apply", apply_request(file_step(host.file("second")), name="change-2"))
    assert host.call("undo", {"change": "change-1"}).get("code") == "change_open"
    assert path.read_text() == NEW


def edited(path: Path, /, **more: Any) -> None:
    """As an older program wrote it: without a checksum."""
    path.write_text(json.dumps({**unsigned(path), **more}))


def in_step(path: Path, /, **more: Any) -> None:
    """The same, of its step."""
    edited(path, steps=[{**unsigned(path)["steps"][0], **more}])


def _other_sum(raw: bytes) -> bytes:
    """The record with another first digit of its checksum."""
    at = raw.index(b'"sha256": "') + len(b'"sha256": "')
    return raw[:at] + (b"1" if raw[at : at + 1] == b"0" else b"0") + raw[at + 1 :]


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a flipped bit": (lambda p: p.write_bytes(p.read_bytes().replace(b"first", b"fir3t")),
                      "its checksum does not fit"),
    "a flipped bit of the sum": (lambda p: p.write_bytes(_other_sum(p.read_bytes())),
                                 "its checksum does not fit"),
    "an edit that keeps the key": (
        lambda p: p.write_text(json.dumps({**json.loads(p.read_text()), "status": "OPEN"})),
        "its checksum does not fit"),
    "cut": (lambda p: p.write_bytes(p.read_bytes()[:700]), "not JSON"),
    "empty": (lambda p: p.write_bytes(b""), "not JSON"),
    "deep": (lambda p: p.write_text("[" * 200_000), "not JSON"),
    "no steps": (lambda p: edited(p, steps={}), "steps is {}"),
    "a number in words": (lambda p: edited(p, number="seven"), 'number is "seven"'),
    "a time of no clock": (lambda p: edited(p, opened_unix_s=float("nan")), "opened_unix_s is NaN"),
    "a reason": (lambda p: edited(p, reason=7), "reason is 7"),
    "a path that is a number": (lambda p: in_step(p, path=7), "steps[0].path is 7"),
    "a path that climbs": (lambda p: in_step(p, path="/x/../y"), "steps[0].path is"),
    "no pre-image": (lambda p: in_step(p, pre=None), "steps[0].pre is null"),
    "a mode": (lambda p: in_step(p, pre={"kind": "file", "mode": "rw"}), "steps[0].pre.mode is"),
    "an owner": (lambda p: in_step(p, post={"kind": "file", "uid": "0"}), "steps[0].post.uid is"),
    "a copy's name": (lambda p: in_step(p, pre={"kind": "file", "sha256": "../victim"}),
                      "steps[0].pre.sha256 is"),
    "a state": (lambda p: in_step(p, state="well"), 'steps[0].state is "well"'),
    "a hold": (lambda p: edited(p, held=[str(p.parents[2] / "victim")]), "held is"),
    "a temp": (lambda p: in_step(p, temp="victim"), 'steps[0].temp is "victim"'),
    "a work folder": (lambda p: in_step(p, op="work"), "steps[0].path is"),
    "a kept set": (lambda p: in_step(p, op="weights_set", displaced="../x"),
                   'steps[0].displaced is "../x"'),
}  # fmt: skip


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_change_is_named_and_stops_itself_alone(host: Host, how: str) -> None:
    """Nothing is done after it: the file that it names is neither opened, renamed nor removed."""
    first, second, victim = host.file("first"), host.file("second"), host.file("victim")
    inode = victim.stat().st_ino
    host.call("apply", apply_request(file_step(first)))
    host.call("close", {"change": "change-1", "status": "INCONSISTENT", "reason": "no answer"})
    host.call("apply", apply_request(file_step(second), name="change-2"))
    path = host.state / "journal" / "change-1.json"
    damage, words = DAMAGES[how]
    damage(path)
    seen = host.call("journal")
    (line,) = seen["broken"]
    assert line.startswith(f"{path}: {words}") and "\n" not in line, line
    assert [row["id"] for row in seen["changes"]] == ["change-2"]
    assert f"DAMAGED journal file: {line}" in host.run(host.argv("status")).stdout
    for verb, more in (("undo", {}), ("journal", {}), ("close", {"status": "ROLLED_BACK"})):
        answer = host.call(verb, {"change": "change-1", **more})
        assert answer["code"] == "journal_broken" and line in answer["error"], (verb, answer)
        assert f"mv -t {host.state} {path}" in answer["remedy"]
    assert host.call("apply", apply_request(file_step(first, "x"), name="change-3"))["code"] == (
        "journal_broken")  # fmt: skip
    assert host.run(host.argv("status", "--verify", "change-2")).returncode == 0
    assert host.call("undo", {"change": "change-2"})["status"] == "ROLLED_BACK"
    assert host.call("undo")["code"] == "journal_broken"
    assert (first.read_text(), second.read_text()) == (NEW, OLD)
    assert victim.read_text() == OLD and victim.stat().st_ino == inode


def test_no_flipped_bit_is_believed(host: Host) -> None:
    """Of each byte each bit. A key of another name for the checksum changes nothing else."""
    host.call("apply", apply_request(file_step(host.file("é"))))
    raw = (host.state / "journal" / "change-1.json").read_bytes()
    whole = journal.parse(raw, "change-1")
    for at in range(len(raw)):
        for bit in range(8):
            flipped = raw[:at] + bytes([raw[at] ^ 1 << bit]) + raw[at + 1 :]
            try:
                found = journal.parse(flipped, "change-1")
            except ValueError:
                continue
            assert {key: found[key] for key in whole} == whole, (at, bit)
            assert at < raw.index(b":") or found == whole, (at, bit)


def test_what_a_program_without_checksums_wrote_over_one_with_is_no_damage(host: Host) -> None:
    """Two checkouts work on one host: 0.2.0 keeps the key that it does not know, and sorts."""
    path = host.file()
    host.call("apply", apply_request(file_step(path)))
    stored = host.state / "journal" / "change-1.json"
    change = {**json.loads(stored.read_text()), "status": "INCONSISTENT", "reason": "no answer"}
    stored.write_text(json.dumps(change, indent=1, sort_keys=True))
    assert host.call("journal")["broken"] == []
    assert host.call("undo")["status"] == "ROLLED_BACK" and path.read_text() == OLD
    assert next(iter(json.loads(stored.read_text()))) == "sha256"
