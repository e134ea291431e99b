"""For test_before_upgrade.py: the gates before an upgrade to vLLM 0.20.2, and no upgrade."""

from pyinfra import logger, state

from deploys.plans.engine import ask_pip, known_versions, venv_of, wheels_spec
from deploys.plans.rig import gate_common, gate_here, load_and_gate, once
from facts.node import observe
from gates.artifact import wheels, would_install
from gates.gate_sets import CHANGING

WANTED = "0.20.2"
plan = load_and_gate()
gate_common(plan, CHANGING)


def ask() -> None:
    """Both gates in one look, as an upgrade does it."""
    found = known_versions(WANTED, plan, observe(state, plan))
    venvs = {n.name: venv for n in plan.rig.nodes if (venv := venv_of(plan, n.name))}
    seen = ask_pip(state, plan, WANTED, venvs)
    spec = wheels_spec(plan)
    found += wheels(plan, spec, WANTED, seen)
    waivers = gate_here(found)
    logger.info(f"would install {[would_install(spec, row) for row in seen.values()]}, {waivers}")


once("before upgrade", ask)
