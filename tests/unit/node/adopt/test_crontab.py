"""Lines of a crontab are commented out as a step on the file, and come back with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.adopt.crontab_step import MARK
from node.change import apply, close, kinds, undo
from node.core.errors import NodeError
from tests.unit.node.support.host import Host, change

REBOOT = "@reboot root HF_TOKEN=hf_canary docker start vllm_ds4"
SEEN = "@reboot root HF_TOKEN=*** docker start vllm_ds4"
TEXT = f"SHELL=/bin/sh\n{REBOOT}\n17 * * * * root run-parts /etc/cron.hourly"


@pytest.fixture
def crontab(host: Host) -> Path:
    """A crontab of somebody else's, without a line's end at its end."""
    path = host.root / "crontab"
    path.write_text(TEXT)
    path.chmod(0o600)
    return path


def step(path: Path, line: int = 2, text: str = SEEN) -> dict[str, object]:
    """The step that comments one line out."""
    return {"op": "crontab", "path": str(path), "lines": [{"line": line, "text": text}]}


def asked(path: Path, **more: object) -> dict[str, object]:
    """The request with that step."""
    return {"change": change(), "steps": [step(path)], **more}


def test_a_line_is_commented_out_once_and_comes_back(crontab: Path) -> None:
    assert apply.apply(asked(crontab, dry=True))["changed"] and crontab.read_text() == TEXT
    assert apply.apply(asked(crontab))["changed"]
    after = TEXT.replace(REBOOT, MARK + REBOOT)
    assert crontab.read_text() == after and crontab.stat().st_mode & 0o777 == 0o600
    assert not apply.apply(asked(crontab))["changed"]
    undo.undo({"change": "change-1"})
    assert crontab.read_text() == TEXT and crontab.stat().st_mode & 0o777 == 0o600


def test_its_change_may_end_committed(crontab: Path) -> None:
    apply.apply(asked(crontab))
    assert close.close({"change": "change-1", "status": "COMMITTED"})["changed"]


@pytest.mark.parametrize(("line", "text"), [(2, "@reboot root other"), (3, SEEN), (9, SEEN)])
def test_another_line_than_was_seen_is_not_touched(crontab: Path, line: int, text: str) -> None:
    with pytest.raises(NodeError, match="is not what was seen: it was edited meanwhile"):
        apply.apply({"change": change(), "steps": [step(crontab, line, text)]})
    assert crontab.read_text() == TEXT


def test_a_crontab_that_was_edited_later_is_not_overwritten(crontab: Path) -> None:
    apply.apply(asked(crontab))
    crontab.write_text("mine\n")
    with pytest.raises(NodeError, match="edited after the change"):
        undo.undo({"change": "change-1"})
    assert crontab.read_text() == "mine\n"


@pytest.mark.parametrize("bad", [
    {"path": "crontab", "lines": []}, {"path": "/etc/crontab", "lines": [{"line": 1}]},
    {"path": "/etc/crontab", "lines": [{"line": 0, "text": "x"}]}, {"path": "/etc/crontab"},
])  # fmt: skip
def test_a_bad_request_is_refused(bad: dict[str, object]) -> None:
    with pytest.raises(NodeError) as error:
        kinds.parse({"op": "crontab", **bad}, "steps[0]")
    assert error.value.code == "bad_request"
