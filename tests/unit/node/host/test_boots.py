"""Boots and kills as the journal tells them; the lines are recorded, their sources named."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from node.core.errors import CannotRead
from node.host import boots, kills
from schema.machine.host import HostFacts
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
    first, second = boots.listed(text)
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
    assert boots.was_asked_for([entry("cron", "x"), row]) is asked


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
    assert len(former.tail) == boots.TAIL and "abcdef123" not in " ".join(former.tail)
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
    assert boots.pstore(4000, 6000, [str(tmp_path)]) == ["Panic#1", "panic"]
    assert boots.pstore(6001, 9000, [str(tmp_path)]) == []


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
    (row,) = kills.parse([*NO_KILLS, *entries])
    assert (row["by"], row["process"], row["pid"]) == (by, process, pid)
    assert str(why) in row["why"] and row["unix_s"] == 1_790_000_000


def test_what_is_no_kill_is_none() -> None:
    assert kills.parse(NO_KILLS) == []


def test_no_journalctl_is_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for read in (boots.read, kills.read):
        with pytest.raises(CannotRead, match="journalctl"):
            read()
