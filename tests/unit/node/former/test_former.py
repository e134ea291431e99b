"""former: what serves by other means, on machines as machines.yaml records them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from node import former, units
from node.core import proc
from node.core.errors import CannotRead
from node.docker import api
from node.kube import kubectl
from schema.hardware import Former

MACHINES = yaml.safe_load(Path(__file__).with_name("machines.yaml").read_text())
Look = Callable[[str], Former]


@pytest.fixture
def look_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Look:
    """Gives what node says of one machine of the file."""

    def on(name: str) -> Former:
        text = json.dumps(MACHINES[name]).replace("{folder}", str(tmp_path))
        machine = json.loads(text)
        for path, content in (machine.get("files") or {}).items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(content)
        put_processes(machine, monkeypatch)
        put_docker(machine, tmp_path, monkeypatch)
        blocks = [block for text in machine.get("units") or [] for block in units.blocks(text)]
        rows = [units.unit(block["Id"][0], block) for block in blocks]
        monkeypatch.setattr(units, "read_units", lambda names: rows)
        (tmp_path / "crontab").write_text(machine.get("crontab", ""))
        monkeypatch.setattr(units, "SYSTEM", str(tmp_path / "crontab"))
        monkeypatch.setattr(units, "FOLDER", str(tmp_path / "none"))
        monkeypatch.setattr(units, "USERS", str(tmp_path / "none"))
        return Former.model_validate(json.loads(json.dumps(former.look_former({}))))

    return on


def put_processes(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has /proc hold the machine's processes."""
    rows = {row["pid"]: row for row in machine["processes"]}

    def stat(pid: int) -> proc.Stat | None:
        row = rows.get(pid)
        return row and proc.Stat(pid, "", "S", row.get("ppid", 1), pid, pid * 10, 0)

    monkeypatch.setattr(proc, "pids", lambda: sorted(rows))
    monkeypatch.setattr(proc, "argv", lambda pid: tuple(rows[pid]["argv"]))
    monkeypatch.setattr(proc, "cgroup", lambda pid: rows[pid]["cgroup"])
    monkeypatch.setattr(proc, "environ", lambda pid: rows[pid].get("env") or {})
    monkeypatch.setattr(proc, "uid", lambda pid: 0)
    monkeypatch.setattr(proc, "exe", lambda pid: rows[pid]["argv"][0])
    monkeypatch.setattr(proc, "stat", stat)


def put_docker(machine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has docker, and a cluster, answer with the machine's own."""
    boxes = {row["Id"]: row for row in machine.get("containers") or []}

    def get(path: str, absent_ok: bool = False) -> Any:
        kind, _, rest = path.lstrip("/").partition("/")
        if kind == "images":
            return machine["images"].get(rest.removesuffix("/json"))
        if rest.startswith("json"):
            return [
                {"Id": b["Id"], "Names": [b["Name"]], "Image": b["Config"]["Image"],
                 "Command": " ".join([b["Path"], *b["Args"]])}
                for b in boxes.values()
            ]  # fmt: skip
        return boxes.get(rest.partition("/")[0])

    class Cluster:
        def json(self, words: list[str]) -> Any:
            return machine["kubectl"][words[1]]

    put_layers(boxes, tmp_path, monkeypatch)
    (tmp_path / "docker.sock").touch()
    monkeypatch.setattr(api, "SOCKET", str(tmp_path / "docker.sock"))
    monkeypatch.setattr(api, "get", get)
    monkeypatch.setattr(kubectl, "client", lambda *_: Cluster())


def put_layers(boxes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has each container's own layer hold the files that the machine says."""
    lines = {}
    for box in boxes.values():
        top, pid = tmp_path / box["Id"][:4], box["State"]["Pid"]
        top.mkdir(exist_ok=True)
        for path in box.get("changes") or []:
            (top / path.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
            (top / path.lstrip("/")).touch()
        # as /proc/PID/mountinfo has it (man 5 proc_pid_mountinfo)
        lines[f"/proc/{pid}/mountinfo"] = (
            f"742 600 0:58 / / rw,relatime - overlay overlay rw,lowerdir=/l/A:/l/B,upperdir={top},"
            "workdir=/w\n745 742 0:61 / /proc rw - proc proc rw"
        )
    read = proc.read_text
    monkeypatch.setattr(proc, "read_text", lambda path: lines.get(path) or read(path))


# machine: the engine's pid, where it is, its container; the supervisors and whether they start it
# at the next boot
@pytest.mark.parametrize(("name", "engine", "supervisors"), [
    ("spark", (5101, "exec", "vllm_ds4", 0, True, 8000),
     {"unit vllm-ds4-head.service": True, "container-policy vllm_ds4": True,
      "cron {folder}/crontab:1": True}),
    ("eugr", (801, "exec", "vllm_node", 1, False, 8000), {"shell 801": False}),
    ("compose", (900, "main", "llm-vllm-1", 0, True, 9000),
     {"unit llm-stack.service": True, "container-policy llm-vllm-1": True, "compose llm": False}),
    ("tower", (1200, "host", None, 0, True, 8000), {"unit genesis.service": True}),
    ("pod", (1500, "pod", "lucebox-7d9-x/engine", 0, True, 8000),
     {"pod default/lucebox": True}),
    ("dockerd", (1500, "pod", "lucebox-7d9-x/engine", 0, True, 8000),
     {"pod default/lucebox": True}),
    ("hand", (1700, "host", None, 0, True, 8000),
     {"unit vllm-old.service": False, "shell 1700": False}),
    ("users", (1800, "host", None, 0, True, 8000), {"unit llm.service": False}),
    ("cron", (1900, "host", None, 0, True, 8000), {"cron {folder}/crontab:1": True}),
])  # fmt: skip
def test_engine_and_supervisors_are_found(
    look_at: Look, tmp_path: Path, name: str, engine: Any, supervisors: dict[str, bool]
) -> None:
    seen = look_at(name)
    assert seen.unread == () or name == "users"
    assert [
        (e.pid, e.inside_of, e.container, e.node_rank, e.is_head, e.port) for e in seen.engines
    ] == [engine]
    told = {f"{s.kind} {s.name}": s.starts_at_boot for s in seen.supervisors}
    assert told == {k.replace("{folder}", str(tmp_path)): v for k, v in supervisors.items()}


def test_no_secret_is_told(look_at: Look) -> None:
    for name in MACHINES:
        text = look_at(name).model_dump_json()
        assert "made_up" not in text and "made-up" not in text
    engine = look_at("spark").engines[0]
    assert engine.secret_env == ("HF_TOKEN",) and engine.secret_flags == ("--api-key",)
    assert engine.env["TOKENIZERS_PARALLELISM"] == "false"


def test_how_a_container_was_made(look_at: Look) -> None:
    (spark,), (eugr,) = look_at("spark").containers, look_at("eugr").containers
    assert spark.digests == ("ghcr.io/spark-arena/dgx-vllm-eugr-nightly@sha256:2222",)
    assert (spark.gpus, spark.privileged, spark.shm_bytes) == (True, True, 0)
    # the script that was copied in is named, logs and caches are not
    assert spark.changed == ("/workspace/vllm-head-090.sh",)
    assert eugr.auto_remove and eugr.other_options == ("--ulimit=nofile",)
    assert look_at("compose").containers[0].shm_bytes == 16 << 30
    (owner,) = look_at("pod").supervisors
    assert (owner.uid, owner.resource_version) == ("u-1", "226")
    assert (owner.template_container, owner.grace_s) == ("engine", 30.0)
    (pod,) = look_at("pod").containers
    assert pod.digests == ("docker.io/vllm/vllm-openai@sha256:5555",)
    assert [m.source for m in pod.mounts] == ["/srv/models"]
    assert (pod.gpus, pod.shm_bytes) == (True, 2 << 30)
    assert pod.other_options == (
        "persistentVolumeClaim cache at /root/.cache",
        "limit nvidia.com/gpu=1", "limit nvidia.com/gpumem=8000",
    )  # fmt: skip


@pytest.mark.parametrize(("main", "is_waiting"), [
    ("sleep infinity", True), ("tail -f /dev/null", True), ("/bin/bash", True),
    ("bash -c sleep infinity", True), ("/usr/bin/earlyoom -M 1", True), ("tini -- sleep 9", True),
    ("/bin/bash /serve.sh", False), ("vllm serve /m", False), ("bash -c vllm serve /m", False),
    ("python3 -m x", False),
])  # fmt: skip
def test_containers_that_only_wait(main: str, is_waiting: bool) -> None:
    assert former.waits(main.split()) is is_waiting


def test_a_root_that_is_no_overlay_is_told(look_at: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    look_at("spark")
    monkeypatch.setattr(proc, "read_text", lambda path: "742 600 0:58 / / rw - btrfs /dev/x rw")
    told = Former.model_validate(former.look_former({})).unread
    assert told == ("files put into container vllm_ds4: its root is no overlay that can be read",)
    assert Former.model_validate(former.look_former({"brief": True})).unread == ()


def test_a_unit_of_a_users_own_systemd_is_not_taken_for_the_systems(look_at: Look) -> None:
    seen = look_at("users")
    assert seen.engines[0].unit is None
    assert seen.unread == (
        "llm.service is a unit of 4242's own systemd, which rigbook does not change: "
        "sudo systemctl --user -M 4242@ disable --now llm.service",
    )
    assert look_at("cron").engines[0].unit is None


def test_a_venv_is_found_beside_its_interpreter(look_at: Look, tmp_path: Path) -> None:
    assert look_at("tower").engines[0].venv == look_at("hand").engines[0].venv
    assert look_at("tower").engines[0].venv == str(tmp_path / "venv")


def test_what_cannot_be_read_is_told(look_at: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise CannotRead("docker did not answer in 8 s")

    look_at("spark")
    monkeypatch.setattr(api, "get", fails)
    monkeypatch.setattr(units, "read_units", fails)
    monkeypatch.setattr(units, "read_cron", fails)
    seen = Former.model_validate(former.look_former({}))
    assert [row.partition(":")[0] for row in seen.unread] == [
        "containers", "pid 5101 is in container aaaa0000aaaa, which docker does not tell about",
        "units", "crontabs",
    ]  # fmt: skip
