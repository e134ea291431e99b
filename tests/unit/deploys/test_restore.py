"""Before a restore every byte is compared, which takes a while: the operator sees how far it is."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
from pyinfra.api.exceptions import DeployError

from deploys.procedures.rollback import restore

LINE = "compare with 20260101T000000Z-venv-0001: 512 of 1024 MiB, about 5 s left"


@pytest.mark.parametrize("answer", [{"changed": True}, DeployError("tower: no answer")])
def test_how_far_the_comparison_is_gets_told_until_it_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, answer: Any
) -> None:
    def ask_all(_: Any, verb: str, requests: Any, timeout_s: int) -> Any:
        assert (verb, requests["tower"]["dry"]) == ("tree restore", True) and timeout_s >= 1800
        gevent.sleep(0.2)
        if isinstance(answer, Exception):
            raise answer
        return {"tower": answer}

    monkeypatch.setattr(restore, "ask_all", ask_all)
    monkeypatch.setattr(restore, "REPORT_S", 0.02)
    monkeypatch.setattr(restore, "fact_of", lambda *_, **__: SimpleNamespace(working=[LINE]))
    monkeypatch.setattr(restore, "real", lambda state: state)
    state: Any = SimpleNamespace(inventory=SimpleNamespace(get_host=lambda name: name))
    with caplog.at_level(logging.INFO, "pyinfra"):
        try:
            assert restore._dry(state, "tower", "ID") == answer
        except DeployError as error:
            assert error is answer
        told = caplog.text.count(LINE)
        gevent.sleep(0.1)
    assert told >= 2 and caplog.text.count(LINE) == told
