"""The wol step: set, read again, unsigned, and given back; ethtool is a stand-in with memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.node.support.host import Host, unsigned

ETHTOOL = """#!/bin/sh
# rigbook stand-in for ethtool: one card whose letters are a file
here=$(dirname "$0")
[ -e "$here/none" ] && { echo "Settings for $1:"; echo "	Link detected: yes"; exit 0; }
if [ "$1" = -s ]; then
    [ -e "$here/deaf" ] && exit 0
    [ -e "$here/refuses" ] && { echo "netlink error: Operation not supported" >&2; exit 75; }
    echo "$4" > "$here/letters"; exit 0
fi
echo "Settings for $1:"
echo "	Supports Wake-on: pumbg"
echo "	Wake-on: $(cat "$here/letters")"
"""


@pytest.fixture
def card(host: Host) -> Path:
    """A host with a card whose Wake-on-LAN is off; the folder of the stand-in."""
    host.double("ethtool", ETHTOOL)
    (host.bin / "letters").write_text("d")
    return host.bin


def apply(host: Host, **step: Any) -> dict[str, Any]:
    """An apply of one wol step."""
    request = {
        "change": {"id": "20261121T000000Z-firmware-0", "deploy": "firmware", "operator": "t"},
        "steps": [{"op": "wol", "nic": "enp5s0", "letters": "g", **step}],
    }
    return host.call("apply", request)


def letters(card: Path) -> str:
    """What is set now."""
    return (card / "letters").read_text().strip()


def test_it_is_set_told_and_given_back(host: Host, card: Path) -> None:
    assert apply(host)["steps"][0]["detail"] == "wol d -> g" and letters(card) == "g"
    assert apply(host)["changed"] is False
    (change,) = host.call("journal", {})["changes"]
    assert change["steps"][0]["pre"] == "d"
    undone = host.call("undo", {})
    assert undone["status"] == "ROLLED_BACK" and letters(card) == "d"


def test_a_later_edit_is_left(host: Host, card: Path) -> None:
    apply(host)
    (card / "letters").write_text("ug")
    assert "left as it is now" in host.call("undo", {})["steps"][0]["detail"]
    assert letters(card) == "ug"


@pytest.mark.parametrize(("flag", "words"), [
    ("refuses", "Operation not supported"), ("deaf", "afterwards ethtool says d"),
    ("none", "has no Wake-on-LAN"),
])  # fmt: skip
def test_what_does_not_work_changes_nothing(host: Host, card: Path, flag: str, words: str) -> None:
    (card / flag).touch()
    answer = apply(host)
    assert answer["code"] == "wol_failed" and words in answer["error"]
    assert "nothing was changed" in answer["error"] and letters(card) == "d"
    assert host.call("journal", {})["changes"] == []


@pytest.mark.parametrize(
    "step", [{"letters": "zz"}, {"letters": "g;id"}, {"nic": "-s"}, {"nic": 1}]
)
def test_bad_input_is_refused(host: Host, card: Path, step: dict[str, Any]) -> None:
    answer = apply(host, **step)
    assert answer["code"] == "bad_request" and letters(card) == "d"


def test_a_kill_between_intent_and_end_is_settled(host: Host, card: Path) -> None:
    apply(host)
    (path,) = (host.state / "journal").glob("*.json")
    change = unsigned(path)
    change["steps"][0]["state"] = "intent"
    path.write_text(json.dumps(change))
    assert host.call("undo", {})["status"] == "ROLLED_BACK" and letters(card) == "d"
