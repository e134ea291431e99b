"""What pip would do, with the real pip and real small wheels, without any network."""

from __future__ import annotations

import json
import os
import pwd
import shutil
from pathlib import Path

import pytest

from schema.observed.pip_report import VenvWheels, parse
from tests.unit.builders import wheelhouse as w
from tests.unit.node.support.host import Host

INDEX_AND_FOLDER = ["--no-index"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A venv with vllm 0.19.2rc1 and torch 2.9.0+cu130, and a folder of wheels."""
    root = tmp_path_factory.mktemp("wheels")
    house = root / "house"
    torch = w.wheel(house, "torch", "2.9.0+cu130", w.torch_files("2.9.0+cu130", "13.0"))
    old = w.wheel(house, "vllm", "0.19.2rc1", w.vllm_files("0.19.2rc1"), ["torch==2.9.0"])
    w.wheel(house, "vllm", "0.20.2", w.vllm_files("0.20.2"), ["torch==2.9.0"])
    w.wheel(house, "vllm", "0.21.0", w.vllm_files("0.21.0"), ["torch==2.10.0"])
    w.wheel(house, "torch", "2.10.0+cpu", w.torch_files("2.10.0+cpu", None))
    w.install(w.venv(root / "venv"), torch, old)
    return root


def look(host: Host, made: Path, wanted: str, *args: str, **more: object) -> VenvWheels:
    """The typed answer of `rignode wheels`."""
    request = {
        "venv": str(made / "venv"),
        "package": "vllm",
        "wanted": wanted,
        "pip_args": [*(args or (f"--find-links={made / 'house'}",)), *INDEX_AND_FOLDER],
        **more,
    }
    answer = host.call("wheels", request)
    assert answer.pop("ok") is True, answer
    return VenvWheels.model_validate(answer)


def test_it_tells_what_is_there_and_what_pip_would_change(host: Host, made: Path) -> None:
    before = sorted(p.name for p in w.site_packages(made / "venv").iterdir())
    found = look(host, made, "0.20.2")
    assert found.version_of("vllm") == "0.19.2rc1" and found.torch_variant() == "cu130"
    report = parse(str(found.wanted))
    assert [(i.name, i.metadata.version) for i in report.install] == [("vllm", "0.20.2")]
    assert report.install[0].requested and report.install[0].file.startswith("vllm-0.20.2-")
    assert found.wanted_error is None and found.old_error is None
    assert parse(str(found.old)).item("vllm").metadata.version == "0.19.2rc1"  # type: ignore[union-attr]
    assert sorted(p.name for p in w.site_packages(made / "venv").iterdir()) == before


def test_a_torch_that_would_change_is_in_the_report(host: Host, made: Path) -> None:
    report = parse(str(look(host, made, "0.21.0").wanted))
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
    found = look(host, made, "0.20.2", f"--find-links={tmp_path / 'house'}")
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
        request = {"venv": str(made / "venv"), "package": "vllm", "wanted": "0.20.2"}
        answer = host.call("wheels", request)
        assert answer["ok"] and answer["wanted"] and answer["args"] == []
    finally:
        conf.unlink()


def test_a_venv_without_pip_is_a_clear_line(host: Host, made: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(made / "venv", bare, symlinks=True)
    shutil.rmtree(w.site_packages(bare) / "pip")
    answer = host.call("wheels", {"venv": str(bare), "package": "vllm", "wanted": "1.0"})
    assert answer["code"] == "no_pip" and "ensurepip" in answer["remedy"]
    gone = {"venv": str(tmp_path / "gone"), "package": "vllm", "wanted": "1"}
    assert host.call("wheels", gone)["code"] == "no_venv"


def test_pip_is_ended_when_it_hangs(host: Host, made: Path, tmp_path: Path) -> None:
    venv = tmp_path / "slow" / "bin"
    venv.mkdir(parents=True)
    (venv / "python").write_text("#!/bin/sh\nsleep 60\n")
    (venv / "python").chmod(0o755)
    request = {"venv": str(venv.parent), "package": "vllm", "wanted": "1", "timeout_s": 1}
    answer = host.call("wheels", request)
    assert answer["code"] == "timeout" and "did not end in 1 s" in answer["error"]


@pytest.mark.parametrize("change", [
    {"package": "-r/etc/passwd"}, {"package": "vllm; touch x"}, {"wanted": "--upgrade"},
    {"wanted": "1.0 $(touch x)"}, {"pip_args": ["--target=/etc"]}, {"pip_args": ["-e", "."]},
    {"pip_args": ["--find-links=/a\n--target=/etc"]}, {"venv": "relative/venv"}, {"timeout_s": 0},
])  # fmt: skip
def test_hostile_values_are_refused(host: Host, made: Path, change: dict[str, object]) -> None:
    request = {"venv": str(made / "venv"), "package": "vllm", "wanted": "1.0", **change}
    assert host.call("wheels", request)["code"] == "bad_request"


def test_secrets_of_urls_do_not_leave_the_host(host: Host, made: Path) -> None:
    request = {
        "venv": str(made / "venv"),
        "package": "vllm",
        "wanted": "0.99",
        "pip_args": ["--index-url=http://user:hunter2@127.0.0.1:1/simple", "--no-index"],
    }
    answer = host.call("wheels", request)
    assert answer["ok"] and "hunter2" not in json.dumps(answer)


def test_pip_runs_as_the_venvs_owner(host: Host, made: Path, tmp_path: Path) -> None:
    """So that the owner's pip.conf counts, and root leaves nothing in the owner's cache."""
    nobody = pwd.getpwnam("nobody")
    bin_ = tmp_path / "venv" / "bin"
    bin_.mkdir(parents=True)
    (bin_ / "python").write_text("#!/bin/sh\necho pip 23.0\necho $(id -un) $HOME >&2\nexit 1\n")
    (bin_ / "python").chmod(0o755)
    os.chown(bin_.parent, nobody.pw_uid, nobody.pw_gid)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == 0 and folder != Path("/tmp"):
            folder.chmod(folder.stat().st_mode | 0o011)
        if folder == Path("/tmp"):
            break
    request = {"venv": str(bin_.parent), "package": "vllm", "wanted": "1"}
    answer = host.call("wheels", request)
    assert f"nobody {nobody.pw_dir}" in answer["error"], answer
