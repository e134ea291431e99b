"""venv install, look and check with the real pip and small real wheels; killed at every stage."""

from __future__ import annotations

import getpass
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from node import host_files
from node.core.errors import NodeError
from node.snapshot import collect
from node.venv import install, versions
from schema.snapshot import Venv
from tests.unit.node.support import trees
from tests.unit.node.support.host import Host

# node's look at a venv, on a real one: each piece that can be missing is told apart.

USER = getpass.getuser()


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A link to a real venv with a program and a dist-info, as pip leaves them."""
    folder = tmp_path / "venvs" / "1"
    argv = [sys.executable, "-m", "venv", "--without-pip", str(folder)]
    subprocess.run(argv, check=True, timeout=60)
    entry = folder / "bin" / "vllm"
    entry.write_text(f"#!{folder}/bin/python\nprint('vllm')\n")
    entry.chmod(0o755)
    packages = next(folder.glob("lib/python3*/site-packages"))
    for name in ("vllm-0.32.0+cpu", "torch-2.13.0+cpu", "other-1.0"):
        (packages / f"{name}.dist-info").mkdir()
    link = tmp_path / "venv"
    link.symlink_to(folder)
    return link


def look(path: Path) -> Venv:
    """The typed answer of the whole snapshot."""
    document = collect({"venvs": [{"path": str(path), "user": USER}]})
    assert isinstance(document["venvs"], list), document["venvs"]
    return Venv.model_validate(document["venvs"][0])


def test_a_whole_venv(made: Path) -> None:
    found = look(made)
    assert (found.path, found.target) == (str(made), str(made.resolve()))
    assert found.python == os.path.realpath(sys.executable)
    assert found.python_version == ".".join(map(str, sys.version_info[:3]))
    assert (found.entry_kind, found.entry_executable) == ("file", True)
    assert found.entry_shebang == f"{made.resolve()}/bin/python" and found.entry_shebang_exists
    assert found.versions == {"torch": ("2.13.0+cpu",), "vllm": ("0.32.0+cpu",)}
    assert found.user_exists


def test_a_deleted_entry_point(made: Path) -> None:
    (made / "bin" / "vllm").unlink()
    found = look(made)
    assert found.entry_kind == "absent" and found.versions["vllm"] == ("0.32.0+cpu",)
    assert (found.entry_executable, found.entry_shebang) == (False, None)


def test_an_entry_point_without_its_x_bit_or_interpreter(made: Path) -> None:
    entry = made / "bin" / "vllm"
    entry.chmod(0o644)
    assert look(made).entry_executable is False
    entry.write_text("#!/opt/gone/bin/python3\n")
    found = look(made)
    assert (found.entry_shebang, found.entry_shebang_exists) == ("/opt/gone/bin/python3", False)


def test_pips_way_around_a_long_path(made: Path) -> None:
    long = f"{made.resolve()}/bin/python"
    entry = made / "bin" / "vllm"
    entry.write_text(f"#!/bin/sh\n'''exec' {long} \"$0\" \"$@\"\n' '''\nimport sys\n")
    assert look(made).entry_shebang == long
    entry.write_text(f"#!/bin/sh\n'''exec' \"{long} x\" \"$0\" \"$@\"\n' '''\n")
    assert look(made).entry_shebang == f"{long} x"


def test_a_base_interpreter_that_is_gone(made: Path) -> None:
    for name in ("python", "python3"):
        path = made / "bin" / name
        path.unlink()
        path.symlink_to("/opt/gone/python3")
    found = look(made)
    assert found.python is None and found.target is not None
    assert found.entry_shebang_exists is False


def test_a_link_that_leads_nowhere(tmp_path: Path) -> None:
    link = tmp_path / "venv"
    link.symlink_to(tmp_path / "gone")
    found = look(link)
    assert (found.target, found.entry_kind, found.versions) == (None, "absent", {})


def test_two_dist_infos_are_both_told(made: Path) -> None:
    packages = next(made.glob("lib/python3*/site-packages"))
    (packages / "vllm-0.31.0+cpu.dist-info").mkdir()
    assert look(made).versions["vllm"] == ("0.31.0+cpu", "0.32.0+cpu")


def test_an_unknown_user(made: Path) -> None:
    row = host_files.read_venv(str(made), "no-such-user-here")
    assert (row["user_exists"], row["shm_goes"]) == (False, None)


@pytest.mark.parametrize(("uid", "text", "drop_in", "goes"), [
    (1000, "", "", True), (1000, "[Login]\n#RemoveIPC=no\n", "", True),
    (1000, "[Login]\nRemoveIPC=no\n", "", False), (1000, "[Login]\nRemoveIPC=yes\n", "", True),
    (1000, "[Login]\nRemoveIPC=yes\n", "[Login]\nRemoveIPC=no\n", False),
    (0, "", "", False), (998, "", "", False),
])  # fmt: skip
def test_whose_shared_memory_logind_removes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, uid: int, text: str, drop_in: str, goes: bool
) -> None:
    conf = tmp_path / "logind.conf"
    conf.write_text(text)
    folder = tmp_path / "systemd" / "logind.conf.d"
    folder.mkdir(parents=True)
    (folder / "10-a.conf").write_text(drop_in)
    monkeypatch.setattr(host_files, "LOGIND", (str(conf),))
    monkeypatch.setattr(host_files, "_LOGIND_DROP_INS", (str(tmp_path),))
    assert host_files.shm_goes("nobody-lingers", uid) is goes


def test_patches_are_looked_for_in_the_venv(made: Path) -> None:
    packages = next(made.glob("lib/python3*/site-packages"))
    (packages / "vllm").mkdir()
    (packages / "vllm" / "x.py").write_text("empty_cache\nempty_cache\n")
    probe = {"image": str(made), "path": "/lib/python3*/site-packages/vllm/x.py",
             "contains": "empty_cache"}  # fmt: skip
    (row,) = collect({"image_files": [probe]})["image_files"]
    assert [(m["count"], m["path"].endswith("/vllm/x.py")) for m in row["matches"]] == [(2, True)]


@pytest.mark.parametrize("wrong", [
    {"path": "relative", "user": "x"}, {"path": "/x"}, {"path": "/a/../b", "user": "x"},
])  # fmt: skip
def test_a_request_that_is_no_venv_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(Exception, match="venvs"):
        collect({"venvs": [wrong]})


# artifact: files of an installed engine, below a folder or in an image; nothing is run.


@pytest.fixture
def root(host: Host) -> Path:
    """A venv as far as its files go."""
    folder = host.root / "venv"
    package = folder / "lib/python3.11/site-packages/vllm"
    package.mkdir(parents=True)
    (package / "_version.py").write_text("__version__ = version = '0.20.2'\n")
    (package / "big.bin").write_bytes(b"x" * (9 << 20))
    (package / "out.py").symlink_to("/etc/passwd")
    (package.parent / "vllm-0.20.2.dist-info").mkdir()
    (package.parent / "vllm-0.20.2.dist-info/direct_url.json").write_text(
        '{"url": "https://user:hunter2@host/vllm.git"}'
    )
    return folder


def ask(host: Host, root: Path, **probe: object) -> list[dict[str, object]]:
    """The files that one probe finds."""
    answer = host.call("artifact", {"root": str(root), "probes": [probe]})
    assert answer["ok"], answer
    files: list[dict[str, object]] = answer["probes"][0]["files"]
    return files


VERSION = "/lib/*/site-packages/vllm/_version.py"


def test_a_file_is_given_with_its_text_only_when_asked_and_occurrences_are_counted(
    host: Host, root: Path
) -> None:
    (file,) = ask(host, root, path="/lib/python3*/site-packages/vllm/_version.py", content=True)
    assert file["content"] == "__version__ = version = '0.20.2'\n"
    assert str(file["path"]).endswith("/lib/python3.11/site-packages/vllm/_version.py")
    (file,) = ask(host, root, path=VERSION, contains="version")
    assert (file["count"], file["content"]) == (2, None)


@pytest.mark.parametrize("path", ["/lib/none.py", "/lib/*/site-packages/vllm/out.py"])
def test_no_link_leads_out_and_what_is_not_there_is_nothing(
    host: Host, root: Path, path: str
) -> None:
    assert ask(host, root, path=path, content=True) == []


def test_what_is_too_large_is_named_without_a_hash(host: Host, root: Path) -> None:
    (file,) = ask(host, root, path="/lib/*/site-packages/vllm/big.bin", content=True)
    assert (file["size"], file["sha256"], file["content"]) == (9 << 20, None, None)


def test_passwords_of_urls_are_masked(host: Host, root: Path) -> None:
    (file,) = ask(host, root, path="/lib/*/site-packages/vllm-*/direct_url.json", content=True)
    assert file["content"] == '{"url": "https://***@host/vllm.git"}'


def test_the_link_of_a_venv_is_followed(host: Host, root: Path) -> None:
    link = host.root / "current"
    link.symlink_to(root)
    assert len(ask(host, link, path=VERSION)) == 1


@pytest.mark.parametrize("request_", [
    {"probes": []}, {"root": "/a", "image": "b", "probes": []}, {"root": "a", "probes": []},
    {"image": "-x", "probes": []}, {"root": "/", "probes": []},
    {"root": "/srv", "probes": [{"path": "/../etc/passwd"}]},
    {"root": "/srv", "probes": [{"path": "a"}]},
    {"root": "/srv", "probes": [{"path": "/a", "more": 1}]},
])  # fmt: skip
def test_wrong_requests_are_refused(host: Host, request_: dict[str, object]) -> None:
    assert host.call("artifact", request_)["code"] == "bad_request"


def test_what_is_not_there_is_a_clear_line(host: Host, tmp_path: Path) -> None:
    gone = host.call("artifact", {"root": str(tmp_path / "gone"), "probes": []})
    assert gone["code"] == "cannot_read" and "is not a folder" in gone["error"]


OLD, NEW = "0.27.0", "0.28.0"


@pytest.fixture
def rig(host: Host, venv: Path) -> trees.Engine:
    """A link `venv` to venvs/0.27.0, and wheels of both versions."""
    tree = trees.versions(host, venv, OLD).tree.resolve()
    wheels = host.root / "wheels"
    wheels.mkdir()
    for version in (OLD, NEW):
        trees.wheel(wheels, version)
    return trees.Engine(host, tree, wheels)


def request(rig: trees.Engine, version: str = NEW, **more: object) -> dict[str, Any]:
    """An install's request."""
    args = ["--no-index", f"--find-links={rig.wheels}"]
    return {**asked(rig), "version": version, "pip_args": args, **more}


def asked(rig: trees.Engine) -> dict[str, str]:
    """A look's request."""
    return {"venv": str(rig.host.root / "engine" / "venv"), "package": "vllm", "version": NEW}


def beside(rig: trees.Engine) -> list[str]:
    """What lies in the folder of the versions."""
    return sorted(path.name for path in rig.tree.parent.iterdir())


def says(folder: Path) -> str:
    """What the version's program prints."""
    done = subprocess.run([folder / "bin" / "vllm"], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_version_is_installed_beside_and_the_link_is_left(rig: trees.Engine) -> None:
    seen = versions.inspect_versions(asked(rig))
    assert (seen["found"], seen["installed"]) == (None, [OLD]) and seen["free_bytes"] > 0
    answer = install.install(request(rig))
    made = rig.tree.parent / NEW
    assert answer["made"] is True and answer["folder"] == str(made)
    assert beside(rig) == [OLD, NEW] and says(made) == f"stand-in vllm {NEW}"
    assert (rig.host.root / "engine" / "venv").resolve() == rig.tree
    # its own path stands in it: nothing was built elsewhere and moved
    assert (made / "bin" / "vllm").read_text().startswith(f"#!{made}/bin/python")
    assert versions.inspect_versions(asked(rig))["found"] == str(made)


def test_a_second_time_finds_it(rig: trees.Engine) -> None:
    first = Path(install.install(request(rig))["folder"])
    before = first.stat().st_ino
    again = install.install(request(rig))
    assert (again["made"], again["folder"]) == (False, str(first))
    assert first.stat().st_ino == before


@pytest.mark.parametrize(("more", "code", "words"), [
    ({"version": "0.99.0"}, "install_failed", r"0\.99\.0.*nothing was installed"),
    ({"timeout_s": 1}, "timeout", "did not end in"),
    ({"room_bytes": 1 << 43}, "no_room", "no room"),
], ids=["no such wheel", "too slow", "no room"])  # fmt: skip
def test_what_fails_is_told_and_leaves_nothing(
    rig: trees.Engine, more: dict[str, Any], code: str, words: str
) -> None:
    with pytest.raises(NodeError, match=words) as caught:
        install.install(request(rig, **more))
    assert caught.value.code == code
    assert beside(rig) == [OLD]


def test_a_gone_interpreter_is_named(rig: trees.Engine) -> None:
    (rig.tree / "bin" / "python").unlink()
    (rig.tree / "bin" / "python").symlink_to("/nonexistent/python3")
    with pytest.raises(NodeError, match="base interpreter"):
        install.install(request(rig))


def test_two_at_once_are_one(rig: trees.Engine) -> None:
    with install.InstallLock(), pytest.raises(NodeError, match="another installation"):
        install.install(request(rig))


@pytest.mark.parametrize("bad", [
    {"version": "../../etc"}, {"version": "-1"}, {"version": "1.0\n"}, {"version": "$(id)"},
    {"package": "--target=/"}, {"pip_args": ["--target=/"]}, {"pip_args": ["; id"]},
    {"venv": "relative"},
])  # fmt: skip
def test_hostile_values_are_refused(rig: trees.Engine, bad: dict[str, object]) -> None:
    with pytest.raises(NodeError) as caught:
        install.install({**request(rig), **bad})
    assert caught.value.code == "bad_request"
    assert beside(rig) == [OLD]


def stages(rig: trees.Engine) -> dict[str, Path]:
    """What appears in the folder, in the order in which an installation makes it."""
    folder = rig.tree.parent / NEW
    site = folder / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    return {
        "announced": rig.tree.parent / f"{NEW}.partial", "folder": folder,
        "venv": folder / "pyvenv.cfg", "pip there": site / "pip" / "__init__.py",
        "package": site / "vllm", "entry": folder / "bin" / "vllm",
    }  # fmt: skip


@pytest.mark.parametrize("stage", ["announced", "folder", "venv", "pip there", "package", "entry"])
def test_killed_at_each_stage_the_next_run_makes_it_anew(rig: trees.Engine, stage: str) -> None:
    path = stages(rig)[stage]
    process = subprocess.Popen(
        rig.host.argv("venv install", json.dumps(request(rig))), env=rig.host.environ(),
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    deadline = time.monotonic() + 300
    while not os.path.lexists(path) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    seen = versions.inspect_versions(asked(rig))
    # a folder that is not whole is never offered, whatever lies in it
    if seen["partial"]:
        assert seen["found"] is None and f"{NEW}.partial" in beside(rig)
    assert says(rig.tree) == f"stand-in vllm {OLD}"
    time.sleep(0.2)  # pip ends with its parent
    answer = install.install(request(rig))
    assert says(Path(answer["folder"])) == f"stand-in vllm {NEW}"
    assert beside(rig) == [OLD, NEW]


def test_progress_is_told_from_the_note(rig: trees.Engine) -> None:
    (rig.tree.parent / NEW).mkdir()
    note = {"what": f"install vllm {NEW}", "since_unix_s": time.time() - 60,
            "free_bytes": 1 << 60, "room_bytes": 1 << 61}  # fmt: skip
    (rig.tree.parent / f"{NEW}.partial").write_text(json.dumps(note))
    link = str(rig.host.root / "engine" / "venv")
    (line,) = versions.working(link)
    assert re.fullmatch(rf"install vllm {NEW}: \d+ of about \d+ MiB, 6\d s", line), line
    (rig.tree.parent / f"{NEW}.partial").write_text(json.dumps({**note, "room_bytes": 1}))
    assert versions.working(link) == [f"install vllm {NEW}: 60 s"]
    (rig.tree.parent / f"{NEW}.partial").write_text("cut off")
    assert versions.working(link) == []


def test_a_partial_one_that_the_link_leads_to_is_not_removed(rig: trees.Engine) -> None:
    (rig.tree.parent / f"{OLD}.partial").write_text("{}")
    with pytest.raises(NodeError, match="never finished"):
        install.install(request(rig))
    assert (rig.tree / "bin" / "vllm").exists()


def test_a_folder_of_that_name_with_something_else_is_left(rig: trees.Engine) -> None:
    mine = rig.tree.parent / NEW / "mine"
    mine.parent.mkdir()
    mine.write_text("x")
    with pytest.raises(NodeError, match="does not hold") as caught:
        install.install(request(rig))
    assert caught.value.code == "not_free" and mine.exists()


def check(venv: Path, quick: bool = False) -> dict[str, Any]:
    """`venv check`."""
    return dict(versions.check_venv({"venv": str(venv), "package": "vllm", "quick": quick}))


def test_a_quick_check_runs_the_interpreter_alone(rig: trees.Engine) -> None:
    assert check(rig.tree, quick=True)["version"] == OLD
    next(rig.tree.glob("lib/*/site-packages/vllm/__init__.py")).write_text("1/0")
    assert check(rig.tree, quick=True)["version"] == OLD
    (rig.tree / "bin" / "vllm").write_text("#!/nonexistent/python\n")
    with pytest.raises(NodeError, match="No such file"):
        check(rig.tree, quick=True)
    (rig.tree / "bin" / "vllm").unlink()
    with pytest.raises(NodeError, match="not there"):
        check(rig.tree, quick=True)


def test_check_executes_the_program(rig: trees.Engine) -> None:
    answer = check(rig.host.root / "engine" / "venv")
    assert answer["version"] == OLD and answer["said"] == f"stand-in vllm {OLD}"
    assert not list((rig.tree / "lib").rglob("vllm/__pycache__/*.tmp"))


@pytest.mark.parametrize(("break_it", "words"), [
    (lambda tree: (tree / "bin" / "vllm").unlink(), "No such file"),
    (lambda tree: (tree / "bin" / "vllm").chmod(0o644), "Permission denied"),
    (lambda tree: (tree / "bin" / "vllm").write_text("#!/nonexistent/python\n"), "No such file"),
    (lambda tree: next(tree.glob("lib/*/site-packages/vllm/__init__.py")).write_text("1/0"),
     "ZeroDivisionError"),
    (lambda tree: shutil.rmtree(next(tree.glob("lib/*/site-packages/vllm-*"))), "no version"),
])  # fmt: skip
def test_check_names_what_is_broken(rig: trees.Engine, break_it: Any, words: str) -> None:
    break_it(rig.tree)
    with pytest.raises(NodeError, match=words) as caught:
        check(rig.tree)
    assert caught.value.code == "venv_broken"
