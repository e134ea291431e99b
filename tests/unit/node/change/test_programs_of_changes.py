"""A change is undone by a program that understands it: this one, or the one that wrote it."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import pytest

from facts.rignode import pack
from node.core import version
from tests.unit.node.support.host import (
    OLD,
    Host,
    apply_request,
    change,
    compiled,
    file_step,
    unsigned,
)

NEWER = "0123456789ab"
QUOTA = """
from node.core.step_kind import Kind

class QuotaKind(Kind):
    keys = required = ("file", "value")
    def parse(self, step, where):
        return dict(step)
    def plan(self, step, seen):
        return True, "would be"
    def do(self, step, steps):
        entry = self.record(steps, file=step["file"], pre=open(step["file"]).read())
        open(step["file"], "w").write(step["value"])
        steps.finish(entry)
        return True, "is set"
    def revert(self, entry, overwrite):
        open(entry["file"], "w").write(entry["pre"])
        return "set back by the newer program"
"""


@pytest.fixture
def newer(host: Host, tmp_path: Path) -> Host:
    """The same host with a newer program on it, which knows one more kind of step."""
    made = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(pack.zipapp_bytes())) as old,
        zipfile.ZipFile(made, "w") as new,
    ):
        for name in old.namelist():
            text = old.read(name)
            if name == "node/change/kinds.py":
                row = b'    "quota": "node.change.quota_step:QuotaKind",\n    "directory":'
                assert b'    "directory":' in text
                text = text.replace(b'    "directory":', row)
            new.writestr(name, text)
        new.writestr("node/change/quota_step.py", QUOTA)
    path = tmp_path / "lib" / f"rignode-{NEWER}.pyz"
    path.parent.mkdir()
    path.write_bytes(compiled(made.getvalue()))
    return Host(host.root, path)


def quota(host: Host, value: str = "2") -> dict[str, object]:
    """A step that only the newer program knows."""
    path = host.root / "number"
    path.write_text("1")
    return {"op": "quota", "file": str(path), "value": value}


def edit(host: Host, **more: object) -> None:
    """Edit the journal of the one change."""
    (path,) = (host.state / "journal").glob("*.json")
    path.write_text(json.dumps({**unsigned(path), **more}))


def test_a_change_names_the_program_that_last_wrote_its_steps(host: Host, newer: Host) -> None:
    path = host.file()
    host.call("apply", apply_request(file_step(path)))
    assert host.call("journal", {"change": "change-1"})["change"]["program"] == str(host.pyz)
    newer.call("apply", apply_request(file_step(path, "third\n")))
    assert host.call("journal", {"change": "change-1"})["change"]["program"] == str(newer.pyz)
    assert host.call("undo")["status"] == "ROLLED_BACK" and path.read_text() == OLD


@pytest.mark.parametrize("how", ["stdin", "argument", "words", "text"])
def test_an_older_program_hands_over_to_the_one_that_wrote_it(
    host: Host, newer: Host, how: str
) -> None:
    """As rollback.py sends it from an older checkout, and as a person types it."""
    path = host.file()
    newer.call("apply", apply_request(file_step(path), quota(host)))
    words = {"stdin": [], "argument": ['{"change": "change-1"}'], "words": ["change-1"],
             "text": ["change-1", "--text"]}[how]  # fmt: skip
    done = host.run(host.argv("undo", *words), '{"change": "change-1"}' if how == "stdin" else "")
    assert done.returncode == 0 and done.stderr == "", done
    assert "set back by the newer program" in done.stdout and "ROLLED_BACK" in done.stdout
    assert done.stdout.startswith("undone:" if how == "text" else "{")
    assert path.read_text() == OLD and (host.root / "number").read_text() == "1"


def test_close_is_handed_over_too_and_apply_is_refused(host: Host, newer: Host) -> None:
    path = host.file()
    newer.call("apply", apply_request(quota(host)))
    refused = host.call("apply", apply_request(file_step(path)))
    assert refused["code"] == "unknown_kind" and path.read_text() == OLD
    closed = host.call("close", {"change": "change-1", "status": "COMMITTED"})
    assert closed["change"]["status"] == "COMMITTED"


@pytest.mark.parametrize("form", [{"format": 2}, {}])
def test_a_program_that_is_gone_is_named_with_who_has_it(
    host: Host, newer: Host, form: dict[str, object]
) -> None:
    newer.call("apply", apply_request(quota(host)))
    edit(host, **form)
    newer.pyz.unlink()
    answer = host.call("undo")
    assert not answer["ok"] and f"rignode-{NEWER}" in answer["error"], answer
    assert "deploys/rollback.py" in answer["remedy"] and "tester@here" in answer["remedy"]
    assert (host.root / "number").read_text() == "2"


def test_a_program_does_not_hand_over_to_itself(host: Host) -> None:
    host.call("apply", apply_request(file_step(host.file())))
    edit(host, format=2)
    answer = host.call("undo")
    assert answer["code"] == "unknown_format", answer


def test_a_program_from_memory_knows_its_version(host: Host, tmp_path: Path) -> None:
    code = (
        f"import os,sys;f=os.memfd_create('rignode-{NEWER}.pyz',0);"
        "os.write(f,open(sys.argv[1],'rb').read());sys.path.insert(0,'/proc/self/fd/%d'%f);"
        "from node.core import version;print(version.own_path())"
    )
    done = host.run([host.python, "-I", "-c", code, str(host.pyz)])
    assert done.stdout.strip() == f"{version.LIBRARY}/rignode-{NEWER}.pyz", done
    assert version.own_path() is None, "a checkout is no program of a host"
    assert change()["id"] == "change-1"
