"""venv install, look and check with the real pip and small real wheels; killed at every stage."""

from __future__ import annotations

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

from node.core.errors import NodeError
from node.venv import check as venv_check
from node.venv import install as venv_install
from node.venv import versions
from tests.unit.node.support import trees
from tests.unit.node.support.host import Host

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
    answer = venv_install.install(request(rig))
    made = rig.tree.parent / NEW
    assert answer["made"] is True and answer["folder"] == str(made)
    assert beside(rig) == [OLD, NEW] and says(made) == f"stand-in vllm {NEW}"
    assert (rig.host.root / "engine" / "venv").resolve() == rig.tree
    # its own path stands in it: nothing was built elsewhere and moved
    assert (made / "bin" / "vllm").read_text().startswith(f"#!{made}/bin/python")
    assert versions.inspect_versions(asked(rig))["found"] == str(made)


def test_a_second_time_finds_it(rig: trees.Engine) -> None:
    first = Path(venv_install.install(request(rig))["folder"])
    before = first.stat().st_ino
    again = venv_install.install(request(rig))
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
        venv_install.install(request(rig, **more))
    assert caught.value.code == code
    assert beside(rig) == [OLD]


def test_a_gone_interpreter_is_named(rig: trees.Engine) -> None:
    (rig.tree / "bin" / "python").unlink()
    (rig.tree / "bin" / "python").symlink_to("/nonexistent/python3")
    with pytest.raises(NodeError, match="base interpreter"):
        venv_install.install(request(rig))


def test_two_at_once_are_one(rig: trees.Engine) -> None:
    with venv_install.InstallLock(), pytest.raises(NodeError, match="another installation"):
        venv_install.install(request(rig))


@pytest.mark.parametrize("bad", [
    {"version": "../../etc"}, {"version": "-1"}, {"version": "1.0\n"}, {"version": "$(id)"},
    {"package": "--target=/"}, {"pip_args": ["--target=/"]}, {"pip_args": ["; id"]},
    {"venv": "relative"},
])  # fmt: skip
def test_hostile_values_are_refused(rig: trees.Engine, bad: dict[str, object]) -> None:
    with pytest.raises(NodeError) as caught:
        venv_install.install({**request(rig), **bad})
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
    answer = venv_install.install(request(rig))
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
        venv_install.install(request(rig))
    assert (rig.tree / "bin" / "vllm").exists()


def test_a_folder_of_that_name_with_something_else_is_left(rig: trees.Engine) -> None:
    mine = rig.tree.parent / NEW / "mine"
    mine.parent.mkdir()
    mine.write_text("x")
    with pytest.raises(NodeError, match="does not hold") as caught:
        venv_install.install(request(rig))
    assert caught.value.code == "not_free" and mine.exists()


def check(venv: Path, quick: bool = False) -> dict[str, Any]:
    """`venv check`."""
    return dict(venv_check.check_venv({"venv": str(venv), "package": "vllm", "quick": quick}))


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
