"""What dockers of five generations answer (dockers.yaml), on a unix socket.

The double checks the version in a path as moby does: a request above or below what it speaks is
answered with 400.
"""

from __future__ import annotations

import copy
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from node.core.errors import CannotRead
from node.docker import api, filesystem, gpu_access, layer_folders
from schema.observed.docker import Docker
from tests.unit.node.support.servers import docker_socket, http_answer

DOCKERS = yaml.safe_load(Path(__file__).with_name("dockers.yaml").read_text())["dockers"]
IMAGE = "engine:1"
NAMED = "/var/lib/containerd"


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _answer(said: dict[str, Any]) -> Callable[[str], bytes]:
    """A docker that says this."""

    def reply(asked: str) -> bytes:
        path, version = asked.removeprefix("GET "), _number(said["api"])
        if path.startswith("/v"):
            wanted, _, rest = path[2:].partition("/")
            path, version = f"/{rest}", _number(wanted)
            if not _number(said["min_api"]) <= version <= _number(said["api"]):
                words = "new" if version > _number(said["api"]) else "old"
                return http_answer(400, {"message": f"client version {wanted} is too {words}."})
        left_out = said.get("from_1_52", ()) if version >= (1, 52) else ()
        row = {key: value for key, value in said["image"].items() if key not in left_out}
        answers = {"/info": said["info"], f"/images/{IMAGE}/json": row}
        answers |= {"/containers/json": [], "/containers/json?all=1": []}
        found = path.startswith("/images/json?") or path in answers
        return http_answer(200, answers.get(path, [])) if found else http_answer(404, {})

    return reply


@pytest.fixture(params=DOCKERS, ids=[row["docker"] for row in DOCKERS])
def said(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, Any]]:
    """A docker of the table, which answers on its socket."""
    path, said = tmp_path / "docker.sock", copy.deepcopy(request.param)
    for name, text in said.get("specs", {}).items():
        (tmp_path / name).write_text(text)
        said["info"]["CDISpecDirs"] = [str(tmp_path)]
    monkeypatch.setattr(api, "SOCKET", str(path))
    with docker_socket(path, _answer(said)) as server:
        said["seen"] = server.seen
        yield said


def test_an_images_layers_are_found(said: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """overlay2's folders as docker tells them, containerd's by the image's chain id."""
    monkeypatch.setattr(layer_folders, "_in_containerd", lambda root, name: [f"{root} {name}"])
    monkeypatch.setattr(api, "containerd", lambda info: NAMED if "overlayfs" in str(info) else None)
    if "layers" in said:
        assert filesystem.layers(IMAGE) == said["layers"]
    elif "snapshot" in said:
        assert filesystem.layers(IMAGE) == [f"{NAMED} {said['snapshot']}"]
    else:
        with pytest.raises(CannotRead, match="no container of it runs"):
            filesystem.layers(IMAGE)


def test_an_older_version_is_asked_for_only_where_that_helps(said: dict[str, Any]) -> None:
    """Never above what the docker speaks: it is asked at its own version first."""
    row = api.inspection(f"/images/{IMAGE}/json")
    left_out = "GraphDriver" not in said["image"] or "from_1_52" in said
    asked = [f"GET /images/{IMAGE}/json"] + [f"GET /v1.51/images/{IMAGE}/json"] * left_out
    assert said["seen"] == asked
    answered = _number(said["min_api"]) <= (1, 51)
    assert ("GraphDriver" in row) == ("GraphDriver" in said["image"] and answered)
    assert api.inspection("/images/absent/json") is None


def test_the_section_is_read(said: dict[str, Any]) -> None:
    seen = Docker.model_validate(json.loads(json.dumps(api.read([IMAGE]))))
    assert seen.version == said["info"]["ServerVersion"]
    assert [image.id for image in seen.images] == [said["image"]["Id"]]
    assert (seen.containerd is None) == (said["info"]["Driver"] == "overlay2")
    assert set(seen.runtimes) == set(said["info"]["Runtimes"])
    assert seen.default_runtime == said["info"]["DefaultRuntime"]
    assert list(seen.cdi_devices) == said.get("cdi", [])


@pytest.mark.parametrize("there", [(), gpu_access.HOOKS[:1], gpu_access.HOOKS])
def test_the_toolkits_hooks_are_on_dockers_own_path(
    there: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in there:
        (tmp_path / name).touch(0o755)
    with subprocess.Popen(["/bin/sleep", "60"], env={"PATH": f"/none:{tmp_path}"}) as dockerd:
        (tmp_path / "pid").write_text(f"{dockerd.pid}\n")
        monkeypatch.setattr(gpu_access, "PID_FILE", str(tmp_path / "pid"))
        found = gpu_access.read({})["gpu_hooks"]
        dockerd.kill()
    assert found == list(there)
    monkeypatch.setenv("PATH", str(tmp_path))
    for unread in ("absent", "text"):
        (tmp_path / "text").write_text("none\n")
        monkeypatch.setattr(gpu_access, "PID_FILE", str(tmp_path / unread))
        assert gpu_access.read({})["gpu_hooks"] == list(there), "ours, where docker's is not told"
