"""Any state of the journal: listed in its order, and nothing in it wedges a node."""

from __future__ import annotations

import io
import json
import re
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from facts import pack
from node import growth
from node.change import apply, journal, kinds, transaction, unit_step
from node.core import errors, systemctl
from node.core.errors import CannotRead, NodeError
from node.core.run import run
from schema import render_unit
from tests.unit.node.change.test_tree_step import tree_step, two
from tests.unit.node.change.toy_step import ToyKind
from tests.unit.node.support import strace
from tests.unit.node.support.host import (
    NEW,
    OLD,
    Host,
    apply_request,
    change,
    compiled,
    file_step,
    unsigned,
)


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
        drop_in = host.root / "run" / "engine.service.d" / unit_step.HOLD_FILE
        drop_in.parent.mkdir(parents=True)
        drop_in.write_text("[Unit]\n")
        write(host, status, status="OPEN", held=[str(drop_in)])
        done = transaction.close({"change": status, "status": status})["change"]
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
            done = transaction.close(
                {"change": "change-1", "status": "INCONSISTENT", "reason": "seen"}
            )
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


# Steps that cannot be undone: named, and no change is called ROLLED_BACK for the others' sake.

RESTART: dict[str, Any] = {"op": "restart", "state": "done", "namespace": "hami",
                           "deployment": "dp", "pod": "u"}  # fmt: skip
REAP: dict[str, Any] = {"op": "reap", "state": "done", "identities": [], "verdict": "clean"}
CACHES: dict[str, Any] = {"op": "caches", "state": "done", "before": {}}


def status(host: Host) -> tuple[str, str | None]:
    """Status and reason of the one change."""
    found = host.call("journal", {"change": "change-1"})["change"]
    return found["status"], found["reason"]


@pytest.mark.parametrize("before", ["OPEN", "COMMITTED", "INCONSISTENT"])
@pytest.mark.parametrize("rows", [[RESTART], [REAP, RESTART]])
def test_a_change_of_which_all_lasts_is_refused_and_stays_what_it_is(
    host: Host, rows: list[dict[str, Any]], before: str
) -> None:
    """The pods were new, and the undo said ROLLED_BACK."""
    words = "hami/dp keep what they started with"
    write(host, "change-1", status=before, steps=rows)
    answer = host.call("undo", {"change": "change-1"})
    assert answer["code"] == "irreversible" and words in answer["error"], answer
    assert "nothing was done" in answer["error"] and "rignode close" in answer["remedy"]
    assert status(host)[0] == before
    if before != "COMMITTED":
        body = {"change": "change-1", "status": "COMMITTED", "reason": "kept as it is"}
        assert host.call("close", body)["change"]["status"] == "COMMITTED"


def test_what_can_go_back_does_and_the_rest_is_named(host: Host) -> None:
    path = host.file()
    host.call("apply", apply_request(file_step(path)))
    found = host.call("journal", {"change": "change-1"})["change"]
    write(host, "change-1", status="OPEN", steps=[*found["steps"], RESTART])
    answer = host.call("undo")
    assert path.read_text() == OLD
    assert answer["code"] == "undo_incomplete" and "hami/dp keep" in answer["error"], answer
    assert '"COMMITTED"' in answer["remedy"] and status(host)[0] == "INCONSISTENT"
    asked = {"change": "change-1", "status": "ROLLED_BACK", "reason": "seen"}
    assert host.call("close", asked)["code"] == "unfinished"
    assert host.call("close", {**asked, "status": "COMMITTED"})["ok"]


def test_what_was_nobodys_is_named_in_the_reason(host: Host) -> None:
    """An orphan that was ended served nobody: there is no former state that misses it."""
    path = host.file()
    host.call("apply", apply_request(file_step(path)))
    found = host.call("journal", {"change": "change-1"})["change"]
    alone = {**RESTART, "lasts": False}
    write(host, "change-1", status="OPEN", steps=[REAP, CACHES, alone, *found["steps"]])
    answer = host.call("undo", {"reason": "no answer"})
    assert answer["left"] == ["not undone: reap, caches, restart"]
    assert status(host) == ("ROLLED_BACK", "no answer; not undone: reap, caches, restart")
    assert path.read_text() == OLD


def test_somebody_elses_file_in_a_folder_of_ours_is_named_in_the_reason(host: Host) -> None:
    folder = host.root / "made"
    host.call("apply", apply_request({"op": "directory", "path": str(folder), "mode": "0755"}))
    (folder / "theirs").write_text("x")
    assert host.call("undo")["left"] == [f"{folder}: kept: the folder is not empty"]
    assert status(host) == ("ROLLED_BACK", f"undone; {folder}: kept: the folder is not empty")


@pytest.mark.parametrize("cut", [
    {**REAP, "verdict": None}, CACHES, {"op": "shm", "segments": [], "removed": []},
])  # fmt: skip
def test_what_a_dead_run_was_cut_off_in_and_lasts_not_keeps_no_change_open(
    host: Host, cut: dict[str, Any]
) -> None:
    """The run that took it up found nothing left to end or to drop, and could not be closed."""
    write(host, "change-1", status="OPEN", run="a1", steps=[{**cut, "state": "intent"}])
    claim = {"change": "change-1", "run": "b2", "former": "a1", "operator": "anna@desk",
             "deploy": "serve", "take_back": True}  # fmt: skip
    assert host.call("claim", claim)["claimed"]
    path = host.file()
    host.call("apply", apply_request(file_step(path), run="b2"))
    done = {"change": "change-1", "status": "COMMITTED", "reason": "proven", "run": "b2"}
    assert host.call("close", done).get("changed") is True, host.call("close", done)


def test_the_remedy_for_what_was_cut_off_and_lasts_can_be_typed(host: Host) -> None:
    """undo named close, and close named undo."""
    write(host, "change-1", status="OPEN", steps=[{**RESTART, "state": "intent"}])
    told = host.call("undo", {"change": "change-1"})
    assert told["code"] == "irreversible"
    for typed in re.findall(r"rignode close '(.*?)'", told["remedy"]):
        assert host.call("close", json.loads(typed))["ok"], told
    assert status(host)[0] == "COMMITTED"


# One protocol for all kinds: a new one, an unknown one, and one that cannot be looked up.


@pytest.fixture
def toy(host: Host, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kind from a module of the tests, and the file that it is about."""
    monkeypatch.setitem(kinds.KINDS, "toy", "tests.unit.node.change.toy_step:ToyKind")
    path = host.root / "number"
    path.write_text("1")
    return path


def request(path: Path, value: int, **more: object) -> dict[str, Any]:
    return {"change": change(), "steps": [{"op": "toy", "file": str(path), "value": value}], **more}


def test_a_new_kind_is_one_row_and_one_file(toy: Path) -> None:
    assert apply.apply(request(toy, 2, dry=True))["changed"] and toy.read_text() == "1"
    (step,) = apply.apply(request(toy, 2))["steps"]
    assert step == {"op": "toy", "changed": True, "detail": "is 2"}
    assert not apply.apply(request(toy, 2))["changed"]
    with pytest.raises(NodeError, match=r"steps\[0\].value is not a number"):
        apply.apply(request(toy, 100))
    (entry,) = journal.get("change-1")["steps"]
    kind = kinds.of(entry)
    assert kind.verify(entry, "post") == []
    assert kind.verify(entry, "pre") == ["the toy is 2.0, not 1.0"]
    answer = transaction.undo({})
    assert answer["status"] == "ROLLED_BACK"
    assert answer["steps"] == [{"op": "toy", "detail": "is 1 again"}]
    assert (
        kind.verify(entry, "pre") == [] and not transaction.undo({"change": "change-1"})["changed"]
    )


@pytest.mark.parametrize("said", ["sleep did not answer in 0.1 s", "the server is away"])
def test_what_stood_before_a_step_that_is_late_or_cannot_read_is_taken_back(
    host: Host, toy: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    """Neither is a NodeError: the steps before were left done, and the program was blamed."""

    def do(*_: object) -> tuple[bool, str]:
        if "sleep" in said:
            run(["sleep", "60"], 0.1)
        raise CannotRead(said)

    monkeypatch.setattr(ToyKind, "do", do)
    asked = request(toy, 2)
    asked["steps"].insert(0, file_step(host.file()))
    with pytest.raises(NodeError, match=f"{said}; nothing was changed"):
        apply.apply(asked)
    assert host.file(text=None).read_text() == OLD and journal.read_all() == ([], [])


def test_a_new_kind_that_a_kill_cut_short_is_recovered(toy: Path) -> None:
    apply.apply(request(toy, 2))
    found = journal.get("change-1")
    found["steps"][0]["state"] = "intent"
    journal.save(found)
    done = transaction.close({"change": "change-1", "status": "COMMITTED"})["change"]
    assert done["steps"][0]["state"] == "done"


@pytest.mark.parametrize(("said", "words"), [
    ("done", "the toy is 2.0, not 3.0"), ("undone", "the toy is 2.0, not 1.0"),
])  # fmt: skip
def test_recover_believes_no_kind_without_a_look(
    toy: Path, monkeypatch: pytest.MonkeyPatch, said: str, words: str
) -> None:
    apply.apply(request(toy, 2))
    found = journal.get("change-1")
    found["steps"][0].update(state="intent", post=3.0)
    journal.save(found)
    monkeypatch.setattr(ToyKind, "recover", lambda *_: said)
    (row,) = transaction.close({"change": "change-1", "status": "INCONSISTENT"})["change"]["steps"]
    assert (row["state"], row["why"]) == ("unknown", words)


def test_a_new_kind_is_taken_back_with_the_call_that_fails(toy: Path, host: Host) -> None:
    asked = request(toy, 2)
    asked["steps"].append({"op": "toy", "file": str(host.root / "gone"), "value": 3})
    with pytest.raises(NodeError, match="nothing was changed"):
        apply.apply(asked)
    assert float(toy.read_text()) == 1 and journal.find("change-1") is None


def test_the_journal_tells_a_step_without_its_kind(
    toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The snapshot does not send the kinds; rows of older versions fall back to op and subject."""
    apply.apply(request(toy, 2))
    monkeypatch.delitem(kinds.KINDS, "toy")
    (row,) = journal.summary_section()["changes"]
    assert row["steps"] == ["set the toy to 2 (done)"]
    old = {"op": "unit", "unit": "engine.service", "active": "restart", "state": "done"}
    assert journal.describe(old) == "unit engine.service (done)"
    assert journal.describe({"state": "unknown"}) == "step (what became of it is not known)"


def edit(host: Host, how: Callable[[dict[str, Any]], None]) -> None:
    """Edit the journal of the one change."""
    (path,) = (host.state / "journal").glob("*.json")
    found = unsigned(path)
    how(found)
    path.write_text(json.dumps(found))


@pytest.mark.parametrize(("how", "code", "words"), [
    (lambda row: row["steps"].append({"op": "quota", "state": "done"}), "unknown_kind",
     "change change-1 has a step of the kind 'quota'"),
    (lambda row: row.update(format=2), "unknown_format", "change change-1 has format 2"),
])  # fmt: skip
def test_what_another_version_wrote_is_listed_and_refused(
    host: Host, how: Callable[[dict[str, Any]], None], code: str, words: str
) -> None:
    """It was skipped in silence, and the change called ROLLED_BACK."""
    path = host.file()
    host.call("apply", apply_request(file_step(path)))
    edit(host, how)
    asked: dict[str, dict[str, object]] = {
        "undo": {}, "close": {"change": "change-1", "status": "COMMITTED"},
        "apply": apply_request(file_step(path, "third\n")),
    }  # fmt: skip
    for verb, body in asked.items():
        answer = host.call(verb, body)
        assert (answer["ok"], answer["code"]) == (False, code), answer
        assert words in answer["error"] and "this rignode" in answer["error"]
    assert path.read_text() == NEW
    assert "OPEN change-1" in host.run(host.argv("status")).stdout


def test_a_tool_whose_pre_image_is_gone_does_not_wedge_the_node(host: Host) -> None:
    """An undo says what it cannot find out, and the change can be ended by hand."""
    path = host.file()
    host.call("apply", apply_request(file_step(path)))
    row = {"op": "tool", "tool": "mend", "tree": str(host.root), "argv": [], "state": "intent",
           "pack": "0" * 64, "before": {}}  # fmt: skip
    edit(host, lambda found: found["steps"].append(row))
    answer = host.call("undo")
    assert answer["code"] == "undo_incomplete" and "tool mend" in answer["error"], answer
    closed = host.call("close", {"change": "change-1", "status": "COMMITTED", "reason": "by hand"})
    assert not closed["ok"] or closed["change"]["status"] == "COMMITTED"
    body = apply_request(file_step(host.root / "other"), name="change-2")
    assert host.call("apply", body)["ok"], "no change is open for ever"
    assert path.read_text() == OLD, "the rest went back"


def test_a_tree_whose_kept_folder_is_gone_does_not_wedge_the_node(host: Host) -> None:
    two(host)
    kept = host.root / "kept" / "tree"
    kept.parent.mkdir()
    host.call("apply", apply_request(tree_step(host, displaced=str(kept))))
    # killed between the exchange and the move, and the folder tidied away
    kept.rename(host.root / "fresh")
    kept.parent.rmdir()
    edit(host, lambda found: found["steps"][0].update(state="intent"))
    closed = host.call("close", {"change": "change-1", "status": "INCONSISTENT"})
    (row,) = closed["change"]["steps"]
    assert row["state"] == "unknown" and "kept" in row["why"]
    assert (host.root / "fresh" / "version").read_text() == "old"


def test_a_target_that_went_read_only_does_not_wedge_the_node(host: Host, tmp_path: Path) -> None:
    """unlink says EROFS there also for a temp file that is not there."""
    path = host.file()
    host.call("apply", apply_request(file_step(path)))
    edit(host, lambda found: found["steps"][0].update(state="intent"))
    body = json.dumps({"change": "change-1", "status": "INCONSISTENT"})
    options = ["-e", "trace=unlinkat,unlink", "-e", "inject=unlinkat,unlink:error=EROFS"]
    done = strace.traced(host, "close", body, options, tmp_path / "log")
    answer = json.loads(done.stdout)
    assert answer["ok"] and answer["change"]["steps"][0]["state"] == "done", answer


@pytest.mark.parametrize("state", ["intent", "done"])
def test_a_mount_that_went_read_only_is_told_and_undone_later(
    host: Host, small_disk: Path, state: str
) -> None:
    """A real one, with the journal elsewhere."""
    path = small_disk / "file.conf"
    path.write_text(OLD)
    host.call("apply", apply_request(file_step(path)))
    edit(host, lambda found: found["steps"][0].update(state=state))
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for _ in range(2):
        answer = host.call("undo")
        assert answer["code"] == "undo_incomplete" and "Read-only file system" in answer["error"]
    assert host.call("journal")["changes"][0]["status"] == "INCONSISTENT"
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    assert host.call("undo")["status"] == "ROLLED_BACK" and path.read_text() == OLD


@pytest.mark.parametrize(("op", "words"), [
    ("work", "'work' is not asked for"), ("quota", "not one of file, absent"),
])  # fmt: skip
def test_a_step_that_is_not_for_requests_is_refused(host: Host, op: str, words: str) -> None:
    answer = host.call("apply", apply_request({"op": op, "path": str(host.root / "x")}))
    assert answer["code"] == "bad_request" and words in answer["error"]


# Which versions of the program must stay, by who names them.


def program(letter: str) -> str:
    """A version's path."""
    return f"{errors.LIBRARY}/rignode-{letter * 12}.pyz"


@pytest.fixture
def units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for unit files; the state's own beside."""
    monkeypatch.setenv("RIGBOOK_STATE", str(tmp_path / "state"))
    folder = tmp_path / "units"
    folder.mkdir()
    monkeypatch.setattr(growth, "UNIT_FOLDERS", (str(folder),))
    monkeypatch.setattr(growth, "LINK", str(tmp_path / "rignode"))
    (tmp_path / "rignode").symlink_to(program("f"))
    return folder


def write_programs(path: Path, letter: str, number: int = 1) -> None:
    """A change whose file step makes a unit name a version."""
    step = {"op": "file", "path": str(path), "content": f"ExecStart={program(letter)} pair\n",
            "mode": "0644"}  # fmt: skip
    apply.apply({"change": change(f"change-{number}"), "steps": [step]})


def test_a_unit_its_drop_in_a_change_a_backup_and_the_link_each_keep_theirs(units: Path) -> None:
    unit = units / "rigbook-engine.service"
    unit.write_text(f"ExecStartPre=+{program('a')} prelaunch\n")
    write_programs(unit, "b")
    (units / "rigbook-engine.service.d").mkdir()
    drop_in = units / "rigbook-engine.service.d" / "x.conf"
    drop_in.write_text(f"[Service]\nExecStop={program('c')} container stop\n")
    (units / "gone.service").symlink_to("/nowhere")
    manifest = units.parent / "state/backups/b-1/manifest.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_text(json.dumps({"documents": {"files": {"x": f"{program('d')} pair"}}}))
    assert growth.programs_named() == {
        program("a"): ["change change-1"],
        program("b"): [str(unit)],
        program("c"): [str(drop_in)],
        program("d"): [str(manifest)],
        program("f"): [str(units.parent / "rignode")],
    }


def test_what_can_no_longer_be_put_back_keeps_nothing(units: Path) -> None:
    unit = units / "rigbook-pair.service"
    unit.write_text(f"ExecStart={program('a')} pair\n")
    write_programs(unit, "b")
    transaction.undo({})
    assert set(growth.programs_named()) == {program("a"), program("f")}
    unit.unlink()
    assert set(growth.programs_named()) == {program("f")}


def test_the_program_of_a_blessed_change_stays_where_only_it_knows_a_step(units: Path) -> None:
    """A kind of 0.2.0 that is gone: its undo is handed over to the program that wrote it."""
    write_programs(units / "rigbook-pair.service", "a")
    path = Path(journal.path_of("change-1"))
    found = json.loads(path.read_text())
    del found["sha256"]
    found.update(status="COMMITTED", program=program("b"))
    path.write_text(json.dumps(found))
    assert program("b") not in growth.programs_named()
    found["steps"].append({"op": "install", "state": "done", "path": "/opt/engine/venv"})
    path.write_text(json.dumps(found))
    assert growth.programs_named()[program("b")] == ["change change-1"]


def test_a_damaged_journal_lets_nothing_go(units: Path) -> None:
    write_programs(units / "rigbook-pair.service", "a")
    Path(journal.path_of("change-1")).write_text("{")
    with pytest.raises(NodeError, match="damaged"):
        growth.programs_named()


def test_the_places_are_those_that_the_units_are_rendered_with() -> None:
    assert (errors.LIBRARY, errors.LINK) == (render_unit.PROGRAM_LIBRARY, render_unit.PROGRAM_LINK)
    assert growth._PROGRAM.fullmatch(render_unit.program_path().encode())


# A change is undone by a program that understands it: this one, or the one that wrote it.

NEWER = "0123456789ab"
QUOTA = """
from node.change.kinds import Kind

class QuotaKind(Kind):
    keys = required = ("file", "value")
    def parse(self, step, where):
        return dict(step)
    def plan(self, step, seen):
        return True, "would be"
    def do(self, step, steps):
        entry = self.record(steps, file=step["file"], pre=open(step["file"]).read())
        open(step["file"], "w").write(step["value"])
        steps.finish(entry)
        return True, "is set"
    def revert(self, entry, overwrite):
        open(entry["file"], "w").write(entry["pre"])
        return "set back by the newer program"
"""


@pytest.fixture
def newer(host: Host, tmp_path: Path) -> Host:
    """The same host with a newer program on it, which knows one more kind of step."""
    made = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(pack.zipapp_bytes())) as old,
        zipfile.ZipFile(made, "w") as new,
    ):
        for name in old.namelist():
            text = old.read(name)
            if name == "node/change/kinds.py":
                row = b'    "quota": "node.change.quota_step:QuotaKind",\n    "directory":'
                assert b'    "directory":' in text
                text = text.replace(b'    "directory":', row)
            new.writestr(name, text)
        new.writestr("node/change/quota_step.py", QUOTA)
    path = tmp_path / "lib" / f"rignode-{NEWER}.pyz"
    path.parent.mkdir()
    path.write_bytes(compiled(made.getvalue()))
    return Host(host.root, path)


def quota(host: Host, value: str = "2") -> dict[str, object]:
    """A step that only the newer program knows."""
    path = host.root / "number"
    path.write_text("1")
    return {"op": "quota", "file": str(path), "value": value}


def programs_of_changes_edit(host: Host, **more: object) -> None:
    """Edit the journal of the one change."""
    (path,) = (host.state / "journal").glob("*.json")
    path.write_text(json.dumps({**unsigned(path), **more}))


def test_a_change_names_the_program_that_last_wrote_its_steps(host: Host, newer: Host) -> None:
    path = host.file()
    host.call("apply", apply_request(file_step(path)))
    assert host.call("journal", {"change": "change-1"})["change"]["program"] == str(host.pyz)
    newer.call("apply", apply_request(file_step(path, "third\n")))
    assert host.call("journal", {"change": "change-1"})["change"]["program"] == str(newer.pyz)
    assert host.call("undo")["status"] == "ROLLED_BACK" and path.read_text() == OLD


@pytest.mark.parametrize("how", ["stdin", "argument", "words", "text"])
def test_an_older_program_hands_over_to_the_one_that_wrote_it(
    host: Host, newer: Host, how: str
) -> None:
    """As rollback.py sends it from an older checkout, and as a person types it."""
    path = host.file()
    newer.call("apply", apply_request(file_step(path), quota(host)))
    words = {"stdin": [], "argument": ['{"change": "change-1"}'], "words": ["change-1"],
             "text": ["change-1", "--text"]}[how]  # fmt: skip
    done = host.run(host.argv("undo", *words), '{"change": "change-1"}' if how == "stdin" else "")
    assert done.returncode == 0 and done.stderr == "", done
    assert "set back by the newer program" in done.stdout and "ROLLED_BACK" in done.stdout
    assert done.stdout.startswith("undone:" if how == "text" else "{")
    assert path.read_text() == OLD and (host.root / "number").read_text() == "1"


def test_close_is_handed_over_too_and_apply_is_refused(host: Host, newer: Host) -> None:
    path = host.file()
    newer.call("apply", apply_request(quota(host)))
    refused = host.call("apply", apply_request(file_step(path)))
    assert refused["code"] == "unknown_kind" and path.read_text() == OLD
    closed = host.call("close", {"change": "change-1", "status": "COMMITTED"})
    assert closed["change"]["status"] == "COMMITTED"


@pytest.mark.parametrize("form", [{"format": 2}, {}])
def test_a_program_that_is_gone_is_named_with_who_has_it(
    host: Host, newer: Host, form: dict[str, object]
) -> None:
    newer.call("apply", apply_request(quota(host)))
    programs_of_changes_edit(host, **form)
    newer.pyz.unlink()
    answer = host.call("undo")
    assert not answer["ok"] and f"rignode-{NEWER}" in answer["error"], answer
    assert "deploys/rollback.py" in answer["remedy"] and "tester@here" in answer["remedy"]
    assert (host.root / "number").read_text() == "2"


def test_a_program_does_not_hand_over_to_itself(host: Host) -> None:
    host.call("apply", apply_request(file_step(host.file())))
    programs_of_changes_edit(host, format=2)
    answer = host.call("undo")
    assert answer["code"] == "unknown_format", answer


def test_a_program_from_memory_knows_its_version(host: Host, tmp_path: Path) -> None:
    code = (
        f"import os,sys;f=os.memfd_create('rignode-{NEWER}.pyz',0);"
        "os.write(f,open(sys.argv[1],'rb').read());sys.path.insert(0,'/proc/self/fd/%d'%f);"
        "from node.core import errors;print(errors.own_path())"
    )
    done = host.run([host.python, "-I", "-c", code, str(host.pyz)])
    assert done.stdout.strip() == f"{errors.LIBRARY}/rignode-{NEWER}.pyz", done
    assert errors.own_path() is None, "a checkout is no program of a host"
    assert change()["id"] == "change-1"
