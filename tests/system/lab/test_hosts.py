"""The rehearsal hosts are what design.md says: booted, real Docker, links, a login without root."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from facts import pack
from lab import core
from schema.render_host import GRUB_PATH, pin_documents
from tests.system.lab.support.german import NEW, NEWEST, OLD, TITLE, German, german
from tests.system.rehearsal import Lab

# A pin on a German host: real grub-mkconfig, translated titles. Undo boots what it recorded, or
# says INCONSISTENT.


@pytest.fixture
def host(tmp_path: Path) -> Iterator[German]:
    """Two kernels, and a GRUB_DEFAULT that holds the older one's German title."""
    with german(core.load_settings(), tmp_path) as made:
        made.kernel(OLD)
        made.kernel(NEW)
        made.default(TITLE.format(OLD))
        assert f"menuentry 'Debian GNU/Linux, mit Linux {OLD}'" in made.update_grub()
        assert made.boots() == (OLD, OLD)
        yield made


def pin(host: German, release: str, dry: bool = False) -> None:
    """deploys/kernel.py's steps, without the holds."""
    change = {"id": "pin-1-kernel", "deploy": "kernel", "operator": "a@b"}
    steps = [
        {"op": "file", "path": GRUB_PATH, "mode": "0644",
         "content": pin_documents(release, [])[0].content},
        {"op": "grub", "saved": release, "regenerate": True},
    ]  # fmt: skip
    answer = host.node("apply", {"change": change, "steps": steps, "dry": dry})
    assert answer["ok"] and answer["changed"], answer
    assert dry or host.boots() == (release, release)


def test_a_pin_leaves_a_german_menu_and_undo_restores_all(host: German) -> None:
    before = host.menu()
    pin(host, NEW)
    menu = host.menu()
    assert f"mit Linux {OLD}" in menu and "with Linux" not in menu
    # what apt would write now is the same, to the byte
    assert host.update_grub() == menu
    assert host.node("undo")["status"] == "ROLLED_BACK"
    assert host.menu() == before and host.boots() == (OLD, OLD)


def test_undo_after_apt_wrote_the_menu_boots_what_it_recorded(host: German) -> None:
    """The titles in GRUB_DEFAULT are German: an English menu would boot the newest kernel."""
    pin(host, NEW)
    host.kernel(NEWEST)
    host.update_grub()
    answer = host.node("undo")
    assert (answer.get("status"), host.boots()) == ("ROLLED_BACK", (OLD, OLD)), answer
    assert "with Linux" not in host.menu()


def test_undo_that_would_boot_another_kernel_says_so_until_somebody_decides(host: German) -> None:
    host.default("0")
    host.update_grub()
    assert host.boots() == (NEW, NEW)
    pin(host, OLD)
    host.kernel(NEWEST)
    host.update_grub()
    answer = host.node("undo")
    assert host.boots() == (NEWEST, NEWEST)
    assert answer["code"] == "undo_incomplete", answer
    assert f"the default boot would be {NEWEST}, not {NEW}" in answer["error"]
    (change,) = host.node("journal")["changes"]
    assert change["status"] == "INCONSISTENT"
    # the newer kernel goes: what was recorded boots again, and the next undo sees it
    for name in ("vmlinuz", "initrd.img"):
        (host.root / f"boot/{name}-{NEWEST}").unlink()
    host.update_grub()
    assert host.node("undo")["status"] == "ROLLED_BACK" and host.boots() == (NEW, NEW)


def test_an_edit_by_hand_is_not_overwritten_unless_it_is_named(host: German) -> None:
    pin(host, NEW)
    path = host.root / "boot/grub/grub.cfg"
    path.chmod(0o644)
    edited = path.read_text().replace(f"vmlinuz-{OLD} ", f"vmlinuz-{OLD} nomodeset ")
    path.write_text(edited)
    answer = host.node("undo")
    assert answer["code"] == "later_edit" and "/boot/grub/grub.cfg" in answer["error"], answer
    assert "--overwrite /boot/grub/grub.cfg" in answer["remedy"] and path.read_text() == edited
    assert host.node("undo", {"overwrite": ["/boot/grub/grub.cfg"]})["status"] == "ROLLED_BACK"
    assert host.boots() == (OLD, OLD)


def test_a_session_in_another_language_made_the_menu_and_that_is_no_edit(host: German) -> None:
    """`sudo update-grub` in an English session: sshd takes LANG from the operator's machine."""
    pin(host, NEW)
    assert host.run("grub-mkconfig", "-o", "/boot/grub/grub.cfg").returncode == 0
    assert f"with Linux {OLD}" in host.menu()
    assert host.node("undo")["status"] == "ROLLED_BACK" and host.boots() == (OLD, OLD)


def test_a_dry_run_writes_nothing_in_grubs_folder(host: German) -> None:
    (host.root / GRUB_PATH[1:]).write_text(pin_documents(NEW, [])[0].content)
    folder = host.root / "boot/grub"
    before = (folder.stat().st_mtime_ns, sorted(p.name for p in folder.iterdir()))
    pin(host, NEW, dry=True)
    assert (folder.stat().st_mtime_ns, sorted(p.name for p in folder.iterdir())) == before


# The health of booted hosts: nothing is found on those that are well (seconds: `make bench`).

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
