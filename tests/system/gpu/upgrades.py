"""Cases of the installation: backup, an upgrade that cannot start, the way back from a backup."""

from __future__ import annotations

from lab.gpu.engine import BROKEN_VERSION
from lab.gpu.wheels import VERSION
from tests.system.gpu.rig_host import VENV, Rig, tail


def backup(rig: Rig) -> str:
    """A backup of the venv, read back."""
    done = rig.deploy("backup")
    assert done.rc == 0, tail(done)
    read = rig.deploy("backup", "verify=all")
    assert read.rc == 0, tail(read)
    size = rig.on(f"du -smL {VENV} | cut -f1")
    return f"{size} MiB in {done.seconds:.1f} s, read back in {read.seconds:.1f} s"


def upgrade(rig: Rig) -> str:
    """Another release, whose core cannot start: two starts, and the former one serves again."""
    rig.serving()
    done = rig.deploy("upgrade", f"version={BROKEN_VERSION}")
    assert done.rc != 0 and "serves again" in done.text, tail(done)
    assert "NCCL error: unhandled cuda error" in done.text, "the cause is not shown"
    assert rig.on(f"readlink {VENV}").endswith(f"/{VERSION}") and rig.answers()
    newest = rig.newest()
    assert (newest["deploy"], newest["status"]) == ("upgrade", "ROLLED_BACK")
    assert rig.deploy("serve").is_unchanged
    return f"{VERSION} serves again after {done.seconds:.1f} s, the cause of the failure shown"


def restore(rig: Rig) -> str:
    """A deleted program: named, and the backup brings it back with its tree."""
    rig.on(f"rm {VENV}/bin/vllm && systemctl stop rigbook-engine")
    named = rig.deploy("doctor").text
    assert "venv-entry-missing" in named
    done = rig.deploy("rollback", "backup=last")
    assert done.rc == 0 and rig.answers(), tail(done)
    return f"answers {done.seconds:.1f} s after the command"
