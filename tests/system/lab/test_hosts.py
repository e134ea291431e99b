"""The rehearsal hosts are what design.md says: booted, real Docker, links, a login without root."""

from __future__ import annotations

import pytest

from tests.system.rehearsal import Lab


@pytest.mark.parametrize("name", ["test1", "test2"])
def test_a_host_is_booted_and_has_a_real_docker(lab: Lab, name: str) -> None:
    state = lab.ssh(name, "systemctl is-system-running", check=False)
    assert state == "running", lab.ssh(name, "systemctl --failed --no-legend", check=False)
    assert lab.ssh(name, "id -un") == "rig"
    assert lab.ssh(name, "sudo -n id -un") == "root"
    assert (
        lab.ssh(name, "sudo docker info --format '{{.Driver}} {{.CgroupVersion}}'") == "overlay2 2"
    )


def test_root_has_no_password_and_ssh_takes_keys_only(lab: Lab) -> None:
    field = lab.ssh("test1", "sudo getent shadow root").split(":")[1]
    assert field.startswith(("!", "*"))
    effective = lab.ssh("test1", "sudo sshd -T")
    assert "passwordauthentication no" in effective


@pytest.mark.parametrize(("name", "peer"), [("test1", "10.98.0.2"), ("test2", "10.98.0.1")])
def test_the_fabric_carries_full_frames_unfragmented(lab: Lab, name: str, peer: str) -> None:
    assert "mtu 9000" in lab.ssh(name, "ip link show bond0")
    lab.ssh(name, f"ping -n -c 1 -W 2 -M do -s 8972 -I bond0 {peer}")
    assert "dev bond0" in lab.ssh(name, f"ip route get {peer}")


def test_the_hosts_are_two_machines(lab: Lab) -> None:
    for fact in ("cat /etc/machine-id", "cat /proc/sys/kernel/random/boot_id", "hostname"):
        assert lab.ssh("test1", fact) != lab.ssh("test2", fact), fact


def test_the_stand_in_says_that_it_is_one(lab: Lab) -> None:
    assert "stand-in" in lab.ssh("test1", "nvidia-smi --rigbook-stand-in")
    line = lab.ssh(
        "test1", "nvidia-smi --query-gpu=name,memory.total --format=csv,noheader,nounits"
    )
    assert line == "NVIDIA GB10, [N/A]"


def test_a_reboot_comes_back_with_its_fabric_and_another_boot_id(lab: Lab) -> None:
    before = lab.ssh("test2", "cat /proc/sys/kernel/random/boot_id")
    done = lab.verb("reboot", "test2")
    assert done.rc == 0, done.text
    assert lab.ssh("test2", "cat /proc/sys/kernel/random/boot_id") != before
    for name, peer in (("test1", "10.98.0.2"), ("test2", "10.98.0.1")):
        lab.ssh(
            name, f"for i in 1 2 3 4 5 6 7 8 9; do ping -c 1 -W 1 -I bond0 {peer} && exit; done"
        )


def test_a_second_up_has_nothing_to_do(lab: Lab) -> None:
    boots = [lab.ssh(name, "cat /proc/sys/kernel/random/boot_id") for name in lab.hosts]
    done = lab.verb("up", "--no-engine")
    assert done.rc == 0, done.text
    assert boots == [lab.ssh(name, "cat /proc/sys/kernel/random/boot_id") for name in lab.hosts]
