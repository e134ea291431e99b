"""The deploys that need no engine: unit, weights, image on two hosts, libvgpu on one."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from tests.system.lab.support import moving as m
from tests.system.lab.test_libvgpu import OLARES, TARGET, sha
from tests.system.lab.test_weights import MAKE
from tests.system.lease.rigs import OnLab
from tests.system.sweep.cycle import Case
from tests.unit.node.support.libs import library

MB = 1_000_000
FOLDER = "/srv/models/tiny"
BALLAST = f"{FOLDER}/ballast.bin"


class LabCase(Case):
    """A deploy on hosts of the lab."""

    rig: OnLab

    @property
    def first(self) -> str:
        """The host that gives."""
        return self.rig.names[0]


class Unit(LabCase):
    """A drop-in for the login's own way in: sshd. Each run asks for another value."""

    deploy = "unit"
    _seconds = 7

    def prepare(self) -> None:
        self._seconds = 8 if self._seconds == 7 else 7

    def data(self) -> Sequence[str]:
        return ("unit=ssh.service", "drop_in=50-trial", f"restart_sec={self._seconds}")

    def prove(self) -> None:
        for name in self.rig.names:
            said = self.rig.root(name, "systemctl show -p RestartUSec --value ssh.service").strip()
            assert said == f"{self._seconds}s", f"{name}: systemd has RestartUSec {said}"


class Weights(LabCase):
    """40 MB over a slow fabric, beside the model that serves, if one does."""

    deploy = "weights"
    # a source that is named is compared each time, in a change of its own
    repeats = False

    def prepare(self) -> None:
        made = MAKE.format(size=MB)
        self.rig.root(
            self.first,
            f"test -e {FOLDER}/config.json || python3 - <<'END'\n{made}\nEND\n"
            f"dd if=/dev/urandom of={BALLAST} bs=1M count=40 status=none",
        )
        for name in self.rig.names[1:]:
            self.rig.root(name, f"rm -rf {BALLAST} {FOLDER}/.rigbook")

    def data(self) -> Sequence[str]:
        return (f"from={self.first}",)

    def around(self) -> AbstractContextManager[None]:
        return m.slow_fabric(self.rig.lab, 40)

    def prove(self) -> None:
        sums = {self.rig.root(name, f"sha256sum {BALLAST}") for name in self.rig.names}
        assert len(sums) == 1, f"the nodes have other weights: {sums}"


class Image(LabCase):
    """40 MB over a slow fabric, beside the image that serves, if one does."""

    deploy = "image"

    def prepare(self) -> None:
        for name in self.rig.names:
            self.rig.root(
                name, f"docker rmi -f {m.IMAGE} >/dev/null 2>&1; docker images -q rigbook-kept | "
                "xargs -r docker rmi -f >/dev/null; rm -rf /var/lib/rigbook/spool", check=False,
            )  # fmt: skip
        m.make_image(self.rig.lab, self.first, 40 * MB)

    def data(self) -> Sequence[str]:
        return m.RECIPE[1::2]

    def around(self) -> AbstractContextManager[None]:
        return m.slow_fabric(self.rig.lab, 40)

    def prove(self) -> None:
        ids = {m.image_id(self.rig.lab, name) for name in self.rig.names}
        assert len(ids) == 1 and ids != {""}, f"the nodes have other images: {ids}"


class Libvgpu(LabCase):
    """The library that the GPU's sharing preloads: each run swaps one of two for the other."""

    deploy = "libvgpu"

    def __init__(self, rig: OnLab, folder: Path) -> None:
        super().__init__(OnLab(rig.lab, OLARES, rig.names[:1], rig.endpoint))
        self._ours = [library(folder / f"{fill}.so", 670_000, fill) for fill in (1, 2)]
        plugins = library(folder / "plugins.so", 850_000, 3)
        raw = base64.b64encode(plugins.read_bytes()).decode()
        script = f"base64 -d > {TARGET} <<'END'\n{raw}\nEND\nchmod 755 {TARGET}"
        self.rig.root(self.first, f"mkdir -p {Path(TARGET).parent}\n{script}")

    def prepare(self) -> None:
        self._ours.reverse()

    def data(self) -> Sequence[str]:
        return (f"library={self._ours[0]}", f"sha256={sha(self._ours[0])}")

    def prove(self) -> None:
        there = self.rig.root(self.first, f"sha256sum {TARGET}").split()[0]
        assert there == sha(self._ours[0]), f"another library lies at {TARGET}"
