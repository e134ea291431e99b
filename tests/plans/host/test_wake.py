"""wake: whom it wakes though nobody answers, by which card, from where, and what it refuses."""

from __future__ import annotations

import json
import socket
import threading
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from deploys.procedures.host.wake import Sleeper, WakeWork, likely_causes
from schema.machine.wake_record import MachineRecord
from tests.plans.support.scenario import HEAD, WORKER, Runs, Scenario, host, tiny_plan

MAC = "04:7c:16:aa:bb:01"
WAKE = ("deploys/wake.py",)
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


def rig(head: int, worker: int, **data: Any) -> list[Any]:
    """Both hosts, their sshd at these ports of loopback."""
    ssh = {"ssh_hostname": "127.0.0.1", **data}
    return [(HEAD, host(1, "127.0.0.2", ssh_port=head, **ssh)),
            (WORKER, host(2, "127.0.0.2", ssh_port=worker, **ssh))]  # fmt: skip


def run(
    base: Path, *words: str, hosts: list[Any], text: str | None = KNOWN, dry: bool = False
) -> Scenario:
    """A run of wake."""
    flags = ("--dry",) if dry else ("-y",)
    data = [part for word in words for part in ("--data", word)]
    env = {"XDG_STATE_HOME": state(base / uuid.uuid4().hex, text)}
    sent = {"sent": 102, "to": "127.255.255.255:9", "source": "127.0.0.3"}
    return Scenario((*WAKE, *flags, *data), hosts=hosts, env=env,
                    faults={f"{WORKER}:answers": {"wake": sent}})  # fmt: skip


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """All runs of this module; the head is deaf until the packet was sent."""
    ask = partial(run, tmp_path_factory.mktemp("state"))
    up, late, beside = Sshd(), Sshd(deaf=1), Sshd(deaf=1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        gone = int(server.getsockname()[1])
    plugged = rig(up.port, gone, power_cycle_command="/bin/true tower")
    try:
        yield Runs({
            "up": ask(hosts=rig(up.port, up.port)),
            "dry": ask(hosts=rig(gone, up.port), dry=True),
            "comes": ask(hosts=rig(late.port, up.port)),
            "via": ask(f"via={WORKER}", hosts=rig(beside.port, up.port)),
            "unknown": ask(hosts=rig(gone, up.port), text=None),
            "broken": ask(hosts=rig(gone, up.port), text="{"),
            "strange": ask(hosts=rig(gone, up.port), text='{"format": 1, "nodes": {"a": {}}}'),
            "bad mac": ask("mac=ff:ff:ff:ff:ff:ff", hosts=rig(gone, up.port)),
            "one mac, two": ask(f"mac={MAC}", hosts=rig(gone, gone), text=None),
            "no node": ask("only=lab9", hosts=rig(gone, up.port)),
            "no peer": ask("via=lab9", hosts=rig(gone, up.port)),
            "itself": ask(f"only={HEAD}", f"via={HEAD}", hosts=rig(gone, up.port)),
            "no plug": ask(f"only={HEAD}", "power_cycle=true", hosts=rig(gone, up.port)),
            "plug, up": ask(f"only={HEAD}", "power_cycle=true", hosts=plugged),
            "plug, all": ask("power_cycle=true", hosts=plugged),
            "too fast": ask(f"only={WORKER}", "power_cycle=true", "off_s=1", hosts=plugged),
        })  # fmt: skip
    finally:
        for sshd in (up, late, beside):
            sshd.close()


def test_what_answers_is_left_alone(ran: Runs) -> None:
    assert ran["up"].status == 0, ran["up"].output
    assert ran["up"].commands == () and "answers ssh at 127.0.0.1" in ran["up"].output


def test_a_look_sends_nothing(ran: Runs) -> None:
    out = ran["dry"].output
    assert ran["dry"].status == 0 and "magic packet" not in out
    assert f"{HEAD} does not answer; {MAC} (card enp5s0, Wake-on-LAN g when it was seen on" in out


def test_a_machine_that_is_down_is_no_error_and_its_sshd_is_waited_for(ran: Runs) -> None:
    run = ran["comes"]
    assert run.status == 0, run.output
    assert f"magic packet for {MAC} to 127.255.255.255:9 from this machine" in run.output
    assert f"{HEAD} answers ssh after" in run.output and run.commands == ()


def test_a_neighbour_sends_where_it_is_named(ran: Runs) -> None:
    run = ran["via"]
    (sent,) = {(c.host, c.verb, c.request["mac"], c.request["address"]) for c in run.commands}
    assert sent == (WORKER, "wake", MAC, "127.255.255.255") and run.status == 0
    assert f"to 127.255.255.255:9 from {WORKER} (127.0.0.3)" in run.output


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


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused_in_one_line(ran: Runs, name: str) -> None:
    ran[name].refused(*REFUSED[name])
    assert "magic packet" not in ran[name].output


def test_the_causes_are_told_in_order_with_what_is_known() -> None:
    node = tiny_plan().rig.head
    one = Sleeper(node, ("127.0.0.1", 22), MAC, "127.255.255.255", RECORD, None, True)
    lines = likely_causes(WakeWork({node.name: one}, None, False, 10, 30), node.name)
    order = [next(n for n, x in enumerate(lines) if word in x)
             for word in ("ErP Ready", "less than 3 s", "POST waits", "wrong card")]  # fmt: skip
    assert order == [1, 2, 3, 4]
    assert "nobody attested it" in lines[1] and "pull the plug" in lines[2]
    assert "enp5s0 04:7c:16:aa:bb:01; Wake-on-LAN was g" in lines[4]
