"""The root tree of a test VM: Debian with GRUB, one kernel with a driver, one to come without.

The driver is a stand-in (lab/files/module): a real out-of-tree module, built for the first kernel
only. The second kernel and its meta package wait in a local package source, so that apt can make
it the default, as it did on the seed's tower (B4), without a network.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from lab.core import cache, console
from lab.core.settings import LabError, LabSettings
from lab.hosts import debian_root

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
SOURCES = Path(__file__).parents[1] / "files" / "module"
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


def recipe(wanted: Kernels) -> list[object]:
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
        console.run(
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
                debian_root.SUITE,
                target,
                *debian_root.write_sources(Path(folder)),
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
    name = f"vm-{cache.recipe_hash([*recipe(wanted), public_key])}"
    target = settings.roots / name
    if not target.exists():
        settings.roots.mkdir(parents=True, exist_ok=True)
        log = settings.roots / f"{name}.log"
        with console.phase("VM root tree by mmdebstrap", "3 minutes"):
            cache.build_once(target, lambda part: build(part, wanted, public_key, log))
    return target
