"""The recipe's secrets of one run: read here, compared on the nodes, written by a step of theirs.

A value is in a Secret from the moment it is read, and in clear only in what a node reads from its
stdin. Whether it differs the node says, by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import gevent
from pyinfra import state
from pyinfra.api import Host, State
from pyinfra.api.exceptions import DeployError

from deploys.common.load_and_gate import once_a_run
from facts.local.secret_values import SecretMissing, value_of
from facts.rignode.call import AskFailed, ask_node
from facts.rignode.context import real
from gates.core.violation import Violation
from gates.recipe.secrets import missing
from node.rules.secret import SECRETS_PATH
from operations.change.apply import Steps
from schema.desired.plan import Plan
from schema.observed.files import FileState

Row = dict[str, object]
States = Mapping[str, str]
_LOOK_S = 60


@once_a_run
def _rows(plan: Plan) -> tuple[dict[str, list[Row]], list[tuple[str | None, str, str]]]:
    """What each node gets, by name, and a (None, why, what to do) for each that cannot be had."""
    values, problems = {}, []
    for name, source in plan.recipe.secrets.items():
        try:
            values[name] = value_of(name, source)
        except SecretMissing as error:
            problems.append((None, str(error), error.remedy))
    rows: dict[str, list[Row]] = {}
    for node, spec in plan.specs.items():
        rows[node] = [
            {"name": name, "value": values[name]}
            if values.get(name) is not None
            else {"name": name, "node_file": source.node_file}
            for name, source in spec.secrets.items()
        ]
    return rows, list(problems)


@once_a_run
def _look(plan: Plan) -> dict[str, States | AskFailed]:
    """By node, how its secrets differ from what is wanted, by name; or why it did not say."""
    rows, _ = _rows(plan)
    real_state = real(state)
    jobs = {
        node: gevent.spawn(_ask, real_state, real_state.inventory.get_host(node), _request(plan, r))
        for node, r in rows.items()
    }
    gevent.joinall(list(jobs.values()))
    return {node: job.get() for node, job in jobs.items()}


def _request(plan: Plan, rows: list[Row]) -> Row:
    return {"path": SECRETS_PATH, "secrets": rows, "quoted": plan.runtime == "venv"}


def _ask(a_state: State, host: Host, request: Row) -> States | AskFailed:
    try:
        states: States = ask_node(a_state, host, "secrets look", request, _LOOK_S)["states"]
        return states
    except AskFailed as error:
        return error


def findings(plan: Plan) -> Sequence[Violation]:
    """The secrets that cannot be had, here or on a node; none for a recipe without."""
    if not plan.recipe.secrets:
        return ()
    _, problems = _rows(plan)
    if not problems:
        problems = [
            (node, str(answer), f"on {node}: mend what the evidence names, then run this again")
            for node, answer in _look(plan).items()
            if isinstance(answer, AskFailed)
        ]
    return missing(plan, problems)


def steps(plan: Plan, node: str, now: FileState | None) -> tuple[Steps, dict[str, str]]:
    """The step that makes the node's file of secrets as wanted, with words for its path; none
    where it is so. `now`: the file as the snapshot has it.

    Ask `findings` first: what cannot be had is no step.
    """
    there = now is not None and now.kind == "file"
    if not plan.recipe.secrets:
        gone: Row = {"op": "absent", "path": SECRETS_PATH}
        return ([gone] if there else []), {}
    told = _look(plan)[node]
    if isinstance(told, AskFailed):
        raise DeployError(str(told))
    whole = now is not None and (now.mode, now.uid, now.gid) == ("0600", 0, 0)
    if there and whole and set(told.values()) == {"unchanged"}:
        return [], {}
    step: Row = {
        "op": "file",
        "mode": "0600",
        "owner": "root",
        "group": "root",
        "expect_sha256": now.sha256 if there and now is not None and now.sha256 else "absent",
        **_request(plan, _rows(plan)[0][node]),
    }
    words = ", ".join(f"{name} {how}" for name, how in told.items())
    return [step], {SECRETS_PATH: words}
