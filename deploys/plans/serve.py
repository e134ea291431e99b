"""What serve has to do on a rig and how it is proven, whatever the engine runs in."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import gevent
from gevent import Greenlet
from pyinfra import logger, state
from pyinfra.api.exceptions import DeployError

from deploys.plans import engine, libvgpu
from deploys.plans.engine import (
    InForce,
    expects_rdma,
    known_to_fail,
    preflight,
    proof_of_start,
    seen_networks,
    told,
)
from deploys.plans.gpu_limit import (
    ask_once,
    completion_where,
    deployment_request,
    inspect_deployment,
    model_findings,
    must_ask,
    wait_for_completion,
)
from deploys.plans.rig import (
    EngineRuntime,
    Examined,
    Procedure,
    Work,
    endpoint,
    files_in,
    inventory_name,
    live_profile,
    once_a_run,
)
from facts.endpoint import (
    KEY_VARIABLE,
    WANTS_KEY,
    Answer,
    Endpoint,
    ask,
    ask_for_call,
    metric_names,
)
from facts.local import SecretMissing, value_of
from facts.node import Together, observe, real
from gates import cluster
from gates.cluster import state_of
from gates.core import Observed, Violation, section_unreadable, violation
from gates.doctor import healthy_line
from gates.processes import engine_state, engine_unit
from gates.recipe import Difference, drift, running_profile
from node.rules.secret import API_KEY, SECRETS_PATH
from operations import engine as operations_engine
from operations.apply import Steps, texts_of
from operations.cluster import staying
from operations.engine import (
    NotOurs,
    Start,
    ask_ours,
    asked_there,
    is_ours,
    wait_for_answer,
    way_here,
)
from operations.rollback import revert_change
from operations.run import Run, StepFailed
from schema.artifact import Probe
from schema.cluster import KubeLook, Pod, PodName
from schema.plan import PAIR_TIMER, Plan
from schema.render_engine import ENV_PATH, SCRIPT_PATH, UNIT_PATH
from schema.render_unit import same_but_program
from schema.snapshot import FileState, NodeSnapshot, Unreadable

# The engine that rigbook installs, in a container or a venv on each node: its plan, its proof.

# How long an engine may take for a short answer that nobody waits for yet.
ASK_S = 30.0
# How long the engine's count of tokens is watched when it did not answer.
BUSY_S = 6.0
# The doctor's look at the endpoint is to end in seconds, also where it hangs.
PROBE_S = 5.0
# An engine that its first request kills takes a moment to die.
DYING_S = 1.0
# Files that the engine reads at its start; the others are read when they are needed.
_RESTARTS = frozenset({SCRIPT_PATH, ENV_PATH, SECRETS_PATH, UNIT_PATH})
# Differences that the files' and the unit's own steps mend.
_BY_CONFIGURE = frozenset({"file", "unit"})


def endpoint_with_key(plan: Plan) -> Endpoint:
    """The plan's endpoint; DeployError when it will want a key that cannot be had here.

    Without it no answer could be proven, and a good engine would be taken back for it.
    """
    where, source = endpoint(plan), plan.recipe.secrets.get(API_KEY)
    if source is None or where.key or os.environ.get(KEY_VARIABLE):
        return where
    why, mend = f"{KEY_VARIABLE} is not set here", f"read -rs {KEY_VARIABLE}; export {KEY_VARIABLE}"
    try:
        value_of(API_KEY, source)
    except SecretMissing as error:
        why, mend = str(error), error.remedy
    raise DeployError(
        f"the engine of recipe {plan.recipe.name} wants a key: {why}: no answer could be proven; "
        f"mend: {mend}"
    )


@once_a_run
def ask_installed(plan: Plan) -> Greenlet[..., Answer]:
    """Begins to ask for a completion while the hosts are looked at; its answer comes with get.

    DeployError as `endpoint_with_key`.
    """
    where = endpoint_with_key(plan)
    return gevent.spawn_later(0.05, ask, where, ASK_S)


def _steps(
    plan: Plan,
    name: str,
    snapshots: Mapping[str, NodeSnapshot],
    files: Mapping[str, Mapping[str, FileState]],
    secret_steps: Steps,
) -> Steps:
    node = plan.rig.node(name)
    changes = operations_engine.folder_steps(plan.specs[name], files[name], node.ssh_user)
    changes += operations_engine.file_steps(plan.documents[name], files[name]) + secret_steps
    changed_files = any(step["op"] == "file" for step in changes)
    changes += operations_engine.unit_steps(engine_unit(snapshots[name]), changed_files)
    if len(plan.rig.nodes) == 1:
        return changes
    written = [str(step["path"]) for step in changes if step["op"] == "file"]
    return changes + operations_engine.timer_steps(
        PAIR_TIMER, engine_unit(snapshots[name], PAIR_TIMER), written
    )


def _reasons(
    plan: Plan,
    snapshots: Mapping[str, NodeSnapshot],
    steps: Mapping[str, Steps],
    before: Mapping[str, Mapping[str, str | None]],
    states: Mapping[str, str],
    differences: Mapping[str, list[Difference]],
) -> tuple[str, ...]:
    """Why the pair has to be (re)started, whatever it answers, one line each; or empty."""
    reasons = []
    for node in plan.rig.nodes:
        name = node.name
        if any(_restarts(step, before[name]) for step in steps[name]):
            reasons.append(f"{name}: its files change")
        if states[name] in ("absent", "stopped", "failed"):
            reasons.append(f"{name}: the engine is {states[name]}")
        reasons += [f"{name}: {d}" for d in differences[name] if d.kind not in _BY_CONFIGURE]
    return tuple(reasons)


def _decided(plan: Plan, where: Endpoint, answer: Answer) -> Answer:
    """What our own engine answers, where this machine got no answer: with the key, if it wants one,
    and by the head itself, which needs no way from here (a jump host, a firewall).
    """
    if answer.ok or (answer.late and _busy(plan, answer)):
        return answer
    return _own_answer(plan, where, lambda w: ask(w, ASK_S) if answer.alive else answer, ASK_S)


def _restarts(step: Mapping[str, object], before: Mapping[str, str | None]) -> bool:
    """Whether a step changes what the engine reads at its start. That its unit names another
    version of the program is no reason: the next start takes it.
    """
    path = step.get("path")
    former = before.get(UNIT_PATH) if path == UNIT_PATH else None
    return path in _RESTARTS and not (former and same_but_program(former, str(step["content"])))


def _too_late(plan: Plan, snapshots: Mapping[str, NodeSnapshot], answer: Answer) -> bool:
    """Whether a running engine without an answer is past its start budget (or says so itself)."""
    if answer.alive:
        return False
    if answer.final:
        return True
    if answer.late and (made := _busy(plan, answer)):
        logger.warning(
            f"    no answer in {ASK_S:.0f} s, but {made:.0f} tokens for others meanwhile: the "
            "engine is busy and is not restarted"
        )
        return False
    head = snapshots[plan.rig.head.name]
    unit = engine_unit(head)
    if unit is None or unit.since_unix_s is None:
        return True
    return head.identity.clock_unix_s - unit.since_unix_s > plan.recipe.expect.start_budget_s


def _busy(plan: Plan, answer: Answer) -> float | None:
    """The tokens that an engine which gave no answer made for others meanwhile."""
    return answer.made if answer.not_from_here else _made_meanwhile(plan)


@once_a_run
def _made_meanwhile(plan: Plan) -> float | None:
    """Tokens that the engine makes for others while it is watched; None when it does not say."""
    # Here, not above: it takes 0.1 s, and a run that finds an answer has no use for it.
    from facts.endpoint import probe

    return probe(endpoint(plan), BUSY_S).generated


class Installed:
    """deploys/plans/rig.py's Runtime for containers and venvs."""

    def ask_in_background(self, plan: Plan, deploy: str) -> object:
        """Asks while the hosts are looked at; DeployError as `endpoint_with_key`."""
        where = endpoint_with_key(plan)
        return ask_installed(plan) if deploy == "serve" else where

    def findings(self, plan: Plan) -> Sequence[Violation]:
        """The secrets that cannot be had; the snapshots hold everything else."""
        return engine.secret_findings(plan)

    def plan(self, rig: Procedure) -> Work:
        """What differs from the recipe, and why the pair has to start anew, told once."""
        plan, snapshots = rig.plan, rig.snapshots
        files = {name: files_in(snapshot) for name, snapshot in snapshots.items()}
        before = {name: texts_of(found) for name, found in files.items()}
        secret = {
            n: engine.secret_steps(plan, n, found.get(SECRETS_PATH)) for n, found in files.items()
        }
        notes = {name: words for name, (_, words) in secret.items()}
        steps = {
            node.name: _steps(plan, node.name, snapshots, files, secret[node.name][0])
            for node in plan.rig.nodes
        }
        states = {n.name: engine_state(plan, n, snapshots[n.name]) for n in plan.rig.nodes}
        differences = {n.name: drift(plan, n, snapshots[n.name]) for n in plan.rig.nodes}
        answer = ask_installed(plan).get() if "running" in states.values() else None
        reasons = _reasons(plan, snapshots, steps, before, states, differences)
        if not reasons and answer is not None:
            answer = _decided(plan, endpoint_with_key(plan), answer)
            if not answer.ok and _too_late(plan, snapshots, answer):
                reasons = (f"running, but no real answer: {answer.detail}",)
        for reason in reasons:
            logger.info(f"    {reason}")
        if not reasons:
            if answer is not None and answer.ok:
                logger.info(f"    serving as the recipe says; a real answer: {answer.detail}")
            # A step without a restart (a unit that was disabled) opens a change, which has to end.
            needs_proof = any(steps.values()) or not (answer and answer.ok)
            return Work(steps, before, needs_proof=needs_proof)
        rig.gate_more(preflight(state, plan, "serve"))
        return Work(
            steps, before, stop=rig.up, start=rig.nodes, needs_proof=True, notes=notes
        )  # fmt: skip

    def prove(self, plan: Plan, work: Work | None, patient: bool) -> str:
        """A real answer within the start budget."""
        where, nodes = endpoint_with_key(plan), [node.name for node in plan.rig.nodes]
        answer = wait_for_answer(
            state, plan.rig.head.name, nodes, where, plan.recipe.expect.start_budget_s, patient
        )
        line = f"{where.model} ({live_profile(plan)}) answers at {where.base_url}: {answer.detail}"
        # a run that started nothing has no log of a start, which may be long gone
        return line if work and not work.start.all else line + proof_of_start(plan)

    def verify(self, plan: Plan) -> Sequence[str]:
        """A real answer of our own engine, a tool call where one is expected, and its metrics."""
        lines = _answers_and_metrics(plan, endpoint(plan))
        if not expects_rdma(plan):
            return lines
        is_rdma, line = told(seen_networks(plan))
        if not is_rdma and plan.recipe.expect.rdma == "required":
            raise DeployError(
                f"it answers, but {line}; recipe {plan.recipe.name} has expect.rdma: required"
            )
        return [*lines, line]

    def examine(self, plan: Plan, asked: Together, look: Callable[[], Observed]) -> Examined:
        """All hosts and the endpoint at the same time.

        Only an engine that lists its model and fails at a chat is looked at twice: it may be dying.
        """
        patches = InForce(asked, plan)
        probing = gevent.spawn(probe_endpoint, plan)
        before = look()
        answer = _asked_again(plan, probing.get(), before)
        after = None
        if answer.models == 200 and answer.failure in ("status", "disconnected"):
            gevent.sleep(DYING_S)
            after = observe(real(state), plan, fresh=True)
        bad = known_to_fail(plan, before, answer.failure is None)
        return Examined(before, answer, after, [*patches.findings(before), *bad])

    def healthy(self, plan: Plan, seen: Examined) -> Sequence[str]:
        """A line a node, and one about the endpoint."""
        there = [(node, seen.observed[node.name]) for node in plan.rig.nodes]
        names = ", ".join(node.name for node in plan.rig.nodes)
        said = seen.probe.detail if seen.probe else ""
        profile = _profile(plan, seen.observed[plan.rig.head.name])
        return [
            *(healthy_line(plan, node, s) for node, s in there if isinstance(s, NodeSnapshot)),
            f"{names}: {plan.recipe.name} ({profile}) serves; nothing blocks; {said}",
        ]


def _profile(plan: Plan, head: NodeSnapshot | Unreadable) -> str:
    """The profile that the head runs, for a line."""
    if isinstance(head, Unreadable):
        return "profile not seen"
    return running_profile(plan, plan.rig.head, head)


def probe_endpoint(plan: Plan) -> Probe:
    """The doctor's short look at the endpoint, which ends in seconds also where it hangs."""
    # Here, not above: it takes 0.1 s, which a run that waits for hosts has to spare.
    from facts.endpoint import probe

    return probe(endpoint(plan), PROBE_S)


def _asked_again(plan: Plan, probe: Probe, before: Observed) -> Probe:
    """The probe, where our own engine holds the port: with the key where one is wanted, and with
    what the head itself gets where this machine gets nothing.
    """
    from facts.endpoint import probe as look

    head, where = plan.rig.head.name, endpoint(plan)
    seen = before.get(head)
    wants_key = probe.status in WANTS_KEY
    if not (wants_key or probe.failure == "refused") or not isinstance(seen, NodeSnapshot):
        return probe
    unit = engine_unit(seen)
    if unit is None or unit.active_state != "active" or not is_ours(seen, head, where):
        return probe
    if wants_key:
        probe = look(where.held_by_ours(), PROBE_S)
    if probe.failure is None:
        return probe
    here = Answer(False, probe.detail, alive=wants_key)
    there = asked_there(real(state), head, here, PROBE_S)
    if not there.ok:
        return probe
    return replace(probe, failure=None, detail=there.detail, not_here=way_here(where, head, here))


def _own_answer(
    plan: Plan,
    where: Endpoint,
    asks: Callable[[Endpoint], Answer] = ask,
    there_s: float | None = None,
) -> Answer:
    """An answer of our own engine, or why there is none; nothing that starts is waited for."""
    nodes = [node.name for node in plan.rig.nodes]
    try:
        return ask_ours(real(state), plan.rig.head.name, nodes, where, asks, there_s)
    except NotOurs as error:
        return Answer(False, str(error))


def _answers_and_metrics(plan: Plan, where: Endpoint) -> Sequence[str]:
    """Lines about what answered; DeployError names what did not, and what to do."""
    import httpx

    answer = _own_answer(plan, where, there_s=ASK_S)
    if not answer.ok:
        raise DeployError(
            f"{where.model} does not answer: {answer.detail}; "
            f"find out why with: pyinfra {inventory_name()} deploys/doctor.py -y"
        )
    lines = [f"{where.model} answers at {where.base_url}: {answer.detail}"]
    if answer.not_from_here:
        asked = "a tool call and " if plan.recipe.expect.tools else ""
        return [*lines, f"not looked at: {asked}its metrics, which this machine has to ask for"]
    where = where.held_by_ours()
    if plan.recipe.expect.tools:
        call = _own_answer(plan, where, ask_for_call)
        if not call.ok:
            raise DeployError(
                f"{where.model} answers, and gives no tool call: {call.detail}; its flags "
                "tool_call_parser and enable_auto_tool_choice make one"
            )
        lines.append(call.detail)
    try:
        names = metric_names(where)
    except httpx.HTTPError as error:
        raise DeployError(
            f"{where.model} answers, but {where.base_url}/metrics does not: {error}"
        ) from None
    if not names:
        raise DeployError(f"{where.base_url}/metrics has no vllm: metric; is that a vLLM?")
    return [*lines, f"{len(names)} vllm: metrics at {where.base_url}/metrics"]


# The engine of a Kubernetes rig: its Deployment runs, and gives a real completion.
#
# The chart is somebody else's, so nothing of the template is changed: a Deployment that was scaled
# to
# nothing gets its pod, a pod that cannot come up or does not answer any more starts anew.

# a doctor does not wait as a start does
DOCTOR_S = 15


class Deployment:
    """deploys/plans/rig.py's Runtime for a Deployment."""

    def ask_in_background(self, plan: Plan, deploy: str) -> object:
        """Nothing begins; DeployError when serve has no way to ask for a completion."""
        if deploy:
            must_ask(plan, deploy)
        return None

    def findings(self, plan: Plan) -> Sequence[Violation]:
        """What would let the started pod die: model files, limits that HAMi misreads."""
        return [
            *model_findings(plan),
            *cluster.limits_readable(plan.rig.head.name, inspect_deployment(plan)),
        ]

    def plan(self, rig: Procedure) -> Work:
        """A stopped Deployment gets its pod, one that cannot come up or is silent starts anew."""
        plan, now = rig.plan, inspect_deployment(rig.plan)
        former = frozenset(pod.uid for pod in now.pods)
        what = f"Deployment {plan.chart.namespace}/{now.name}"
        if now.rollout.wanted == 0:
            step = deployment_request(
                plan, replicas=1, uid=now.uid, resource_version=now.resource_version
            )
            steps: Steps = [{**step, "op": "kube", "container": now.container}]
            how = Start(steps, f"{what}: 0 pods become 1")
            return _work(rig, start=rig.nodes, how=how, former=former)
        newest = next(iter(staying(now)), None)
        if newest is not None and newest.stuck:
            return _anew(rig, now, newest, f"{newest.stuck}, {newest.restarts} restarts")
        answer = ask_once(real(state), rig.run.host(plan.rig.head.name), plan)
        if answer.answered:
            found = answer.where or completion_where(plan)
            logger.info(f"    {plan.chart.model} answers at {found}: {answer.detail}")
            return _work(rig, needs_proof=False)
        if answer.wants_key:
            raise DeployError(
                f"{plan.chart.model} gives no proof: {answer.detail}; nothing was changed"
            )
        age = newest.age_s if newest is not None else None
        if newest is not None and age is not None and age > plan.chart.patience_s:
            return _anew(rig, now, newest, f"no real answer: {answer.detail}")
        logger.info(f"    {what} starts: {answer.detail}")
        return _work(rig)

    def prove(self, plan: Plan, work: Work | None, patient: bool) -> str:
        """A real answer within the start's budget, counted from now for what this run started; a
        crash loop ends the wait at once.
        """
        former = work.former if work else frozenset()
        deadline = time.monotonic() + plan.chart.patience_s if former or patient else None
        return wait_for_completion(state, plan, deadline, former)

    def verify(self, plan: Plan) -> Sequence[str]:
        """A real answer; a pod that starts is waited for."""
        must_ask(plan, "verify")
        try:
            return [wait_for_completion(state, plan)]
        except StepFailed as error:
            raise DeployError(
                f"{error}; find out why with: pyinfra {inventory_name()} deploys/doctor.py -y"
            ) from None

    def examine(self, plan: Plan, asked: Together, look: Callable[[], Observed]) -> Examined:
        """The host, then what its cluster says of library, Deployment and answer."""
        before, node = look(), plan.rig.head.name
        if not isinstance(before[node], NodeSnapshot):
            return Examined(before)
        now = libvgpu.inspect_library(plan)
        more = [*cluster.readable(node, now), *cluster.preloaded(node, now)]
        more += [*cluster.stayed(node, now), *cluster.old_mapped(node, now)]
        return Examined(before, more=[*more, *model_findings(plan), *_pods(plan), *_silent(plan)])

    def healthy(self, plan: Plan, seen: Examined) -> Sequence[str]:
        """A line about the library that was swapped."""
        known = state_of(libvgpu.inspect_library(plan))
        swapped = (
            f"{known.target} is ours ({known.ours[:12]}), guard {'on' if known.guard else 'off'}"
            if known
            else "no library was swapped"
        )
        return [f"{plan.rig.head.name}: {swapped}; nothing blocks"]


def _work(rig: Procedure, needs_proof: bool = True, **more: Any) -> Work:
    """Work with nothing to write: the chart's template stays as it is."""
    node = rig.plan.rig.head.name
    idle = "the Deployment's template is its chart's, and stays as it is"
    return Work({node: []}, {node: {}}, idle, needs_proof=needs_proof, **more)


def _anew(rig: Procedure, now: KubeLook, pod: Pod, why: str) -> Work:
    name = PodName(
        namespace=rig.plan.chart.namespace, name=pod.name, phase=pod.phase,
        owner_kind="ReplicaSet", owner=f"{now.name}-{pod.hash}",
    )  # fmt: skip
    words = (f"{pod.name}: {why}: it starts anew (cannot be undone)",)
    return _work(rig, words=words, restarts={pod.uid: name},
                 former=frozenset(p.uid for p in now.pods))  # fmt: skip


def _pods(plan: Plan) -> list[Violation]:
    """What is wrong with the Deployment; that it cannot be read is a finding, too."""
    node = plan.rig.head.name
    try:
        now = inspect_deployment(plan)
    except DeployError as error:
        return [section_unreadable(node, "cluster", Unreadable(unreadable=str(error)))]
    return [
        *cluster.pods_run(node, now),
        *cluster.limits_readable(node, now),
        *cluster.limits_inside(node, now),
        *cluster.limit_stayed(node, now),
        *cluster.limit_enough(node, now),
    ]


def _silent(plan: Plan) -> list[Violation]:
    """No real completion; not asked for where group_data does not say how."""
    if plan.chart.model is None:
        return []
    node = plan.rig.head.name
    answer = ask_once(real(state), real(state).inventory.get_host(node), plan, DOCTOR_S)
    if answer.answered:
        return []
    return [
        violation(
            "no-answer",
            node,
            f"{plan.chart.model} gives no real answer at {completion_where(plan)}",
            evidence=answer.detail,
            remedy="mend the findings above first, then: pyinfra INVENTORY deploys/serve.py -y"
            if not answer.wants_key
            else f"write the engine's key into {plan.chart.key_file} on the host"
            if plan.chart.key_file
            else "set key_file in group_data: a file on the host, root's alone (0600), that holds "
            "the engine's key",
        )
    ]


# Which runtime a rig's engine has: the one place that asks.

_RUNTIMES: dict[str, EngineRuntime] = {
    "container": Installed(),
    "venv": Installed(),
    "deployment": Deployment(),
}


def runtime_of(plan: Plan) -> EngineRuntime:
    """The runtime of the plan's engine."""
    return _RUNTIMES[plan.runtime]


def ask_in_background(plan: Plan) -> object:
    """Begins to ask for a completion while the hosts are looked at; DeployError when no answer
    could be proven.
    """
    return runtime_of(plan).ask_in_background(plan, "serve")


def must_answer(plan: Plan) -> object:
    """DeployError when no answer of the engine could be proven from here."""
    return runtime_of(plan).ask_in_background(plan, "")


def findings(plan: Plan) -> Sequence[Violation]:
    """What would let a start fail, and stands in no snapshot."""
    return runtime_of(plan).findings(plan)


@once_a_run
def plan(rig: Procedure) -> Work:
    """The work of this run, planned once and shown once; all hosts get the same object."""
    return runtime_of(rig.plan).plan(rig)


def verify(rig: Procedure, patient: bool = False, work: Work | None = None) -> str:
    """A line about a real answer within the start budget; StepFailed says why there is none.

    `patient`: a start that systemd tries again by itself is waited for (after a boot).
    """
    return runtime_of(rig.plan).prove(rig.plan, work, patient)


def revert(run: Run) -> str:
    """Undoes the run's own change on every node that it touched."""
    return revert_change(run.state, run.plan, run.id, run.touched, run=run.owner.token)
