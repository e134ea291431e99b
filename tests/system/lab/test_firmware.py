"""firmware on booted hosts: what it says of a card without Wake-on-LAN, and the files of one with.

The hosts' cards are veths, which cannot wake. Where a card has to, a labelled stand-in for ethtool
stands in its way; udev, systemd, the files and the undo are real.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.rehearsal import Done, Lab

FOLDER = "/etc/systemd"
LINK = f"{FOLDER}/network/00-rigbook-wol-host0.link"
UNIT = "rigbook-wol-host0.service"
STAND_IN = "/usr/local/sbin/ethtool"
LETTERS = f"{STAND_IN}.letters"
ETHTOOL = f"""#!/bin/sh
# rigbook stand-in for ethtool: every card wakes by a magic packet, and its letters are a file
[ "$1" = -s ] && {{ echo "$4" > {LETTERS}; exit 0; }}
echo "Settings for $1: (rigbook stand-in)"
echo "	Supports Wake-on: pumbg"
echo "	Wake-on: $(cat {LETTERS})"
"""


@pytest.fixture(autouse=True)
def operator(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An operator's own folder for this test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def card(lab: Lab) -> Iterator[Lab]:
    """test1 with a card that can wake, by the stand-in; and everything as before afterwards."""
    lab.ssh("test1", f"sudo tee {STAND_IN}", stdin=ETHTOOL)
    lab.ssh("test1", f"sudo chmod 755 {STAND_IN}; echo d | sudo tee {LETTERS}")
    yield lab
    lab.ssh("test1", "sudo rignode undo --text", check=False)
    lab.ssh("test1", f"sudo rm -f {STAND_IN} {LETTERS}; sudo systemctl daemon-reload")


def tree(lab: Lab) -> str:
    """Names, modes, owners, link targets and hashes of the administrator's files on test1."""
    find = f"sudo find {FOLDER} -printf '%p %m %u %g %l\\n' | sort"
    return lab.ssh("test1", f"{find}; sudo find {FOLDER} -type f -exec sha256sum {{}} + | sort")


def firmware(lab: Lab) -> Done:
    """The deploy on test1."""
    return lab.pyinfra("firmware", "--data", "only=test1")


def undone(lab: Lab) -> None:
    """The newest change on test1, which must be COMMITTED, taken back by its id."""
    change = lab.changes("test1")[0]
    assert change["status"] == "COMMITTED"
    back = lab.pyinfra("rollback", "--data", f"change={change['id']}")
    assert back.rc == 0 and "ROLLED_BACK" in back.text, back.text


def at_the_console(lab: Lab) -> None:
    """The newest change on test1 taken back there, without the operator."""
    lab.ssh("test1", f"sudo rignode undo {lab.changes('test1')[0]['id']} --text")


def no_change(done: Done) -> bool:
    """Whether a run changed nothing."""
    return done.rc == 0 and done.counts("Grand total")[1:3] == ("-", "-")


def chosen(lab: Lab) -> str:
    """The .link file that udev took for the card."""
    return lab.ssh("test1", "udevadm info -q property /sys/class/net/host0 | grep LINK_FILE=")


def test_a_card_that_cannot_wake_is_said_and_the_host_does_not_sleep(lab: Lab) -> None:
    before = tree(lab)
    done = firmware(lab)
    assert done.rc == 0 and "COMMITTED" in done.text, done.text
    assert "cannot wake by a magic packet (ethtool names no Wake-on-LAN); left alone" in done.text
    assert "systemd-nspawn: its firmware is another machine's" in done.text
    states = lab.ssh("test1", "systemctl is-enabled sleep.target hibernate.target", check=False)
    assert states.split() == ["masked", "masked"] and LINK not in tree(lab)
    assert no_change(firmware(lab))
    at_the_console(lab)
    assert tree(lab) == before
    assert lab.ssh("test1", "systemctl is-enabled sleep.target", check=False) == "static"


def test_the_link_file_is_the_one_that_udev_takes_after_a_reboot(card: Lab) -> None:
    lab, before = card, tree(card)
    assert chosen(lab).endswith("/99-default.link")
    done = firmware(lab)
    assert done.rc == 0 and "host0 wakes by a magic packet" in done.text, done.text
    assert lab.ssh("test1", f"cat {LETTERS}") == "g"
    text = lab.ssh("test1", f"cat {LINK}").splitlines()
    default = lab.ssh("test1", "sed -n '/^.Link/,$p' /usr/lib/systemd/network/99-default.link")
    assert text[-1] == "WakeOnLan=magic" and text[text.index("[Link]") : -1] == default.splitlines()
    assert lab.verb("reboot", "test1").rc == 0
    assert chosen(lab).endswith(LINK)
    assert no_change(firmware(lab))
    undone(lab)
    assert tree(lab) == before and lab.ssh("test1", f"cat {LETTERS}") == "d"


def test_where_a_foreign_link_file_wins_a_unit_arms_the_card(card: Lab) -> None:
    lab, foreign = card, f"{FOLDER}/network/00-a.link"
    udev = "sudo udevadm control --reload; sudo udevadm trigger --settle -c add"
    udev += " /sys/class/net/host0"
    text = "[Match]\nOriginalName=host0\n[Link]\n"
    lab.ssh("test1", f"sudo tee {foreign}; {udev}", stdin=text)
    try:
        before = tree(lab)
        done = firmware(lab)
        assert done.rc == 0 and f"enable {UNIT}" in done.text, done.text
        assert LINK not in tree(lab)
        # what a boot does, and a power off
        for verb in ("start", "stop"):
            lab.ssh("test1", f"echo d | sudo tee {LETTERS}; sudo systemctl {verb} {UNIT}")
            wait = f"timeout 60 sh -c 'until grep -q g {LETTERS}; do sleep 0.1; done'"
            assert lab.ssh("test1", f"{wait} && cat {LETTERS}", check=False) == "g", verb
        assert lab.ssh("test1", f"systemctl is-enabled {UNIT}") == "enabled"
        assert no_change(firmware(lab))
        at_the_console(lab)
        assert tree(lab) == before
    finally:
        lab.ssh("test1", f"sudo rm -f {foreign}; {udev}")
