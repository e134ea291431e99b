"""several: other verbs in one process; each part answers, fails and is late by itself."""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

import pytest

from facts.rignode import pack
from node.cli import verb_table
from node.cli.several import several
from node.core.errors import CannotRead, NodeError
from tests.unit.node.support.host import Host

Json = dict[str, Any]
# what the doctor asks
DOCTOR = ("growth", "hardware", "host", "kernel", "snapshot", "tree list")


def _raise(error: BaseException) -> Json:
    raise error


VERBS: dict[str, Any] = {
    "well": lambda asked: {"asked": asked},
    "refuses": lambda _: _raise(NodeError("no such tree", "no_tree", "name another")),
    "unread": lambda _: _raise(CannotRead("journalctl: no")),
    "disk": lambda _: _raise(OSError(5, "Input/output error", "/srv")),
    "faulty": lambda _: _raise(KeyError("boots")),
    "leaves": lambda _: sys.exit(3),
    "hangs": lambda _: threading.Event().wait(60),
}
SAID: dict[str, Json] = {
    "well": {"ok": True, "asked": {"a": 1}},
    "refuses": {"error": "no such tree", "code": "no_tree", "remedy": "name another"},
    "unread": {"error": "journalctl: no", "code": "io"},
    "disk": {"error": "/srv: Input/output error", "code": "io"},
    "faulty": {"error": "a fault of rignode itself: KeyError: 'boots'", "code": "internal"},
    "leaves": {"error": "a fault of rignode itself: SystemExit: 3", "code": "internal"},
    "hangs": {"error": "no answer in 1 s", "code": "late"},
}


def part(verb: str, seconds: float = 1) -> Json:
    return {"verb": verb, "request": {"a": 1}, "seconds": seconds}


@pytest.fixture(scope="module")
def parts() -> dict[str, Json]:
    """What each part says, where all of them are asked and most fail."""
    found: dict[str, Json] = several({"parts": [part(verb) for verb in VERBS]}, VERBS)["parts"]
    return found


@pytest.mark.parametrize("verb", SAID)
def test_each_part_has_its_own_end(parts: dict[str, Json], verb: str) -> None:
    wanted = SAID[verb] if "ok" in SAID[verb] else {"ok": False, "remedy": "", **SAID[verb]}
    assert parts[verb] == wanted


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        ([part("several")], "verb"),
        ([part("apply")], "verb"),
        ([part("growth"), part("growth")], "asked twice"),
        ([part("growth", 0)], "seconds"),
        ([{"verb": "growth"}], "request"),
        ("growth", "parts"),
    ],
)
def test_what_may_not_be_asked_is_refused(rows: Any, line: str) -> None:
    with pytest.raises(NodeError, match=line):
        verb_table.run("several", {"parts": rows})


def test_by_stdin_each_part_is_what_its_verb_prints_alone(host: Host) -> None:
    """One Python of the host's, which has the modules of all parts and no others."""
    (host.bin / "python3").symlink_to(sys.executable)
    rows = [pack.Part(verb, {}, 60) for verb in DOCTOR]
    line, stdin = pack.several_call(rows)
    done = host.run(["sh", "-c", line], stdin)
    answer = json.loads(done.stdout)
    assert done.stderr == "" and answer["ok"] is True and sorted(answer["parts"]) == [*DOCTOR]
    for verb, said in answer["parts"].items():
        call = pack.stdin_call(verb, {})
        alone = json.loads(host.run(["sh", "-c", call.line], call.stdin).stdout)
        assert said["ok"] is True, (verb, said)
        assert {*said} - {"ok"} == {*alone} - {"ok"}, verb
    sent = set(pack.needs("several", *DOCTOR))
    assert sent == {"node.cli.several"}.union(*(pack.needs(verb) for verb in DOCTOR))
