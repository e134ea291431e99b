"""The link and tree steps of a change: done once, undone in whole, never over a later edit."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.unit.node.support import strace
from tests.unit.node.support.host import Host, apply_request, file_step, target


def link_step(host: Host, target: str = "venvs/new", **more: object) -> dict[str, object]:
    """A step that points the link `venv` elsewhere."""
    return {"op": "link", "path": str(host.root / "venv"), "target": target, **more}


def tree_step(host: Host, **more: object) -> dict[str, object]:
    """A step that puts `fresh` in place of `tree`."""
    names = {"path": "tree", "source": "fresh", "displaced": "kept"}
    paths = {key: str(host.root / name) for key, name in names.items()}
    return {"op": "tree", **paths, **more}


def folders(host: Host) -> dict[str, str]:
    """What lies in `tree`, `fresh` and `kept`: the text of their only file."""
    there = [name for name in ("tree", "fresh", "kept") if (host.root / name).is_dir()]
    return {name: (host.root / name / "version").read_text() for name in there}


def two(host: Host) -> None:
    """An old tree and a fresh one."""
    for name, text in (("tree", "old"), ("fresh", "new")):
        (host.root / name).mkdir()
        (host.root / name / "version").write_text(text)


OLD, DONE = {"tree": "old", "fresh": "new"}, {"tree": "new", "kept": "old"}


@pytest.fixture
def link(host: Host) -> Path:
    """A link to the old one."""
    (host.root / "venv").symlink_to("venvs/old")
    return host.root / "venv"


def test_a_link_is_replaced_and_put_back(host: Host, link: Path) -> None:
    os.chown(link, 1234, 4321, follow_symlinks=False)
    asked = apply_request(link_step(host, expect="venvs/old"))
    assert host.call("apply", {**asked, "dry": True})["changed"] is True
    assert target(link) == "venvs/old"
    assert host.call("apply", asked)["changed"] is True and target(link) == "venvs/new"
    assert host.call("apply", apply_request(link_step(host)))["changed"] is False
    assert host.call("undo")["status"] == "ROLLED_BACK"
    assert target(link) == "venvs/old" and link.lstat().st_uid == 1234
    assert host.call("undo")["changed"] is False and host.leftovers() == []


def test_a_new_link_is_removed_by_undo(host: Host) -> None:
    assert host.call("apply", apply_request(link_step(host, expect="absent")))["changed"] is True
    assert host.call("undo")["ok"] and not os.path.lexists(host.root / "venv")


def test_a_link_that_was_edited_later_is_not_overwritten_unasked(host: Host, link: Path) -> None:
    host.call("apply", apply_request(link_step(host)))
    link.unlink()
    link.symlink_to("venvs/mine")
    answer = host.call("undo")
    assert answer["code"] == "later_edit" and target(link) == "venvs/mine"
    assert host.call("undo", {"overwrite": [str(link)]})["ok"]
    assert target(link) == "venvs/old"


@pytest.mark.parametrize(("more", "words"), [
    ({"target": "-rf"}, "not the target"), ({"target": ""}, "not the target"),
    ({"target": "a\nb"}, "newline"), ({"target": "a/../b"}, "not the target"),
    ({"expect": "venvs/other"}, "not what the caller saw"),
    ({"expect": "absent"}, "not what the caller saw"), ({"owner": "x"}, "unknown key"),
])  # fmt: skip
def test_bad_link_steps(host: Host, link: Path, more: dict[str, object], words: str) -> None:
    answer = host.call("apply", apply_request({**link_step(host), **more}))
    assert answer["ok"] is False and words in answer["error"], answer
    assert target(link) == "venvs/old"


def test_a_folder_where_the_link_should_be_is_not_touched(host: Host) -> None:
    (host.root / "venv").mkdir()
    answer = host.call("apply", apply_request(link_step(host)))
    assert answer["code"] == "not_a_link" and (host.root / "venv").is_dir()


def test_trees_trade_places_and_undo_trades_back(host: Host) -> None:
    two(host)
    asked = apply_request(tree_step(host, expect="present"))
    assert host.call("apply", {**asked, "dry": True})["changed"] is True and folders(host) == OLD
    assert host.call("apply", asked)["changed"] is True and folders(host) == DONE
    # the same request again, as after a lost connection: it is done
    assert host.call("apply", apply_request(tree_step(host)))["changed"] is False
    assert folders(host) == DONE
    assert host.call("undo")["status"] == "ROLLED_BACK" and folders(host) == OLD
    assert host.call("undo")["changed"] is False and folders(host) == OLD


def test_a_tree_where_none_was(host: Host) -> None:
    two(host)
    shutil.rmtree(host.root / "tree")
    assert host.call("apply", apply_request(tree_step(host, expect="absent")))["changed"] is True
    assert folders(host) == {"tree": "new"}
    assert host.call("undo")["ok"] and folders(host) == {"fresh": "new"}


def test_a_tree_that_only_goes_away(host: Host) -> None:
    two(host)
    assert host.call("apply", apply_request(tree_step(host, source=None)))["changed"] is True
    assert folders(host) == {"kept": "old", "fresh": "new"}
    assert host.call("undo")["ok"] and folders(host) == OLD


@pytest.mark.parametrize(("more", "code"), [
    ({"source": "/none/here"}, "no_source"), ({"displaced": "fresh"}, "bad_request"),
    ({"displaced": "tree/in"}, "bad_request"), ({"expect": "absent"}, "changed_meanwhile"),
    ({"source": "relative"}, "bad_request"), ({"displaced": "file.conf"}, "not_free"),
    ({"displaced": "/none/here/x"}, "no_folder"),
])  # fmt: skip
def test_bad_tree_steps(host: Host, more: dict[str, str], code: str) -> None:
    two(host)
    host.file()
    step = tree_step(host)
    for key, value in more.items():
        ours = key == "displaced" and not value.startswith("/")
        step[key] = str(host.root / value) if ours else value
    answer = host.call("apply", apply_request(step))
    assert answer["code"] == code, answer
    assert folders(host) == OLD and host.call("undo")["changed"] is False


def test_where_the_file_system_cannot_exchange(host: Host, tmp_path: Path) -> None:
    """As on older ZFS and on NFS: plain renames, and the same end."""
    two(host)
    asked = json.dumps(apply_request(tree_step(host)))
    for verb, request, wanted in (("apply", asked, DONE), ("undo", "{}", OLD)):
        options = ["-e", "trace=renameat2", "-e", "inject=renameat2:error=EINVAL"]
        done = strace.traced(host, verb, request, options, tmp_path / "log")
        assert json.loads(done.stdout)["ok"], done.stdout
        assert "INJECTED" in (tmp_path / "log").read_text()
        assert folders(host) == wanted


def test_a_tree_that_was_replaced_later_is_kept(host: Host) -> None:
    two(host)
    host.call("apply", apply_request(tree_step(host)))
    (host.root / "tree").rename(host.root / "aside")
    (host.root / "tree").mkdir()
    (host.root / "tree" / "version").write_text("mine")
    answer = host.call("undo")
    assert answer["code"] == "later_edit" and folders(host) == {"tree": "mine", "kept": "old"}
    assert host.call("undo", {"overwrite": [str(host.root / "tree")]})["ok"]
    assert folders(host) == {"tree": "old", "fresh": "mine"}


def test_files_in_a_tree_that_traded_places(host: Host) -> None:
    """Patched before in the old one, and after in the new one: undo takes each where it lies."""
    two(host)
    inside = host.root / "tree" / "patched"
    inside.write_text("as found\n")
    first, then = file_step(inside, "old, patched\n"), file_step(inside, "new, patched\n")
    # what `plan` looks at is what lies there now, so the patch of the new tree comes by itself
    host.call("apply", apply_request(first, tree_step(host)))
    assert not inside.exists()
    assert host.call("apply", apply_request(then))["changed"] is True
    assert host.call("undo")["status"] == "ROLLED_BACK"
    assert inside.read_text() == "as found\n" and folders(host)["tree"] == "old"
    assert not (host.root / "fresh" / "patched").exists()


def test_a_step_that_fails_takes_the_others_back(host: Host, link: Path) -> None:
    two(host)
    bad = file_step(host.root / "x.conf", validate=["false"])
    answer = host.call("apply", apply_request(tree_step(host), link_step(host), bad))
    assert answer["code"] == "not_valid" and "nothing was changed" in answer["error"]
    assert folders(host) == OLD and target(link) == "venvs/old"
    assert host.call("journal")["changes"] == []
