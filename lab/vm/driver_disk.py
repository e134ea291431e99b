"""A test VM's disk with DKMS, a compiler and the headers of both kernels, the second one staged.

The driver's packages are the test's own. Installed here by chroot: emulated it takes an hour.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from lab.core import cache, console
from lab.core.settings import LabSettings
from lab.hosts import debian_root
from lab.vm import disk, root

LISTS = "etc/apt/sources.list.d"


def _script(wanted: root.Kernels) -> str:
    """What runs in the disk's tree: DKMS with what it needs; the root tree's own module goes."""
    return (
        "export DEBIAN_FRONTEND=noninteractive\n"
        "apt-get update -q\n"
        "apt-get install -y -q --no-install-recommends dkms gcc make"
        f" linux-headers-{wanted.first} linux-headers-{wanted.second}\n"
        f"rm -f /lib/modules/*/updates/{root.MODULE}.ko /etc/modules-load.d/{root.MODULE}.conf\n"
        f"rm -f /usr/lib/x86_64-linux-gnu/lib{root.MODULE}-ml.so.*\n"
        f"for kernel in {wanted.first} {wanted.second}; do depmod $kernel; done\n"
        "apt-get clean; rm -rf /var/lib/apt/lists/*\n"
    )


def with_dkms(settings: LabSettings) -> Path:
    """The staged disk with DKMS; built once by the hash of its recipe, which needs a network."""
    base, wanted = disk.staged(settings), root.kernels()
    name = f"dkms-{cache.recipe_hash([base.name, _script(wanted)])}.raw"
    target = settings.cache / "vm" / name
    if not target.exists():
        with console.phase("VM disk with DKMS", "3 minutes"):
            cache.build_once(target, lambda part: _build(base, part, _script(wanted)))
    return target


def _build(base: Path, target: Path, script: str) -> None:
    console.run(["cp", "--sparse=always", "--reflink=auto", base, target])
    with tempfile.TemporaryDirectory(prefix="rigbook-vm-") as folder:
        tree = Path(folder) / "tree"
        tree.mkdir()
        sources = [Path(path) for path in debian_root.write_sources(Path(folder))]
        with disk.mounted(target, tree):
            beside = [tree / LISTS / path.name for path in sources]
            for path, copy in zip(sources, beside, strict=True):
                copy.write_text(path.read_text())
            (tree / "run/resolv.conf").write_text(Path("/etc/resolv.conf").read_text())
            (tree / "etc/resolv.conf").touch()
            console.run(["mount", "--bind", tree / "run/resolv.conf", tree / "etc/resolv.conf"])
            try:
                console.run(["chroot", tree, "sh", "-ec", script])
            finally:
                console.run(["umount", tree / "etc/resolv.conf"])
                for copy in beside:
                    copy.unlink()
