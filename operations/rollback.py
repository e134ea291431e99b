"""A change undone, a backup restored."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import gevent
from pyinfra import host
from pyinfra.api import FunctionCommand, State, operation

from facts.endpoint import Endpoint
from facts.local import api_key
from facts.node import AskFailed, ask_node, fact_of, observe, real
from facts.plain import BootId
from node.rules.text import printable
from operations.adopt import answers_again, former_in, started_by_hand
from operations.apply import told
from operations.engine import compared, unit_states, wait_for_answer
from operations.host import reboot_now
from operations.run import Ownership, Run, StepFailed, call, run_as_root
from operations.venv import check_venv
from schema.plan import UNIT, Plan, engine_spec
from schema.recipe import WheelsSpec
from schema.render_engine import NODE_PATH, SCRIPT_PATH
from schema.render_unit import argv_in, endpoint_in
from schema.snapshot import NodeSnapshot, Unreadable

# Back to what was: undo on every node, and the former engine answering.

# The venv that a change leaves again: executed before a link leads there again (B3).


class FormerVenvs:
    """The checks of a change's former venvs, one a node; they run while the engine is stopped.

    A blessed change serves: there the whole check comes first, so that nothing stops for a former
    venv that does not run. Else a quick one (its files, its interpreter) decides before the link
    goes back, and the program, which loads the whole engine, is executed while the engine starts.
    """

    def __init__(
        self, state: State, plan: Plan, changes: Mapping[str, Mapping[str, Any] | None]
    ) -> None:
        self._package = (plan.recipe.wheels or WheelsSpec()).package
        self._state = state
        self._folders = {
            node: folder
            for node, change in changes.items()
            if (folder := former(change, plan.specs[node].venv))
        }
        blessed = any(change and change.get("status") == "COMMITTED" for change in changes.values())
        self._jobs = self._spawn(quick=not blessed)
        if blessed:
            self.check()

    def _spawn(self, quick: bool) -> list[gevent.Greenlet[..., StepFailed | None]]:
        return [gevent.spawn(self._one, *each, quick) for each in self._folders.items()]

    def _one(self, node: str, folder: str, quick: bool) -> StepFailed | None:
        host = self._state.inventory.get_host(node)
        try:
            check_venv(self._state, host, folder, self._package, imports=False, quick=quick)
        except StepFailed as error:
            return error
        return None

    def check(self) -> None:
        """Waits for them; StepFailed names the former venv that does not run."""
        for job in self._jobs:
            failed = job.get()
            if failed is not None:
                raise StepFailed(
                    f"the former version does not run: {failed}; bring it back from a backup with: "
                    "pyinfra INVENTORY deploys/rollback.py -y --data backup=last"
                )

    def executed(self) -> None:
        """Executes their programs; StepFailed as `check`."""
        self._jobs = self._spawn(quick=False)
        self.check()


def former(change: Mapping[str, Any] | None, venv: str | None) -> str | None:
    """Where the plan's venv led before the change; None where the change left it alone."""
    for step in (change or {}).get("steps", ()):
        pre = step.get("pre") or {}
        if step.get("op") == "link" and step.get("path") == venv and pre.get("kind") == "link":
            target = str(pre["target"])
            return target if target.startswith("/") else f"{str(venv).rpartition('/')[0]}/{target}"
    return None


# Back to what was there before a change: on every node that it touched, in the rig's order.

Recorded = Mapping[str, Mapping[str, Any]]
UNDO_TIMEOUT_S = 240
# A backup of 30 GB is unpacked, at 20 MB/s.
RESTORE_TIMEOUT_S = 1800
# The boot that brings a former driver.
BOOT_S = 1800
UP = ("active", "activating", "reloading")
# The server of a Deployment may have to roll its former pods out.
DEPLOYMENT_TIMEOUT_S = 900


def installed_endpoint(script: str, document: str, address: str) -> Endpoint | None:
    """Where the engine of these files answers; None: they do not say, so there is nothing to ask.

    `document`, node.json, says more, but is of the format of the program that wrote it; the launch
    script always tells `--port` and `--served-model-name`. One with a reasoning parser belongs to a
    model that thinks first.
    """
    words = argv_in(script)
    values = dict(pairwise(words))
    name = values.get("--served-model-name")
    if name is None:
        return None
    if said := endpoint_in(document):
        return Endpoint(said.url, said.model, said.reasoning, said.chat_template_kwargs)
    thinks = "--reasoning-parser" in words
    return Endpoint(f"http://{address}:{values.get('--port', '8000')}", name, thinks)


def revert_change(
    state: State,
    plan: Plan,
    change: str,
    nodes: Collection[str],
    overwrite: Collection[str] = (),
    reason: str | None = None,
    recorded: Recorded | None = None,
    run: str | None = None,
    despite: str | None = None,
) -> str:
    """Undoes `change` on `nodes`: head stops first; workers come back before the head.

    Gives the line to tell. Raises StepFailed naming what did not come back; what did stays.
    `reason`: why, for the journal. `recorded`: the change as nodes told it a moment ago. `run`: the
    token of the run whose change it is. `despite`: another open change that is cut across.
    A former venv is executed before anything is put back.
    """
    state = real(state)
    ordered = [node.name for node in reversed(plan.rig.nodes) if node.name in nodes]
    request: dict[str, Any] = {"change": change, "overwrite": sorted(overwrite)}
    request.update({key: value for key, value in (("run", run), ("despite", despite)) if value})
    if plan.runtime == "deployment":
        # Its server rolls the former pods out; there is no unit to stop, and no venv to execute.
        return undone(state, ordered, request, DEPLOYMENT_TIMEOUT_S)
    kept, silent = _all_recorded(state, ordered, change, recorded)
    _refuse_another_runs(kept, run)
    if not silent and not any(kept.values()):
        return _never_opened(change)
    ordered = list(kept)
    former = FormerVenvs(state, plan, kept)
    stops = {node: _stop_engine(state, node, kept[node]) for node in reversed(ordered)}
    former.check()
    # Every node is tried: one that cannot go back must not keep the others from it.
    request["start_units"] = True
    if reason:
        request["reason"] = _one_line(reason)
    problems = _undo_each(state, ordered, request, kept, stops)
    held = {node: boot for node in ordered if problems and (boot := _ends(state, node, change))}
    for node, boot in held.items():
        host = state.inventory.get_host(node)
        host.log(f"{'; '.join(problems)}; boots once, to undo the rest")
        reboot_now(state, host, boot, BOOT_S)
    if held:
        problems = _undo_each(state, ordered, request, kept, {})
    problems += silent
    if problems:
        raise StepFailed("; ".join(problems))
    former.executed()
    return serves_again(state, plan, change, kept)


def serves_again(
    state: State, plan: Plan, change: str, kept: Mapping[str, Mapping[str, Any] | None]
) -> str:
    """The line to tell of a change that is undone: the former engine's real answer, where one
    runs; StepFailed where none comes. `kept`: the change, for the speed before it, and for who
    served before a take-over.
    """
    kept = kept or _of_head(state, plan, change)
    if former := former_in(kept):
        said = answers_again(state, plan, former, started_by_hand(kept))
        return f"change {change} ROLLED_BACK; {said}"
    states = unit_states(state, [node.name for node in plan.rig.nodes])
    unseen = ", ".join(name for name, unit in states.items() if unit is None)
    running = [n for n, unit in states.items() if unit and unit.active in UP]
    down = [f"{n} is {unit.active}" for n, unit in states.items() if unit and n not in running]
    head = plan.rig.head
    if unseen and head.name not in running:
        raise StepFailed(
            f"change {change} is undone, but {unseen} did not say whether its engine runs; look "
            "with: pyinfra INVENTORY deploys/doctor.py -y"
        )
    if running and down:
        # Half of it cannot answer: waiting for the start's budget would tell nothing more.
        return (
            f"change {change} ROLLED_BACK; {', '.join(down)}, as the change found it, so the rig "
            "does not serve; start all of it: pyinfra INVENTORY deploys/serve.py -y"
        )
    if head.name not in running:
        return f"change {change} ROLLED_BACK; no engine ran before, none runs now"
    seen = observe(state, plan, fresh=True)[head.name]
    endpoint = endpoint_there(plan, seen) if isinstance(seen, NodeSnapshot) else None
    if endpoint is None:
        return f"change {change} ROLLED_BACK; the former engine was started (no endpoint to ask)"
    nodes, budget_s = [node.name for node in plan.rig.nodes], plan.recipe.expect.start_budget_s
    answer = wait_for_answer(state, head.name, nodes, endpoint, budget_s)
    profile = _profile(plan, _texts(seen).get(SCRIPT_PATH, ""))
    published = recipe_baseline(plan, profile)
    speed = compared(
        endpoint.held_by_ours(), rounds_before(kept.get(head.name)), published, profile
    )
    return f"change {change} ROLLED_BACK; {endpoint.model} serves again: {answer.detail}{speed}"


def _never_opened(change: str) -> str:
    """The line to tell where no node took the first step: what runs there is another's work."""
    return f"nothing was changed: no node has change {change}"


def _of_head(state: State, plan: Plan, change: str) -> Recorded:
    """The change as the head has it, for a caller that does not; empty where it does not tell."""
    node = plan.rig.head.name
    host = state.inventory.get_host(node)
    try:
        return {node: ask_node(state, host, "journal", {"change": change})["change"]}
    except AskFailed:
        return {}


def rounds_before(change: Mapping[str, Any] | None) -> tuple[float, ...]:
    """What the engine did before, as the change's run measured it: tokens a second of each round;
    () where none was measured.
    """
    kept = (change or {}).get("blob") or {}
    return tuple(map(float, kept.get("rounds", ())))


def recipe_baseline(plan: Plan, profile: str) -> float | None:
    """The figure that the recipe publishes for one stream in the profile that runs."""
    for row in plan.recipe.expect.baselines:
        if (row.profile, row.concurrency) == (profile, 1):
            return row.tokens_per_s
    return None


def _profile(plan: Plan, script: str) -> str:
    """The profile that the head's launch script starts, in words where it is none of the recipe."""
    for name in plan.recipe.profiles:
        if engine_spec(plan.rig, plan.rig.head, plan.recipe, name).argv == argv_in(script):
            return name
    return f"these flags, which are no profile of recipe {plan.recipe.name}"


def _undo(
    state: State,
    node: str,
    request: dict[str, Any],
    change: Mapping[str, Any] | None,
    timeout_s: int = UNDO_TIMEOUT_S,
) -> str | None:
    """Undoes the change on one node; a line when it did not come back whole, "" when the node has
    no such change.
    """
    host = state.inventory.get_host(node)
    limit = RESTORE_TIMEOUT_S if _has_packages(change) else timeout_s
    try:
        answer = call(state, host, "undo", request, limit)
    except StepFailed as error:
        # The step that failed there may have been the first: then nothing was changed.
        return "" if error.code == "no_change" else str(error)
    for row in answer.get("steps", ()):
        if row["op"] == "clear":
            host.log(row["detail"])
    for line in answer.get("left", ()):
        host.log(line)
    if answer.get("status") != "ROLLED_BACK":
        return (
            f"{node}: change {request['change']} is {answer.get('status')}: {answer.get('detail')}"
        )
    return None


def _undo_each(
    state: State,
    ordered: Collection[str],
    request: dict[str, Any],
    kept: Mapping[str, Mapping[str, Any] | None],
    stops: Mapping[str, str | None],
) -> list[str]:
    """Undoes the change on each node; a line for each that did not come back whole."""
    lines = ((node, _undo(state, node, request, kept[node])) for node in ordered)
    return ["; ".join(filter(None, (stops.get(node), line))) for node, line in lines if line]


def _ends(state: State, node: str, change: str) -> str | None:
    """The node's boot, where a part of the undo comes with the next one; else None."""
    try:
        steps = (_recorded(state, node, change) or {}).get("steps", ())
    except StepFailed:
        return None
    noted = {step["boot"] for step in steps if "boot" in step and step["state"] != "undone"}
    now = fact_of(state, state.inventory.get_host(node), BootId) if noted else None
    return now if now in noted else None


def _refuse_another_runs(kept: Mapping[str, Mapping[str, Any] | None], run: str | None) -> None:
    """StepFailed, before anything stops, where the change is another run's by now: this one slept,
    and what runs there is not what it started.
    """
    for node, change in kept.items():
        if run and change and change.get("run") not in (None, run):
            raise StepFailed(
                f"{node}: change {change['id']} was taken up by another run: nothing is undone",
                "taken_up",
            )


def _has_packages(change: Mapping[str, Any] | None) -> bool:
    """Whether the undo puts packages back, and builds a module for each kernel."""
    return any(step.get("op") == "packages" for step in (change or {}).get("steps", ()))


def _one_line(reason: str) -> str:
    """A reason as the journal takes it; of a host's whole log the beginning and the end."""
    text = "".join(c if c.isprintable() else " " for c in reason)
    text = " ".join(text.split())
    return text if len(text) <= 1900 else f"{text[:300]} … {text[-1500:]}"


def _all_recorded(
    state: State, nodes: Collection[str], change: str, recorded: Recorded | None
) -> tuple[dict[str, Mapping[str, Any] | None], list[str]]:
    """The change as each node that answers has it, and a line about each that does not.

    A node that hangs must not keep the others in a state that nobody has proven.
    """
    kept: dict[str, Mapping[str, Any] | None] = {}
    silent = []
    for node in nodes:
        try:
            known = (recorded or {}).get(node)
            kept[node] = known or _recorded(state, node, change)
        except StepFailed as error:
            silent.append(
                f"{error}; {node} keeps what was not proven and starts it at its next boot: at "
                f"its console: sudo rignode undo {change}"
            )
    return kept, silent


def _recorded(state: State, node: str, change: str) -> Mapping[str, Any] | None:
    """The change as the node's journal has it; None where there is none."""
    try:
        found = call(state, state.inventory.get_host(node), "journal", {"change": change})
    except StepFailed as error:
        if error.code != "no_change":
            raise
        return None
    return dict(found["change"])


def _stop_engine(state: State, node: str, change: Mapping[str, Any] | None) -> str | None:
    """Stops the unit before files go back, where the change stopped or started it; a line where
    that failed. The node's own undo stops it once more: no other node waits for this one.

    A change that only came to the files left the running engine alone; so does its undo.
    """
    steps = change["steps"] if change and change.get("status") != "ROLLED_BACK" else ()
    if not any(step["op"] == "unit" and _touches_engine(step) for step in steps):
        return None
    try:
        stop_unit(state, node)
    except StepFailed as error:
        state.inventory.get_host(node).log(f"{error}; its undo tries again")
        return str(error)
    return None


def stop_unit(state: State, node: str) -> None:
    """Stops the engine's unit on a node; StepFailed with the host's words."""
    host = state.inventory.get_host(node)
    done, output = run_as_root(state, host, f"systemctl stop {UNIT}", UNDO_TIMEOUT_S)
    if not done:
        raise StepFailed(f"{node}: systemctl stop {UNIT}: {printable(output.stderr[-300:])}")


def _touches_engine(step: Mapping[str, Any]) -> bool:
    """Whether a unit step started or stopped the engine (a timer beside it is not the engine)."""
    return step.get("unit") == UNIT and bool(step.get("active"))


def endpoint_there(plan: Plan, snapshot: NodeSnapshot) -> Endpoint | None:
    """Where the engine of the head's own files answers; None: they do not say."""
    texts = _texts(snapshot)
    script, document = texts.get(SCRIPT_PATH, ""), texts.get(NODE_PATH, "")
    found = installed_endpoint(script, document, str(plan.rig.head.lan_address))
    return found and replace(found, key=api_key(plan))


def _texts(snapshot: NodeSnapshot | Unreadable) -> dict[str, str]:
    files = () if isinstance(snapshot, Unreadable) else snapshot.files
    return {f.path: f.content or "" for f in files} if isinstance(files, tuple) else {}


def undo_only(words: str = "", timeout_s: int = UNDO_TIMEOUT_S) -> Callable[[Run], str]:
    """A run's revert that only undoes its change on the nodes it touched: no engine is asked.

    `words` say what is as before, for the line to tell; `timeout_s`: seconds for each node's undo.
    """

    def revert(run: Run) -> str:
        request = {"change": run.id, "run": run.owner.token}
        told = undone(run.state, sorted(run.touched), request, timeout_s)
        return f"{told}; {words}" if words else told

    return revert


def undone(state: State, nodes: Collection[str], request: dict[str, Any], timeout_s: int) -> str:
    """Undoes the change on these nodes and gives the line to tell; StepFailed: it is not whole.

    No engine is asked. `request`: of node's verb `undo`; `timeout_s`: seconds for each node.
    """
    known = False
    for node in nodes:
        if problem := _undo(state, node, request, None, timeout_s):
            raise StepFailed(problem)
        known = known or problem is None
    if not known:
        return _never_opened(request["change"])
    return f"change {request['change']} ROLLED_BACK"


# Operations that bring a venv's backup back, and undo what is open before.


@operation()
def undo_open(run: Run, node: str, change: str | None) -> Generator[FunctionCommand, None, None]:
    """
    Stop the engine and undo a change that is open, without a start.

    + run: the change of the restore
    + node: the rig's node
    + change: the id of what is open; None: nothing is
    """
    if change is None:
        host.noop("no change is open")
        return

    def work() -> None:
        stop_unit(run.state, node)
        request = {"change": change, "start_units": False, "reason": "before a restore"}
        answer = call(run.state, run.host(node), "undo", request, RESTORE_TIMEOUT_S)
        run.host(node).log_styled(f"change {change} is {answer['status']}", fg="green")

    run.show_once(host, "undo", partial(host.log, f"undo {change}, without a start"))
    yield run.step("undo", [host.name], work)


@operation()
def unpack(
    run: Run, node: str, backup: str, force: bool, line: str | None
) -> Generator[FunctionCommand, None, None]:
    """
    Unpack a backup beside the present tree and prove it, while the engine goes on as it is.

    + run: the change
    + node: the rig's node
    + backup: the backup's id
    + force: it was compared a moment ago, and is different
    + line: what is to be done; None: nothing is to be unpacked
    """
    if line is None:
        host.noop("nothing is to be unpacked beside the tree")
        return

    def work() -> None:
        run.touch(node)
        request = {"change": run.change(), "backup": backup, "allow": ["older"], "force": force}
        answer = call(run.state, run.host(node), "tree unpack", request, RESTORE_TIMEOUT_S)
        said = "the tree is as the backup"
        if answer["changed"]:
            said = f"unpacked and proven, {answer['took_s']:.0f} s"
        run.host(node).log(f"{backup}: {said}")

    run.show_once(host, "unpack", partial(host.log, line))
    yield run.step("unpack", [host.name], work)


@operation()
def restore(
    run: Run, node: str, backup: str, venv: str, package: str, force: bool, words: Sequence[str]
) -> Generator[FunctionCommand, None, None]:
    """
    Bring a backup's files back in their place, unit and launch files too, and run its interpreter.

    + run: the change
    + node: the rig's node
    + backup: the backup's id
    + venv: the folder that the engine is started from
    + package: the engine's distribution in it
    + force: unpack without another comparison with what lies there
    + words: what the restore will do, a line each; none: nothing is to do
    """
    if not words:
        host.noop("the tree is as the backup, and the engine runs")
        return

    def work() -> None:
        target = run.host(node)
        run.touch(node)
        request: dict[str, Any] = {"change": run.change(), "backup": backup, "allow": ["older"]}
        if force:
            request["force"] = True
        answer = call(run.state, target, "tree restore", request, RESTORE_TIMEOUT_S)
        for line in answer.get("cleared", ()):
            target.log(line)
        what = "nothing was different" if not answer["changed"] else f"{answer['took_s']:.0f} s"
        # The program, which loads the whole engine, is executed while the engine starts.
        check_venv(run.state, target, venv, package, imports=False, quick=True)
        files = "".join(f"; {each}" for each in answer["files"])
        target.log_styled(f"{backup} is back in {answer['real']} ({what}){files}", fg="green")

    for line in words:
        run.show_once(host, line, partial(host.log, line))
    yield run.step("restore", [host.name], work)


# Operations that undo a change as a whole.

# The longest that a rollback waits for another one of the same change: an engine that starts.
OTHER_S = 900.0


@operation()
def undo(
    plan: Plan,
    change: str | None,
    nodes: Sequence[str],
    words: Sequence[str],
    runs: Mapping[str, str | None],
    overwrite: Collection[str],
    forced: bool = False,
    despite: str | None = None,
) -> Generator[FunctionCommand, None, None]:
    """
    Undo a change on all nodes that have it, and prove the engine that serves again.

    + plan: what the rig is
    + change: the change's id; None when there is nothing to undo
    + nodes: the nodes that have it; none: it is undone, and the former engine has yet to answer
    + words: what will be undone, a line each
    + runs: the token of the run that had it, by node
    + overwrite: files whose later edits may be lost
    + forced: it was asked for by id, also where its run may be alive
    + despite: another open change that it may cut across
    """
    if change is None:
        host.noop("no change is open; to undo a blessed one: --data change=ID")
        return

    for line in words:
        host.log(line)
    if not nodes:
        yield told(lambda state, _: serves_again(state, plan, change, {}))
        return

    def work(state: State, _: object) -> str:
        owner = Ownership(state, change, "rollback")
        try:
            told_by = _claim(owner, plan, nodes, runs, forced)
            owner.begin()
            done = {n: row for n, row in told_by.items() if not row["claimed"]}
            left = [n for n in nodes if n not in done]
            if not left:
                by = ", ".join(sorted({row["operator"] for row in done.values()}))
                said = serves_again(state, plan, change, {})
                owner.end(settled=True)
                return f"{by} was faster: {said}"
            recorded = {n: row["state"] for n, row in told_by.items() if row["claimed"]}
            said = revert_change(
                state, plan, change, left, overwrite,
                recorded=recorded, run=owner.token, despite=despite,
            )  # fmt: skip
        except StepFailed:
            owner.end(settled=False)
            raise
        owner.end(settled=True)
        return said

    yield told(work)


def _claim(
    owner: Ownership,
    plan: Plan,
    nodes: Sequence[str],
    runs: Mapping[str, str | None],
    forced: bool,
) -> dict[str, dict[str, Any]]:
    """Makes the change this run's on its nodes, the head first: of two rollbacks at once the second
    waits there. Gives what each node said; one whose line is lost says nothing and keeps no other
    from its undo.
    """
    said = {}
    for node in (each.name for each in plan.rig.nodes if each.name in nodes):
        tell = owner.state.inventory.get_host(node).log
        try:
            said[node] = owner.claim_from_whom_it_has(node, runs.get(node), tell, forced, OTHER_S)
        except StepFailed as error:
            if error.code:
                raise
            tell(str(error))
    return said
