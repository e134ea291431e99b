"""12 losses in each of 4 deploys of the pair: old and answering, or new and proven, and told so."""

from __future__ import annotations

import pytest

from tests.system.lab.support import moving as m
from tests.system.lease.rigs import OnLab, cells, run

PROFILES = ("latency", "throughput", "balanced")
FOLDER = "/srv/models/tiny"
BALLAST = f"{FOLDER}/ballast.bin"
served = ["balanced"]


def said_first(rig: OnLab, change_went_back: bool) -> None:
    """The next command says what happened; the rig is what its journal says."""
    done = rig.lab.pyinfra("verify", inventory=rig.inventory)
    assert done.rc == 0 or "profile" in done.text, done.text
    if change_went_back:
        assert "while you were away" in done.text, done.text


@pytest.mark.parametrize("loss", cells("serve"))
def test_serve(pair: OnLab, loss: str) -> None:
    wanted = PROFILES[(PROFILES.index(served[0]) + 1) % len(PROFILES)]
    row = run(pair, "serve", loss, f"profile={wanted}")
    if row.status == "COMMITTED":
        served[0] = wanted
    done = pair.lab.pyinfra("serve", "--data", f"profile={served[0]}")
    assert done.rc == 0 and done.counts("Grand total")[1:3] == ("-", "-"), done.text


@pytest.mark.parametrize("loss", cells("restart"))
def test_restart(pair: OnLab, loss: str) -> None:
    row = run(pair, "restart", loss, f"profile={served[0]}")
    said_first(pair, row.status == "ROLLED_BACK" and loss == "operator killed")


@pytest.mark.parametrize("loss", cells("unit"))
def test_unit(pair: OnLab, loss: str) -> None:
    """A drop-in for the login's own way in: sshd."""
    row = run(pair, "unit", loss, "unit=ssh.service", "drop_in=50-trial", "restart_sec=7")
    path = "/etc/systemd/system/ssh.service.d/50-trial.conf"
    for name in pair.names:
        there = pair.root(name, f"test -e {path} && echo there || true").strip()
        assert there == ("there" if row.status == "COMMITTED" else ""), (name, row)
        pair.root(name, f"rm -f {path}; systemctl daemon-reload")


@pytest.mark.parametrize("loss", cells("weights"))
def test_weights(pair: OnLab, loss: str) -> None:
    """40 MB over a slow fabric, beside the model that serves."""
    first, second = pair.names
    pair.root(first, f"dd if=/dev/urandom of={BALLAST} bs=1M count=40 status=none")
    pair.root(second, f"rm -rf {BALLAST} {FOLDER}/.rigbook")
    with m.slow_fabric(pair.lab, 40):
        row = run(pair, "weights", loss, f"from={first}")
    there = pair.root(second, f"test -e {BALLAST} && echo there || true").strip()
    assert there == ("there" if row.status == "COMMITTED" else ""), row
    for name in pair.names:
        pair.root(name, f"rm -rf {BALLAST} {FOLDER}/.rigbook")
