"""What the operator sees of a transfer while it runs: each new line of the node's, once."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import gevent
import pytest

from operations.transfer import transfer


def test_the_nodes_lines_are_shown_as_they_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look that fails, or finds no file or half of one, says nothing and ends nothing."""
    looks = ["", '{"line"', *(json.dumps({"line": x}) for x in ("25 %", "25 %", "75 %"))]
    shown: list[str] = []

    def look(*_: Any, **__: Any) -> Any:
        if not looks:
            raise gevent.GreenletExit
        return True, SimpleNamespace(stdout_lines=looks.pop(0).splitlines())

    monkeypatch.setattr(transfer, "run_as_root", look)
    monkeypatch.setattr(transfer, "LOOK_EVERY_S", 0)
    host: Any = SimpleNamespace(log=shown.append, data={}, run_shell_command=None)
    run: Any = SimpleNamespace(state=None)
    with pytest.raises(gevent.GreenletExit):
        transfer.watch(run, host, "image")
    assert shown == ["25 %", "75 %"]


def test_each_end_of_a_transfer_is_bound_to_its_own_device() -> None:
    devices = {"spark1": "enp1s0f0np0", "spark2": "enp1s0f1np1"}
    addresses = {"spark1": "10.0.0.1", "spark2": "10.0.0.2"}
    route = transfer.Route(addresses, devices, 29680)
    listens = {"address": "10.0.0.1", "port": 29680}
    assert route.listen("spark1") == {**listens, "device": "enp1s0f0np0"}
    assert route.listen("spark1", "spark2") == {**listens, "device": "enp1s0f1np1"}
    assert route.words == "out of enp1s0f0np0, enp1s0f1np1"
    over_lan = transfer.Route(addresses, dict.fromkeys(devices), 29680)
    assert (over_lan.words, over_lan.listen("spark1")["device"]) == ("over the LAN", None)
