"""The prepared disk of a test VM: partition, filesystem, GRUB. Nothing is emulated for it.

`python -m lab.vm.disk` makes it (and the root tree) where it is not in the cache yet.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab.core import cache, console
from lab.core.settings import LabError, LabSettings, load
from lab.vm import root

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
        console.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "rigbook vm", "-f", path])
    return path


def _build(disk: Path, tree: Path, key: Path) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".sfdisk") as table:
        table.write("label: dos\nstart=2048, type=83, bootable\n")
        table.flush()
        console.run(["truncate", "-s", f"{SIZE_MB}M", disk])
        console.run(["sh", "-c", f'exec sfdisk -q "$0" < {table.name}', disk])
    # without the features that GRUB 2.06 cannot read; filled from the tree, so no loop device
    console.run(
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
    console.run(
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
    console.run(["mount", "-o", f"loop,offset={START}", disk, mount])
    try:
        for name in ("dev", "proc", "sys"):
            console.run(["mount", "--bind", f"/{name}", mount / name])
        console.run(["mount", "-t", "tmpfs", "tmpfs", mount / "run"])
        # 10_linux makes no entry for a loop device; while it is mounted so, it does
        original = mount / "etc/grub.d/10_linux"
        patched = mount / "run/10_linux"
        patched.write_text(original.read_text().replace("/dev/loop[0-9])", "/dev/none)"))
        patched.chmod(0o755)
        console.run(["mount", "--bind", patched, original])
        yield
    finally:
        console.run(["umount", "-R", mount])


def _grub_cfg(disk: Path, mount: Path) -> None:
    """GRUB's modules, environment block and grub.cfg, by its own programs in the disk's tree."""
    script = (
        "mkdir -p /boot/grub/i386-pc && cp /usr/lib/grub/i386-pc/*.mod /boot/grub/i386-pc/"
        " && cp /usr/lib/grub/i386-pc/*.lst /boot/grub/i386-pc/"
        f" && grub-editenv /boot/grub/grubenv create && update-grub && {_MEND}"
    )
    with mounted(disk, mount):
        console.run(["chroot", mount, "sh", "-ec", script])


def disk(settings: LabSettings) -> tuple[Path, Path]:
    """(the prepared disk, raw; the login key). Built once by the hash of its recipe."""
    root.check_tools()
    key = _key(settings)
    wanted = root.kernels()
    public = key.with_suffix(".pub").read_text()
    recipe = [*root.recipe(wanted), public, SIZE_MB, "grub-3"]
    name = f"disk-{cache.recipe_hash(recipe)}.raw"
    target = settings.cache / "vm" / name
    if not target.exists():
        tree = root.root_tree(settings, wanted, public)
        with console.phase("VM disk with GRUB", "20 seconds"):
            cache.build_once(target, lambda part: _build(part, tree, key))
    return target, key


def staged(settings: LabSettings) -> Path:
    """The disk after apt has staged the second kernel, without a driver, as the default (B4).

    Its first boot still takes the first kernel, by next_entry: the machine is up, the evening is
    before it. Done here by chroot: the same apt and update-grub take minutes when emulated.
    """
    base, _ = disk(settings)
    once = _once(root.kernels().first)
    name = f"staged-{cache.recipe_hash([base.name, root.UPGRADE, _MEND, once])}.raw"
    target = settings.cache / "vm" / name
    if not target.exists():
        with console.phase("VM disk with a staged kernel", "20 seconds"):
            cache.build_once(target, lambda part: _stage(base, part, once))
    return target


def _once(kernel: str) -> str:
    """The shell lines that let GRUB boot a kernel once."""
    return (
        "uuid=$(sed -n \"s/.*'gnulinux-advanced-\\([^']*\\)'.*/\\1/p\" /boot/grub/grub.cfg)\n"
        "grub-editenv /boot/grub/grubenv set "
        f'"next_entry=gnulinux-advanced-$uuid>gnulinux-{kernel}-advanced-$uuid"'
    )


def _stage(base: Path, target: Path, once: str) -> None:
    console.run(["cp", "--sparse=always", "--reflink=auto", base, target])
    with (
        tempfile.TemporaryDirectory(prefix="rigbook-vm-") as folder,
        mounted(target, Path(folder)),
    ):
        console.run(["chroot", folder, "sh", "-ec", f"{root.UPGRADE}\n{once}\n{_MEND}"])


if __name__ == "__main__":
    try:
        print(staged(load()))
    except LabError as error:
        sys.exit(f"lab: error: {error}")
