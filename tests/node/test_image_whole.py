"""An image that the taker has whole already: nothing to fetch, and a giver that waits."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from typing import Any

import pytest

from node import image, imageload, offer, wire
from tests.node.support import change
from tests.node.transfers import HERE, Ends, answer, files, listening, wait_for

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
    real = wire.call
    with ExitStack() as until:

        def call(*args: Any) -> wire.Line:
            if not begun:
                begun.append(until.enter_context(ends.offering(deadline_s=20)))
                wait_for(lambda: listening(ends.port), 60)
                raise wire.WireError("no way to the giver: it does not listen yet")
            return real(*args)

        monkeypatch.setattr(wire, "call", call)
        monkeypatch.setenv("RIGBOOK_STATE", str(ends.taker.state))
        monkeypatch.setattr(offer, "Alive", AnOperator)
        # stand-ins for docker: the image is there, and the tag is set
        monkeypatch.setattr(image, "store", lambda: "/nosuch")
        monkeypatch.setattr(imageload, "whole", lambda want: True)
        monkeypatch.setattr(imageload, "drop_parts", lambda: None)
        monkeypatch.setattr(image, "_tag", lambda body: True)
        place = {"address": HERE, "port": ends.port, "device": None}
        want = {"id": DIGEST, "layers": [DIGEST]}
        got = image.receive(
            {"change": change(), "image": "x:1", "want": want, "from": place, "key": ends.key}
        )
        assert got["changed"]
        gave = answer(begun[0], 60)
        assert gave["ok"] and gave["peers"][HERE]["error"] is None, gave
