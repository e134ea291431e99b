"""A German machine's GRUB without a machine: the real grub-mkconfig with translated titles.

A small ext4 image with this machine's /usr under the files of three Debian packages; commands run
in it by chroot. Nothing boots. Debian 12's grub.mo lacks the messages of the menu in every
language; Ubuntu has them in its language packs, and CATALOGUE stands for those.
"""

from __future__ import annotations

import json
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from facts import pack
from lab import core
from lab.core import LabSettings

PACKAGES = ("grub-common", "gettext-base", "locales")
OLD, NEW, NEWEST = "6.17.0-22-generic", "6.17.0-23-generic", "6.17.0-24-generic"
TITLE = "Erweiterte Optionen für Debian GNU/Linux>Debian GNU/Linux, mit Linux {}"
CATALOGUE = {
    "": "Content-Type: text/plain; charset=UTF-8\n",
    "%s, with Linux %s": "%s, mit Linux %s",
    "%s, with Linux %s (%s)": "%s, mit Linux %s (%s)",
    "Advanced options for %s": "Erweiterte Optionen für %s",
    "Loading Linux %s ...": "Linux %s wird geladen …",
    "Loading initial ramdisk ...": "Initiale Ramdisk wird geladen …",
    "recovery mode": "Wiederherstellungsmodus",
}
FILES = {
    "etc/default/locale": 'LANG="de_DE.UTF-8"\n',
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\n",
    "etc/group": "root:x:0:\n",
    "etc/hostname": "tower\n",
}


def _mo(messages: dict[str, str]) -> bytes:
    """A catalogue as gettext reads it (its manual, "The Format of GNU MO Files")."""
    rows = [(key.encode(), text.encode()) for key, text in sorted(messages.items())]
    head, count = 28, len(rows)
    at, tables, texts = head + 16 * count, [b"", b""], b""
    for side in (0, 1):
        for row in rows:
            tables[side] += struct.pack("<II", len(row[side]), at + len(texts))
            texts += row[side] + b"\0"
    first = struct.pack("<7I", 0x950412DE, 0, count, head, head + 8 * count, 0, at)
    return first + tables[0] + tables[1] + texts


def _files(target: Path) -> None:
    """The packages' files and the German locale, from this machine's package source."""
    target.mkdir(parents=True)
    core.run_console(["chmod", "0755", target])
    core.run_console(["sh", "-c", f"cd '{target}' && apt-get download -q {' '.join(PACKAGES)}"])
    for archive in sorted(target.glob("*.deb")):
        core.run_console(["dpkg-deb", "-x", archive, target / "root"])
        archive.unlink()
    german = target / "root/usr/share/locale/de/LC_MESSAGES/grub.mo"
    german.write_bytes(_mo(CATALOGUE))
    share = target / "root/usr/share/i18n"
    made = target / "root/usr/lib/locale"
    made.mkdir(parents=True, exist_ok=True)
    core.run_console(
        ["localedef", "--no-archive", "-i", share / "locales/de_DE", "-f", "UTF-8",
         made / "de_DE.utf8"],
        env={"I18NPATH": str(share), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip


class German:
    """The tree; what is done in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.program = root / "rignode.pyz"

    def run(self, *argv: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """A command in the tree. An operator's session has the C locale, unless it says so."""
        return subprocess.run(
            ["chroot", self.root, *argv], capture_output=True, text=True, timeout=120, check=False,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", **environ},
        )  # fmt: skip

    def update_grub(self) -> str:
        """As apt calls it on that host; gives the menu."""
        done = self.run("grub-mkconfig", "-o", "/boot/grub/grub.cfg", LC_ALL="", LANG="de_DE.UTF-8")
        assert done.returncode == 0, done.stderr
        return self.menu()

    def menu(self) -> str:
        """grub.cfg."""
        return (self.root / "boot/grub/grub.cfg").read_text()

    def kernel(self, release: str) -> None:
        """A kernel is installed."""
        for name in ("vmlinuz", "initrd.img"):
            (self.root / f"boot/{name}-{release}").write_text("a kernel's bytes\n")

    def default(self, value: str) -> None:
        """GRUB_DEFAULT."""
        text = f"GRUB_DEFAULT='{value}'\nGRUB_DISTRIBUTOR=Debian\nGRUB_DISABLE_OS_PROBER=true\n"
        (self.root / "etc/default/grub").write_text(text)

    def node(self, verb: str, request: object = None) -> dict[str, Any]:
        """node's answer."""
        text = json.dumps(request or {})
        done = self.run("python3", "-I", "-B", f"/{self.program.name}", verb, text)
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return answer

    def boots(self) -> tuple[str, str]:
        """(next, default) kernel, as node reads GRUB's files."""
        grub = self.node("kernel")["grub"]
        return grub["next"]["kernel"], grub["default"]["kernel"]


def packages(settings: LabSettings) -> Path:
    """The packages' files, the locale and the catalogue below root/; made once."""
    kept = settings.cache / f"german-{core.recipe_hash([PACKAGES, CATALOGUE])}"
    if not kept.exists():
        with core.phase("GRUB's packages", "10 seconds"):
            core.build_once(kept, _files)
    return kept


@contextmanager
def german(settings: LabSettings, folder: Path) -> Iterator[German]:
    """The tree, mounted below `folder`."""
    kept = packages(settings)
    root, image = folder / "root", folder / "disk.img"
    root.mkdir()
    core.run_console(["truncate", "-s", "64M", image])
    core.run_console(["mkfs.ext4", "-q", image])
    core.run_console(["mount", "-o", "loop", image, root])
    try:
        for name in ("usr", "dev", "proc", "sys", "run", "tmp", "boot/grub", "etc/default/grub.d"):
            (root / name).mkdir(parents=True)
        for name in ("bin", "sbin", "lib", "lib64"):
            (root / name).symlink_to(f"usr/{name}")
        over = f"lowerdir={kept}/root/usr:/usr"
        core.run_console(["mount", "-t", "overlay", "overlay", "-o", over, root / "usr"])
        for name in ("dev", "proc", "sys"):
            core.run_console(["mount", "--bind", f"/{name}", root / name])
        core.run_console(["mount", "-t", "tmpfs", "tmpfs", root / "run"])
        core.run_console(["cp", "-a", kept / "root/etc/grub.d", "/etc/alternatives", root / "etc"])
        for name, text in FILES.items():
            (root / name).write_text(text)
        # 10_linux makes no entry for a loop device
        linux = root / "etc/grub.d/10_linux"
        linux.write_text(linux.read_text().replace("/dev/loop[0-9])", "/dev/none)"))
        made = German(root)
        made.program.write_bytes(pack.zipapp_bytes())
        assert made.run("grub-editenv", "/boot/grub/grubenv", "create").returncode == 0
        yield made
    finally:
        core.run_console(["umount", "-R", root])
