"""Weights to three targets go in two rounds: a target of the first gives in the second (ADR 37)."""

from __future__ import annotations

import re

from tests.system.nodes.conftest import Four

FOLDER = "/srv/models/tiny"
MORE = f"head -c 200000000 /dev/urandom | sudo tee {FOLDER}/more.bin > /dev/null"
MOVED = re.compile(r"\[(\w+)\] get what lacks in .* from (\w+),")


def sums(four: Four, host: str) -> str:
    """The sha256 of every file of the weights on a host."""
    return four.lab.ssh(host, f"cd {FOLDER} && find . -type f -not -path '*/.rigbook/*' "
                              "-print0 | sort -z | xargs -0 -r sha256sum")  # fmt: skip


def test_three_targets_in_two_rounds(four: Four) -> None:
    first, *others = four.lab.hosts
    four.lab.ssh(first, MORE)
    whole = sums(four, first)
    for name in others:
        four.lab.ssh(name, f"sudo find {FOLDER} -mindepth 1 -delete")
    done = four.pyinfra("weights")
    assert done.rc == 0, done.text
    assert "round 1 of 2" in done.text and "round 2 of 2" in done.text, done.text
    assert all(sums(four, name) == whole for name in others)
    givers = dict(MOVED.findall(done.text))
    assert set(givers) == {*others} and len(set(givers.values())) == 2, givers
    again = four.pyinfra("weights")
    assert again.rc == 0 and again.counts("Grand total")[1:3] == ("-", "-"), again.text
