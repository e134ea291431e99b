"""wake with a real receiver: which bytes arrive where, and a host that is down until they do."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lab.core import TESTS
from tests.system.rehearsal import Lab

SPACE, END, ADDRESS = "rigbook-wol", f"{TESTS.link}-wol0", "10.89.0.99/24"
# Prints one packet to UDP port 9 as hexadecimal text, from where and how long.
RECEIVER = """
import socket
ear = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
ear.bind(("", 9))
ear.settimeout(120)
print("ready", flush=True)
packet, (source, _) = ear.recvfrom(4096)
print(source, len(packet), packet.hex(), flush=True)
"""


def ip(*words: str, check: bool = True) -> None:
    """Runs `ip`."""
    subprocess.run(["ip", *words], check=check, capture_output=not check)


@pytest.fixture(scope="module")
def segment(lab: Lab) -> Iterator[Lab]:
    """A network namespace of its own on the hosts' LAN, where a receiver can stand."""
    ip("netns", "delete", SPACE, check=False)
    ip("netns", "add", SPACE)
    try:
        ip("link", "add", END, "type", "veth", "peer", "name", "wol1", "netns", SPACE)
        ip("link", "set", END, "master", TESTS.bridge, "up")
        for words in (("link", "set", "lo", "up"), ("link", "set", "wol1", "up"),
                      ("addr", "add", ADDRESS, "brd", "+", "dev", "wol1")):  # fmt: skip
            ip("-n", SPACE, *words)
        yield lab
    finally:
        ip("link", "delete", END, check=False)
        ip("netns", "delete", SPACE, check=False)


@contextmanager
def receiver() -> Iterator[subprocess.Popen[str]]:
    """A listener in the namespace that is ready; its next line is what it got."""
    child = subprocess.Popen(
        ["nsenter", f"--net=/run/netns/{SPACE}", sys.executable, "-c", RECEIVER],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdout is not None and child.stdout.readline() == "ready\n"
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def heard(child: subprocess.Popen[str]) -> tuple[str, int, bytes]:
    """From where the packet came, its length and its bytes."""
    assert child.stdout is not None
    source, length, text = child.stdout.readline().split()
    return source, int(length), bytes.fromhex(text)


@pytest.fixture(scope="module")
def operator(segment: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An operator's folder in which firmware has recorded test1's card while it was up."""
    folder = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder))
        done = segment.pyinfra("firmware", "--data", "only=test1")
        assert done.rc == 0, done.text
        yield folder
        segment.ssh("test1", f"sudo rignode undo {segment.changes('test1')[0]['id']} --text")


@pytest.fixture
def down(segment: Lab, operator: Path) -> Iterator[Lab]:
    """The lab with test1 switched off; on again afterwards."""
    assert segment.verb("stop", "test1").rc == 0
    yield segment
    assert segment.verb("start", "test1").rc == 0


def recorded(folder: Path) -> str:
    """test1's card as it was recorded."""
    text = (folder / "rigbook/machines/tests.json").read_text()
    return str(json.loads(text)["nodes"]["test1"]["mac"])


def test_the_record_is_the_cards_own_address(segment: Lab, operator: Path) -> None:
    assert recorded(operator) == segment.ssh("test1", "cat /sys/class/net/host0/address")


@pytest.mark.parametrize("via", [(), ("--data", "via=test2")], ids=["operator", "neighbour"])
def test_a_host_that_is_down_wakes_by_the_right_102_bytes(
    down: Lab, operator: Path, via: tuple[str, ...]
) -> None:
    """The receiver is the card: it switches the host on once the packet names its address."""
    mac = bytes.fromhex(recorded(operator).replace(":", ""))
    got: list[tuple[str, int, bytes]] = []
    with receiver() as child:

        def power_button() -> None:
            got.append(heard(child))
            if got[0][2] == b"\xff" * 6 + mac * 16:
                down.verb("start", "test1")

        button = threading.Thread(target=power_button)
        button.start()
        done = down.pyinfra("wake", "--data", "only=test1", "--data", "budget=120", *via)
        button.join()
    ((source, length, packet),) = got
    assert length == 102 and packet == b"\xff" * 6 + mac * 16
    assert source == ("10.89.0.12" if via else TESTS.operator_address)
    assert done.rc == 0 and "test1 answers ssh after" in done.text, done.text
    assert "10.89.0.255:9" in done.text
    if via:
        return
    again = down.pyinfra("wake", "--data", "only=test1")
    assert again.rc == 0 and again.counts("Grand total")[1:3] == ("-", "-"), again.text
