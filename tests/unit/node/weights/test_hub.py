"""The first download: what the hub says, what its client brings, and that each file is verified.

The hub is a double on loopback, and its client a stand-in of a few lines; the real client has been
run against the same double.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from node.transfer import hub as transfer_hub
from node.transfer import manifest
from tests.unit.node.engine.test_preflight import PYTHON, program
from tests.unit.node.support import hub_double
from tests.unit.node.support.host import Host, change
from tests.unit.node.support.hub_double import COMMIT, REPO, Hub, hub, listed

FILES = {
    "model-00001-of-00002.safetensors": os.urandom(300_000),
    "model-00002-of-00002.safetensors": os.urandom(200_000),
    "config.json": b'{"a": 1}\n',
    "sub/tokenizer.json": b"{}\n" * 500,
}
TOKEN = "T0K-e5f6a7b8"


@pytest.fixture
def site() -> Iterator[Hub]:
    with hub(FILES, TOKEN) as made:
        yield made


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """The engine's venv, with the stand-in of the hub's client."""
    made = tmp_path / "venv"
    (made / "lib").mkdir(parents=True)
    (made / "lib" / "huggingface_hub.py").write_text(hub_double.CLIENT)
    program(made / "bin" / "python", f'#!/bin/sh\nPYTHONPATH={made}/lib exec {PYTHON} "$@"\n')
    return made


def where(site: Hub, venv: Path, token: str = TOKEN, **more: Any) -> dict[str, Any]:
    """What both verbs are told."""
    environ = {"HF_ENDPOINT": site.url, "HF_HUB_OFFLINE": "1"}
    row = {"name": "HF_TOKEN", "value": token} if token else None
    return {"repo": REPO, "revision": COMMIT, "owner": "root", "venv": str(venv),
            "environ": environ, "token": row, **more}  # fmt: skip


def got(host: Host, site: Hub, venv: Path, target: Path, **more: Any) -> dict[str, Any]:
    """A download's answer; `more` changes the request."""
    request = {**where(site, venv), "change": change(), "path": str(target), "files": listed(FILES)}
    answer: dict[str, Any] = host.call("weights download", {**request, **more})
    return answer


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*")
            if p.is_file() and ".rigbook" not in p.parts}  # fmt: skip


def test_the_hub_says_which_commit_and_which_files(host: Host, site: Hub, venv: Path) -> None:
    said = host.call("weights hub", where(site, venv, revision="main"))
    assert said["ok"], said
    assert (said["commit"], said["files"]) == (COMMIT, listed(FILES))


def test_every_file_comes_verified_and_once(
    host: Host, site: Hub, venv: Path, tmp_path: Path
) -> None:
    target = tmp_path / "models" / "tiny"
    said = got(host, site, venv, target)
    assert said["ok"] and said["changed"], said
    assert said["bytes"] == sum(map(len, FILES.values())) and content(target) == FILES
    left = {path.name for path in (target / ".rigbook").iterdir()}
    assert left == {f"displaced-{change()['id']}", "manifest.json"}
    known = manifest.Folder(str(target)).list()
    assert {r["name"]: r["sha256"] for r in known} == {
        name: hashlib.sha256(raw).hexdigest() for name, raw in FILES.items()
    }
    site.asked.clear()
    again = got(host, site, venv, target)
    assert again["ok"] and not again["changed"] and not site.asked
    assert site.tokens == {f"Bearer {TOKEN}"}


def test_what_is_there_is_not_fetched_and_what_differs_is_replaced_and_put_back(
    host: Host, site: Hub, venv: Path, tmp_path: Path
) -> None:
    target = tmp_path / "tiny"
    shutil.copytree(_written(tmp_path / "copy"), target)
    (target / "config.json").write_bytes(b'{"a": 2}\n')
    said = got(host, site, venv, target)
    assert said["files"] == ["config.json"] and content(target) == FILES
    assert [line for line in site.asked if "safetensors" in line] == []
    undone = host.call("undo", {"change": change()["id"]})
    assert undone["status"] == "ROLLED_BACK"
    assert (target / "config.json").read_bytes() == b'{"a": 2}\n'


def _written(folder: Path) -> Path:
    for name, raw in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(raw)
    return folder


@pytest.mark.parametrize("name", ["model-00001-of-00002.safetensors", "config.json"])
def test_a_file_that_is_not_what_the_hub_says_gets_no_name(
    host: Host, site: Hub, venv: Path, tmp_path: Path, name: str
) -> None:
    """By its sha256, or its git blob; the next run fetches that one anew, and no other."""
    raw = FILES[name]
    site.served[name] = bytes([raw[0] ^ 1]) + raw[1:]
    target = tmp_path / "tiny"
    said = got(host, site, venv, target)
    assert not said["ok"] and f"{name}: what came is not what the hub says" in said["error"]
    assert content(target) == {}
    site.served[name] = raw
    site.asked.clear()
    assert got(host, site, venv, target)["ok"] and content(target) == FILES
    assert {line.rpartition("/")[2] for line in site.asked} == {name}


def test_a_download_that_was_cut_off_goes_on(
    host: Host, site: Hub, venv: Path, tmp_path: Path
) -> None:
    """What the client had of a file is not asked for again."""
    target, name = tmp_path / "tiny", "model-00001-of-00002.safetensors"
    half = target / ".rigbook" / f"hub-{COMMIT}" / ".cache" / f"{name}.incomplete"
    (target / ".rigbook").mkdir(parents=True)
    half.parent.mkdir(parents=True)
    half.write_bytes(FILES[name][:100_000])
    (target / ".rigbook" / "hub-0000").mkdir()
    assert got(host, site, venv, target)["ok"] and content(target) == FILES
    assert not (target / ".rigbook" / "hub-0000").exists()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"token": {"name": "HF_TOKEN", "value": "wrong"}}, "401"),
        ({"repo": "org/../x"}, "is not allowed"),
        ({"revision": "main"}, "is not allowed"),
        ({"files": [{"name": "../x", "size": 1, "blob": "a" * 40}]}, "is not allowed"),
        ({"files": [{"name": "x", "size": 1, "blob": "short"}]}, "is not allowed"),
        ({"owner": "nobody-here"}, "no user nobody-here"),
        ({"image": "a:1"}, "one of them"),
    ],
)
def test_a_refusal_is_one_line_and_leaves_no_file(
    host: Host, site: Hub, venv: Path, tmp_path: Path, more: dict[str, Any], said: str
) -> None:
    answer = got(host, site, venv, tmp_path / "tiny", **more)
    assert not answer["ok"] and said in answer["error"], answer
    assert content(tmp_path / "tiny") == {} and "wrong" not in json.dumps(answer)


def test_a_link_in_place_of_a_file_is_not_followed(
    host: Host, site: Hub, venv: Path, tmp_path: Path
) -> None:
    """The folder in which files come is the owner's: root would give a secret a name there."""
    (tmp_path / "secret").write_text("x" * 9)
    client = venv / "lib" / "huggingface_hub.py"
    evil = f"    os.symlink({str(tmp_path / 'secret')!r}, whole); return\n"
    client.write_text(client.read_text().replace("    with _get", evil + "    with _get", 1))
    answer = got(host, site, venv, tmp_path / "tiny")
    assert not answer["ok"] and not content(tmp_path / "tiny")


def test_a_client_that_is_not_there_is_told(
    host: Host, site: Hub, venv: Path, tmp_path: Path
) -> None:
    (venv / "lib" / "huggingface_hub.py").unlink()
    answer = got(host, site, venv, tmp_path / "tiny")
    assert "No module named 'huggingface_hub'" in answer["error"]


def test_in_an_image_it_is_a_container_of_the_owner(
    tmp_path: Path, site: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its one folder mounted, and nothing of what it is asked in the command line."""
    double = (
        f"#!{sys.executable}\nimport json, sys\n"
        f"record = open({str(tmp_path / 'record')!r}, 'a')\n"
        "asked = json.load(sys.stdin) if sys.argv[1] == 'run' else None\n"
        "record.write(json.dumps([sys.argv[1:], asked]) + '\\n')\n"
        "print('RIGBOOK-HUB {}')\n"
    )
    program(tmp_path / "docker", double)
    monkeypatch.setattr(transfer_hub, "DOCKER", str(tmp_path / "docker"))
    place = transfer_hub.Place("rigbook/vllm:1", None, "milo", 1000, 1001)
    wanted = {"repo": REPO, "revision": COMMIT, "names": ["a"], "token": TOKEN}
    transfer_hub.ask_hub(
        place, wanted, {"HF_HUB_OFFLINE": "1"}, "/srv/w/.rigbook/hub-0", lambda: None
    )
    transfer_hub.ask_hub(place, {**wanted, "names": None}, {}, None, lambda: None)
    former, got, look = map(json.loads, (tmp_path / "record").read_text().splitlines())
    assert former[0] == ["rm", "-f", "rigbook-download"]
    # a look ends no download of somebody else's
    assert f"rigbook-hub-{os.getpid()}" in look[0] and "-v" not in look[0]
    words, asked = got
    assert words[words.index("--user") + 1] == "1000:1001" and "--rm" in words
    assert words[words.index("-v") + 1] == "/srv/w/.rigbook/hub-0:/rigbook-download"
    assert "rigbook/vllm:1" in words and TOKEN not in " ".join(words)
    assert asked["folder"] == "/rigbook-download" and asked["token"] == TOKEN
    assert asked["environ"]["HF_HUB_OFFLINE"] == "0"
