"""wake: whom it wakes though nobody answers, by which card, from where, and what it refuses."""

from __future__ import annotations

import json
import socket
import threading
import uuid
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from deploys.plans.wake import Sleeper, WakeWork, likely_causes
from schema.host import MachineRecord
from tests.plans.support.scenario import (
    HEAD,
    WORKER,
    Runs,
    Scenario,
    data,
    done,
    each_row,
    host,
    quiet,
    refused,
    tiny_plan,
)

MAC = "04:7c:16:aa:bb:01"
RECORD = MachineRecord(
    nic="enp5s0", mac=MAC, network="127.0.0.2/8", wol="g", able=True, board="MSI MAG Z890",
    display=False, open=("erp_disabled",), seen_unix_s=1_790_000_000,
)  # fmt: skip


def state(folder: Path, text: str | None) -> str:
    """An operator's folder with this file of machines."""
    if text is not None:
        path = folder / "rigbook/machines/lab.json"
        path.parent.mkdir(parents=True)
        path.write_text(text)
    return str(folder)


KNOWN = json.dumps({"format": 1, "nodes": {HEAD: RECORD.model_dump(), WORKER: RECORD.model_dump()}})


class Sshd:
    """An sshd's banner on a loopback port; the first `deaf` callers get none."""

    def __init__(self, deaf: int = 0) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        self._deaf = deaf
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                line, _ = self._server.accept()
            except OSError:
                return
            with line:
                if self._deaf:
                    self._deaf -= 1
                else:
                    line.sendall(b"SSH-2.0-stand-in\r\n")

    def close(self) -> None:
        """No further banner."""
        self._server.close()


def rig(head: int, worker: int, **more: Any) -> list[Any]:
    """Both hosts, their sshd at these ports of loopback."""
    ssh = {"ssh_hostname": "127.0.0.1", **more}
    return [(HEAD, host(1, "127.0.0.2", ssh_port=head, **ssh)),
            (WORKER, host(2, "127.0.0.2", ssh_port=worker, **ssh))]  # fmt: skip


def run(
    base: Path, *words: str, text: str | None = KNOWN, dry: bool = False, **rig: Any
) -> Scenario:
    """A run of wake."""
    env = {"XDG_STATE_HOME": state(base / uuid.uuid4().hex, text)}
    sent = {"sent": 102, "to": "127.255.255.255:9", "source": "127.0.0.3"}
    return Scenario(("deploys/wake.py", "--dry" if dry else "-y", *data(*words)), env=env,
                    faults={f"{WORKER}:answers": {"wake": sent}}, **rig)  # fmt: skip


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """All runs of this module; the head is deaf until the packet was sent."""
    ask = partial(run, tmp_path_factory.mktemp("state"))
    up, late, beside = Sshd(), Sshd(deaf=1), Sshd(deaf=1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        gone = int(server.getsockname()[1])
    plugged = rig(up.port, gone, power_cycle_command="/bin/true tower")
    down = rig(gone, up.port)
    try:
        yield Runs({
            "up": ask(hosts=rig(up.port, up.port)),
            "dry": ask(hosts=down, dry=True),
            "comes": ask(hosts=rig(late.port, up.port)),
            "via": ask(f"via={WORKER}", hosts=rig(beside.port, up.port)),
            "unknown": ask(hosts=down, text=None),
            "broken": ask(hosts=down, text="{"),
            "strange": ask(hosts=down, text='{"format": 1, "nodes": {"a": {}}}'),
            "bad mac": ask("mac=ff:ff:ff:ff:ff:ff", hosts=down),
            "one mac, two": ask(f"mac={MAC}", hosts=rig(gone, gone), text=None),
            "no node": ask("only=lab9", hosts=down),
            "no peer": ask("via=lab9", hosts=down),
            "itself": ask(f"only={HEAD}", f"via={HEAD}", hosts=down),
            "no plug": ask(f"only={HEAD}", "power_cycle=true", hosts=down),
            "plug, up": ask(f"only={HEAD}", "power_cycle=true", hosts=plugged),
            "plug, all": ask("power_cycle=true", hosts=plugged),
            "too fast": ask(f"only={WORKER}", "power_cycle=true", "off_s=1", hosts=plugged),
        })  # fmt: skip
    finally:
        for sshd in (up, late, beside):
            sshd.close()


REFUSED = {
    "unknown": ("its card's address is not known", "deploys/firmware.py -y"),
    "broken": ("lab.json", "remove it"),
    "strange": ("lab.json", "nodes"),
    "bad mac": ("is not one machine's MAC address",),
    "one mac, two": ("--data mac is one card's",),
    "no node": ("only=lab9: no such node",),
    "no peer": ("via=lab9: no such node",),
    "itself": ("cannot be the one asleep",),
    "no plug": ("power_cycle_command is not set", "never less than 3"),
    "plug, up": ("answers ssh: its power is not cut",),
    "plug, all": ("add --data only=NODE",),
    "too fast": ("off_s", "3 or more"),
}
PACKET = "magic packet"
ENDS = {
    # what answers is left alone
    "up": quiet("answers ssh at 127.0.0.1", asks=[]),
    "dry": quiet(
        f"{HEAD} does not answer; {MAC} (card enp5s0, Wake-on-LAN g when it was seen on",
        never=(PACKET,)),
    # a machine that is down is no error, and its sshd is waited for
    "comes": quiet(
        f"{PACKET} for {MAC} to 127.255.255.255:9 from this machine",
        f"{HEAD} answers ssh after", asks=[]),
    # a neighbour sends where it is named
    "via": done(f"to 127.255.255.255:9 from {WORKER} (127.0.0.3)"),
    **{name: replace(refused(*last), never=(PACKET,)) for name, last in REFUSED.items()},
}  # fmt: skip
test_each_run_ends_as_its_row_says = each_row(ENDS)


def test_a_neighbour_is_told_whom_to_wake(ran: Runs) -> None:
    (sent,) = ran["via"].commands
    asked = (sent.host, sent.verb, sent.request["mac"], sent.request["address"])
    assert asked == (WORKER, "wake", MAC, "127.255.255.255")


def test_the_causes_are_told_in_order_with_what_is_known() -> None:
    node = tiny_plan().rig.head
    one = Sleeper(node, ("127.0.0.1", 22), MAC, "127.255.255.255", RECORD, None, True)
    lines = likely_causes(WakeWork({node.name: one}, None, False, 10, 30), node.name)
    order = [next(n for n, x in enumerate(lines) if word in x)
             for word in ("ErP Ready", "less than 3 s", "POST waits", "wrong card")]  # fmt: skip
    assert order == [1, 2, 3, 4]
    assert "nobody attested it" in lines[1] and "pull the plug" in lines[2]
    assert "enp5s0 04:7c:16:aa:bb:01; Wake-on-LAN was g" in lines[4]
