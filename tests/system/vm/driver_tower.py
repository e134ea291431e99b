"""The machine whose driver is changed: the old driver built by DKMS, its kernel pinned, an engine.

It is made once and kept with its memory: each test goes on there in seconds, on a copy, where an
emulated boot takes a minute and the machine itself ten.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from pathlib import Path

from lab import core, vm
from lab.vm import MODULE
from tests.system.vm import driver_packages as packages
from tests.system.vm.conftest import ENGINE, PIN, UNIT, Rig
from tests.system.vm.test_5_comes_back import answers

INSTALL_S = 3600


def kept(disk: tuple[Path, Path]) -> Path:
    """The machine's disk with its memory, for the prepared `disk` and its key; made once."""
    base = vm.with_dkms(core.load_settings())
    qemu = subprocess.run(["qemu-system-x86_64", "--version"], capture_output=True, check=True)
    sources = [Path(path).read_text() for path in (__file__, __file__, str(ENGINE))]
    accel = vm.accelerator(*disk)
    recipe = [base.name, accel, qemu.stdout.decode(), UNIT, PIN, *sources]
    target = base.parent / f"tower-{core.recipe_hash(recipe)}.qcow2"
    if not target.exists():
        core.build_once(target, lambda part: _make(base, disk[1], accel, part))
    return target


def _make(base: Path, key: Path, accel: str, target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="tower-", dir=target.parent) as name:
        folder = Path(name)
        over = folder / "disk.qcow2"
        vm.overlay(base, over)
        with vm.Machine(folder / "vm", [over], key, accel=accel) as machine:
            machine.start()
            rig = Rig(machine)
            machine.wait()
            rig.send(packages.repositories(folder / "debs"), "/root/debs.tar")
            machine.must(
                f"mkdir -p {packages.FOLDER}; tar xf /root/debs.tar -C {packages.FOLDER}; "
                f"{packages.from_repository('good')}; export DEBIAN_FRONTEND=noninteractive; "
                f"apt-get install -y -q {' '.join(f'{n}={packages.OLD}-1' for n in packages.NAMES)}"
                f"; modprobe {MODULE}",
                INSTALL_S,
            )
            rig.with_engine()
            status, output = rig.deploy(*PIN)
            assert status == 0, output
            # the boot that a test goes on in is one of the pinned kernel
            machine.reboot()
            answers(rig)
            machine.must("systemctl is-system-running --wait || true; sync", 600)
            machine.keep()
        over.rename(target)


def go_on(disk: tuple[Path, Path], folder: Path) -> Rig:
    """That machine on a copy in this folder, running; its module is loaded, its engine answers."""
    over = folder / "disk.qcow2"
    core.run_console(["cp", "--reflink=auto", kept(disk), over])
    accel = vm.accelerator(*disk)
    machine = vm.Machine(folder / "vm", [over], disk[1], accel=accel)
    machine.start(kept=True)
    rig = Rig(machine)
    took = machine.wait()
    # its clock stands where it was kept
    machine.must(f"date -s @{time.time():.0f}")
    rig.note(f"went on after {took:.0f} s ({accel}): {machine.kernel()}")
    assert machine.must("nvidia-smi").strip() == packages.OLD
    answers(rig)
    return rig
