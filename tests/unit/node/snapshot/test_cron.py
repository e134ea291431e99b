"""Crontabs and scripts: which lines start an engine, and that no secret is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.core import proc
from node.core.errors import CannotRead
from node.snapshot import cron, units
from node.systemd import scripts


@pytest.fixture
def crontabs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in place of /etc and /var/spool/cron."""
    for name in ("cron.d", "spool"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(cron, "SYSTEM", str(tmp_path / "crontab"))
    monkeypatch.setattr(cron, "FOLDER", str(tmp_path / "cron.d"))
    monkeypatch.setattr(cron, "USERS", str(tmp_path / "spool"))
    return tmp_path


def test_a_host_without_crontabs_has_no_lines(crontabs: Path) -> None:
    assert cron.read() == []


def test_lines_that_start_an_engine_are_given(crontabs: Path) -> None:
    start = crontabs / "start.sh"
    start.write_text("#!/bin/sh\n# vllm\ndocker compose -f /srv/llm/c.yaml \\\n  up -d\n")
    (crontabs / "crontab").write_text(
        "SHELL=/bin/sh\n# @reboot root docker start x\n"
        "17 * * * * root cd / && run-parts --report /etc/cron.hourly\n"
        f"@reboot root bash {start}\n"
    )
    (crontabs / "cron.d/llm").write_text("*/5 * * * * milo docker start vllm_ds4 || true\n")
    # cron does not read it
    (crontabs / "cron.d/llm.disabled").write_text("@reboot root docker start vllm_ds4\n")
    (crontabs / "spool/milo").write_text("\n@reboot  nohup vllm serve /m --api-key sk-1 &\n")
    found = [(Path(r["file"]).name, r["line"], r["user"], r["at_boot"]) for r in cron.read()]
    assert found == [
        ("crontab", 4, "root", True), ("llm", 1, "milo", False), ("milo", 2, "milo", True),
    ]  # fmt: skip
    compose, start_container, vllm = (set(row["words"]) for row in cron.read())
    assert "/srv/llm/c.yaml" in compose and "vllm_ds4" in start_container and "vllm" in vllm


@pytest.mark.parametrize("line", [
    "@reboot root vllm serve /m --api-key sk-made-up",
    "@reboot root HF_TOKEN=hf_made-up docker start a",
    "@reboot root docker run -e HTTPS_PROXY=http://me:made-up@proxy vllm/vllm-openai",
])  # fmt: skip
def test_no_secret_is_told(crontabs: Path, line: str) -> None:
    (crontabs / "crontab").write_text(line + "\n")
    (row,) = cron.read()
    assert "made-up" not in str(row) and "***" in row["text"]


def test_a_crontab_that_cannot_be_read_is_not_an_empty_one(
    crontabs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuses)
    with pytest.raises(CannotRead, match=r"crontab: .*[Pp]ermission"):
        cron.read()


def test_a_unit_is_found_by_its_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run.sh").write_text("#!/bin/sh\nexec /opt/genesis/venv/bin/vllm serve /m\n")
    (tmp_path / "program").write_bytes(b"\x7fELF\0vllm")
    for name, command in {
        "genesis": f"/bin/bash {tmp_path}/run.sh", "web": f"{tmp_path}/program", "no": "/none.sh",
    }.items():  # fmt: skip
        (tmp_path / f"{name}.service").write_text(f"[Service]\nExecStart={command}\n")
    monkeypatch.setattr(units, "FOLDERS", (str(tmp_path),))
    assert units.others([]) == ["genesis.service"]
    assert scripts.words(scripts.starting(f"bash {tmp_path}/run.sh")) == [
        "exec", "/opt/genesis/venv/bin/vllm", "serve", "/m",
    ]  # fmt: skip


def test_a_unit_that_an_engine_runs_under_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = {
        1: "/system.slice/genesis.service", 2: "/system.slice/mine.service",
        # a crontab's and somebody's own manager's: no unit of the system's supervises these
        3: "/system.slice/cron.service",
        4: "/user.slice/user-1000.slice/user@1000.service/app.slice/llm.service",
    }  # fmt: skip
    monkeypatch.setattr(units, "FOLDERS", (str(tmp_path),))
    monkeypatch.setattr(proc, "pids", lambda: [*groups, 5])
    monkeypatch.setattr(proc, "argv", lambda pid: ("vllm", "serve") if pid < 5 else ("web",))
    monkeypatch.setattr(proc, "cgroup", lambda pid: groups.get(pid, "/system.slice/web.service"))
    assert units.others(["mine.service"]) == ["genesis.service"]
