"""upgrade on the tower, killed at random moments: to the other of two real versions, and back."""

from __future__ import annotations

from tests.system.kills.cut import Cutter, numbers
from tests.system.rehearsal import PYINFRA, Done
from tests.system.venv.steps import INVENTORY, VENV, Tower, unchanged

VERSIONS = ("0.31.0", "0.32.0")


def test_one_more_run_of_upgrade(tower: Tower) -> None:
    """Every third version is installed anew, the others are there from the time before."""
    cutter = Cutter("upgrade")
    now = "0.32.0"

    def status() -> str:
        rows = tower.changes(tower.name)
        assert not [r["id"] for r in rows if r["status"] in ("OPEN", "INCONSISTENT")], rows
        return str(rows[0]["status"])

    for number in numbers("upgrade"):
        now = next(version for version in VERSIONS if version != now)
        if not number:
            cutter.measured(tower.deploy("upgrade", "--data", f"version={now}"))
            now = next(version for version in VERSIONS if version != now)
        if number % 3 == 2:
            assert tower.deploy("upgrade", "--data", "prune=true").rc == 0
        chosen = ("--data", f"version={now}")
        words = [str(PYINFRA), INVENTORY, "deploys/upgrade.py", *chosen, "-y"]

        def again(chosen: tuple[str, ...] = chosen) -> Done:
            return tower.deploy("upgrade", *chosen)

        cutter.again(words, again, status)
        assert tower.on(f"readlink {VENV}").rpartition("/")[2] == now and tower.answers()
        assert unchanged(tower.deploy("upgrade", *chosen))
