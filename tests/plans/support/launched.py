"""What a start leaves on a stand-in host: our engine as its launch script says, or a former one."""

from __future__ import annotations

from typing import Any

from schema.desired.plan import CONTAINER, UNIT
from schema.render.engine_files import SCRIPT_PATH
from schema.render.installed import argv_in
from tests.unit.builders.engine_parts import FOREIGN, foreign_container
from tests.unit.builders.host_parts import OURS, port, process, unit

Json = dict[str, Any]
SEED = "vllm-ds4-head.service"


def launch(now: Json) -> None:
    """The processes, the container and the ports of an engine that has come up."""
    argv = argv_in(next((f["content"] for f in now["files"] if f["path"] == SCRIPT_PATH), "") or "")
    words = list(argv)
    own: Json = {"unit": UNIT, "container_id": None}
    if "unreadable" not in now["docker"]:
        own = {"unit": None, "container_id": OURS}
        box = foreign_container(id=OURS, name=CONTAINER, restart_policy="no")
        now["docker"]["containers"] = [box.model_dump(mode="json")]
    server = process(910, "/usr/bin/python3", *words, **own)
    rank = process(990, "VLLM::Worker_TP0", ppid=910, **own)
    now["engine_processes"] = [p.model_dump(mode="json") for p in (server, rank)]
    others = [p for p in now["ports"] if p["port"] == 22]
    api = port(8000, pid=910, process="vllm", start_ticks=7, **own)
    now["ports"] = others + ([] if "--headless" in words else [api.model_dump(mode="json")])


def former_answers(now: Json, state: str) -> None:
    """The trial of fault 55: the seed's unit has started its engine again by `docker exec`, which
    took the port. `state` is our own unit's by then, such as `activating/auto-restart`.
    """
    held = port(8000, pid=77, process="python3", unit=None, container_id=FOREIGN, start_ticks=3)
    now["ports"] = [p for p in now["ports"] if p["port"] != 8000] + [held.model_dump(mode="json")]
    now["docker"]["containers"] += [foreign_container(restart_policy="no").model_dump(mode="json")]
    words = ("/usr/bin/docker", "exec", "vllm_ds4", "/workspace/vllm-head.sh")
    seed = unit(name=SEED, restart="on-failure", exec_start=words)
    now["units"].append(seed.model_dump(mode="json"))
    now["units"][0]["active_state"], _, now["units"][0]["sub_state"] = state.partition("/")
