"""A runbook's frame: load, gate, resume, run."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial, wraps
from typing import Any, ParamSpec, Protocol, TypeVar, cast, overload

import click
from gevent.lock import RLock
from pyinfra import host, logger, state
from pyinfra.api import Host
from pyinfra.api.exceptions import DeployError
from pyinfra.api.output import format_text
from pyinfra.context import ctx_state

from deploys.plans.cli import ROOT, own_folder
from facts.endpoint import Endpoint
from facts.local import api_key
from facts.node import Together, forget_look, look_at_engine, observe, real
from gates.core import Gate, Observed, Violation, apply_waivers, blocking
from gates.gate_sets import REACHING, check
from gates.processes import engine_unit
from gates.recipe import running_profile
from gates.storage import EACH_NODE, GOES_ON, UNDOES_FIRST, seconds_since_last_sign
from node.rules.engine import KEEPER
from operations.apply import Steps
from operations.engine import AS_RENDERED, Start
from operations.rollback import RESTORE_TIMEOUT_S, undone
from operations.run import (
    Ownership,
    Run,
    StepFailed,
    call,
    died_here,
    forget_run,
    is_alive_here,
    operator,
    proven_dead,
)
from schema import load
from schema.artifact import Probe
from schema.cluster import ClusterData, PodName, host_part, is_cluster
from schema.core import SpecError
from schema.keys import HostData, data_type_of, runbooks
from schema.load import host_data
from schema.plan import UNIT, Plan, Runtime
from schema.snapshot import ChangeSummary, FileState, Journal, NodeSnapshot, Unit, Unreadable

# The first two paragraphs of every deploy: load what we want, gate on what is.
#
# Errors become one DeployError in deploy code: pyinfra then stops all hosts before any change.

D = TypeVar("D", bound=HostData)
T = TypeVar("T")
P = ParamSpec("P")
Waivers = tuple[tuple[str, str], ...]
_LOCK = RLock()
# Without these a command that is named would mend another recipe's rig.
_CHOICE = ("recipe", "recipes_dir", "profile")
# Runbooks that install, stop or watch the engine are for one that rigbook installs.
INSTALLED: tuple[Runtime, ...] = ("container", "venv")
DEPLOYMENT: tuple[Runtime, ...] = ("deployment",)
ALL: tuple[Runtime, ...] = (*INSTALLED, *DEPLOYMENT)
_DEPLOY = re.compile(r"pyinfra INVENTORY deploys/\w+\.py")
_OF_ALL_HOSTS = re.compile(r"^--data: host \S+: ")


def inventory_name() -> str:
    """The inventory as the operator typed it, for the commands that remedies name."""
    return str(getattr(ctx_state.get(), "rigbook_inventory", None) or "INVENTORY")


def host_here() -> str:
    """The name of the host that deploy code runs for now."""
    return str(host.name)


def dry_run() -> bool:
    """True for a run with --dry: nothing is written, not even in the operator's own folder."""
    return bool(ctx_state.get().__dict__.get("rigbook_dry"))


def once(key: str, make: Callable[[], T]) -> T:
    """`make()`, once a run of pyinfra: deploy code runs once a host, and all get the same object.

    A DeployError is kept, too: every host stops with the same line.
    """
    with _LOCK:
        memo = ctx_state.get().__dict__.setdefault("rigbook_memo", {})
        if key not in memo:
            try:
                memo[key] = make()
            except DeployError as error:
                memo[key] = error
        found = memo[key]
    if isinstance(found, DeployError):
        raise found
    return cast(T, found)


def once_a_run(make: Callable[P, T]) -> Callable[P, T]:
    """The function, called once a run of pyinfra by `once`: all hosts get what the first one got.

    For what is asked with the same arguments on every host.
    """

    @wraps(make)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return once(f"{make.__module__}.{make.__qualname__}", lambda: make(*args, **kwargs))

    return call


def data_of(a_host: Host) -> tuple[dict[str, object], dict[str, str]]:
    """A host's merged data and, by key, the file (or --data) that gave it."""
    merged: dict[str, object] = {}
    sources: dict[str, str] = {}
    inventory = a_host.inventory

    def take(values: Mapping[str, object], source: str) -> None:
        for key, value in values.items():
            merged[key] = value
            sources[key] = source

    take(inventory.get_data(), "group_data/all.py")
    for group in a_host.groups:
        take(inventory.get_group_data(group), f"group_data/{group}.py")
    take(inventory.get_host_data(a_host.name), inventory_name())
    take(inventory.get_override_data(), "--data")
    return merged, sources


def load_and_gate(runtimes: Collection[Runtime] = INSTALLED) -> Plan:
    """What the inventory, group_data, the catalog and --data ask for; DeployError says what not.

    `runtimes`: those that the runbook can do something for.
    """

    def make() -> Plan:
        own_folder()  # for an inventory that does not ask
        pairs = {h.name: data_of(h) for h in state.inventory}
        cluster = any(is_cluster(merged) for merged, _ in pairs.values())
        if cluster and "deployment" not in runtimes:
            raise DeployError(
                f"{inventory_name()} is a Kubernetes rig, whose chart installs the engine and "
                f"stops it: its runbooks are {', '.join(sorted(runbooks(ClusterData)))}"
            )
        if not cluster and runtimes == DEPLOYMENT:
            raise DeployError(
                "this rig has no Kubernetes: `deployment` is missing in its data; "
                "see inventory/olares.py and group_data/olares.py for the shape"
            )
        try:
            return load.plan(
                {name: merged for name, (merged, _) in pairs.items()},
                {name: sources for name, (_, sources) in pairs.items()},
                ROOT,
                _runbooks(),
            )
        except SpecError as error:
            raise _refused(error) from None

    return once("plan", make)


def _refused(error: SpecError) -> DeployError:
    """What --data says is the same for every host: one line for all of them."""
    lines = (_OF_ALL_HOSTS.sub("--data: ", problem) for problem in error.problems)
    return DeployError("\n".join(dict.fromkeys(lines)))


def _runbooks() -> tuple[str, ...]:
    """The runbooks of this command line, by name."""
    names: tuple[str, ...] = ctx_state.get().__dict__.get("rigbook_runbooks", ())
    return names


@overload
def operator_data() -> HostData: ...
@overload
def operator_data(kind: type[D]) -> D: ...
def operator_data(kind: type[HostData] = HostData) -> HostData:
    """The validated data of the host in context, as the runbook's type `kind`."""
    merged, sources = data_of(host)
    merged = host_part(merged) if is_cluster(merged) else merged
    try:
        found = host_data(host.name, merged, sources, data_type_of(_runbooks(), HostData))
    except SpecError as error:
        raise _refused(error) from None
    assert isinstance(found, kind), f"{type(found).__name__} is no {kind.__name__}"
    return found


def gate_common(
    plan: Plan,
    gates: Sequence[Gate],
    look: Callable[[], Observed] | None = None,
    more: Callable[[], Sequence[Violation]] | None = None,
) -> tuple[Mapping[str, NodeSnapshot], Waivers]:
    """Whether: the rig's snapshots and the waivers used, or DeployError with every finding.

    `look` gives the observation where the usual one is not enough; `more` gives findings about
    what no snapshot holds, and is asked once every host has answered.
    """

    def make() -> tuple[Mapping[str, NodeSnapshot], Waivers]:
        observed = look() if look else observe(state, plan)
        found = check(plan, observed, gates)
        snapshots = {n: s for n, s in observed.items() if isinstance(s, NodeSnapshot)}
        if more and len(snapshots) == len(observed):
            found = sorted([*found, *more()], key=lambda v: (v.layer, v.severity, v.code))
        return snapshots, gate_here(found)

    return once("gate", make)


def gate_here(found: Sequence[Violation]) -> Waivers:
    """Tells the findings; the waivers used (code, reason), or DeployError when one blocks.

    What may be waived is asked of the host in context.
    """
    data = operator_data()
    try:
        remaining, waived = apply_waivers(found, data.waive, data.reason)
    except SpecError as error:
        raise DeployError(str(error)) from None
    for violation in remaining:
        report_load_and_gate(violation)
    if blocking(remaining):
        raise DeployError(refusal_line(remaining))
    for violation in waived:
        logger.info(f"waived {violation.code}: {violation.summary} (reason: {data.reason})")
    return tuple((code, data.reason or "") for code in dict.fromkeys(v.code for v in waived))


def refusal_line(violations: Sequence[Violation]) -> str:
    """The line that pyinfra prints last: how many findings block, and the lowest one."""
    stops = blocking(violations)
    first = stops[0]
    where = f" on {first.node}" if first.node else ""
    return (
        f"nothing was changed: {len(stops)} finding(s) block; first {first.code}{where}: "
        f"{first.summary}; mend it with: {remedy(first)}"
    )


def remedy(violation: Violation) -> str:
    """The command that mends it, with the inventory and the recipe that the operator typed."""
    typed = ctx_state.get().inventory.get_override_data()
    chosen = "".join(f" --data {shlex.quote(f'{key}={typed[key]}')}"
                     for key in _CHOICE if key in typed)  # fmt: skip
    full = _DEPLOY.sub(lambda found: found[0] + chosen, violation.remedy)
    return full.replace("INVENTORY", inventory_name())


def report_load_and_gate(violation: Violation, with_cause: bool = False) -> None:
    """One finding for a person: code, place, summary, evidence, the cause if asked, command."""
    colour = "red" if violation.severity == "block" else "yellow"
    where = f" [{violation.node}]" if violation.node else ""
    head = format_text(f"{violation.severity} {violation.code}", colour, bold=True)
    logger.warning(f"{head}{where} {violation.layer.name.lower()}: {violation.summary}")
    logger.warning(f"    evidence: {violation.evidence}")
    if with_cause:
        logger.warning(f"    cause:    {violation.cause}")
    logger.warning(f"    mend:     {remedy(violation)}")


def endpoint(plan: Plan) -> Endpoint:
    """Where the plan's head answers, and what its recipe expects of an answer."""
    recipe = plan.recipe
    return Endpoint(
        base_url=f"http://{plan.rig.head.lan_address}:{recipe.port}",
        model=recipe.served_model_name,
        reasoning=recipe.expect.reasoning,
        chat_template_kwargs=tuple(recipe.expect.chat_template_kwargs.items()),
        key=api_key(plan),
    )


def unreadable(observed: Mapping[str, NodeSnapshot | Unreadable]) -> dict[str, str]:
    """The nodes that could not be asked, with the reason."""
    return {n: s.unreadable for n, s in observed.items() if isinstance(s, Unreadable)}


# What a deploy takes out of a node's snapshot, and how it asks for more in it.
#
# What cannot be read is never taken for what is not there: it ends the run.


def files_in(snapshot: NodeSnapshot) -> dict[str, FileState]:
    """The files that were asked for, by path; DeployError when they cannot be read."""
    if isinstance(snapshot.files, Unreadable):
        raise DeployError(f"the files cannot be read: {snapshot.files.unreadable}")
    return {file.path: file for file in snapshot.files}


def units_in(snapshot: NodeSnapshot) -> dict[str, Unit]:
    """The units that systemd knows, by name; DeployError when they cannot be read."""
    if isinstance(snapshot.units, Unreadable):
        raise DeployError(f"the units cannot be read: {snapshot.units.unreadable}")
    return {unit.name: unit for unit in snapshot.units if unit.load_state != "not-found"}


def wider(
    plan: Plan, nodes: Collection[str], files: Iterable[str] = (), units: Iterable[str] = ()
) -> Plan:
    """The plan with more files and units in the snapshots of `nodes`."""
    more_files, more_units = tuple(files), tuple(units)
    asked = {
        name: request.model_copy(
            update={
                "files": tuple(dict.fromkeys((*request.files, *more_files))),
                "units": tuple(dict.fromkeys((*request.units, *more_units))),
            }
        )
        if name in nodes
        else request
        for name, request in plan.requests.items()
    }
    return dataclasses.replace(plan, requests=asked)


def live_profile(plan: Plan) -> str:
    """The profile that the head runs now, for a line: never the one that this run would ask for."""
    head = plan.rig.head
    seen = look_at_engine(real(state), (head.name,))[head.name]
    return "profile not seen" if isinstance(seen, Unreadable) else running_profile(plan, head, seen)


def is_up(unit: Unit | None) -> bool:
    """Whether the unit runs, or is about to."""
    return unit is not None and unit.active_state not in ("inactive", "failed")


def engine_may_run(snapshot: NodeSnapshot) -> bool:
    """Whether the engine's unit is up; also where the units cannot be read: unknown is not down."""
    return isinstance(snapshot.units, Unreadable) or is_up(engine_unit(snapshot))


# A change that a dead run left open: the same command, run again, takes it up (docs/adr/0022).

# Units that these runs start themselves, with other files: the former engine is not started for it.
_STAY_DOWN = {"serve": (UNIT,), "upgrade": (UNIT,)}


@dataclass(frozen=True)
class Closed:
    """A node where a change that is open elsewhere is closed: COMMITTED or ROLLED_BACK."""

    node: str
    status: str


@dataclass(frozen=True)
class TakenUp:
    """A change that this run goes on in, and what its first run kept beside the steps."""

    owner: Ownership
    context: Mapping[str, Any]


def take_up(
    deploy: str, plan: Plan, look: Callable[[], Observed]
) -> tuple[Observed, TakenUp | None]:
    """What `look` sees, once a dead run's change of this runbook is this run's: it is not among the
    changes any more. None: there is none, or it is closed by now. DeployError: its run may be
    alive, or it is not to be taken up here.
    """
    seen = look()
    found = _left_open(deploy, seen)
    if not found:
        return seen, None
    change = next(iter(found.values()))
    for node, row in found.items():
        refuse_live(node, seen[node], row)
    closed = None if deploy in EACH_NODE else _elsewhere(seen, change, next(iter(found)))
    undoes = deploy in UNDOES_FIRST
    line = _line(change, found, undoes, closed)
    if dry_run():
        logger.info(f"    would first: {line}; what follows is planned on what lies there now")
        return _without(seen, change.id), None
    gate_here(check(plan, seen, REACHING))
    _confirm(line)
    logger.info(f"    {line}")
    owner = Ownership(state, change.id, deploy)
    context: dict[str, Any] = {}
    try:
        nodes = [node.name for node in plan.rig.nodes if node.name in found]
        for node in nodes:
            if closed is not None and closed.status == "ROLLED_BACK":
                _went_back_too(owner, node, found[node].run, closed.node)
            elif closed is None or not _closed(node, change.id, closed.node):
                context.update(_claimed(owner, node, found[node].run, undoes))
    except StepFailed as error:
        owner.end(settled=False)
        raise DeployError(f"change {change.id} was not taken up: {error}") from None
    forget_look(state)
    seen = look()
    if closed is not None and closed.status == "ROLLED_BACK":
        owner.end(settled=True)
        return seen, None
    if not owner.nodes:
        return seen, None
    owner.begin()
    return _without(seen, change.id), TakenUp(owner, context)


def _left_open(deploy: str, seen: Observed) -> dict[str, ChangeSummary]:
    """The newest open change of this runbook, by node; empty where it takes none up."""
    if deploy not in (*GOES_ON, *UNDOES_FIRST):
        return {}
    rows = [
        (name, change)
        for name, snapshot in seen.items()
        for change in changes_of(snapshot)
        if (change.status, change.deploy) == ("OPEN", deploy)
    ]
    newest = max((change for _, change in rows), default=None, key=lambda c: c.opened_unix_s)
    return {name: change for name, change in rows if newest and change.id == newest.id}


def refuse_live(node: str, snapshot: object, change: ChangeSummary) -> None:
    """DeployError when the run that has the change may be alive."""
    assert isinstance(snapshot, NodeSnapshot)
    quiet = seconds_since_last_sign(change, snapshot)
    by = change.owner
    if quiet is None or change.status != "OPEN" or proven_dead(change.id, by):
        return
    if change.beat_unix_s is None and by == operator():
        return  # opened by hand, without a run that gives signs of life: its operator knows
    raise DeployError(
        f"nothing was changed: {by} may still be at work on {node}: change {change.id}, last sign "
        f"of life {quiet:.0f} s ago; wait for it, or, if that run is dead: {rollback(change.id)}"
    )


def _elsewhere(seen: Observed, change: ChangeSummary, node: str) -> Closed | None:
    """Where the change is closed already: COMMITTED, so it was proven and is only to be closed on
    the others; or ROLLED_BACK, so it goes back on them too: node takes no step of a closed change.

    DeployError where it is INCONSISTENT.
    """
    for other, snapshot in seen.items():
        for row in changes_of(snapshot):
            if row.id != change.id or row.status == "OPEN":
                continue
            if row.status != "INCONSISTENT":
                return Closed(other, row.status)
            raise DeployError(
                f"nothing was changed: change {change.id} is OPEN on {node} and {row.status} on "
                f"{other}; undo the rest of it: {rollback(change.id)}"
            )
    return None


def _line(
    change: ChangeSummary,
    found: Mapping[str, ChangeSummary],
    undoes: bool,
    closed: Closed | None,
) -> str:
    where = ", ".join(found)
    if closed is not None and closed.status == "ROLLED_BACK":
        back = f"change {change.id} went back on {closed.node} and is open on {where}"
        return f"{back}: undoes it there, too"
    if closed is not None:
        return f"change {change.id} is proven on {closed.node} and open on {where}: closes it there"
    what = "undoes what is half done, and goes on in it" if undoes else "goes on in it"
    return f"takes up change {change.id}, left open on {where} by {change.owner}: {what}"


def _confirm(line: str) -> None:
    """DeployError unless the person agrees, where there is one: pyinfra asks only later."""
    if not ctx_state.get().__dict__.get("rigbook_asks"):
        return
    if not click.confirm(f"    {line}; now?", default=True, err=True):
        raise DeployError("nothing was changed: the change was not taken up")


def _closed(node: str, change: str, proven: str) -> bool:
    """Closes a proven change on a node; False where steps are missing there."""
    request = {"change": change, "status": "COMMITTED", "reason": f"proven on {proven}"}
    try:
        call(real(state), real(state).inventory.get_host(node), "close", request)
    except StepFailed as error:
        if error.code != "unfinished":
            raise
        return False
    return True


def _went_back_too(owner: Ownership, node: str, former: str | None, other: str) -> None:
    """Undoes on a node what is undone on `other` already; StepFailed where it is not whole."""
    _claimed(owner, node, former, undoes=False)
    reason = f"went back on {other}, and by the same command again here"
    request = {"change": owner.change, "run": owner.token, "reason": reason}
    undone(owner.state, [node], request, RESTORE_TIMEOUT_S)


def _claimed(owner: Ownership, node: str, former: str | None, undoes: bool) -> Mapping[str, Any]:
    """What the change's first run kept; StepFailed when somebody else has it by now."""
    timeout_s = RESTORE_TIMEOUT_S if undoes else 120
    tell = owner.state.inventory.get_host(node).log
    answer = owner.claim(node, former, tell, undoes, _STAY_DOWN.get(owner.deploy, ()), timeout_s)
    if not answer["claimed"]:
        raise StepFailed(
            f"{node}: it is {answer['operator']}'s ({answer['deploy']}) by now, and "
            f"{answer['status']}"
        )
    return answer["state"].get("blob") or {}


def _without(seen: Observed, change: str) -> Observed:
    """The observation without this change, which is this run's own."""
    found = dict(seen)
    for name, snapshot in seen.items():
        if isinstance(snapshot, NodeSnapshot) and isinstance(snapshot.journal, Journal):
            rows = tuple(row for row in snapshot.journal.changes if row.id != change)
            journal = snapshot.journal.model_copy(update={"changes": rows})
            found[name] = snapshot.model_copy(update={"journal": journal})
    return found


def rollback(change: str) -> str:
    """The command that undoes a change, with the inventory that the operator typed."""
    return f"pyinfra {inventory_name()} deploys/rollback.py -y --data change={change}"


def changes_of(snapshot: object) -> tuple[ChangeSummary, ...]:
    """The changes of a node's journal; none where it did not tell."""
    journal = getattr(snapshot, "journal", None)
    return journal.changes if isinstance(journal, Journal) else ()


# What the nodes did by themselves while the operator was away: the next command says it first.


def told(seen: Observed) -> Observed:
    """Tells what became of this machine's changes whose lease ran out, once they are closed on
    every node that has them the last time; gives `seen`.
    """
    ended: dict[str, list[str]] = {}
    open_still = set()
    for name, snapshot in seen.items():
        for change in changes_of(snapshot):
            taken = change.taken_by
            if taken is None or taken.deploy != KEEPER:
                continue
            row = f"{name} is {change.status}: {change.reason}"
            if change.status == "OPEN":
                open_still.add(change.id)
                row = f"{name} is going back by itself, and has not ended"
            ended.setdefault(change.id, [f"{change.deploy}, change {change.id}"]).append(row)
    for identifier, (what, *rows) in ended.items():
        if is_alive_here(identifier) is False:
            logger.warning(f"while you were away ({what}): {'; '.join(rows)}")
            if not dry_run() and identifier not in open_still:
                forget_run(identifier)
    return seen


@once_a_run
def tell_away(plan: Plan) -> None:
    """The same, for a runbook that looks at no node: they are asked only after a run that died.

    A Kubernetes rig has no lease.
    """
    if plan.deployment is None and died_here():
        told(observe(real(state), plan))


# Load, gate and run: one object that all hosts of a runbook's run share.
#
# pyinfra runs a deploy file once a host. `gated` gives the same Procedure to each of them:
#
# rig = gated("stop", CHANGING)
# work = stop.plan(rig)
# engine.stop(name="Stop the head", run=rig.run, nodes=rig.up.head)

Revert = Callable[[Run], str]


@dataclass(frozen=True)
class Nodes:
    """Names of nodes, the head apart from the workers: a rig stops and starts them in order."""

    head: frozenset[str] = frozenset()
    workers: frozenset[str] = frozenset()

    @property
    def all(self) -> frozenset[str]:
        """The head and the workers."""
        return self.head | self.workers

    def among(self, names: Collection[str]) -> Nodes:
        """Those of them that are in `names`."""
        return Nodes(self.head & frozenset(names), self.workers & frozenset(names))


NOWHERE = Nodes()


class Procedure:
    """A runbook's run on a rig. `plan` is what is wanted; once `gate` has let it pass,
    `snapshots` are what is, by node, and `waivers` the (code, reason) pairs that were used.

    `revert` brings the rig back when a step of the run fails, and gives a line about it.
    """

    def __init__(self, deploy: str, plan: Plan, revert: Revert | None = None) -> None:
        self.deploy = deploy
        self.plan = plan
        self.snapshots: Mapping[str, NodeSnapshot] = {}
        self.waivers: Waivers = ()
        self._taken: TakenUp | None = None
        self._revert = revert

    def data(self, kind: type[D]) -> D:
        """The checked data of the host in context, as the runbook's type `kind`."""
        return operator_data(kind)

    def asked_nodes(self, only: str | None, key: str = "only") -> tuple[str, ...]:
        """The node that --data `key` names, or all of them by rank where it names none; DeployError
        when it is no node of the rig.
        """
        names = tuple(node.name for node in self.plan.rig.nodes)
        if only is not None and only not in names:
            raise DeployError(f"--data {key}={only}: no such node; the rig has: {', '.join(names)}")
        return (only,) if only is not None else names

    @property
    def at_head(self) -> bool:
        """Whether the host in context is the rig's head, where a run is proven."""
        return host_here() == self.plan.rig.head.name

    def gate(
        self,
        gates: Sequence[Gate],
        plan: Plan | None = None,
        look: Callable[[], Observed] | None = None,
        more: Callable[[], Sequence[Violation]] | None = None,
    ) -> None:
        """Whether: observes the rig and asks the gates, once; DeployError when a finding blocks.
        What a dead run of this runbook left open is taken up before (deploys/plans/rig.py).

        `plan` takes the place of the rig's (one that looks at more); `look` observes more; `more`
        gives findings about what no snapshot holds.
        """
        self.plan = plan or self.plan

        def seen() -> Observed:
            found, self._taken = take_up(
                self.deploy, self.plan, lambda: told(look() if look else observe(state, self.plan))
            )
            return found

        with self._left_open():
            self.snapshots, self.waivers = gate_common(self.plan, gates, seen, more)

    def gate_more(self, found: Sequence[Violation]) -> None:
        """Whether, of findings that only the plan could ask for: DeployError when one blocks; the
        run has the waivers that were used.
        """
        with self._left_open():
            self.run.waivers = (*self.run.waivers, *gate_here(found))

    @contextmanager
    def _left_open(self) -> Iterator[None]:
        """A refusal says what it leaves open, where a dead run's change was taken up before."""
        try:
            yield
        except DeployError as error:
            if self._taken is None:
                raise
            left = self._taken.owner
            left.end(settled=False)
            raise DeployError(
                f"{str(error).removeprefix('nothing was changed: ')}; change {left.change} was "
                f"taken back and stays open; to start again what served before: "
                f"{rollback(left.change)}"
            ) from None

    @cached_property
    def run(self) -> Run:
        """The one change of this run."""
        owner = self._taken.owner if self._taken else None
        data = operator_data()
        lease_s = None if "lease" in data.unused else data.lease
        run = Run(state, self.deploy, self.plan, self.waivers, self._revert, owner, lease_s)
        run.context.update(self._taken.context if self._taken else {})
        return run

    @property
    def nodes(self) -> Nodes:
        """All nodes of the rig."""
        workers = frozenset(node.name for node in self.plan.rig.workers)
        return Nodes(frozenset({self.plan.rig.head.name}), workers)

    @property
    def up(self) -> Nodes:
        """The nodes on which the engine runs, is about to, or cannot be told to be down."""
        return self.nodes.among([n for n, s in self.snapshots.items() if engine_may_run(s)])


def loaded(
    deploy: str, revert: Revert | None = None, runtimes: Collection[Runtime] = INSTALLED
) -> Procedure:
    """Load: what inventory, group_data and --data ask for; DeployError says what is wrong there.

    `runtimes`: those that the runbook can do something for.
    """
    return once(f"procedure {deploy}", lambda: Procedure(deploy, load_and_gate(runtimes), revert))


def gated(
    deploy: str,
    gates: Sequence[Gate],
    revert: Revert | None = None,
    meanwhile: Callable[[Plan], object] | None = None,
    more: Callable[[Plan], Sequence[Violation]] | None = None,
    runtimes: Collection[Runtime] = INSTALLED,
) -> Procedure:
    """Load and gate: nothing has been changed on any host when a finding blocks.

    `meanwhile` begins what takes its time (a question to the endpoint) before the hosts are asked;
    `more` gives findings about what no snapshot holds.
    """
    procedure = loaded(deploy, revert, runtimes)
    if meanwhile is not None:
        once("meanwhile", lambda: meanwhile(procedure.plan))
    procedure.gate(gates, more=partial(more, procedure.plan) if more else None)
    return procedure


# What a runbook asks of an engine, however it runs: installed by rigbook, or by a chart.
#
# deploys/plans/serve.py has the containers and venvs,
# deploys/plans/serve.py the Deployment.


@dataclass(frozen=True)
class Work:
    """The steps of one serve run; everything empty when nothing is to do.

    `steps`, `before` (the texts that are there now) and `notes` (words about a path) are by node,
    `idle` is why a node has no step.
    `how` starts the head's engine (None: its unit). `restarts` are the pods, by uid, that start
    anew, `words` say why, `former` are the uids of those before the run.
    """

    steps: Mapping[str, Steps]
    before: Mapping[str, Mapping[str, str | None]]
    idle: str = AS_RENDERED
    stop: Nodes = NOWHERE
    start: Nodes = NOWHERE
    needs_proof: bool = False
    how: Start | None = None
    words: Sequence[str] = ()
    restarts: Mapping[str, PodName] = field(default_factory=dict)
    former: frozenset[str] = frozenset()
    notes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def to_configure(self) -> frozenset[str]:
        """The nodes on which files or the unit are to be changed."""
        return frozenset(node for node, steps in self.steps.items() if steps)


@dataclass(frozen=True)
class Examined:
    """What the doctor saw of the rig and its engine: the nodes before and after the endpoint was
    asked, the endpoint, findings about what no snapshot holds.
    """

    observed: Observed
    probe: Probe | None = None
    after: Observed | None = None
    more: Sequence[Violation] = ()


class EngineRuntime(Protocol):
    """An engine of one runtime, as the runbooks see it."""

    def ask_in_background(self, plan: Plan, deploy: str) -> object:
        """Begins to ask for a completion, where that helps `deploy`; DeployError when none could
        be proven.
        """

    def findings(self, plan: Plan) -> Sequence[Violation]:
        """What would let a start fail, and stands in no snapshot."""

    def plan(self, rig: Procedure) -> Work:
        """What serve has to do, from one observation."""

    def prove(self, plan: Plan, work: Work | None, patient: bool) -> str:
        """A line about a real answer; StepFailed says why there is none.

        `work` None: nothing was started by this run. `patient`: a start that fails and is tried
        again by itself is waited for (after a boot).
        """

    def verify(self, plan: Plan) -> Sequence[str]:
        """Lines about what answers; DeployError names what does not."""

    def examine(self, plan: Plan, asked: Together, look: Callable[[], Observed]) -> Examined:
        """The nodes, as `look` sees them, and the endpoint at the same time; for the doctor.

        What else is asked of the nodes is added to `asked`, whose command `look` sends.
        """

    def healthy(self, plan: Plan, seen: Examined) -> Sequence[str]:
        """Lines about what is well, for the doctor."""
