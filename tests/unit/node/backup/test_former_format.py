"""A backup of the former form, made by the program before hashes and nanoseconds, is restored."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from node.backup import store
from tests.unit.node.backup.test_contents import flipped
from tests.unit.node.support.trees import Engine

FORMER = Path(__file__).with_name("former")
ALLOW = ["host", "arch", "older"]


@pytest.fixture
def former(engine: Engine) -> Engine:
    """A host with such a backup, whose tree and files are below the host's own folder."""
    text = (FORMER / "manifest.json").read_text().replace("/opt/former", str(engine.host.root))
    manifest = json.loads(text)
    folder = engine.backups / manifest["id"]
    folder.mkdir(parents=True, mode=0o700)
    for name in ("members.jsonl", "payload.tar.zst"):
        shutil.copy(FORMER / name, folder)
    manifest["seal"] = store.seal(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (engine.host.root / "etc").mkdir()
    engine.tree = engine.host.root / "venv"
    return engine


def test_it_is_read_back_and_restored(former: Engine) -> None:
    assert former.ask("verify", {})["members"] == 7
    answer = former.restore(allow=ALLOW)
    assert answer["ok"] and answer["changed"], answer
    assert former.run() == "former"
    data = former.tree / "data"
    assert data.read_text() == "d" * 3000 and os.getxattr(data, "user.note") == b"kept"
    assert data.stat().st_mtime_ns == 1_700_000_000 * 10**9
    assert data.stat().st_ino == (former.tree / "data-too").stat().st_ino
    etc = former.host.root / "etc"
    assert (etc / "engine.service.d" / "10.conf").read_text() == "[Service]\nNice=5\n"
    assert oct((etc / "env").stat().st_mode) == "0o100600" and (etc / "engine.service").exists()
    former.close()
    again = former.restore("restore-2", allow=ALLOW)
    assert (again["changed"], again["detail"]) == (False, "the tree is as the backup")


def test_its_contents_are_compared_with_its_payload(former: Engine) -> None:
    former.ask("verify", {})
    former.restore(allow=ALLOW)
    former.close()
    # what pip or a copy had: parts of a second, which this form does not hold
    os.utime(former.tree / "data", ns=(0, 1_700_000_000_123_456_789))
    assert former.restore(dry=True, allow=ALLOW)["changed"] is False
    flipped(former.tree / "bin" / "vllm")
    dry = former.restore(dry=True, allow=ALLOW)
    assert dry["changed"] and "bin/vllm: it has other bytes" in dry["detail"]


def test_the_next_backup_is_stored_anew(former: Engine) -> None:
    """Not as one that shares a payload and a list of members without hashes."""
    former.ask("verify", {})
    former.restore(allow=ALLOW)
    former.close()
    answer = former.ask("backup", {"tree": str(former.tree)})
    assert answer["stored"] is True and former.manifest(answer["backup"])["format"] == store.FORMAT
    assert former.ask("verify", {})["backup"] == answer["backup"]
