"""One VM a test, from an overlay over the prepared disk; pyinfra and node against it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from facts import pack
from lab import core, vm

ROOT = Path(__file__).resolve().parents[3]
ENGINE = Path(__file__).parent / "engine.py"
UNIT = """[Unit]
Description=stand-in engine of the test VM
After=network.target
[Service]
ExecStart=@/usr/bin/python3 VLLM::EngineCore /opt/engine.py
Restart=always
[Install]
WantedBy=multi-user.target
"""
PIN = ("deploys/kernel.py", "-y", "--data", "kernel=current")
# What a candidate has to be blessed, from its kernel's start: an emulated boot takes half of it.
BUDGET_S = 180
NODE = (
    "PYTHONPATH=/opt/node python3 -c "
    "'import sys; from node.__main__ import main; sys.exit(main(sys.argv[1:]))'"
)
# Emulated, and beside whatever else this machine does.
DEPLOY_S = 2400


class Rig:
    """A running VM with what the tests do to it. `notes` is the transcript."""

    def __init__(self, machine: vm.Machine) -> None:
        self.machine = machine
        self.kernels = vm.kernels()
        self.began = time.monotonic()
        self.notes = machine.folder / "transcript.txt"

    def note(self, text: str) -> None:
        """A line of the transcript, with the seconds since the test's start."""
        line = f"[{time.monotonic() - self.began:6.0f} s] {text}"
        print(line, flush=True)
        with self.notes.open("a") as stream:
            stream.write(line + "\n")

    def environ(self) -> dict[str, str]:
        """What an operator of this VM has in the environment."""
        return {
            "PYINFRA_PROGRESS": "off",
            "RIGBOOK_VM_PORT": str(self.machine.port),
            "RIGBOOK_VM_KEY": str(self.machine.key),
            "RIGBOOK_VM_ENGINE": self.machine.address,
            "XDG_STATE_HOME": str(self.machine.folder / "operator"),
        }

    def start_deploy(self, *words: str) -> subprocess.Popen[str]:
        """pyinfra against the VM, under way."""
        self.note(f"$ pyinfra {' '.join(words)}")
        return subprocess.Popen(
            [sys.executable, "-m", "pyinfra", "tests/system/vm/inventory.py", *words],
            cwd=ROOT,
            env={**os.environ, **self.environ()},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def deploy(self, *words: str) -> tuple[int, str]:
        """(exit status, what the operator sees) of pyinfra against the VM."""
        process = self.start_deploy(*words)
        output, _ = process.communicate(timeout=DEPLOY_S)
        for line in output.splitlines():
            if line.strip() and (not line.startswith("-->") or "error" in line):
                self.note(f"    {line.strip()}")
        assert "Traceback" not in output, output
        return process.returncode, output

    def node(self, verb: str, request: object = None) -> dict[str, Any]:
        """node's answer to a verb, by `send_node`'s program."""
        line = f"{NODE} {verb} '{json.dumps(request or {})}'"
        done = self.machine.sudo(line, 600)
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return answer

    def boots(self) -> tuple[str | None, str | None]:
        """(the kernel of the next boot, the default kernel), as node reads GRUB's files."""
        grub = self.node("kernel", {"module": vm.MODULE})["grub"]
        return grub["next"]["kernel"], grub["default"]["kernel"]

    def send(self, raw: bytes, path: str, mode: str = "0644") -> None:
        """Puts a file into the VM."""
        command = f"sudo -n install -m {mode} /dev/stdin {path}"
        argv = [*self.machine.ssh_argv(), command]
        subprocess.run(argv, input=raw, check=True, timeout=300)

    def send_node(self) -> None:
        """Puts node beside, unpacked: compiled once, it starts in a tenth of the time."""
        self.send(pack.zipapp_bytes(), "/root/rignode.pyz")
        self.machine.must("rm -rf /opt/node; python3 -m zipfile -e /root/rignode.pyz /opt/node")

    def second_kernel(self) -> None:
        """apt brings the second kernel and makes it the default, as on the seed's tower."""
        self.note("$ apt-get upgrade --with-new-pkgs   # a newer kernel, no module for it")
        self.machine.must(vm.UPGRADE, DEPLOY_S)

    def tried_without_operator(self, *words: str) -> str:
        """A candidate's deploy whose operator dies as the node goes down; what its unit said.

        Gives the candidate's journal of that unit, once another kernel runs again.
        """
        process = self.start_deploy(*words, "--data", f"budget={BUDGET_S}")
        before = self.machine.boot_id()
        going = False
        while not going or self.machine.boot_id() == before:
            assert process.poll() is None, process.communicate()[0]
            marked = self.machine.sudo("grep -q '^next_entry=gnulinux' /boot/grub/grubenv", 30)
            going = going or marked.returncode == 0
            time.sleep(1)
        process.kill()
        process.communicate()
        self.note("the node goes down; the operator's machine dies")
        first = self.machine.boots_seen(until=self.kernels.first, other_than=before)
        for kernel in first:
            self.note(f"up: {kernel}")
        said = self.machine.must(
            "journalctl -b -1 -k --no-pager -o cat | grep -m1 -o 'Linux version [^ ]*'; "
            "journalctl -b -1 -u rigbook-candidate.service --no-pager"
        )
        for line in said.splitlines():
            self.note(f"    {line}")
        assert f"Linux version {self.kernels.second}" in said
        return said

    def with_engine(self) -> None:
        """The stand-in engine, enabled and running."""
        self.send(ENGINE.read_bytes(), "/opt/engine.py")
        self.send(UNIT.encode(), "/etc/systemd/system/rigbook-engine.service")
        self.machine.must(
            "systemctl daemon-reload; systemctl enable --now rigbook-engine.service 2>&1"
        )


@pytest.fixture(scope="session")
def disk() -> tuple[Path, Path]:
    """The prepared disk and the login key; the first time this takes minutes and a network."""
    return vm.disk(core.load_settings())


@pytest.fixture(scope="session")
def staged() -> Path:
    """The disk on which apt has made a second kernel, without a driver, the default."""
    return vm.staged(core.load_settings())


@pytest.fixture
def boot(disk: tuple[Path, Path], tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    """Starts a VM of its own from the prepared disk or another `base`.

    `more` are further disks, `cards` models of further network cards; `watchdog`: with one.
    """
    running: list[vm.Machine] = []

    def start(
        *more: Path, base: Path | None = None, cards: Sequence[str] = (), watchdog: bool = False
    ) -> Rig:
        prepared, key = disk
        over = tmp_path / "disk.qcow2"
        vm.overlay(base or prepared, over)
        accel = vm.accelerator(prepared, key)
        machine = vm.Machine(tmp_path / "vm", [over, *more], key, cards, accel, watchdog)
        running.append(machine)
        machine.start()
        rig = Rig(machine)
        took = machine.wait()
        rig.note(f"booted by its own GRUB after {took:.0f} s ({accel}): {machine.kernel()}")
        rig.send_node()
        return rig

    yield start
    for machine in running:
        machine.power_cut()
