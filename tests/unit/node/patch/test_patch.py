"""patch look and patch tool: what the files hold, and a tool of others as a step with an undo."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.unit.builders import wheelhouse as w
from tests.unit.builders.mxfp4 import BASE, PATCHED, PATH
from tests.unit.node.support.host import Host, apply_request, change

# A stand-in for Genesis: replaces a word in a file, makes one, removes one, and says its line.
TOOL = """\
#!/bin/sh
# rigbook stand-in for a patch tool
cd "{tree}" || exit 9
echo ran >> "{root}/runs"
[ -z "$SLOW" ] || { sed -i s/alpha/HALF/ a.py; touch "{root}/half"; exec sleep 60; }
[ -z "$IN_PLACE" ] || { sed s/alpha/beta/ a.py > t; cat t > a.py; rm t; echo >> a.py; }
n=0
if grep -q alpha a.py; then sed -i s/alpha/beta/ a.py; echo new > new.py; rm gone.py; n=1; fi
echo "patching ..."
[ -n "$SILENT" ] || echo "Genesis: $n applied, 36 skipped, ${FAILED:-0} failed"
exit ${STATUS:-0}
"""
PACKAGES = "lib/python3.11/site-packages"
FILES = {"a.py": "alpha\n", "gone.py": "old\n", "sub/b.py": "same\n"}


@pytest.fixture
def venv(host: Host) -> Path:
    """A venv as far as its files go: one package, and a tool in bin/."""
    root = host.root / "venv"
    tree = root / PACKAGES / "vllm"
    (tree / "sub").mkdir(parents=True)
    (root / "bin").mkdir()
    for name, text in FILES.items():
        (tree / name).write_text(text)
    info = tree.parent / "vllm-0.20.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.20.2\n\nText\n")
    tool = root / "bin/genesis"
    tool.write_text(TOOL.replace("{tree}", str(tree)).replace("{root}", str(host.root)))
    tool.chmod(0o755)
    (host.root / "runs").write_text("")
    return root


def tree(venv: Path) -> dict[str, str]:
    """The package's files by name."""
    root = venv / PACKAGES / "vllm"
    return {p.relative_to(root).as_posix(): p.read_text() for p in root.rglob("*.py")}


def request(venv: Path, name: str = "change-1", **env: str) -> dict[str, object]:
    """A request of `patch tool`."""
    tool = {"id": "genesis", "argv": ["{venv}/bin/genesis"], "tree": "vllm", "env": env}
    return {"change": change(name), "tool": {**tool, "venv": str(venv), "timeout_s": 30}}


def runs(host: Host) -> int:
    """How often the tool has run."""
    return len((host.root / "runs").read_text().splitlines())


def look(host: Host, venv: Path, *paths: str) -> dict[str, object]:
    """The answer of `patch look`."""
    tool = request(venv)["tool"]
    body = {"venv": str(venv), "package": "vllm", "paths": paths, "tools": [tool]}
    answer = host.call("patch look", body)
    assert answer["ok"], answer
    return answer


def test_look_gives_the_file_with_owner_mode_and_version(host: Host, venv: Path) -> None:
    path = venv / PACKAGES / "vllm/a.py"
    path.chmod(0o640)
    found = look(host, venv, "vllm/a.py", "vllm/*.py", "vllm/none.py", str(path))
    one, two, none, absolute = found["files"]
    assert base64.b64decode(one["file"]["content_base64"]) == b"alpha\n"
    assert one["file"]["sha256"] == hashlib.sha256(b"alpha\n").hexdigest()
    assert (one["file"]["mode"], one["file"]["owner"]) == ("0640", "root")
    assert absolute["file"] == one["file"]
    assert two["file"] is None and len(two["matches"]) == 2
    assert none["file"] is None and none["matches"] == []
    assert found["version"] == "0.20.2"
    assert found["tools"] == [{"id": "genesis", "done": False}]
    # an upgrade switches a link; the step must name the tree that it was decided on
    link = host.root / "current"
    link.symlink_to(venv)
    (row,) = look(host, link, "vllm/a.py")["files"]
    assert row["file"]["path"] == str(path)


def test_a_patched_file_is_an_ordinary_step(host: Host, venv: Path) -> None:
    """Owner and mode stay, a second apply is no change, undo brings the old one back."""
    target = venv / PACKAGES / PATH
    target.parent.mkdir(parents=True)
    target.write_text(BASE)
    (row,) = look(host, venv, PATH)["files"]
    step = {
        "op": "file", "path": row["file"]["path"], "mode": row["file"]["mode"],
        "owner": row["file"]["owner"], "group": row["file"]["group"],
        "content_base64": base64.b64encode(PATCHED.encode()).decode(),
        "expect_sha256": row["file"]["sha256"],
    }  # fmt: skip
    assert host.call("apply", apply_request(step))["changed"] is True
    assert target.read_text() == PATCHED
    again = {**step, "expect_sha256": hashlib.sha256(PATCHED.encode()).hexdigest()}
    assert host.call("apply", apply_request(again))["changed"] is False
    assert host.call("undo")["status"] == "ROLLED_BACK" and target.read_text() == BASE
    target.write_text("edited meanwhile\n")
    refused = host.call("apply", apply_request(step, name="change-2"))
    assert refused["code"] == "changed_meanwhile" and target.read_text() == "edited meanwhile\n"


def test_a_file_that_a_package_cache_shares_is_not_written_through(host: Host, venv: Path) -> None:
    """uv links what it installs: a tool that writes in place wrote into uv's cache, too, and the
    next install brought the patch back after its undo."""
    path, cache = venv / PACKAGES / "vllm/a.py", host.root / "cache-a.py"
    os.utime(path, ns=(1, 2 * 10**9))
    path.chmod(0o640)
    os.setxattr(path, "user.of", b"uv")
    cache.hardlink_to(path)
    assert host.call("patch tool", request(venv, IN_PLACE="1"))["files"][0] == str(path)
    assert path.read_text() == "beta\n\n" and cache.read_text() == "alpha\n"
    assert (path.stat().st_mode & 0o777, os.getxattr(path, "user.of")) == (0o640, b"uv")
    assert host.call("undo")["status"] == "ROLLED_BACK"
    assert (tree(venv), cache.read_text()) == (FILES, "alpha\n")
    assert not host.leftovers()


def test_the_tool_runs_once_and_its_files_are_steps(host: Host, venv: Path) -> None:
    answer = host.call("patch tool", request(venv))
    assert answer["changed"] is True and answer["status"] == "OPEN"
    assert answer["said"] == {"applied": 1, "skipped": 36, "failed": 0}
    assert [Path(p).name for p in answer["files"]] == ["a.py", "gone.py", "new.py"]
    assert tree(venv) == {"a.py": "beta\n", "new.py": "new\n", "sub/b.py": "same\n"}
    assert look(host, venv)["tools"] == [{"id": "genesis", "done": True}]
    # undo brings every file back, and the tool is due again
    assert host.call("undo")["status"] == "ROLLED_BACK" and tree(venv) == FILES
    assert look(host, venv)["tools"] == [{"id": "genesis", "done": False}]
    host.call("patch tool", request(venv, "change-2"))
    assert host.call("close", {"change": "change-2", "status": "COMMITTED"})["ok"]
    again = host.call("patch tool", request(venv, "change-3"))
    assert (again["changed"], again["change"], again["said"]) == (False, None, None)
    assert runs(host) == 2


def test_a_tool_that_changes_nothing_opens_no_change(host: Host, venv: Path) -> None:
    host.call("patch tool", request(venv))
    host.call("close", {"change": "change-1", "status": "COMMITTED"})
    (venv / PACKAGES / "vllm/sub/b.py").write_text("touched\n")
    answer = host.call("patch tool", request(venv, "change-2"))
    assert answer["said"]["applied"] == 0 and answer["change"] is None and runs(host) == 2
    assert [c["id"] for c in host.call("journal")["changes"]] == ["change-1"]


@pytest.mark.parametrize(("env", "code", "part"), [
    ({"FAILED": "2"}, "tool_failed", "1 applied, 36 skipped, 2 failed"),
    ({"STATUS": "3"}, "tool_failed", "the tool ended with 3"),
    ({"SILENT": "1"}, "tool_failed", "did not say"), ({"SLOW": "1"}, "timeout", ""),
])  # fmt: skip
def test_a_tool_that_fails_or_hangs_leaves_nothing(
    host: Host, venv: Path, env: dict[str, str], code: str, part: str
) -> None:
    """K > 0 fails, and so does an exit status: the tree is as it was, no change is open."""
    body = request(venv, **env)
    body["tool"]["timeout_s"] = 2 if "SLOW" in env else 30
    answer = host.call("patch tool", body)
    assert answer["code"] == code and part in answer["error"]
    assert "nothing was changed" in answer["error"]
    assert tree(venv) == FILES and host.call("journal")["changes"] == []


def test_a_tool_that_is_not_there_is_named(host: Host, venv: Path) -> None:
    (venv / "bin/genesis").unlink()
    assert host.call("patch tool", request(venv))["code"] == "no_program"
    assert tree(venv) == FILES


def test_a_kill_in_the_middle_of_the_tool_is_undone(host: Host, venv: Path) -> None:
    """kill -9 of node while the tool has changed half: the journal has the whole tree."""
    child = subprocess.Popen(host.argv("patch tool", json.dumps(request(venv, SLOW="1"))),
                             env=host.environ())  # fmt: skip
    deadline = time.monotonic() + 30
    while not (host.root / "half").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert tree(venv)["a.py"] == "HALF\n"
    assert not inside(venv), "the tool must not outlive node"
    refused = host.call("close", {"change": "change-1", "status": "COMMITTED"})
    assert refused["code"] == "unfinished"
    assert host.call("undo")["status"] == "ROLLED_BACK"
    assert tree(venv) == FILES
    assert host.call("undo")["changed"] is False


def large(venv: Path, edits: str) -> Path:
    """A library over 4 MiB, which the tool edits too."""
    path = venv / PACKAGES / "vllm/_C.so"
    path.write_bytes(b"x" * (5 << 20))
    os.utime(path, (1000, 1000))
    script = venv / "bin/genesis"
    script.write_text(script.read_text().replace("n=0\n", f"n=0\n{edits}\n"))
    return path


def test_a_tool_that_changes_a_large_library_is_told_and_the_rest_goes_back(
    host: Host, venv: Path
) -> None:
    """It raised at each attempt: the tool's step stayed announced, nothing of it went back."""
    path = large(venv, "printf y >> _C.so")
    answer = host.call("patch tool", request(venv))
    assert answer["code"] == "tool_too_large" and str(path) in answer["error"]
    assert "stays OPEN" in answer["error"]
    assert tree(venv) == FILES
    for _ in range(2):
        again = host.call("undo")
        assert again["code"] == "undo_incomplete" and str(path) in again["error"]
        assert "backup" in again["error"]
    path.write_bytes(b"x" * (5 << 20))
    os.utime(path, (1000, 1000))
    assert host.call("undo")["status"] == "ROLLED_BACK" and tree(venv) == FILES


def test_a_killed_tool_that_changed_a_large_library_is_undone_as_far_as_it_goes(
    host: Host, venv: Path
) -> None:
    path = large(venv, "sed -i s/alpha/HALF/ a.py; printf y >> _C.so; kill -9 $PPID; exec sleep 60")
    done = host.run(host.argv("patch tool"), json.dumps(request(venv)))
    assert done.returncode != 0 and tree(venv)["a.py"] == "HALF\n"
    answer = host.call("undo")
    assert answer["code"] == "undo_incomplete" and str(path) in answer["error"], answer
    assert tree(venv) == FILES


def test_attributes_of_a_file_that_a_tool_replaced_come_back(host: Host, venv: Path) -> None:
    path = venv / PACKAGES / "vllm/a.py"
    os.setxattr(path, "user.origin", b"ours")
    host.call("patch tool", request(venv))
    assert os.listxattr(path) == [], "sed -i makes a new file"
    assert host.call("undo")["status"] == "ROLLED_BACK"
    assert os.getxattr(path, "user.origin") == b"ours"


def inside(folder: Path) -> list[str]:
    """The processes that work in a folder, a moment after their starter was killed."""
    deadline = time.monotonic() + 5
    while True:
        found = []
        for link in Path("/proc").glob("[0-9]*/cwd"):
            with contextlib.suppress(OSError):
                found += [link.parent.name] * link.readlink().is_relative_to(folder)
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


@pytest.mark.parametrize("change_", [
    {"argv": ["-c"]}, {"argv": []}, {"tree": "../vllm"}, {"tree": "nowhere"}, {"env": {"A B": "x"}},
    {"env": {"A": "x\ny"}}, {"id": "../x"}, {"timeout_s": 0}, {"more": 1},
])  # fmt: skip
def test_hostile_values_of_a_tool_are_refused(
    host: Host, venv: Path, change_: dict[str, object]
) -> None:
    body = request(venv)
    body["tool"] = {**body["tool"], **change_}
    answer = host.call("patch tool", body)
    assert answer["code"] in ("bad_request", "no_tree") and runs(host) == 0
    assert host.call("journal")["changes"] == []


@pytest.mark.parametrize("path", ["../../etc/passwd", "-x", "", "/etc/../x", "a\nb"])
def test_hostile_paths_are_refused(host: Host, venv: Path, path: str) -> None:
    assert host.call("patch look", {"venv": str(venv), "paths": [path]})["code"] == "bad_request"
    answer = host.call("patch look", {"paths": ["vllm/a.py"]})
    assert answer["code"] == "bad_request" and "no venv is named" in answer["error"]


def test_the_real_venv_of_a_wheel_is_read(host: Host, tmp_path: Path) -> None:
    """What pip installs is what patch look finds."""
    made = w.wheel(tmp_path, "vllm", "0.20.2", w.vllm_files("0.20.2", {PATH: BASE}))
    venv = w.venv(tmp_path / "venv")
    w.install(venv, made)
    found = host.call("patch look", {"venv": str(venv), "package": "vllm", "paths": [PATH]})
    (row,) = found["files"]
    assert base64.b64decode(row["file"]["content_base64"]).decode() == BASE
    assert found["version"] == "0.20.2" and row["file"]["python"] == str(venv / "bin/python")
