"""The deploys of a rig that serves: serve, restart, rollback of the pair, upgrade of the tower."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tests.system.engine.steps import killed_operator, wait_until
from tests.system.lease.rigs import Rig
from tests.system.sweep.cases import LabCase
from tests.system.sweep.cycle import ROLLED_BACK, no_change
from tests.system.venv.steps import VENV

PROFILES = ("latency", "throughput", "balanced")
VERSIONS = ("0.31.0", "0.32.0")


class Profiles:
    """The profile that the pair serves, and the next one."""

    def __init__(self) -> None:
        self.now = "balanced"

    def turn(self) -> None:
        """The next one is served from here on."""
        self.now = PROFILES[(PROFILES.index(self.now) + 1) % len(PROFILES)]


class OnPair(LabCase):
    """A deploy of the pair, which serves the same profile as the other cases left."""

    def __init__(self, rig: Rig, served: Profiles) -> None:
        super().__init__(rig)
        self.served = served

    def data(self) -> Sequence[str]:
        return (f"profile={self.served.now}",)

    def prove(self) -> None:
        """A real answer, and nothing left to do for serve."""
        assert self.rig.answers(), "no real answer"
        done = self.rig.lab.pyinfra("serve", "--data", f"profile={self.served.now}")
        assert done.rc == 0 and no_change(done.text), done.text


class Serve(OnPair):
    """Another profile each time."""

    deploy = "serve"

    def prepare(self) -> None:
        self.served.turn()


class Restart(OnPair):
    """The same profile, started anew."""

    deploy = "restart"
    # each run starts it anew
    repeats = False


class Rollback(OnPair):
    """Of a serve whose operator was killed while its engine loaded."""

    deploy, wanted = "rollback", ROLLED_BACK

    def data(self) -> Sequence[str]:
        return ()

    def prepare(self) -> None:
        other = next(name for name in PROFILES if name != self.served.now)
        killed_operator(self.rig.lab, "serve", "--data", f"profile={other}")


class Upgrade(LabCase):
    """To the other of two real versions; every third one is installed anew."""

    deploy = "upgrade"

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        self.now, self.count = VERSIONS[1], 0

    def prepare(self) -> None:
        self.now = next(version for version in VERSIONS if version != self.now)
        self.count += 1
        if self.count % 3 == 0:
            done = self.rig.lab.pyinfra(
                "upgrade", "--data", "prune=true", inventory=self.rig.inventory
            )
            assert done.rc == 0, done.text

    def data(self) -> Sequence[str]:
        return (f"version={self.now}",)

    def prove(self) -> None:
        """The version, a real answer, and a verified backup of an install."""
        link = self.rig.root(self.first, f"readlink {VENV}").strip().rpartition("/")[2]
        assert link == self.now, f"{VENV} is {link}"
        wait_until("a real answer", 300, self.rig.answers)
        said = json.loads(self.rig.root(self.first, "echo '{}' | rignode tree list"))
        assert any(row["usable"] and row["verified_unix_s"] for row in said["backups"]), said
