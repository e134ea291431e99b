"""What the watch tells of the machine: new lines of the kernel, once, and a kept reading."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from node.core import proc
from node.health import counters, disks, kernel_log
from node.watch import machine
from node.watch.config import Watch

WATCH = Watch("lab", "lab1", None, 3, 3600.0, None, None)  # type: ignore[arg-type]
XID = {
    "kind": "xid",
    "number": 79,
    "device": "0000:05:00",
    "text": "NVRM: Xid 79",
}


class Endpoint:
    """Stands for what is watched; only its model is asked for."""

    model = "tiny"


def test_new_lines_are_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    watch = WATCH._replace(endpoint=Endpoint())  # type: ignore[arg-type]
    rows: list[dict[str, Any]] = [{**XID, "unix_s": time.time() - 5}]
    monkeypatch.setenv("RIGBOOK_STATE", str(tmp_path))
    monkeypatch.setattr(counters, "values", lambda: {"mlx5_0/1 link_downed": 0})
    monkeypatch.setattr(disks, "fixed", lambda: ["sda"])
    monkeypatch.setattr(kernel_log, "this_boot", lambda: list(rows))
    # what was before the first look of a boot is the doctor's to tell
    assert machine.notices(watch) == []
    assert json.loads(Path(counters.path()).read_text())["boot"] == proc.boot_id()
    rows += [{**XID, "unix_s": time.time() + 1}, {**XID, "number": 43, "unix_s": time.time() + 1}]
    (notice,) = machine.notices(watch)
    assert (notice["status"], notice["node"], notice["model"]) == ("hardware", "lab1", "tiny")
    assert notice["text"] == f"the kernel of lab1 reports: {XID['text']}"
    rows.clear()
    assert machine.notices(watch) == []


def test_a_log_that_cannot_be_read_does_not_end_the_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied() -> list[Any]:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setenv("RIGBOOK_STATE", str(tmp_path))
    monkeypatch.setattr(counters, "values", dict)
    counters.keep()
    monkeypatch.setattr(kernel_log, "this_boot", denied)
    assert machine.notices(WATCH) == []
