"""What NCCL's lines in a log say of its network: the fact's own command, on recorded lines."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from facts.nccl_log import NcclLog, NcclNetwork

LOGS = yaml.safe_load(Path(__file__).with_name("nccl_logs.yaml").read_text())


def read(folder: Path, log: str) -> NcclNetwork:
    """What the command gives, with doubles that have this log for one start of the unit."""
    (folder / "log").write_text(log)
    for name, line in (
        ("systemctl", "[ $# = 5 ] && [ $5 = rigbook-engine.service ] && echo 9f2c4d"),
        ("journalctl", f'[ "$4" = _SYSTEMD_INVOCATION_ID=9f2c4d ] && cat {folder}/log'),
    ):
        (folder / name).write_text(f"#!/bin/sh\n{line}\n")
        (folder / name).chmod(0o755)
    command = NcclLog().command("rigbook-engine.service")
    path = {"PATH": f"{folder}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["sh", "-c", command], env=path, capture_output=True, text=True, timeout=9
    )
    assert (done.returncode, done.stderr) == (0, "")
    return NcclLog().process(done.stdout.splitlines())


@pytest.mark.parametrize("case", LOGS, ids=[case["source"] for case in LOGS])
def test_what_a_log_says(tmp_path: Path, case: dict[str, Any]) -> None:
    found = read(tmp_path, case["log"])
    assert [dict(found.channels), list(found.used), list(found.devices)] == case["says"]
    assert list(found.networks) == case["networks"]
