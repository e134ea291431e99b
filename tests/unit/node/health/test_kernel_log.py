"""Which lines of the kernel are told: recorded ones of hosts that were well, and of sick ones."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from node.core.run import Done
from node.health import kernel_log
from schema.machine import xids
from schema.observed.health import Health, KernelLine, Unknown
from tests.unit.node.support.host import Host

TABLE = yaml.safe_load(Path(__file__).with_name("lines.yaml").read_text())
HEALTHY = [line for lines in TABLE["healthy"].values() for line in lines]
SICK = [row for rows in TABLE["sick"].values() for row in rows]
BOOT = "5d1f5f0e-0000-4000-8000-000000000001"


@pytest.mark.parametrize("line", HEALTHY)
def test_a_line_of_a_healthy_host_is_not_told(line: str) -> None:
    found = kernel_log.classified(line, BOOT, 0.0)
    assert found is None


@pytest.mark.parametrize("row", SICK, ids=lambda row: str(row[0])[:40])
def test_a_fault_is_told_with_its_device(row: list[Any]) -> None:
    text, kind, device, number = row
    found = kernel_log.classified(text, BOOT, 0.0)
    assert found is not None
    line = KernelLine(**found)
    assert (line.kind, line.device, line.number) == (kind, device, number)


def test_every_documented_xid_is_read(tmp_path: Path) -> None:
    table = xids.load(Path(__file__).parents[4])
    assert [xid.code for xid in table.xids] == list(range(1, 173))
    for xid in table.xids:
        found = kernel_log.classified(f"NVRM: Xid (PCI:0000:01:00): {xid.code}, x", BOOT, 0.0)
        assert found is not None and found["number"] == xid.code


def test_records_of_dev_kmsg_have_their_time() -> None:
    records = [
        "6,3964,206764307,-;nvidia-nvswitch2: open (major=510)\n SUBSYSTEM=pci\n DEVICE=+pci:1",
        "4,3965,1500000,-;NVRM: Xid (PCI:0000:05:00): 79, GPU has fallen off the bus.\n",
        "no record",
    ]
    (row,) = kernel_log.parse_kmsg(records, BOOT, 1000.0)
    assert (row["unix_s"], row["boot"], row["number"]) == (1001.5, BOOT, 79)


def test_a_disk_that_fails_all_day_hides_no_gpu() -> None:
    words = [
        "NVRM: GPU 0000:29:00.0: GPU has fallen off the bus.",
        *["I/O error, dev sda, x"] * 999,
    ]
    rows = kernel_log.parse_kmsg([f"3,1,{n},-;{text}" for n, text in enumerate(words)], BOOT, 0.0)
    assert [row["kind"] for row in rows] == ["gpu-lost", *["disk"] * kernel_log.MAX_LINES]
    assert rows[-1]["unix_s"] == 999 / 1e6


def test_the_journal_has_earlier_boots_and_what_the_ring_has_lost(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bridge for each container fills the ring: the Xid of the first hour is in the journal."""
    own, old = BOOT.replace("-", ""), "00000000000040008000000000000009"
    shown, lost = SICK[0][0], SICK[3][0]
    said = [(old, shown), (own, HEALTHY[0]), (own, lost), (own, shown)]
    lines = [{"_BOOT_ID": boot, "MESSAGE": text} for boot, text in said]
    out = "\n".join(json.dumps({**line, "__REALTIME_TIMESTAMP": "2000000"}) for line in lines[::-1])
    monkeypatch.setattr(kernel_log, "run", lambda *_: Done(0, out + "\nbroken", ""))
    monkeypatch.setattr(kernel_log.proc, "boot_id", lambda: BOOT)
    ring = kernel_log.parse_kmsg([f"4,3965,1500000,-;{shown}\n"], BOOT, 1000.0)
    monkeypatch.setattr(kernel_log, "this_boot", lambda: ring)
    monkeypatch.setattr(kernel_log, "PSTORES", ())
    found = kernel_log.with_kept({"kernel": kernel_log.read(), "journal": kernel_log.kept()})
    rows = [(row["boot"], row["text"], row["unix_s"]) for row in found["kernel"]]
    earlier = "00000000-0000-4000-8000-000000000009"
    assert rows == [(earlier, shown, 2.0), (BOOT, lost, 2.0), (BOOT, shown, 1001.5)]
    assert found["journal"] is None
    # it ends so where no line fits
    monkeypatch.setattr(kernel_log, "run", lambda *_: Done(1, "", ""))
    assert kernel_log.kept() == []


@pytest.mark.parametrize(("script", "why"), [
    ("exec sleep 60", "journalctl did not answer in 3 s"),
    ("echo Compiled without pattern matching support >&2; exit 1", "Compiled without pattern"),
])  # fmt: skip
def test_a_journal_that_was_not_read_is_unknown_and_not_without_a_line(
    host: Host, script: str, why: str
) -> None:
    host.double("journalctl", f"#!/bin/sh\n# rigbook stand-in\n{script}\n")
    answer = host.call("health")
    seen = Health.model_validate({key: answer.get(key) for key in ("journal", "kernel")})
    assert isinstance(seen.journal, Unknown), seen
    assert seen.journal.unreadable.startswith("not looked for the kernel's lines of earlier boots")
    assert why in seen.journal.unreadable
    assert not isinstance(seen.kernel, Unknown), "this boot's ring was read"


def test_the_journal_is_asked_for_what_is_told_and_nothing_else() -> None:
    """A line that is asked for and not told takes the place of one of an earlier boot."""
    asked = re.compile(kernel_log._ASKED)
    assert all(asked.search(text) for text, *_ in SICK)
    assert not [line for line in HEALTHY if asked.search(line)]
    pattern = kernel_log._ASKED
    done = subprocess.run(["journalctl", "-q", "-g", pattern, "-n", "1"], capture_output=True)
    assert b"pattern" not in done.stderr, done.stderr


def test_a_panic_that_pstore_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "7530").mkdir()
    words = "<6>[  1.0] usb\n<0>[228678.72] Kernel panic - not syncing: hung_task: blocked tasks\n"
    (tmp_path / "7530" / "dmesg.txt").write_text(words)
    (tmp_path / "other.txt").write_text(words)
    monkeypatch.setattr(kernel_log, "PSTORES", (str(tmp_path), "/absent"))
    (row,) = kernel_log._last_words()
    assert row["kind"] == "panic" and row["device"].endswith("7530/dmesg.txt")


def test_a_container_has_no_kernel_log_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in (tmp_path / "absent", tmp_path / "file"):
        monkeypatch.setattr(kernel_log, "KMSG", str(path))
        assert kernel_log.this_boot() == []
        (tmp_path / "file").write_text("x")
