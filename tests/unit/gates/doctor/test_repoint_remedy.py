"""The remedy of a ghost: units of others are repointed by a drop-in, ours are written by serve."""

from __future__ import annotations

from gates.core.check import Gate
from gates.unit import ghost as unit
from gates.unit import launch_script
from schema.observed.units import GhostFile, Override, Unit
from schema.render import node_program
from tests.unit.builders import host_parts as h
from tests.unit.builders import snapshots as f
from tests.unit.builders.spark_rig import spark_plan

PLAN = spark_plan()
HEAD = "spark1"
DS4 = "vllm-ds4-head.service"
GONE = "/workspace/vllm-head-090.sh"


def remedy(gate: Gate, one: Unit) -> str:
    """The remedy for the one finding about this unit on the head."""
    seen = f.healthy(PLAN)
    seen[HEAD] = f.put(seen[HEAD], "units", (one,))
    (found,) = gate(PLAN, seen)
    return found.remedy


def test_a_unit_of_others_is_repointed_by_a_drop_in() -> None:
    ghost = h.unit(name=DS4, exec_start=(GONE, "vllm"), exec_start_exists=False, fragment="/x")
    assert remedy(unit.unit_ghost, ghost) == (
        f"pyinfra INVENTORY deploys/unit.py --data unit={DS4} --data only=spark1 "
        "--data 'exec_start=/PATH/OF/PROGRAM ARGUMENTS'"
    )
    before = GhostFile(step="ExecStartPre", path="/opt/vllm-clean.sh")
    pre = h.unit(name=DS4, exec_start=("/bin/vllm",), ghosts=(before,))
    assert "deploys/unit.py" not in remedy(unit.unit_ghost, pre), "it sets ExecStart= alone"


def test_a_ghost_behind_docker_exec_is_repointed_too() -> None:
    inside = GhostFile(step="ExecStart", path=GONE, container="vllm_ds4")
    argv = ("/usr/bin/docker", "exec", "vllm_ds4", "bash", GONE)
    said = remedy(launch_script.script_ghost, h.unit(name=DS4, exec_start=argv, ghosts=(inside,)))
    assert said.startswith(f"pyinfra INVENTORY deploys/unit.py --data unit={DS4}")
    assert "deploys/serve.py" in said


def test_ours_stays_with_serve_and_loses_the_drop_in_that_broke_it() -> None:
    stale = h.unit(exec_start=(GONE,), exec_start_exists=False)
    assert remedy(unit.unit_ghost, stale) == "pyinfra INVENTORY deploys/serve.py"
    # the program itself: serve's first call installs it again
    lost = GhostFile(step="ExecStartPre", path=node_program.path())
    assert remedy(unit.unit_ghost, h.unit(ghosts=(lost,))) == "pyinfra INVENTORY deploys/serve.py"
    path = f"/etc/systemd/system/{stale.name}.d/50-ghost.conf"
    torn = Override(path=path, exec_start=(GONE,), resets=True)
    broken = stale.model_copy(update={"drop_ins": (path,), "overrides": (torn,)})
    said = remedy(unit.unit_ghost, broken)
    assert f"--data unit={stale.name} --data drop_in=50-ghost --data remove=true" in said
    assert said.endswith("then pyinfra INVENTORY deploys/restart.py")
    odd = torn.model_copy(update={"path": f"/run/systemd/system/{stale.name}.d/x.conf"})
    elsewhere = broken.model_copy(update={"overrides": (odd,)})
    assert "systemctl cat" in remedy(unit.unit_ghost, elsewhere)
