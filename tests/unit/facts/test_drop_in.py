"""The check of a drop-in: one bounded command, and an answer that is never made up."""

from __future__ import annotations

import json

import pytest
from pyinfra.api.exceptions import FactProcessError

from facts.drop_in import DropInCheck

REQUEST = {"unit": "a.service", "path": "/etc/systemd/system/a.service.d/50-x.conf"}


def test_the_command_is_bounded_on_the_host_and_holds_no_request_as_shell_text() -> None:
    line = DropInCheck().command(json.dumps({**REQUEST, "content": "'; touch /x; #"}))
    assert line.startswith("timeout -k 5 60 sh -c ") and "touch /x" not in line


def test_an_answer_is_taken_as_it_is() -> None:
    answer = {"problems": [], "ghosts": ["g"], "exec_start": ["/a"]}
    assert DropInCheck().process(["noise", json.dumps({"ok": True, **answer})]) == answer


@pytest.mark.parametrize("output", [[], ["sudo: no"], ['{"ok": false, "error": "bad unit"}']])
def test_no_answer_is_an_error(output: list[str]) -> None:
    with pytest.raises(FactProcessError, match=r"nothing \(limit 60 s\)|no dropin but|bad unit"):
        DropInCheck().process(output)
