"""Boots and kills as the journal tells them; the lines are recorded, their sources named."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from node import host as node_host
from node.change import apply, host_step, journal, transaction
from node.core.errors import CannotRead, NodeError
from schema.host import HostFacts
from tests.unit.node.support.host import Host

OLD, NOW = "1f" * 16, "2e" * 16
# systemd 252 (Debian 12): no head, an em dash between the times
LIST_252 = f"""\
 -1 {OLD} Sat 2026-11-21 06:58:01 UTC\u2014Sat 2026-11-21 09:12:44 UTC
  0 {NOW} Sat 2026-11-21 09:30:02 UTC\u2014Sat 2026-11-21 10:00:00 UTC
"""
# systemd 255 (Ubuntu 24.04): a head, blanks between the times
LIST_255 = f"""\
IDX BOOT ID                          FIRST ENTRY                 LAST ENTRY
 -1 {OLD} Sat 2026-11-21 06:58:01 UTC Sat 2026-11-21 09:12:44 UTC
  0 {NOW} Sat 2026-11-21 09:30:02 UTC Sat 2026-11-21 10:00:00 UTC
"""


@pytest.mark.parametrize("text", [LIST_252, LIST_255])
def test_both_forms_of_the_list_are_read(text: str) -> None:
    first, second = node_host.listed_boots(text)
    assert (first["boot_id"], second["boot_id"]) == (OLD, NOW)
    assert second["first_unix_s"] - first["last_unix_s"] == 17 * 60 + 18


def entry(by: str, text: Any, **more: str) -> dict[str, Any]:
    """One entry of the journal."""
    stamp = {"__REALTIME_TIMESTAMP": "1790000000000000"}
    return {**stamp, "SYSLOG_IDENTIFIER": by, "MESSAGE": text, **more}


# systemd 249 to 257 (src/core/main.c, src/login/logind-action.c), and what only looks like it
ASKED: dict[str, tuple[dict[str, Any], bool]] = {
    "a target": (entry("systemd", "Reached target System Reboot.", UNIT="reboot.target"), True),
    "power": (entry("systemd", "Reached target X.", UNIT="poweroff.target"), True),
    "PID 1": (entry("systemd", "Shutting down."), True),
    "logind 252": (entry("systemd-logind", "System is rebooting."), True),
    "logind 255": (entry("systemd-logind", "The system will reboot now!"), True),
    "off": (entry("systemd-logind", "System is powering down."), True),
    "journald anew": (entry("systemd-journald", "Journal stopped"), False),
    "a program": (entry("app", "System is rebooting."), False),
    "a unit": (entry("systemd", "Started Reboot notes.", UNIT="notes.service"), False),
    "panic": (entry("kernel", "Kernel panic - not syncing: sysrq triggered crash"), False),
}


@pytest.mark.parametrize("name", ASKED)
def test_only_a_shutdown_was_asked_for(name: str) -> None:
    row, asked = ASKED[name]
    assert node_host.was_asked_for([entry("cron", "x"), row]) is asked


JOURNALCTL = """#!/bin/sh
# rigbook stand-in for journalctl: the list, the end of one boot, nothing killed
case "$*" in
*--list-boots*) cat "$(dirname "$0")/list";;
*" -b "*) cat "$(dirname "$0")/end";;
*) exit 0;;
esac
"""


def host_facts(host: Host, end: list[dict[str, Any]], here: str) -> HostFacts:
    """What the verb says on a host whose former boot ended so."""
    host.double("journalctl", JOURNALCTL)
    (host.bin / "list").write_text(LIST_252.replace(NOW, here.replace("-", "")))
    (host.bin / "end").write_text("\n".join([*map(json.dumps, end), "-- cut"]))
    answer = host.call("host", {})
    assert answer.pop("ok")
    return HostFacts.model_validate(answer)


def test_the_last_words_of_a_boot_that_nobody_ended(host: Host) -> None:
    here = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    words = "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY]"
    end = [entry("app", f"line {n}") for n in range(30)]
    # an entry of bytes is an array in journalctl's JSON
    end += [entry("app", [255, 1]), entry("app", "token=abcdef123"), entry("kernel", words)]
    facts = host_facts(host, end, here)
    assert isinstance(facts.boots, tuple)
    former, running = facts.boots
    assert former.asked_for is False and former.tail[-1] == f"kernel: {words}"
    assert len(former.tail) == node_host.BOOT_TAIL and "abcdef123" not in " ".join(former.tail)
    assert (running.asked_for, running.tail) == (None, ())


def test_a_journal_that_cannot_be_read_is_unknown(host: Host) -> None:
    host.double("journalctl", "#!/bin/sh\necho 'No journal files were opened' >&2; exit 1\n")
    answer = host.call("host", {})
    for part in ("boots", "kills"):
        assert "No journal files were opened" in answer[part]["unreadable"]


def test_what_pstore_kept_belongs_to_the_boot_between_its_times(tmp_path: Path) -> None:
    for name, when, text in (
        ("7/dmesg.txt", 1000, "old"),
        ("8/dmesg.txt", 5000, "Panic#1\n\npanic"),
    ):
        path = tmp_path / name
        path.parent.mkdir()
        path.write_text(text)
        os.utime(path, (when, when))
    assert node_host.read_pstore(4000, 6000, [str(tmp_path)]) == ["Panic#1", "panic"]
    assert node_host.read_pstore(6001, 9000, [str(tmp_path)]) == []


LOW = "low memory! at or below SIGTERM limits: mem 10.00%, swap 15.00%"
CGROUP = ("Memory cgroup out of memory: Killed process 901 (VLLM::EngineCor) total-vm:1kB, "
          "anon-rss:7340032kB, oom_score_adj:500")  # fmt: skip
KILLS: dict[str, tuple[list[dict[str, Any]], tuple[object, ...]]] = {
    # this project's own tier, 2026-11: pytest that had read a journal of gigabytes
    "kernel 6": ([entry("kernel", "Out of memory: Killed process 3070 (python) total-vm:9kB, "
                        "anon-rss:15549700kB")], ("kernel", "python", 3070, "anon-rss:15549700kB")),
    "a limit": ([entry("kernel", CGROUP)],
                ("kernel", "VLLM::EngineCor", 901, "Memory cgroup out of memory;")),
    # rfjakob/earlyoom issue 121
    "kernel 4": ([entry("kernel", "Out of memory: Kill process 27541 (bash) score 572 or sacrifice "
                        "child")], ("kernel", "bash", 27541, "score 572")),
    # rfjakob/earlyoom issue 205 (1.6)
    "earlyoom 1.6": ([entry("earlyoom", "mem avail:    19 of   950 MiB ( 2.10%), swap free:  153 "
                            "of 1023 MiB (14.96%)"), entry("earlyoom", LOW),
                      entry("earlyoom", 'sending SIGTERM to process 696 uid 1001 "ipfs": badness '
                            "757, VmRSS 637 MiB")],
                     ("earlyoom", "ipfs", 696, "19 of   950 MiB ( 2.10%)")),
    # rfjakob/earlyoom issue 131 (1.3)
    "earlyoom 1.3": ([entry("earlyoom", 'sending SIGTERM to process 12006 "python3": badness 209, '
                            "VmRSS 2891 MiB")], ("earlyoom", "python3", 12006, "badness 209")),
    # systemd 252, src/oom/oomd-util.c
    "systemd-oomd": ([entry("systemd-oomd", "Killed /system.slice/a.service due to memory pressure "
                            "for /system.slice being 61.00% > 60.00% for > 20s with reclaim "
                            "activity")],
                     ("systemd-oomd", "/system.slice/a.service", None, "memory pressure")),
}  # fmt: skip
NO_KILLS = [
    entry("kernel", "oom_reaper: reaped process 3070 (python), now anon-rss:0kB"),
    entry("kernel", "NVRM: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051)"),
    entry("app", "Out of memory: Killed process 1 (x)"),
    entry("earlyoom", "sending SIGTERM when mem <=  4.00% and swap <= 10.00%,"),
    entry("kernel", [1, 2]),
]


@pytest.mark.parametrize("name", KILLS)
def test_a_kill_is_told_with_its_reason(name: str) -> None:
    entries, (by, process, pid, why) = KILLS[name]
    (row,) = node_host.parse_kills([*NO_KILLS, *entries])
    assert (row["by"], row["process"], row["pid"]) == (by, process, pid)
    assert str(why) in row["why"] and row["unix_s"] == 1_790_000_000


def test_what_is_no_kill_is_none() -> None:
    assert node_host.parse_kills(NO_KILLS) == []


def test_no_journalctl_is_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for read in (node_host.read_boots, node_host.read_kills):
        with pytest.raises(CannotRead, match="journalctl"):
            read()


# Settings as the host's files tell them, and the two steps that change what runs.


def put(root: Path, files: dict[str, str]) -> None:
    """Writes files below a folder."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_the_watchdogs_that_are_there(tmp_path: Path) -> None:
    # QEMU's i6300esb and a softdog, as Debian 12's 6.1 shows them
    put(tmp_path, {
        "sys/class/watchdog/watchdog0/identity": "i6300ESB timer\n",
        "sys/class/watchdog/watchdog0/state": "active\n",
        "sys/class/watchdog/watchdog0/timeout": "60\n",
        "sys/class/watchdog/watchdog1/dev": "10:130\n",
    })  # fmt: skip
    first, second = node_host.watchdogs(str(tmp_path))
    assert (first["identity"], first["state"], first["timeout_s"]) == (
        "i6300ESB timer", "active", 60)  # fmt: skip
    assert second == {"name": "watchdog1", "identity": None, "state": None, "timeout_s": None}
    assert node_host.watchdogs(str(tmp_path / "none")) == []


@pytest.mark.parametrize(("files", "kept"), [
    ({"var/log/journal/m1/system.journal": "12345678"}, True),
    ({"run/log/journal/m1/system.journal": "1"}, False),
    # journald was not told yet: the folder is there, and it still writes to /run
    ({"var/log/journal/m1/system.journal": "12345678", "run/log/journal/m1/system.journal": "1"},
     False),
    ({}, False),
])  # fmt: skip
def test_where_the_journal_goes(tmp_path: Path, files: dict[str, str], kept: bool) -> None:
    put(tmp_path, {"etc/machine-id": "m1\n", **files})
    assert node_host.journal_settings(str(tmp_path))["persistent"] is kept


@pytest.mark.parametrize(("said", "seconds"), [
    ("t 60000000", 60.0), ("t 0", 0.0), ("t 18446744073709551615", 0.0),
])  # fmt: skip
def test_what_pid_1_says(
    host: Host, monkeypatch: pytest.MonkeyPatch, said: str, seconds: float
) -> None:
    host.double("busctl", f"#!/bin/sh\necho '{said}'\n")
    monkeypatch.setenv("PATH", host.environ()["PATH"])
    assert node_host.runtime_watchdog_s() == seconds


@pytest.mark.parametrize("script", ["echo 's \"x\"'", "echo 'no bus' >&2; exit 1"])
def test_a_silent_pid_1_is_unknown(
    host: Host, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    host.double("busctl", f"#!/bin/sh\n{script}\n")
    monkeypatch.setenv("PATH", host.environ()["PATH"])
    with pytest.raises(CannotRead, match="RuntimeWatchdogUSec"):
        node_host.runtime_watchdog_s()


def test_what_is_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "host.json"
    monkeypatch.setattr(node_host, "WANTED", str(path))
    assert node_host.wanted_settings() is None
    path.write_text('{"format": 1}')
    assert node_host.wanted_settings() == {"format": 1}
    path.write_text("{")
    with pytest.raises(CannotRead, match="is not JSON"):
        node_host.wanted_settings()


PANIC, SOFT = "kernel.panic", "kernel.softlockup_panic"


@pytest.fixture
def kernel(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands for /proc/sys, with no panic set, and a systemctl that does nothing."""
    host.systemctl()
    monkeypatch.setenv("PATH", host.environ()["PATH"])
    monkeypatch.setenv("RIGBOOK_STATE", str(host.state))
    root = tmp_path / "sys"
    put(root, {"kernel/panic": "0\n", "kernel/softlockup_panic": "0\n"})
    monkeypatch.setattr(host_step, "ROOT", str(root))
    return root


def request(*steps: dict[str, Any]) -> dict[str, Any]:
    """An apply of these steps."""
    return {"change": {"id": "20261123T000000Z-host-0", "deploy": "host", "operator": "t"},
            "steps": list(steps)}  # fmt: skip


def sysctl(**values: str) -> dict[str, Any]:
    """A sysctl step; `_` stands for the dot."""
    return {"op": "sysctl", "values": {k.replace("__", "."): v for k, v in values.items()}}


SET = sysctl(kernel__panic="10", kernel__softlockup_panic="1")


def test_values_are_set_once_and_given_back(kernel: Path) -> None:
    (step,) = apply.apply(request(SET))["steps"]
    assert step["detail"] == f"{PANIC}=0, {SOFT}=0 -> {PANIC}=10, {SOFT}=1"
    assert (kernel / "kernel/panic").read_text() == "10"
    assert apply.apply(request(SET))["changed"] is False
    assert transaction.undo({})["status"] == "ROLLED_BACK"
    assert [(kernel / f"kernel/{n}").read_text() for n in ("panic", "softlockup_panic")] == [
        "0"
    ] * 2


def test_a_later_value_is_left_and_told(kernel: Path) -> None:
    apply.apply(request(SET))
    (kernel / "kernel/panic").write_text("30")
    undone = transaction.undo({})
    assert f"left as it is now ({PANIC}=30)" in undone["steps"][0]["detail"]
    assert (kernel / "kernel/softlockup_panic").read_text() == "0"


def test_a_kill_between_two_values_is_undone(kernel: Path) -> None:
    apply.apply(request(SET))
    (path,) = Path(journal.path_of("x")).parent.glob("*.json")
    change = json.loads(path.read_text())
    del change["sha256"]
    change["steps"][0]["state"] = "intent"
    path.write_text(json.dumps(change))
    (kernel / "kernel/softlockup_panic").write_text("0")
    assert transaction.undo({})["status"] == "ROLLED_BACK"
    assert (kernel / "kernel/panic").read_text() == "0"


@pytest.mark.parametrize("values", [
    {}, {"kernel.panic; id": "1"}, {"../x": "1"}, {"kernel.panic": "1; id"}, {"kernel.panic": 1},
    {"kernel": "1"}, [],
])  # fmt: skip
def test_bad_input_is_refused(kernel: Path, values: object) -> None:
    with pytest.raises(NodeError) as error:
        apply.apply(request({"op": "sysctl", "values": values}))
    assert error.value.code == "bad_request"


def test_a_kernel_without_it_changes_nothing(kernel: Path) -> None:
    with pytest.raises(NodeError, match="hung_task_panic"):
        apply.apply(request(sysctl(kernel__hung_task_panic="1")))
    assert journal.read_all() == ([], [])


def test_a_reread_follows_a_change_and_its_undo(host: Host, kernel: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.conf"
    reread = {"op": "reread", "what": "journald"}
    log = host.bin / "units" / "log"
    text = {"op": "file", "path": str(path), "content": "[Journal]\n", "mode": "0644"}
    apply.apply(request(text, reread))
    assert "restart systemd-journald.service" in log.read_text()
    log.unlink()
    assert transaction.undo({})["status"] == "ROLLED_BACK"
    said = log.read_text()
    assert "restart systemd-journald.service" in said and "stop" not in said
    assert not path.exists()
