"""Recipe layer: what the live engine was started with is what the recipe says."""

from __future__ import annotations

from gates.engine.state import is_own
from gates.engine.vllm_flags import serves
from schema.desired.rig import Node
from schema.observed.snapshot import NodeSnapshot
from tests.infra.observe import as_planned, expect, known, serve
from tests.infra.plugin import Rig


def _live_argv(rig: Rig, node: Node, snapshot: NodeSnapshot) -> tuple[str, ...]:
    """The command line of our living `vllm serve`; the test fails where there is none."""
    engine = known(snapshot.engine_processes, node, "engine_processes")
    lines = [p.argv for p in engine if is_own(snapshot, p) and serves(p.argv)]
    expect(bool(lines), node, "no `vllm serve` of ours runs", "one runs", serve(rig))
    return lines[0]


def test_live_arguments_equal_the_recipe(rig: Rig, node: Node, snapshot: NodeSnapshot) -> None:
    """Flag by flag, in the profile that --rig-data names, or the default one."""
    _live_argv(rig, node, snapshot)
    as_planned(rig, node, snapshot, frozenset({"flag", "unknown"}))


def test_live_environment_equals_the_recipe(rig: Rig, node: Node, snapshot: NodeSnapshot) -> None:
    """The process's own environment, forbidden variables as well."""
    _live_argv(rig, node, snapshot)
    as_planned(rig, node, snapshot, frozenset({"environment", "forbidden", "unknown"}))


def test_headless_as_its_role(rig: Rig, node: Node, snapshot: NodeSnapshot) -> None:
    """Only a worker is headless: a second API server answers with half a model."""
    headless = "--headless" in _live_argv(rig, node, snapshot)
    found = f"the {node.role} runs {'with' if headless else 'without'} --headless"
    wanted = "--headless on workers only"
    expect(headless == (node.role == "worker"), node, found, wanted, serve(rig))
