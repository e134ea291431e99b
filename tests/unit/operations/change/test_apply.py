"""Steps in words, their time limits and the text behind a diff: one table for all runbooks."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from operations.change.apply import USUAL_S, describe, limit_s, text_after

UNIT = {"op": "unit", "unit": "a.service", "enabled": None, "active": None, "daemon_reload": True}


@pytest.mark.parametrize(("step", "words"), [
    ({"op": "file", "path": "/a", "mode": "0644"}, "write /a (mode 0644, owner root)"),
    ({"op": "file", "path": "/a", "mode": "0600", "owner": "ubuntu"},
     "write /a (mode 0600, owner ubuntu)"),
    ({"op": "directory", "path": "/a"}, "make the folder /a"),
    ({"op": "directory", "path": "/a", "owner": "ubuntu"}, "make the folder /a (owner ubuntu)"),
    ({"op": "absent", "path": "/a"}, "remove /a"),
    ({"op": "link", "path": "/b/sleep.target", "target": "/dev/null"}, "mask sleep.target"),
    ({"op": "link", "path": "/v", "target": "/v2", "expect": "/v1"}, "/v: /v1 -> /v2"),
    (UNIT, "have systemd read its units again"),
    ({**UNIT, "active": "restart"}, "have systemd read its units again, then restart a.service"),
    ({**UNIT, "daemon_reload": False, "active": "start"}, "start a.service"),
    ({**UNIT, "enabled": True}, "enable a.service"),
    ({**UNIT, "enabled": False, "active": "stop"}, "disable and stop a.service"),
    ({"op": "hold", "packages": ["a", "b"], "held": True}, "apt holds: a, b"),
    ({"op": "grub", "saved": "6", "regenerate": True}, "update-grub; GRUB's saved default is 6"),
    ({"op": "grub", "saved": "6.1", "next": "6.8"}, "GRUB boots 6.8 once"),
    ({"op": "wol", "nic": "eth0", "letters": "g"},
     "eth0 wakes by a magic packet from now on (ethtool wol g)"),
])  # fmt: skip
def test_a_step_is_told_in_words(step: dict[str, Any], words: str) -> None:
    assert describe(step) == words


def test_an_unknown_step_has_no_words() -> None:
    with pytest.raises(KeyError):
        describe({"op": "format", "path": "/dev/sda"})


def test_the_slowest_step_sets_the_limit() -> None:
    assert limit_s([]) == limit_s([{"op": "file"}]) == USUAL_S
    assert limit_s([{"op": "unit"}, {"op": "file"}, {"op": "grub"}]) > limit_s([{"op": "unit"}])


def test_a_diff_shows_what_a_file_becomes() -> None:
    raw = base64.b64encode(b"new\n").decode()
    assert text_after({"op": "file", "path": "/a", "content": "new\n"}) == "new\n"
    assert text_after({"op": "file", "path": "/a", "content_base64": raw}) == "new\n"
    assert text_after({"op": "absent", "path": "/a"}) is None
