"""A rig's snapshot becomes what its twin's hosts hold; what they cannot hold is told."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from lab.core.settings import LabError
from lab.rehearsal import disorder
from lab.rehearsal.incidents import breaks
from lab.rehearsal.recipe import longest_of
from schema.desired.plan import UNIT, Plan
from schema.machine.rig_snapshot import KeptNode, KeptText, KeptUser, RigSnapshot
from schema.observed.snapshot import NodeSnapshot, Unreadable
from schema.observed.units import GhostFile
from tests.unit.builders import former_parts, kernel_parts, machine_parts, snapshots, tower_rig
from tests.unit.builders.engine_parts import foreign_container
from tests.unit.builders.host_parts import discrete_gpu, unit
from tests.unit.builders.snapshots import put
from tests.unit.builders.spark_rig import spark_plan

GHOST = "vllm-ds4-head.service"
FILE = f"/etc/systemd/system/{GHOST}"
TEXT = "[Service]\nExecStart=/usr/bin/docker exec vllm_node bash /workspace/gone.sh\n"
OVER_OURS = f"/etc/systemd/system/{UNIT}.d/50-ghost.conf"


def kept(seen: NodeSnapshot, **changes: Any) -> KeptNode:
    """A node whose snapshot is `seen`, with the seed's disorder around it."""
    values: dict[str, Any] = {
        "seen": seen, "kernel": kernel_parts.facts(), "hardware": machine_parts.facts(),
        "former": former_parts.seed(), "texts": (KeptText(path=FILE, text=TEXT),),
        "users": (KeptUser(name="llm", uid=998, gid=998, home="/srv/llm", shell=""),), **changes,
    }  # fmt: skip
    return KeptNode.model_construct(**values)


def snapshot(plan: Plan, nodes: dict[str, KeptNode | Unreadable]) -> RigSnapshot:
    """The rig's file."""
    return RigSnapshot(format=1, rig=plan.rig.name, recipe=plan.recipe.name,
                       profile=plan.profile, taken_unix_s=0, nodes={}
                       ).model_copy(update={"nodes": nodes})  # fmt: skip


def disordered(plan: Plan, name: str = "spark1") -> NodeSnapshot:
    """The node beside a ghost unit, a foreign container, and with 3 for its max_num_seqs."""
    seen = snapshots.serving(plan)[name]
    ghost = unit(name=GHOST, fragment=FILE, active_state="activating", enabled="enabled",
                 exec_start=("/usr/bin/docker", "exec"), exec_start_exists=True,
                 ghosts=(GhostFile(step="ExecStart", path="/workspace/gone.sh"),))  # fmt: skip
    seen = put(seen, "units", (*seen.supervisors[1], ghost))
    boxes, _ = seen.supervisors
    return put(seen, "docker.containers", (*boxes, foreign_container()))


def relaunched(seen: NodeSnapshot, **flags: str) -> NodeSnapshot:
    """The node whose live engine has other values for these flags."""
    assert isinstance(seen.engine_processes, tuple)
    rows = []
    for process in seen.engine_processes:
        argv = [*process.argv]
        for name, value in flags.items():
            if name in argv:
                argv[argv.index(name) + 1] = value
        environ = {**process.environ, "VLLM_WORKER_MULTIPROC_METHOD": "fork"}
        rows.append(process.model_copy(update={"argv": tuple(argv), "environ": environ}))
    return put(seen, "engine_processes", tuple(rows))


def test_the_hosts_hold_what_they_can() -> None:
    plan = spark_plan()
    found = disorder.of(
        snapshot(plan, {"spark1": kept(disordered(plan)),
                        "spark2": Unreadable(unreadable="no ssh connection")}),
        plan, longest_of(plan.recipe),
    )  # fmt: skip
    one, script = found["spark1"], found["spark1"].script
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    assert "gone.sh" in script and f"> {FILE}" in script
    assert f"systemctl enable -q {GHOST}" in script
    assert f"systemctl start --no-block {GHOST}" in script
    name = foreign_container().name
    assert f"docker container inspect {name}" in script and "sleep infinity" in script
    assert "docker image inspect" in script, "an image that has the name keeps it"
    assert any(GHOST in row and "/workspace/gone.sh: not there" in row for row in one.shows)
    assert any(f"container {name} of others" in row for row in one.shows)
    for release in (row.release for row in kernel_parts.facts().kernels):  # type: ignore[union-attr]
        assert f"/boot/vmlinuz-{release}" in script
    assert "useradd" in script and '"driver": "580.95.05"' in script
    assert any("an engine of others on port 8000" in row for row in one.cannot)
    assert any("make test-vm" in row for row in one.cannot)
    assert found["spark2"].cannot == ("spark2: no ssh connection",)
    assert found["spark2"].script == "true\n"


def test_drifted_flags_are_in_the_twins_lengths() -> None:
    plan = spark_plan()
    seen = relaunched(disordered(plan), **{"--max-num-seqs": "3", "--max-model-len": "65536"})
    one = disorder.of(snapshot(plan, {"spark1": kept(seen)}), plan, 262144)["spark1"]
    assert one.flags == {"max_num_seqs": 3, "max_model_len": 128}
    assert one.environ == {"VLLM_WORKER_MULTIPROC_METHOD": "fork"}
    script = "exec vllm \\\n  serve \\\n  --max-num-seqs 6 \\\n  --max-model-len 256\n"
    for edit in breaks.edits(one.flags):
        script = subprocess.run(["sed", edit], input=script, capture_output=True, text=True,
                                check=True).stdout  # fmt: skip
    assert "--max-num-seqs 3 " in script and "--max-model-len 128\n" in script
    same = disorder.of(snapshot(plan, {"spark1": kept(disordered(plan))}), plan, 262144)
    assert (same["spark1"].flags, same["spark1"].environ) == ({}, {})


def test_a_drop_in_over_our_unit_is_held_and_ours_are_not() -> None:
    plan = spark_plan()
    seen = snapshots.serving(plan)["spark1"]
    ours = f"/etc/systemd/system/{UNIT}.d/60-ours.conf"
    rows = [row.model_copy(update={"drop_ins": (OVER_OURS, ours)}) if row.name == UNIT else row
            for row in seen.supervisors[1]]  # fmt: skip
    texts = (KeptText(path=OVER_OURS, text="[Service]\nExecStart=\n"),
             KeptText(path=ours, text="# Written by rigbook (deploys/unit.py)\n"))  # fmt: skip
    found = disorder.of(snapshot(plan, {"spark1": kept(put(seen, "units", tuple(rows)),
                                                       texts=texts)}), plan, 1)  # fmt: skip
    assert OVER_OURS in found["spark1"].script and ours not in found["spark1"].script
    assert any("a drop-in of others" in row for row in found["spark1"].shows)


def test_a_tower_has_its_cards_and_no_docker() -> None:
    plan = tower_rig.tower_plan()
    name = plan.rig.head.name
    seen = put(tower_rig.serving(plan)[name], "gpus.gpus", (discrete_gpu(0, 16000),))
    one = disorder.of(snapshot(plan, {name: kept(seen)}), plan, 1)[name]
    assert '"kind": "discrete"' in one.script and '"memory_mib": 16311' in one.script
    assert "docker run" not in one.script


def test_a_snapshot_of_another_rig_and_no_snapshot_are_refused(tmp_path: Path) -> None:
    plan = spark_plan()
    other = snapshot(plan, {}).model_copy(update={"rig": "tower"})
    with pytest.raises(LabError, match="the snapshot is of rig tower, not of spark"):
        disorder.of(other, plan, 1)
    assert disorder.of(snapshot(plan, {}), plan, 1)["spark2"].cannot == (
        "spark2: it is not in the snapshot",)  # fmt: skip
    with pytest.raises(LabError, match=r"No such file.*deploys/snapshot.py"):
        disorder.read(tmp_path / "none.json")
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(LabError, match=r"x.json: the snapshot does not fit at format"):
        disorder.read(tmp_path / "x.json")
