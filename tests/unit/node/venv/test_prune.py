"""venv prune: the active version, the former, and what a change needs stay; the others go."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from schema.artifact import VenvWheels, parse_pip_report
from tests.unit.builders import wheelhouse
from tests.unit.node.support import strace, trees
from tests.unit.node.support.host import Host, change
from tests.unit.node.support.trees import Engine

# What pip would do, with the real pip and real small wheels, without any network.


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A venv with vllm 0.19.2rc1 and torch 2.9.0+cu130, and a folder of wheels."""
    root = tmp_path_factory.mktemp("wheels")
    house = root / "house"
    torch = wheelhouse.wheel(
        house, "torch", "2.9.0+cu130", wheelhouse.torch_files("2.9.0+cu130", "13.0")
    )
    old = wheelhouse.wheel(
        house, "vllm", "0.19.2rc1", wheelhouse.vllm_files("0.19.2rc1"), ["torch==2.9.0"]
    )
    wheelhouse.wheel(house, "vllm", "0.20.2", wheelhouse.vllm_files("0.20.2"), ["torch==2.9.0"])
    wheelhouse.wheel(house, "vllm", "0.21.0", wheelhouse.vllm_files("0.21.0"), ["torch==2.10.0"])
    wheelhouse.wheel(house, "torch", "2.10.0+cpu", wheelhouse.torch_files("2.10.0+cpu", None))
    wheelhouse.install(wheelhouse.venv(root / "venv"), torch, old)
    return root


def asked(made: Path, **more: object) -> dict[str, object]:
    """A request of `rignode wheels`."""
    return {"venv": str(made / "venv"), "package": "vllm", "wanted": "1.0", **more}


def look(host: Host, made: Path, wanted: str, house: Path | None = None) -> VenvWheels:
    """The typed answer of `rignode wheels`, from a folder of wheels."""
    args = [f"--find-links={house or made / 'house'}", "--no-index"]
    answer = host.call("wheels", asked(made, wanted=wanted, pip_args=args))
    assert answer.pop("ok") is True, answer
    return VenvWheels.model_validate(answer)


def program(tmp_path: Path, script: str) -> Path:
    """A venv whose python is a script."""
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(script)
    python.chmod(0o755)
    return python.parent.parent


def test_it_tells_what_is_there_and_what_pip_would_change(host: Host, made: Path) -> None:
    before = sorted(p.name for p in wheelhouse.site_packages(made / "venv").iterdir())
    found = look(host, made, "0.20.2")
    assert found.version_of("vllm") == "0.19.2rc1" and found.torch_variant() == "cu130"
    report = parse_pip_report(str(found.wanted))
    assert [(i.name, i.metadata.version) for i in report.install] == [("vllm", "0.20.2")]
    assert report.install[0].requested and report.install[0].file.startswith("vllm-0.20.2-")
    assert found.wanted_error is None and found.old_error is None
    assert parse_pip_report(str(found.old)).item("vllm").metadata.version == "0.19.2rc1"
    assert sorted(p.name for p in wheelhouse.site_packages(made / "venv").iterdir()) == before


def test_a_torch_that_would_change_is_in_the_report(host: Host, made: Path) -> None:
    report = parse_pip_report(str(look(host, made, "0.21.0").wanted))
    torch = report.item("torch")
    assert torch is not None and torch.metadata.version == "2.10.0+cpu"


def test_a_wheel_that_is_not_there_is_pips_own_line(host: Host, made: Path) -> None:
    found = look(host, made, "0.99.0")
    assert found.wanted is None and "vllm==0.99.0" in str(found.wanted_error)
    assert str(found.wanted_error).startswith("ERROR:")


def test_the_old_wheel_that_is_gone_is_told(host: Host, made: Path, tmp_path: Path) -> None:
    """B5: the nightly was rotated out of its server; the new one is there."""
    shutil.copytree(made / "house", tmp_path / "house")
    next((tmp_path / "house").glob("vllm-0.19.2rc1-*")).unlink()
    found = look(host, made, "0.20.2", tmp_path / "house")
    assert found.wanted is not None
    assert found.old is None and "vllm==0.19.2rc1" in str(found.old_error)


def test_the_rigs_own_pip_configuration_counts(
    host: Host, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wheel folder stands in the venv's pip.conf only."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    conf = made / "venv" / "pip.conf"
    conf.write_text(f"[global]\nno-index = true\nfind-links = {made / 'house'}\n")
    try:
        answer = host.call("wheels", asked(made, wanted="0.20.2"))
        assert answer["ok"] and answer["wanted"] and answer["args"] == []
    finally:
        conf.unlink()


def test_a_venv_without_pip_is_a_clear_line(host: Host, made: Path, tmp_path: Path) -> None:
    bare = tmp_path / "venv"
    assert host.call("wheels", asked(tmp_path))["code"] == "no_venv"
    shutil.copytree(made / "venv", bare, symlinks=True)
    shutil.rmtree(wheelhouse.site_packages(bare) / "pip")
    answer = host.call("wheels", asked(tmp_path))
    assert answer["code"] == "no_pip" and "ensurepip" in answer["remedy"]


def test_pip_is_ended_when_it_hangs(host: Host, tmp_path: Path) -> None:
    program(tmp_path, "#!/bin/sh\nsleep 60\n")
    answer = host.call("wheels", asked(tmp_path, timeout_s=1))
    assert answer["code"] == "timeout" and "did not end in 1 s" in answer["error"]


@pytest.mark.parametrize("change", [
    {"package": "-r/etc/passwd"}, {"package": "vllm; touch x"}, {"wanted": "--upgrade"},
    {"wanted": "1.0 $(touch x)"}, {"pip_args": ["--target=/etc"]}, {"pip_args": ["-e", "."]},
    {"pip_args": ["--find-links=/a\n--target=/etc"]}, {"venv": "relative/venv"}, {"timeout_s": 0},
])  # fmt: skip
def test_hostile_values_are_refused(host: Host, made: Path, change: dict[str, object]) -> None:
    assert host.call("wheels", asked(made, **change))["code"] == "bad_request"


def test_secrets_of_urls_do_not_leave_the_host(host: Host, made: Path) -> None:
    args = ["--index-url=http://user:hunter2@127.0.0.1:1/simple", "--no-index"]
    answer = host.call("wheels", asked(made, wanted="0.99", pip_args=args))
    assert answer["ok"] and "hunter2" not in json.dumps(answer)


def test_pip_runs_as_the_venvs_owner(host: Host, tmp_path: Path) -> None:
    """So that the owner's pip.conf counts, and root leaves nothing in the owner's cache."""
    nobody = pwd.getpwnam("nobody")
    said = "#!/bin/sh\necho pip 23.0\necho $(id -un) $HOME >&2\nexit 1\n"
    os.chown(program(tmp_path, said), nobody.pw_uid, nobody.pw_gid)
    for folder in (tmp_path, *tmp_path.parents):
        if folder == Path("/tmp"):
            break
        if folder.stat().st_uid == 0:
            folder.chmod(folder.stat().st_mode | 0o011)
    answer = host.call("wheels", asked(tmp_path))
    assert f"nobody {nobody.pw_dir}" in answer["error"], answer


NOW, FORMER, FAILED, OLDER = "0.28.0", "0.27.0", "0.29.0", "0.26.0"


@pytest.fixture
def rig(host: Host, venv: Path) -> Engine:
    """A link that was switched from 0.27.0 to 0.28.0, a version that failed, and an older one."""
    found = trees.versions(host, venv, FORMER, NOW, FAILED, OLDER)
    switch(found, "change-good", NOW)
    assert host.call("close", {"change": "change-good", "status": "COMMITTED"})["ok"]
    switch(found, "change-bad", FAILED)
    assert host.call("undo", {})["status"] == "ROLLED_BACK"
    return found


def switch(rig: Engine, name: str, version: str) -> None:
    """The link to another version, as a change."""
    target = str(rig.tree.parent / "venvs" / version)
    step = {"op": "link", "path": str(rig.tree), "target": target}
    answer = rig.host.call("apply", {"change": change(name), "steps": [step]})
    assert answer["ok"], answer


def prune(rig: Engine, **more: object) -> dict[str, Any]:
    """The verb's answer."""
    answer = rig.host.call("venv prune", {"venv": str(rig.tree), "package": "vllm", **more})
    assert answer["ok"], answer
    return answer


def names(rows: list[dict[str, Any]]) -> dict[str, str]:
    """Version folders with their reasons."""
    return {Path(row["path"]).name: row["why"] for row in rows}


def there(rig: Engine) -> list[str]:
    """What lies in the folder of the versions."""
    return sorted(path.name for path in (rig.tree.parent / "venvs").iterdir())


def test_dry_tells_and_removes_nothing(rig: Engine) -> None:
    before = there(rig)
    seen = prune(rig, dry=True)
    assert there(rig) == before and seen["dry"] and seen["freed_bytes"] > 0
    assert sorted(names(seen["removed"])) == [OLDER, FAILED]
    assert "change change-bad was ROLLED_BACK" in names(seen["removed"])[FAILED]


def test_the_active_and_the_former_stay_and_a_second_time_changes_nothing(rig: Engine) -> None:
    seen = prune(rig)
    assert there(rig) == [FORMER, NOW]
    assert names(seen["kept"]) == {
        NOW: "the active version",
        FORMER: "the version before the active one: the quick way back",
    }
    assert prune(rig)["removed"] == []
    undone = rig.host.call("undo", {"change": "change-good"})
    assert undone["ok"] and rig.tree.resolve().name == FORMER, "the way back is still there"


def test_what_an_open_change_names_and_what_runs_stays(rig: Engine) -> None:
    switch(rig, "change-open", FAILED)
    live = subprocess.Popen(["sleep", "60"], cwd=rig.tree.parent / "venvs" / OLDER)
    try:
        seen = prune(rig)
        kept = names(seen["kept"])
        assert seen["removed"] == [] and len(there(rig)) == 4
        assert f"pid {live.pid} runs from it" in kept[OLDER]
        assert "change change-open is not settled" in kept[NOW], "its undo leads there"
    finally:
        live.kill()
        live.wait()
    assert list(names(prune(rig)["removed"])) == [OLDER]


def test_a_prune_that_was_killed_leaves_no_folder_that_looks_whole(rig: Engine) -> None:
    asked = json.dumps({"venv": str(rig.tree), "package": "vllm"})
    log = rig.host.root / "log"
    done = strace.inject(rig.host, "venv prune", asked, "kill", ("unlinkat", 5), log)
    assert done.returncode != 0
    left = [name for name in there(rig) if name.endswith(".partial")]
    assert left == [f"{OLDER}.partial"]
    prune(rig)
    assert there(rig) == [FORMER, NOW]


def test_a_damaged_journal_refuses(rig: Engine) -> None:
    (rig.host.state / "journal" / "change-good.json").write_text("{")
    answer = rig.host.call("venv prune", {"venv": str(rig.tree), "package": "vllm"})
    assert answer["code"] == "journal_broken" and len(there(rig)) == 4
