"""One QEMU machine: started from an overlay, talked to by ssh, killed like a power cut.

Emulation only (TCG): /dev/kvm may exist and still hang a stock kernel in GRUB (lab notes). A boot
takes 60 to 80 s of CPU, so a test does several things in one.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from lab import console
from lab.settings import LabError

BOOT_S = 1800.0
USER = "rig"


def free_port() -> int:
    """A TCP port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def overlay(base: Path, target: Path) -> None:
    """A disk of its own over a base that stays as it is."""
    console.run(["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", base, target])


class Machine:
    """A VM with its folder: disks, console log, ssh port. Use it as a context manager."""

    def __init__(self, folder: Path, disks: Sequence[Path], key: Path, nics: int = 1) -> None:
        self.folder = folder
        self.disks = list(disks)
        self.key = key
        self.nics = nics
        self.port = free_port()
        # loopback address on which the guest's port 8000 is reached; one for each VM
        self.address = f"127.1.{self.port >> 8}.{self.port & 255}"
        self.log = folder / "console.log"
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, *_: object) -> None:
        self.power_cut()

    @property
    def pid(self) -> int:
        """QEMU's process id; LabError when it does not run."""
        if self._process is None or self._process.poll() is not None:
            raise LabError(f"the VM does not run; its console: {self.log}")
        return self._process.pid

    def start(self, kernel: Path | None = None, initrd: Path | None = None, line: str = "") -> None:
        """Power on: by the disk's own GRUB, or (once, to install it) by a kernel from here."""
        words = [
            "nice", "-n", "19", "qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max",
            "-smp", "2", "-m", "1024", "-display", "none", "-serial", f"file:{self.log}",
            "-monitor", "none", "-no-user-config",
            "-netdev", f"user,id=lan,restrict=on,hostfwd=tcp:127.0.0.1:{self.port}-:22"
            f",hostfwd=tcp:{self.address}:8000-:8000",
            "-device", "virtio-net-pci,netdev=lan,mac=52:54:00:88:00:01",
        ]  # fmt: skip
        for number in range(1, self.nics):
            words += ["-netdev", f"hubport,id=n{number},hubid=7",
                      "-device", f"virtio-net-pci,netdev=n{number},mac=52:54:00:88:01:0{number}",
                      ]  # fmt: skip
        for disk in self.disks:
            kind = "qcow2" if disk.suffix == ".qcow2" else "raw"
            words += ["-drive", f"file={disk},format={kind},if=virtio,cache=writeback"]
        if kernel is not None:
            words += ["-kernel", str(kernel), "-initrd", str(initrd), "-append", line]
        self._process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=(self.folder / "qemu.err").open("ab"), start_new_session=True,
        )  # fmt: skip

    def ended(self, seconds: float) -> None:
        """Waits until the guest has powered itself off."""
        if self._process is not None:
            self._process.wait(seconds)

    def power_cut(self) -> None:
        """QEMU is killed: what the guest had not flushed is gone."""
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(30)
        self._process = None

    def ssh_argv(self) -> list[str]:
        """The ssh command line to the VM, without the remote command."""
        return [
            "ssh", "-F/dev/null", f"-i{self.key}", "-oIdentitiesOnly=yes", "-oBatchMode=yes",
            "-oStrictHostKeyChecking=no", "-oUserKnownHostsFile=/dev/null", "-oLogLevel=ERROR",
            "-oConnectTimeout=10", "-oServerAliveInterval=15", f"-p{self.port}",
            f"{USER}@127.0.0.1",
        ]  # fmt: skip

    def sudo(self, script: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        """Runs a shell script as root; the result is the caller's to judge."""
        argv = [*self.ssh_argv(), "sudo", "-n", "sh", "-s"]
        try:
            return subprocess.run(
                argv, input=script, capture_output=True, text=True, timeout=timeout, check=False
            )
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(argv, 124, "", f"no answer in {timeout:.0f} s")

    def must(self, script: str, timeout: float = 300) -> str:
        """Runs a shell script as root and gives its output; LabError when it fails."""
        done = self.sudo(f"set -e\n{script}", timeout)
        if done.returncode != 0:
            said = (done.stdout + done.stderr)[-1500:]
            raise LabError(f"in the VM: {script[:80]!r}: exit {done.returncode}: {said}")
        return done.stdout

    def boot_id(self) -> str | None:
        """The boot that answers ssh now, or None."""
        done = self.sudo("cat /proc/sys/kernel/random/boot_id", 30)
        return done.stdout.strip() if done.returncode == 0 else None

    def wait(self, other_than: str | None = None, seconds: float = BOOT_S) -> float:
        """Waits for ssh (of another boot, where one is named); the seconds it took."""
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            _ = self.pid
            now = self.boot_id()
            if now is not None and now != other_than:
                return time.monotonic() - began
            time.sleep(2)
        tail = self.log.read_text(errors="replace")[-1500:] if self.log.exists() else "none"
        raise LabError(f"the VM did not answer within {seconds:.0f} s; its console:\n{tail}")

    def reboot(self) -> float:
        """An orderly reboot from inside; the seconds until ssh answers from the next boot."""
        before = self.boot_id()
        self.sudo("nohup sh -c 'sleep 1; systemctl reboot' >/dev/null 2>&1 &", 30)
        return self.wait(other_than=before)

    def kernel(self) -> str:
        """The release that runs."""
        return self.must("uname -r").strip()


def remove(folder: Path) -> None:
    """Removes a machine's folder."""
    shutil.rmtree(folder, ignore_errors=True)
