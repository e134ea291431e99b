"""An emulated machine with real GRUB and kernels."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lab import core, lifecycle
from lab.core import LabError, LabSettings, load_settings

# An emulated machine: root tree, disk with GRUB, QEMU.

# The root tree of a test VM: Debian with GRUB, one kernel with a driver, one to come without.
#
# The driver is a stand-in (lab/files/module): a real out-of-tree module, built for the first
# kernel
# only. The second kernel and its meta package wait in a local package source, so that apt can make
# it the default, as it did on the seed's tower (B4), without a network.

META = "linux-image-cloud-amd64"
MODULE = "gpustand"
# ways to hang, and the driver of the watchdog that ends it
HANGS = "hangstand"
DRIVER = "580.126.09"
REPOSITORY = "srv/debs"
INITRDS = "srv/initrds"
# What brings the second kernel: the meta package's new version.
UPGRADE = (
    "export DEBIAN_FRONTEND=noninteractive; apt-get update -q && "
    "apt-get upgrade -y -q --with-new-pkgs"
)
SOURCES = Path(__file__).parents[0] / "files" / "module"
PACKAGES = [
    "systemd-sysv", "dbus", "udev", "openssh-server", "python3", "sudo", "iproute2",
    "iputils-ping", "ethtool", "kmod", "procps", "initramfs-tools", "zstd", "grub-pc", "lvm2",
    "earlyoom",
    META,
]  # fmt: skip
TOOLS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "qemu-img": "qemu-utils",
    "sfdisk": "fdisk",
    "mkfs.ext4": "e2fsprogs",
    "mmdebstrap": "mmdebstrap",
    "ssh": "openssh-client",
    "apt-cache": "apt",
}
FILES = {
    "etc/initramfs-tools/conf.d/small": "MODULES=list\nCOMPRESS=zstd\n",
    "etc/initramfs-tools/modules": "virtio_pci\nvirtio_blk\next4\ncrc32c_generic\n",
    "etc/fstab": "/dev/vda1 / ext4 defaults 0 1\n",
    "etc/hostname": "tower\n",
    "etc/hosts": "127.0.0.1 localhost tower\n",
    "etc/systemd/network/10-lan.network": (
        "[Match]\nMACAddress=52:54:00:88:00:01\n\n[Network]\nDHCP=ipv4\n"
    ),
    # Stand-in for /usr/sbin/mkinitramfs: hands out what that program made when the image was built.
    "usr/local/sbin/mkinitramfs": (
        "#!/bin/sh\n"
        f'for kept in /{INITRDS}/*; do case " $* " in\n'
        '*" ${kept##*/} "*) while [ $# -gt 1 ]; do [ "$1" != -o ] || exec cp "$kept" "$2"; shift;'
        " done;;\nesac; done\n"
        'exec /usr/sbin/mkinitramfs "$@"\n'
    ),
    "etc/systemd/journald.conf.d/small.conf": "[Journal]\nStorage=persistent\n",
    # Debian's own file has more; the tests need one foreign line that must stay as it is.
    "etc/default/grub": (
        "# foreign line: rigbook leaves this file as it is\n"
        "GRUB_DEFAULT=0\nGRUB_TIMEOUT=0\nGRUB_DISTRIBUTOR=Debian\n"
        'GRUB_CMDLINE_LINUX="console=ttyS0 net.ifnames=0 mitigations=off"\n'
        'GRUB_TERMINAL="serial console"\nGRUB_DISABLE_OS_PROBER=true\n'
        "GRUB_DISABLE_LINUX_UUID=true\n"
    ),
}


@dataclass(frozen=True)
class Kernels:
    """The two kernels of a VM: package version and release of each; the first has the driver."""

    first_version: str
    first: str
    second_version: str
    second: str


def check_tools() -> None:
    """LabError with the one line that installs what is missing."""
    missing = sorted({package for tool, package in TOOLS.items() if not shutil.which(tool)})
    if missing:
        raise LabError(f"programs are missing; install them: apt-get install {' '.join(missing)}")


def kernels() -> Kernels:
    """The newest two kernels of this machine's archives that the meta package names."""
    shown = subprocess.run(
        ["apt-cache", "show", META], capture_output=True, text=True, check=False
    ).stdout
    found: dict[str, str] = {}
    for stanza in shown.split("\n\n"):
        version = re.search(r"^Version: (\S+)$", stanza, re.M)
        needs = re.search(r"^Depends: linux-image-(\S+)", stanza, re.M)
        if version and needs:
            found.setdefault(needs[1], version[1])
    rows = sorted(found.items(), key=lambda row: [int(n) for n in re.findall(r"\d+", row[0])])
    if len(rows) < 2:
        raise LabError(f"the package sources hold {len(rows)} versions of {META}; two are needed")
    (first, first_version), (second, second_version) = rows[-2:]
    return Kernels(first_version, first, second_version, second)


def _set_up(wanted: Kernels) -> tuple[str, ...]:
    """What runs in the new root; everything that needs a network happens here."""
    kept = f"{INITRDS}/{wanted.second}"
    return (
        "export DEBIAN_FRONTEND=noninteractive",
        "useradd --create-home --shell /bin/bash rig",
        "usermod --lock root",
        "printf 'rig ALL=(ALL) NOPASSWD: ALL\\n' > /etc/sudoers.d/rig",
        "chmod 0440 /etc/sudoers.d/rig",
        "rm -f /etc/apt/preferences.d/kernel",
        f"apt-get install -y -q gcc make linux-headers-{wanted.first}"
        f" linux-headers-{wanted.second}",
        *(
            line
            for kernel in (wanted.second, wanted.first)
            for line in (
                f"make -C /lib/modules/{kernel}/build M=/srv/module clean",
                f"make -C /lib/modules/{kernel}/build M=/srv/module modules",
                f"install -D -m 0644 /srv/module/{MODULE}.ko /srv/modules/{kernel}/{MODULE}.ko",
            )
        ),
        # For the second kernel it waits in /srv, as a driver's package that comes later.
        f"install -D -m 0644 -t /lib/modules/{wanted.first}/updates"
        f" /srv/modules/{wanted.first}/{MODULE}.ko",
        f"install -m 0644 -t /lib/modules/{wanted.first}/updates /srv/module/{HANGS}.ko",
        f"depmod {wanted.first}",
        f"apt-get purge -y -q --auto-remove gcc make linux-headers-{wanted.first}"
        f" linux-headers-{wanted.second}",
        f"mkdir -p /usr/lib/x86_64-linux-gnu && touch "
        f"/usr/lib/x86_64-linux-gnu/lib{MODULE}-ml.so.{DRIVER}",
        f"echo {MODULE} > /etc/modules-load.d/{MODULE}.conf",
        # The second kernel's initrd is made here, by the real program: emulated it takes minutes.
        # held, or apt takes the meta package along, there and away again
        f"apt-mark hold {META}",
        f"apt-get install -y -q linux-image-{wanted.second}",
        f"mkdir -p /{INITRDS} && cp /boot/initrd.img-{wanted.second} /{kept}",
        f"apt-get purge -y -q linux-image-{wanted.second}",
        f"apt-mark unhold {META} && dpkg -s {META} | grep -q '^Version: {wanted.first_version}$'",
        "chmod 0755 /usr/local/sbin/mkinitramfs",
        f"mkdir -p /{REPOSITORY} && cd /{REPOSITORY} && apt-get download "
        f"linux-image-{wanted.second} {META}={wanted.second_version}",
        "apt-get clean && rm -rf /srv/module /var/lib/apt/lists/* /etc/apt/sources.list"
        " /etc/apt/sources.list.d/*",
        f"echo 'deb [trusted=yes] file:/{REPOSITORY} ./' > /etc/apt/sources.list",
        "rm -f /etc/ssh/ssh_host_*",
        "ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/ssh_host_ed25519_key",
        "systemctl enable systemd-networkd.service ssh.service serial-getty@ttyS0.service",
        # a test arms it with limits of its own
        "systemctl disable earlyoom.service",
        "systemctl mask systemd-networkd-wait-online.service apt-daily.timer"
        " apt-daily-upgrade.timer e2scrub_all.timer fstrim.timer",
        f"update-initramfs -u -k {wanted.first}",
    )


def root_recipe(wanted: Kernels) -> list[object]:
    """What decides how the tree comes out; its hash names the cached image."""
    sources = {path.name: path.read_text() for path in sorted(SOURCES.iterdir())}
    return ["vm-7", PACKAGES, FILES, vars(wanted), _set_up(wanted), sources]


def build(target: Path, wanted: Kernels, public_key: str, log: Path) -> None:
    """Make the root tree at ``target``; takes about two minutes and a network."""
    with tempfile.TemporaryDirectory() as folder:
        stage = Path(folder) / "stage"
        for name, text in FILES.items():
            (stage / name).parent.mkdir(parents=True, exist_ok=True)
            (stage / name).write_text(text)
        shutil.copytree(SOURCES, stage / "srv/module")
        pin = stage / "etc/apt/preferences.d/kernel"
        pin.parent.mkdir(parents=True)
        pin.write_text(
            f"Package: {META} linux-headers-*\nPin: version {wanted.first_version}\n"
            "Pin-Priority: 1001\n"
        )
        script = Path(folder) / "set-up"
        script.write_text("set -e\n" + "\n".join(_set_up(wanted)) + "\n")
        core.run_console(
            [
                "mmdebstrap",
                "--format=directory",
                "--variant=minbase",
                f"--include={','.join(PACKAGES)}",
                '--aptopt=APT::Install-Recommends "false"',
                "--dpkgopt=path-exclude=/usr/share/man/*",
                "--dpkgopt=path-exclude=/usr/share/locale/*",
                "--dpkgopt=path-exclude=/usr/share/doc/*",
                f'--setup-hook=cp -r --no-preserve=ownership {stage}/. "$1"',
                f'--customize-hook=cp {script} "$1/set-up" && chroot "$1" sh /set-up '
                '&& rm "$1/set-up"',
                lifecycle.SUITE,
                target,
                *lifecycle.write_sources(Path(folder)),
            ],
            log=log,
        )
    (target / "etc/fstab").write_text(FILES["etc/fstab"])
    (target / "etc/hostname").write_text(FILES["etc/hostname"])
    (target / "etc/hosts").write_text(FILES["etc/hosts"])
    keys = target / "home/rig/.ssh/authorized_keys"
    keys.parent.mkdir(mode=0o700)
    keys.write_text(public_key)
    shutil.chown(keys.parent, 1000, 1000)
    shutil.chown(keys, 1000, 1000)
    _index(target / REPOSITORY)


def _index(folder: Path) -> None:
    """Write the package index of a folder of .deb files, as apt reads it."""
    stanzas = []
    for path in sorted(folder.glob("*.deb")):
        fields = subprocess.run(
            ["dpkg-deb", "-f", path], capture_output=True, text=True, check=True
        ).stdout
        stanzas.append(
            f"{fields.strip()}\nFilename: ./{path.name}\nSize: {path.stat().st_size}\n"
            f"SHA256: {hashlib.sha256(path.read_bytes()).hexdigest()}\n"
        )
    (folder / "Packages").write_text("\n".join(stanzas))


def root_tree(settings: LabSettings, wanted: Kernels, public_key: str) -> Path:
    """The cached root tree for these kernels, built if it is not there."""
    name = f"vm-{core.recipe_hash([*root_recipe(wanted), public_key])}"
    target = settings.roots / name
    if not target.exists():
        settings.roots.mkdir(parents=True, exist_ok=True)
        log = settings.roots / f"{name}.log"
        with core.phase("VM root tree by mmdebstrap", "3 minutes"):
            core.build_once(target, lambda part: build(part, wanted, public_key, log))
    return target


# The prepared disk of a test VM: partition, filesystem, GRUB. Nothing is emulated for it.
#
# `python -m lab.vm` makes it (and the root tree) where it is not in the cache yet.

SIZE_MB = 3072
START = 1 << 20
# grub-mkconfig names the loop device on which it ran
_MEND = (
    "sed -i 's#root=/dev/loop[0-9]*#root=/dev/vda1#' /boot/grub/grub.cfg"
    " && grep -q 'linux.*root=/dev/vda1' /boot/grub/grub.cfg && sync"
)


def _key(settings: LabSettings) -> Path:
    """The login key of all test VMs; made once, kept beside the images."""
    path = settings.cache / "vm" / "id_ed25519"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        core.run_console(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "rigbook vm", "-f", path]
        )
    return path


def _build_disk(disk: Path, tree: Path, key: Path) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".sfdisk") as table:
        table.write("label: dos\nstart=2048, type=83, bootable\n")
        table.flush()
        core.run_console(["truncate", "-s", f"{SIZE_MB}M", disk])
        core.run_console(["sh", "-c", f'exec sfdisk -q "$0" < {table.name}', disk])
    # without the features that GRUB 2.06 cannot read; filled from the tree, so no loop device
    core.run_console(
        ["mkfs.ext4", "-q", "-F", "-O", "^metadata_csum_seed,^orphan_file", "-L", "root",
         "-d", tree, "-E", f"offset={START}", disk, f"{SIZE_MB - 1}M"]
    )  # fmt: skip
    _install_grub(disk, tree)
    with tempfile.TemporaryDirectory(prefix="rigbook-vm-") as folder:
        _grub_cfg(disk, Path(folder))


def _install_grub(disk: Path, tree: Path) -> None:
    """GRUB's first sectors, written as grub-install would: it cannot look through a loop device.

    boot.img loads the sector behind itself, core.img there loads its own rest by its length.
    """
    images = tree / "usr/lib/grub/i386-pc"
    core.run_console(
        ["chroot", tree, "grub-mkimage", "-O", "i386-pc", "-p", "(hd0,msdos1)/boot/grub",
         "-o", "/core.img", "biosdisk", "part_msdos", "ext2"]
    )  # fmt: skip
    raw = (tree / "core.img").read_bytes()
    (tree / "core.img").unlink()
    if len(raw) > START - 512:
        raise LabError(f"GRUB's core image has {len(raw)} bytes, too many before the partition")
    with disk.open("r+b") as stream:
        # the partition table stands behind these
        stream.write((images / "boot.img").read_bytes()[:440])
        stream.seek(512)
        stream.write(raw)


@contextmanager
def mounted(disk: Path, mount: Path) -> Iterator[None]:
    """The disk's tree at ``mount``, in which update-grub works as on the VM (chroot into it)."""
    core.run_console(["mount", "-o", f"loop,offset={START}", disk, mount])
    try:
        for name in ("dev", "proc", "sys"):
            core.run_console(["mount", "--bind", f"/{name}", mount / name])
        core.run_console(["mount", "-t", "tmpfs", "tmpfs", mount / "run"])
        # 10_linux makes no entry for a loop device; while it is mounted so, it does
        original = mount / "etc/grub.d/10_linux"
        patched = mount / "run/10_linux"
        patched.write_text(original.read_text().replace("/dev/loop[0-9])", "/dev/none)"))
        patched.chmod(0o755)
        core.run_console(["mount", "--bind", patched, original])
        yield
    finally:
        core.run_console(["umount", "-R", mount])


def _grub_cfg(disk: Path, mount: Path) -> None:
    """GRUB's modules, environment block and grub.cfg, by its own programs in the disk's tree."""
    script = (
        "mkdir -p /boot/grub/i386-pc && cp /usr/lib/grub/i386-pc/*.mod /boot/grub/i386-pc/"
        " && cp /usr/lib/grub/i386-pc/*.lst /boot/grub/i386-pc/"
        f" && grub-editenv /boot/grub/grubenv create && update-grub && {_MEND}"
    )
    with mounted(disk, mount):
        core.run_console(["chroot", mount, "sh", "-ec", script])


def disk(settings: LabSettings) -> tuple[Path, Path]:
    """(the prepared disk, raw; the login key). Built once by the hash of its recipe."""
    check_tools()
    key = _key(settings)
    wanted = kernels()
    public = key.with_suffix(".pub").read_text()
    recipe = [*root_recipe(wanted), public, SIZE_MB, "grub-3"]
    name = f"disk-{core.recipe_hash(recipe)}.raw"
    target = settings.cache / "vm" / name
    if not target.exists():
        tree = root_tree(settings, wanted, public)
        with core.phase("VM disk with GRUB", "20 seconds"):
            core.build_once(target, lambda part: _build_disk(part, tree, key))
    return target, key


def staged(settings: LabSettings) -> Path:
    """The disk after apt has staged the second kernel, without a driver, as the default (B4).

    Its first boot still takes the first kernel, by next_entry: the machine is up, the evening is
    before it. Done here by chroot: the same apt and update-grub take minutes when emulated.
    """
    base, _ = disk(settings)
    once = _once(kernels().first)
    name = f"staged-{core.recipe_hash([base.name, UPGRADE, _MEND, once])}.raw"
    target = settings.cache / "vm" / name
    if not target.exists():
        with core.phase("VM disk with a staged kernel", "20 seconds"):
            core.build_once(target, lambda part: _stage(base, part, once))
    return target


def _once(kernel: str) -> str:
    """The shell lines that let GRUB boot a kernel once."""
    return (
        "uuid=$(sed -n \"s/.*'gnulinux-advanced-\\([^']*\\)'.*/\\1/p\" /boot/grub/grub.cfg)\n"
        "grub-editenv /boot/grub/grubenv set "
        f'"next_entry=gnulinux-advanced-$uuid>gnulinux-{kernel}-advanced-$uuid"'
    )


def _stage(base: Path, target: Path, once: str) -> None:
    core.run_console(["cp", "--sparse=always", "--reflink=auto", base, target])
    with (
        tempfile.TemporaryDirectory(prefix="rigbook-vm-") as folder,
        mounted(target, Path(folder)),
    ):
        core.run_console(["chroot", folder, "sh", "-ec", f"{UPGRADE}\n{once}\n{_MEND}"])


if __name__ == "__main__":
    try:
        print(staged(load_settings()))
    except LabError as error:
        sys.exit(f"lab: error: {error}")


# A test VM's disk with DKMS, a compiler and the headers of both kernels, the second one staged.
#
# The driver's packages are the test's own. Installed here by chroot: emulated it takes an hour.

LISTS = "etc/apt/sources.list.d"


def _script(wanted: Kernels) -> str:
    """What runs in the disk's tree: DKMS with what it needs; the root tree's own module goes."""
    return (
        "export DEBIAN_FRONTEND=noninteractive\n"
        "apt-get update -q\n"
        "apt-get install -y -q --no-install-recommends dkms gcc make"
        f" linux-headers-{wanted.first} linux-headers-{wanted.second}\n"
        f"rm -f /lib/modules/*/updates/{MODULE}.ko /etc/modules-load.d/{MODULE}.conf\n"
        f"rm -f /usr/lib/x86_64-linux-gnu/lib{MODULE}-ml.so.*\n"
        f"for kernel in {wanted.first} {wanted.second}; do depmod $kernel; done\n"
        "apt-get clean; rm -rf /var/lib/apt/lists/*\n"
    )


def with_dkms(settings: LabSettings) -> Path:
    """The staged disk with DKMS; built once by the hash of its recipe, which needs a network."""
    base, wanted = staged(settings), kernels()
    name = f"dkms-{core.recipe_hash([base.name, _script(wanted)])}.raw"
    target = settings.cache / "vm" / name
    if not target.exists():
        with core.phase("VM disk with DKMS", "3 minutes"):
            core.build_once(target, lambda part: _build_driver_disk(base, part, _script(wanted)))
    return target


def _build_driver_disk(base: Path, target: Path, script: str) -> None:
    core.run_console(["cp", "--sparse=always", "--reflink=auto", base, target])
    with tempfile.TemporaryDirectory(prefix="rigbook-vm-") as folder:
        tree = Path(folder) / "tree"
        tree.mkdir()
        sources = [Path(path) for path in lifecycle.write_sources(Path(folder))]
        with mounted(target, tree):
            beside = [tree / LISTS / path.name for path in sources]
            for path, copy in zip(sources, beside, strict=True):
                copy.write_text(path.read_text())
            (tree / "run/resolv.conf").write_text(Path("/etc/resolv.conf").read_text())
            (tree / "etc/resolv.conf").touch()
            core.run_console(
                ["mount", "--bind", tree / "run/resolv.conf", tree / "etc/resolv.conf"]
            )
            try:
                core.run_console(["chroot", tree, "sh", "-ec", script])
            finally:
                core.run_console(["umount", tree / "etc/resolv.conf"])
                for copy in beside:
                    copy.unlink()


# One QEMU machine: started from an overlay, talked to by ssh, killed like a power cut.
#
# Emulated (TCG) unless a probe boot has worked under KVM: /dev/kvm may exist and still hang a
# stock
# kernel in GRUB. An emulated boot takes a minute of CPU, so a test does several things in one.

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
    core.run_console(["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", base, target])


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
