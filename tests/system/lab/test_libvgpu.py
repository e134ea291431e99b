"""libvgpu on a real host: swapped under running processes, overwritten, guarded, brought back."""

from __future__ import annotations

import hashlib
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.rehearsal import Done, Lab
from tests.unit.node.support.libs import HOLDER, cc, folder, library

OLARES = "inventory/lab_olares.py"
FOLDER = "/usr/local/vgpu"
TARGET = f"{FOLDER}/libvgpu.so"


def sha(path: Path) -> str:
    """A file's sha256."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Vgpu:
    """The library folder of test1, with 20 processes that have the plugin's library mapped."""

    def __init__(self, lab: Lab, built: Path) -> None:
        self.lab, self.original, self.ours = lab, built / "original.so", built / "ours.so"
        self.put(self.original)
        self.send(built / "holder", f"{FOLDER}/holder")
        lab.ssh(
            "test1", f"for i in $(seq 20); do LD_PRELOAD={TARGET} nohup {FOLDER}/holder "
            ">/dev/null 2>&1 & done",
        )  # fmt: skip

    def send(self, path: Path, to: str) -> None:
        """Put a file on the host in place, as the plugin's `cp` does."""
        key = self.lab.settings.ssh_key
        subprocess.run(
            ["ssh", "-q", "-i", str(key), "-o",
             f"UserKnownHostsFile={self.lab.settings.known_hosts}",
             f"rig@{self.lab.hosts['test1'].address}",
             f"sudo mkdir -p {FOLDER} && sudo tee {to} >/dev/null && sudo chmod 755 {to}"],
            input=path.read_bytes(), check=True,
        )  # fmt: skip

    def put(self, path: Path) -> None:
        """The plugin's start: its own library over whatever lies there."""
        self.send(path, TARGET)

    def swap(self, *data: str) -> Done:
        """Runs the deploy with our library."""
        pairs = (f"library={self.ours}", f"sha256={sha(self.ours)}", *data)
        return self.run("libvgpu", *pairs)

    def run(self, deploy: str, *pairs: str) -> Done:
        """Runs a deploy of the Kubernetes rig."""
        words = [word for pair in pairs for word in ("--data", pair)]
        return self.lab.pyinfra(deploy, *words, inventory=OLARES)

    def now(self) -> str:
        """The sha256 of what lies on the host."""
        return self.lab.ssh("test1", f"sha256sum {TARGET}").split()[0]

    def alive(self) -> int:
        """How many of the processes live."""
        return int(self.lab.ssh("test1", "pgrep -c holder || true"))


@pytest.fixture(scope="module")
def vgpu(lab: Lab) -> Iterator[Vgpu]:
    """The folder; afterwards nothing of it is left."""
    with folder() as built:
        library(built / "original.so", 850_000, 1)
        library(built / "ours.so", 670_000, 2)
        cc(HOLDER, built / "holder")
        made = Vgpu(lab, built)
        yield made
        made.run("libvgpu", "remove=true")
        lab.ssh("test1", f"pkill holder; sudo rm -rf {FOLDER}")


def change_of(text: str) -> str:
    """The id of the change that a run ended."""
    return str(re.findall(r"change (\S+) COMMITTED", text)[-1])


def test_1_swap_under_running_processes_and_a_second_run(vgpu: Vgpu) -> None:
    """Fault 29: 20 of 20 live on; the second run changes nothing."""
    first = vgpu.swap("guard=true", "reapply=true")
    assert first.rc == 0, first.text
    assert "20 processes keep the former one" in first.text
    assert (vgpu.now(), vgpu.alive()) == (sha(vgpu.ours), 20)
    again = vgpu.swap("guard=true", "reapply=true")
    assert again.rc == 0 and again.counts("Swap the library") == ("1", "-", "-", "1")


def test_2_guard_puts_ours_back_when_the_plugin_overwrites_it(vgpu: Vgpu) -> None:
    """Fault 32, incident A6."""
    vgpu.put(vgpu.original)
    deadline = time.monotonic() + 30
    while vgpu.now() != sha(vgpu.ours) and time.monotonic() < deadline:
        time.sleep(1)
    assert vgpu.now() == sha(vgpu.ours)
    log = vgpu.lab.ssh("test1", "sudo journalctl -q -u rigbook-library.service --no-pager")
    assert "the plugin had put its own library back" in log


def test_2_a_plugin_that_loops_is_told_and_not_fought_for_ever(vgpu: Vgpu) -> None:
    """Fault 32: five times an hour, the one above among them; then it is told and left."""
    vgpu.send(vgpu.original, "/tmp/plugins-own.so")
    vgpu.lab.ssh(
        "test1", f"for i in $(seq 10); do sudo cp /tmp/plugins-own.so {TARGET}; sleep 4; done; "
        "sudo rm /tmp/plugins-own.so",
    )  # fmt: skip
    log = vgpu.lab.ssh("test1", "sudo journalctl -q -u rigbook-library.service --no-pager")
    assert log.count("the plugin had put its own library back") == 5, log
    assert log.count("the plugin put its own library back") == 1, log
    assert vgpu.now() == sha(vgpu.original) and vgpu.alive() == 20
    doctor = vgpu.run("doctor")
    assert doctor.rc == 1 and "libvgpu-drift" in doctor.text


def test_3_without_the_guard_doctor_names_it(vgpu: Vgpu) -> None:
    assert vgpu.swap().rc == 0
    vgpu.put(vgpu.original)
    doctor = vgpu.run("doctor")
    assert doctor.rc == 1 and "libvgpu-drift" in doctor.text
    assert "the plugin put its own library back" in doctor.text


def test_4_rollback_of_a_swap_is_byte_identical(vgpu: Vgpu) -> None:
    """Fault 33: and a second swap did not touch the kept original."""
    change = change_of(vgpu.swap("guard=true").text)
    assert vgpu.now() == sha(vgpu.ours)
    done = vgpu.run("rollback", f"change={change}")
    assert done.rc == 0 and vgpu.now() == sha(vgpu.original), done.text
    vgpu.swap("guard=true")
    done = vgpu.run("libvgpu", "remove=true")
    assert done.rc == 0 and vgpu.now() == sha(vgpu.original), done.text
    left = vgpu.lab.ssh("test1", "ls /etc/systemd/system | grep -c rigbook-library || true")
    assert left == "0"
    assert vgpu.run("libvgpu", "remove=true").counts("Swap the library") == ("1", "-", "-", "1")


@pytest.mark.parametrize(
    ("name", "part"),
    [("cut", "libvgpu-candidate"), ("arm", "libvgpu-candidate"), ("small", "libvgpu-symbols"),
     ("text", "libvgpu-candidate")],
)  # fmt: skip
def test_5_libraries_that_may_not_go_in(vgpu: Vgpu, tmp_path: Path, name: str, part: str) -> None:
    """Fault 30, on the host that would load it."""
    path, raw = tmp_path / "x.so", vgpu.ours.read_bytes()
    if name == "small":
        cc("int cuInit(int x) { return x; }", path, "-shared", "-fPIC")
    else:
        arm = raw[:18] + (183).to_bytes(2, "little") + raw[20:]
        path.write_bytes({"cut": raw[:-5000], "arm": arm, "text": b"#!/bin/sh\n"}[name])
    done = vgpu.run("libvgpu", f"library={path}", f"sha256={sha(path)}")
    assert done.rc == 1 and part in done.text and "Traceback" not in done.text
    assert vgpu.now() == sha(vgpu.original)
