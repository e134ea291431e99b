"""node on a booted host: read-only use writes nothing; a change is undone at the console."""

from __future__ import annotations

import json
import shlex
from typing import Any

from facts.rignode import pack
from tests.system.rehearsal import Lab

TARGET = "/etc/rigbook-trial.conf"


def send(lab: Lab, host: str, command: str, stdin: str = "") -> dict[str, Any]:
    """Runs a whole sh command as root on a host, as pyinfra does, and reads its JSON."""
    said = lab.ssh(host, f"sudo -n sh -c {shlex.quote(command)}", stdin=stdin)
    return dict(json.loads(said.splitlines()[-1]))


def marks(lab: Lab, host: str) -> str:
    """Names, sizes and change times of everything below the folders that node may write to."""
    folders = "/usr/local /var/lib /etc /tmp /root /home"
    # dbus, docker and sshd write there by themselves; their files are left out.
    skip = r"/docker|/systemd|/dhcp|/private|\.lock$|/containerd|pyinfra-sudo|/dbus"
    find = (
        f"sudo find {folders} -xdev -newermt '@0' -printf '%p %s %C@\\n' | grep -vE '{skip}' | sort"
    )
    return lab.ssh(host, find)


def test_a_snapshot_writes_nothing(lab: Lab) -> None:
    before = marks(lab, "test1")
    found = send(lab, "test1", pack.inline_command("snapshot", {}))
    assert found["identity"]["hostname"] == "test1"
    assert marks(lab, "test1") == before


def test_a_change_is_journalled_and_undone_at_the_console(lab: Lab) -> None:
    request: dict[str, object] = {
        "change": {
            "id": "20261120T000000Z-trial",
            "deploy": "trial",
            "operator": "t",
            "waivers": [],
        },
        "steps": [{"op": "file", "path": TARGET, "content": "new\n", "mode": "0640"}],
    }
    lab.ssh("test1", f"echo old | sudo tee {TARGET} && sudo chmod 0600 {TARGET}")
    try:
        done = send(lab, "test1", *pack.install_call("apply", request))
        assert done["ok"] and done["changed"]
        assert lab.ssh("test1", f"sudo cat {TARGET}") == "new"
        again = send(lab, "test1", *pack.install_call("apply", request))
        assert again["ok"] and not again["changed"]
        status = lab.ssh("test1", "sudo rignode status")
        assert "OPEN" in status and "rignode undo" in status
        lab.ssh("test1", "sudo rignode undo")
        assert lab.ssh("test1", f"sudo cat {TARGET} && sudo stat -c %a {TARGET}") == "old\n600"
        assert "OPEN" not in lab.ssh("test1", "sudo rignode status")
    finally:
        lab.ssh("test1", f"sudo rm -f {TARGET}")
