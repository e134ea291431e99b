"""Former setups as node's `former` tells them: the seed's, a compose project, a unit's venv."""

from __future__ import annotations

from typing import Any

from schema.observed.former import Former, FormerContainer, FormerEngine, Supervisor

ARGV = (
    "/usr/bin/python3", "/usr/local/bin/vllm", "serve", "/models/x", "--port", "8000",
    "--served-model-name", "tiny",
)  # fmt: skip
BOX, UNIT = "vllm_ds4", "vllm-ds4.service"


def engine(**changes: Any) -> FormerEngine:
    """A head's engine by docker exec."""
    values: dict[str, Any] = {
        "pid": 812, "start_ticks": 99, "argv": ARGV, "env": {"HF_HOME": "/models"},
        "cwd": "/workspace", "uid": 0, "user": "root", "exe": "/usr/bin/python3.12", "unit": None,
        "container": BOX, "inside_of": "exec", "venv": None, "port": 8000, "node_rank": 0,
        "is_head": True, **changes,
    }  # fmt: skip
    return FormerEngine.model_validate(values)


def container(**changes: Any) -> FormerContainer:
    """A container that only waits, as the seed's."""
    values: dict[str, Any] = {
        "id": "a" * 64, "name": BOX, "image": "nightly:latest", "image_id": "sha256:" + "1" * 64,
        "state": "running", "main": ("sleep", "infinity"), "env": {}, "image_env": {},
        "mounts": (), "restart_policy": "unless-stopped", "auto_remove": False,
        "network_mode": "host", "ipc_mode": "host", "privileged": True, "runtime": "runc",
        "gpus": True, "labels": {}, **changes,
    }  # fmt: skip
    return FormerContainer.model_validate(values)


def by_unit(**changes: Any) -> Supervisor:
    """The unit that runs the seed's docker exec."""
    values: dict[str, Any] = {
        "kind": "unit", "name": UNIT, "starts_at_boot": True, "enabled": "enabled",
        "active": "active/running", "restart": "on-failure",
        "evidence": "/etc/systemd/system/vllm-ds4.service: names container vllm_ds4", **changes,
    }  # fmt: skip
    return Supervisor.model_validate(values)


def by_policy(name: str = BOX, policy: str = "unless-stopped") -> Supervisor:
    """docker's restart policy."""
    return Supervisor(
        kind="container-policy", name=name, starts_at_boot=True, restart=policy,
        evidence=f"restart policy {policy}, running", containers=(name,),
    )  # fmt: skip


def by_cron() -> Supervisor:
    """The seed's line in the system's crontab."""
    text = "@reboot root docker start vllm_ds4"
    return Supervisor(
        kind="cron", name="/etc/crontab:12", starts_at_boot=True, file="/etc/crontab", line=12,
        text=text, evidence=f"{text} (names container vllm_ds4)",
    )  # fmt: skip


def by_pod(deployment: str | None = "lucebox") -> Supervisor:
    """A Deployment."""
    return Supervisor(
        kind="pod", name="default/lucebox", starts_at_boot=True, evidence="pod default/lucebox-x",
        namespace="default", deployment=deployment, uid="u-1" if deployment else None,
        resource_version="7", template_container="engine", grace_s=30.0,
    )  # fmt: skip


def pod(deployment: str | None = "lucebox", network: str = "host") -> Former:
    """An engine in a pod."""
    one = engine(container="lucebox-x/engine", inside_of="pod")
    box = container(name=one.container, network_mode=network, restart_policy="no")
    return Former(engines=(one,), containers=(box,), supervisors=(by_pod(deployment),))


def by_compose() -> Supervisor:
    """A project of docker compose."""
    return Supervisor(
        kind="compose", name="llm", starts_at_boot=False, containers=("llm-vllm-1",),
        evidence="labels of container llm-vllm-1: /srv/llm/compose.yaml", project="llm",
        files=("/srv/llm/compose.yaml",), working_dir="/srv/llm", services=("vllm",),
    )  # fmt: skip


def seed(**changes: Any) -> Former:
    """The seed's: a waiting container, docker exec by a unit, a policy, a line at boot."""
    return Former(
        engines=(engine(**changes),), containers=(container(),),
        supervisors=(by_unit(), by_policy(), by_cron()),
    )  # fmt: skip


def seed_worker() -> Former:
    """The same on the worker."""
    return seed(argv=(*ARGV, "--node-rank", "1", "--headless"), node_rank=1, is_head=False)


def compose() -> Former:
    """A project whose container's main process is the engine."""
    box = container(name="llm-vllm-1", main=("vllm", "serve"))
    return Former(
        engines=(engine(container=box.name, inside_of="main"),), containers=(box,),
        supervisors=(by_policy(box.name), by_compose()),
    )  # fmt: skip


def by_hand() -> Former:
    """eugr's launch-cluster.sh: a container with --rm that waits, and docker exec --detach."""
    return Former(
        engines=(engine(),), containers=(container(restart_policy="no", auto_remove=True),),
        supervisors=(Supervisor(kind="shell", name="812", starts_at_boot=False, evidence="hand"),),
    )  # fmt: skip


def venv(unit: str | None = "vllm.service") -> Former:
    """A venv's engine, under a unit or by a shell."""
    one = engine(container=None, inside_of="host", unit=unit, venv="/opt/vllm")
    rows = (by_unit(name=unit),) if unit else ()
    return Former(engines=(one,), supervisors=rows)


def said(former: Former) -> dict[str, Any]:
    """As the host sends it."""
    return former.model_dump(mode="json")
