"""An image that the taker has whole already: nothing to fetch, and a giver that waits."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from typing import Any

import pytest

from node.image import load, verbs
from node.transfer import protocol, server
from tests.unit.node.support.host import change
from tests.unit.node.support.transfers import HERE, Ends, answer, files, listening, wait_for

DIGEST = "sha256:" + "a" * 64


class AnOperator:
    """A stand-in for the session that started it: it stays."""

    def gone(self) -> None:
        """Nobody is gone."""


@pytest.fixture(autouse=True)
def given(ends: Ends) -> None:
    """A file at the giver: what it gives does not matter here."""
    files(ends.source, a_bin=1)


def test_a_giver_that_listens_later_still_hears_that_nothing_is_needed(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both begin at the same time; a giver that heard no word waits 90 s and fails the run."""
    begun: list[subprocess.Popen[str]] = []
    real = protocol.connect
    with ExitStack() as until:

        def call(*args: Any) -> protocol.Connection:
            if not begun:
                begun.append(until.enter_context(ends.offering(deadline_s=20)))
                wait_for(lambda: listening(ends.port), 60)
                raise protocol.WireError("no way to the giver: it does not listen yet")
            return real(*args)

        monkeypatch.setattr(protocol, "connect", call)
        monkeypatch.setenv("RIGBOOK_STATE", str(ends.taker.state))
        monkeypatch.setattr(server, "ParentWatch", AnOperator)
        # stand-ins for docker: the image is there, and the tag is set
        monkeypatch.setattr(verbs, "store", lambda: "/nosuch")
        monkeypatch.setattr(load, "is_complete", lambda want: True)
        monkeypatch.setattr(load, "remove_partial_images", lambda: None)
        monkeypatch.setattr(verbs, "_tag", lambda body: True)
        want = {"id": DIGEST, "layers": [DIGEST]}
        got = verbs.receive({"change": change(), "image": "x:1", "want": want,
                             "from": ends.place(), "key": ends.key})  # fmt: skip
        assert got["changed"]
        gave = answer(begun[0], 60)
        assert gave["ok"] and gave["peers"][HERE]["error"] is None, gave
