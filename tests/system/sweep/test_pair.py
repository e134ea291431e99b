"""serve, restart, rollback, weights and image on the pair, killed at random moments."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from facts.endpoint.completion import ask
from tests.system.engine.steps import head, killed_operator
from tests.system.kills.cut import Cutter, numbers
from tests.system.lab.support import moving as m
from tests.system.rehearsal import PYINFRA, Done, Lab

MB = 1_000_000
PROFILES = ("latency", "throughput", "balanced")
FOLDER = "/srv/models/tiny"
BALLAST = f"{FOLDER}/ballast.bin"


def words(deploy: str, *arguments: str) -> list[str]:
    """The command line of a deploy on the pair."""
    return [str(PYINFRA), "inventory/lab.py", f"deploys/{deploy}.py", *arguments, "-y"]


def settled(lab: Lab, wanted: str) -> Callable[[], str]:
    """The newest change's status on the hosts that have it; no change may be unsettled."""

    def status() -> str:
        rows = [change for name in lab.hosts for change in lab.changes(name)]
        assert not [r["id"] for r in rows if r["status"] in ("OPEN", "INCONSISTENT")], rows
        newest = max(rows, key=lambda row: float(row["opened_unix_s"]))
        assert {r["status"] for r in rows if r["id"] == newest["id"]} == {wanted}, newest
        return wanted

    return status


def serves(lab: Lab, profile: str) -> None:
    """The rig serves this profile on both ranks: an answer, and nothing left to do."""
    assert ask(head(lab), 20).ok
    done = lab.pyinfra("serve", "--data", f"profile={profile}")
    assert done.rc == 0 and done.counts("Grand total")[1:3] == ("-", "-"), done.text


class Profiles:
    """The profile that the pair serves, and the next one."""

    def __init__(self) -> None:
        self.now = "balanced"

    def turn(self) -> str:
        """The next profile, which is served from here on."""
        self.now = PROFILES[(PROFILES.index(self.now) + 1) % len(PROFILES)]
        return self.now


@pytest.fixture(scope="module")
def profile() -> Profiles:
    return Profiles()


def _runs(lab: Lab, deploy: str, *arguments: str) -> Callable[[], Done]:
    return lambda: lab.pyinfra(deploy, *arguments)


def test_one_more_run_of_serve(pair: Lab, profile: Profiles) -> None:
    cutter = Cutter("serve")
    for number in numbers("serve"):
        chosen = ("--data", f"profile={profile.turn()}")
        if not number:
            cutter.measured(pair.pyinfra("serve", *chosen))
            chosen = ("--data", f"profile={profile.turn()}")
        run = _runs(pair, "serve", *chosen)
        cutter.again(words("serve", *chosen), run, settled(pair, "COMMITTED"))
        serves(pair, profile.now)


def test_one_more_run_of_restart(pair: Lab, profile: Profiles) -> None:
    cutter = Cutter("restart")
    chosen = ("--data", f"profile={profile.now}")
    for number in numbers("restart"):
        if not number:
            cutter.measured(pair.pyinfra("restart", *chosen))
        run = _runs(pair, "restart", *chosen)
        cutter.again(words("restart", *chosen), run, settled(pair, "COMMITTED"))
        serves(pair, profile.now)


def test_one_more_run_of_rollback(pair: Lab, profile: Profiles) -> None:
    """Of a serve whose operator was killed while its engine loaded."""
    cutter = Cutter("rollback")
    other = next(name for name in PROFILES if name != profile.now)
    for number in numbers("rollback"):
        killed_operator(pair, "serve", "--data", f"profile={other}")
        if not number:
            cutter.measured(pair.pyinfra("rollback"))
            serves(pair, profile.now)
            killed_operator(pair, "serve", "--data", f"profile={other}")
        run = _runs(pair, "rollback")
        cutter.again(words("rollback"), run, settled(pair, "ROLLED_BACK"))
        serves(pair, profile.now)


def test_one_more_run_of_weights(pair: Lab, profile: Profiles) -> None:
    """40 MB over a slow fabric, beside the model that serves."""
    cutter, chosen = Cutter("weights"), ("--data", "from=test1")
    for number in numbers("weights"):
        pair.ssh("test1", f"sudo dd if=/dev/urandom of={BALLAST} bs=1M count=40 status=none")
        pair.ssh("test2", f"sudo rm -rf {BALLAST} {FOLDER}/.rigbook")
        with m.slow_fabric(pair, 40):
            if not number:
                cutter.measured(pair.pyinfra("weights", *chosen))
                pair.ssh("test2", f"sudo rm -rf {BALLAST}")
            run = _runs(pair, "weights", *chosen)
            cutter.again(words("weights", *chosen), run, settled(pair, "COMMITTED"))
        sums = {pair.ssh(name, f"sudo sha256sum {BALLAST}") for name in pair.hosts}
        assert len(sums) == 1
        serves(pair, profile.now)
    for name in pair.hosts:
        pair.ssh(name, f"sudo rm -rf {BALLAST} {FOLDER}/.rigbook")


def test_one_more_run_of_image(pair: Lab, profile: Profiles) -> None:
    """40 MB over a slow fabric, beside the image that serves."""
    cutter = Cutter("image")
    for number in numbers("image"):
        _no_small_image(pair)
        m.make_image(pair, "test1", 40 * MB)
        with m.slow_fabric(pair, 40):
            if not number:
                cutter.measured(pair.pyinfra("image", *m.RECIPE))
                _no_small_image(pair, "test2")
            run = _runs(pair, "image", *m.RECIPE)
            cutter.again(words("image", *m.RECIPE), run, settled(pair, "COMMITTED"))
        assert m.image_id(pair, "test2") == m.image_id(pair, "test1") != ""
        serves(pair, profile.now)
    _no_small_image(pair)


def _no_small_image(lab: Lab, *names: str) -> None:
    for name in names or tuple(lab.hosts):
        lab.ssh(name, f"sudo docker rmi -f {m.IMAGE} >/dev/null 2>&1; "
                "sudo docker images -q rigbook-kept | xargs -r sudo docker rmi -f >/dev/null; "
                "sudo rm -rf /var/lib/rigbook/spool", check=False)  # fmt: skip
