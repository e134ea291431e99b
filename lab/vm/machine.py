"""One QEMU machine: started from an overlay, talked to by ssh, killed like a power cut.

Emulated (TCG) unless a probe boot has worked under KVM: /dev/kvm may exist and still hang a stock
kernel in GRUB. An emulated boot takes a minute of CPU, so a test does several things in one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from lab.core import console
from lab.core.settings import LabError

BOOT_S = 1800.0
USER = "rig"
KEPT = "kept"
KEEP_S = 300.0
TCG = "tcg,thread=multi"
# A boot under KVM takes ten seconds; the kernel's first line comes after three.
KVM_PROBE_S = 60.0
KVM_KERNEL_S = 25.0


def free_port() -> int:
    """A TCP port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def overlay(base: Path, target: Path) -> None:
    """A disk of its own over a base that stays as it is."""
    console.run(["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", base, target])


class Machine:
    """A VM with its folder: disks, console log, ssh port. Use it as a context manager.

    `cards` are the models of further network cards, all on one hub; `accel` is QEMU's accelerator;
    `watchdog`: with a hardware watchdog (i6300esb), which resets the VM.
    """

    def __init__(
        self,
        folder: Path,
        disks: Sequence[Path],
        key: Path,
        cards: Sequence[str] = (),
        accel: str = TCG,
        watchdog: bool = False,
    ) -> None:
        self.folder = folder
        self.disks = list(disks)
        self.key = key
        self.cards = list(cards)
        self.accel = accel
        self.watchdog = watchdog
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

    def start(self, kept: bool = False) -> None:
        """Power on: the disk's own GRUB boots it, or, with `kept`, it goes on where `keep` has
        stopped it. The console's log begins anew.
        """
        words = [
            "qemu-system-x86_64", "-accel", self.accel, "-cpu", "max",
            "-smp", "2", "-m", "1024", "-display", "none", "-serial", f"file:{self.log}",
            "-monitor", "stdio", "-no-user-config",
            "-netdev", f"user,id=lan,restrict=on,hostfwd=tcp:127.0.0.1:{self.port}-:22"
            f",hostfwd=tcp:{self.address}:8000-:8000",
            "-device", "virtio-net-pci,netdev=lan,mac=52:54:00:88:00:01",
        ]  # fmt: skip
        for number, model in enumerate(self.cards, 1):
            words += ["-netdev", f"hubport,id=n{number},hubid=7",
                      "-device", f"{model},netdev=n{number},mac=52:54:00:88:01:0{number}",
                      ]  # fmt: skip
        if self.watchdog:
            words += ["-device", "i6300esb", "-action", "watchdog=reset"]
        for disk in self.disks:
            kind = "qcow2" if disk.suffix == ".qcow2" else "raw"
            words += ["-drive", f"file={disk},format={kind},if=virtio,cache=writeback"]
        with (self.folder / "qemu.err").open("ab") as told:
            self._process = subprocess.Popen(
                words + (["-loadvm", KEPT] if kept else []), stdin=subprocess.PIPE,
                stdout=told, stderr=told, start_new_session=True,
            )  # fmt: skip

    def keep(self) -> None:
        """Writes disk and memory, as they are now, into the first disk, and ends QEMU; LabError
        where they are not there afterwards.
        """
        self._drop_connection()
        assert self._process is not None
        self._process.communicate(f"savevm {KEPT}\nquit\n".encode(), timeout=KEEP_S)
        there = ["qemu-img", "snapshot", "-l", str(self.disks[0])]
        said = subprocess.run(there, capture_output=True, text=True, timeout=60, check=False).stdout
        if f" {KEPT} " not in said:
            raise LabError(f"the VM's memory was not kept: {self.folder / 'qemu.err'}")

    def running(self) -> bool:
        """Whether QEMU runs."""
        return self._process is not None and self._process.poll() is None

    def said(self, text: str, seconds: float = 600) -> None:
        """Waits until the console has shown a text; LabError when it does not come."""
        began = time.monotonic()
        while text not in self.log.read_text(errors="replace"):
            if not self.running() or time.monotonic() - began > seconds:
                raise LabError(f"the VM's console did not show {text!r}: {self.log}")
            time.sleep(0.2)

    def power_cut(self) -> None:
        """QEMU is killed: what the guest had not flushed is gone."""
        self._drop_connection()
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.communicate(timeout=30)
        self._process = None

    def ssh_argv(self, shared: bool = True) -> list[str]:
        """The ssh command line to the VM, without the remote command.

        `shared`: over one connection for all commands, since an emulated handshake takes seconds.
        """
        path = self.folder / "ssh"
        share = [f"-oControlPath={path}", "-oControlMaster=auto", "-oControlPersist=300"]
        return [
            *(["ssh", *share] if shared else ["ssh", "-oControlPath=none"]),
            "-F/dev/null", f"-i{self.key}", "-oIdentitiesOnly=yes", "-oBatchMode=yes",
            "-oStrictHostKeyChecking=no", "-oUserKnownHostsFile=/dev/null", "-oLogLevel=ERROR",
            "-oConnectTimeout=10", "-oServerAliveInterval=15", f"-p{self.port}",
            f"{USER}@127.0.0.1",
        ]  # fmt: skip

    def _drop_connection(self) -> None:
        """Ends the shared connection: its other end is gone, or is of another boot."""
        argv = [*self.ssh_argv(), "-Oexit"]
        subprocess.run(argv, capture_output=True, timeout=30, check=False)
        (self.folder / "ssh").unlink(missing_ok=True)

    def sudo(
        self, script: str, timeout: float = 300, shared: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Runs a shell script as root; the result is the caller's to judge."""
        argv = [*self.ssh_argv(shared), "sudo", "-n", "sh", "-s"]
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
        done = self.sudo("cat /proc/sys/kernel/random/boot_id", 30, shared=False)
        return done.stdout.strip() if done.returncode == 0 else None

    def wait(self, other_than: str | None = None, seconds: float = BOOT_S) -> float:
        """Waits for ssh (of another boot, where one is named); the seconds it took."""
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            _ = self.pid
            now = self.boot_id()
            if now is not None and now != other_than:
                self._drop_connection()
                return time.monotonic() - began
            time.sleep(2)
        tail = self.log.read_text(errors="replace")[-1500:] if self.log.exists() else "none"
        raise LabError(f"the VM did not answer within {seconds:.0f} s; its console:\n{tail}")

    def boots_seen(self, until: str, other_than: str | None) -> list[str]:
        """Waits, over boots of its own, until this kernel answers; the kernels that were seen."""
        began, seen = time.monotonic(), []
        while time.monotonic() - began < BOOT_S:
            _ = self.pid
            done = self.sudo("cat /proc/sys/kernel/random/boot_id; uname -r", 30, shared=False)
            if done.returncode == 0 and done.stdout.split()[0] != other_than:
                kernel = done.stdout.split()[1]
                if kernel not in seen:
                    seen.append(kernel)
                if kernel == until:
                    self._drop_connection()
                    return seen
            time.sleep(2)
        raise LabError(f"{until} did not boot within {BOOT_S:.0f} s; seen: {seen}; {self.log}")

    def reboot(self) -> float:
        """An orderly reboot from inside; the seconds until ssh answers from the next boot."""
        before = self.boot_id()
        self.sudo("nohup sh -c 'sleep 1; systemctl reboot' >/dev/null 2>&1 &", 30, shared=False)
        return self.wait(other_than=before)

    def kernel(self) -> str:
        """The release that runs."""
        return self.must("uname -r").strip()


def accelerator(base: Path, key: Path) -> str:
    """`kvm` where a VM has booted under it to its login in time, else emulation.

    The answer is kept beside the base disk for this boot of this machine.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    kept = base.parent / f"accel-{boot}"
    if not kept.exists():
        kept.write_text("kvm" if os.access("/dev/kvm", os.R_OK | os.W_OK) and _kvm_boots(base, key)
                        else TCG)  # fmt: skip
    return kept.read_text()


def _kvm_boots(base: Path, key: Path) -> bool:
    """Whether a probe boot gets to the login under KVM."""
    with tempfile.TemporaryDirectory(prefix="rigbook-kvm-") as name:
        folder = Path(name)
        over = folder / "disk.qcow2"
        overlay(base, over)
        with Machine(folder, [over], key, accel="kvm") as machine:
            machine.start()
            began = time.monotonic()
            while (waited := time.monotonic() - began) < KVM_PROBE_S:
                time.sleep(1)
                said = machine.log.read_text(errors="replace") if machine.log.exists() else ""
                if "login:" in said:
                    return True
                if not machine.running() or (waited > KVM_KERNEL_S and "Linux version" not in said):
                    return False
    return False
