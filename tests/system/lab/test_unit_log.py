"""What node reads of a real journal: the newest lines of a unit in trouble, not the oldest."""

from __future__ import annotations

import json
import shlex

from facts.rignode import pack
from tests.system.rehearsal import Lab

UNIT = "talker.service"


def test_the_newest_errors_are_told(lab: Lab) -> None:
    """systemd 252's journalctl gives the oldest lines where --since and -n are combined."""
    text = "[Service]\nType=oneshot\nExecStart=/bin/sh -c 'for i in $(seq 900); do " \
           "echo error $$i; done; exit 3'\n"  # fmt: skip
    lab.ssh("test1", f"sudo tee /run/systemd/system/{UNIT} >/dev/null", stdin=text)
    lab.ssh("test1", f"sudo systemctl daemon-reload; sudo systemctl start {UNIT}", check=False)
    try:
        command = pack.inline_command("snapshot", {"units": [UNIT]})
        said = lab.ssh("test1", f"sudo -n sh -c {shlex.quote(command)}")
        unit = json.loads(said.splitlines()[-1])["units"][0]
        assert "error 900" in unit["errors"] and "error 1" not in unit["errors"], unit
    finally:
        lab.ssh("test1", f"sudo rm /run/systemd/system/{UNIT}; sudo systemctl daemon-reload; "
                "sudo systemctl reset-failed", check=False)  # fmt: skip
