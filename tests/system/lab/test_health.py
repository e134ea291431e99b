"""The health of booted hosts: nothing is found on those that are well (seconds: `make bench`)."""

from __future__ import annotations

import json
import shlex

from facts.rignode import pack
from tests.system.rehearsal import Lab

CODES = ("gpu-", "pcie-", "disk-errors", "disk-read", "disk-wear", "nic-errors", "fabric-volatile",
         "kernel-crash", "machine-check", "task-hung", "memory-kill", "driver-library",
         "health-unreadable", "persistence-off", "cdi-stale")  # fmt: skip


def test_healthy_hosts_have_no_finding_about_the_machine(lab: Lab) -> None:
    done = lab.pyinfra("doctor")
    assert not [code for code in CODES if f"warn {code}" in done.text], done.text
    print(f"TABLE | doctor, with the start of pyinfra | {done.seconds:.1f} s |")


def test_the_section_is_read_whole(lab: Lab) -> None:
    command = pack.inline_command("snapshot", {})
    for name in lab.hosts:
        said = lab.ssh(name, f"sudo -n sh -c {shlex.quote(command)}")
        seen = json.loads(said.splitlines()[-1])
        assert "unreadable" not in seen["health"], seen["health"]
        parts = [part for part in seen["health"].values() if isinstance(part, dict)]
        assert not [part for part in parts if "unreadable" in part], seen["health"]
        print(f"TABLE | snapshot of {name} | {seen['took_s']:.2f} s |")


def test_an_address_set_by_hand_is_told(lab: Lab) -> None:
    """The fabric's file is taken away and the address stays: the next boot would lack it."""
    path = "/etc/systemd/network/10-fabric.network"
    lab.ssh("test2", f"sudo mv {path} /root/kept.network")
    try:
        done = lab.pyinfra("doctor")
        assert "warn fabric-volatile" in done.text and "[test2]" in done.text, done.text
    finally:
        lab.ssh("test2", f"sudo mv /root/kept.network {path}")


def test_the_bundle_of_booted_hosts(lab: Lab) -> None:
    done = lab.pyinfra("doctor", "--data", "bundle=/tmp/rigbook-lab-bundle.tar.gz")
    try:
        assert "wrote /tmp/rigbook-lab-bundle.tar.gz" in done.text, done.text
        listed = lab.run("tar", "tzf", "/tmp/rigbook-lab-bundle.tar.gz").text
        assert "snapshots/test1.json" in listed and "logs/test2.log" in listed
    finally:
        lab.run("rm", "-f", "/tmp/rigbook-lab-bundle.tar.gz")
