"""A limit is one: for a program's grandchildren, and for a wait that dpkg's own words ask for."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from node.core.errors import NodeError
from node.core.run import run
from node.core.run_as_owner import Owner
from node.driver import packages_step


def test_a_grandchild_in_a_session_of_its_own_does_not_outlast_the_limit(tmp_path: Path) -> None:
    """It held the pipes, and with them pip, patch tools and the host's lock."""
    started = time.monotonic()
    with pytest.raises(NodeError, match="did not end in 1 s"):
        Owner(str(tmp_path)).run(["/bin/sh", "-c", "setsid sleep 12 & sleep 12"], 1.0, {})
    assert time.monotonic() - started < 6


def test_docker_is_the_one_that_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root's own docker command may be set to another host, or to a rootless docker."""
    docker = tmp_path / "docker"
    docker.write_text("#!/bin/sh\necho $DOCKER_HOST\n")
    docker.chmod(0o755)
    monkeypatch.setenv("DOCKER_HOST", "ssh://elsewhere")
    assert run([str(docker), "info"], 5.0).out == "unix:///var/run/docker.sock\n"


def test_an_undo_waits_for_a_lock_in_dpkgs_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real dpkg, an empty folder for its state, and a lock that is free after a moment."""
    for name in ("status", "available"):
        (tmp_path / name).touch()
    for name in ("updates", "info", "triggers"):
        (tmp_path / name).mkdir()
    hold = (
        "import fcntl,sys,time; f=open(sys.argv[1],'w'); fcntl.lockf(f, fcntl.LOCK_EX); "
        "print('held', flush=True); time.sleep(1.5)"
    )
    argv = [sys.executable, "-c", hold, str(tmp_path / "lock-frontend")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        monkeypatch.setattr(packages_step, "POLL_S", 0.2)
        done = packages_step._dpkg(f"--admindir={tmp_path}", "--configure", "--pending")
    assert done.rc == 0, done.err
