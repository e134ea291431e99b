"""Container layer of a rig without containers: the venv that the engine lives in."""

from __future__ import annotations

from testinfra.host import Host

from gates.artifact import venv
from schema.desired.rig import Node
from schema.observed.snapshot import NodeSnapshot
from tests.infra.observe import Observation, as_planned, expect, no_findings, serve
from tests.infra.plugin import Rig


def test_venv_is_whole_and_of_the_recipes_version(
    rig: Rig, node: Node, snapshot: NodeSnapshot, observation: Observation
) -> None:
    """Folder, interpreter, program, version, user; silent for a container."""
    no_findings(rig, observation, venv.GATES, node)


def test_engine_runs_from_the_active_venv(rig: Rig, node: Node, snapshot: NodeSnapshot) -> None:
    """A link that was moved on since the start leaves the former engine serving."""
    as_planned(rig, node, snapshot, frozenset({"venv", "unknown"}))


def test_program_is_executed(rig: Rig, node: Node, host: Host) -> None:
    """Without rignode in between: the file is there and can be run by the engine's user."""
    spec = rig.plan.specs[node.name]
    if spec.venv is None:
        return
    done = host.run("sudo -n -u %s test -x %s/bin/vllm", spec.user, spec.venv)
    found = f"{spec.venv}/bin/vllm cannot be run by {spec.user}"
    expect(done.rc == 0, node, found, "a program that the engine's user can run", serve(rig))
