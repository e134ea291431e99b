"""The first two paragraphs of every deploy: load what we want, gate on what is.

Errors become one DeployError in deploy code: pyinfra then stops all hosts before any change.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from typing import ParamSpec, TypeVar, cast, overload

from gevent.lock import RLock
from pyinfra import host, logger, state
from pyinfra.api import Host
from pyinfra.api.exceptions import DeployError
from pyinfra.api.output import format_text
from pyinfra.context import ctx_state

from deploys.common.cli_guards import ROOT, own_folder
from facts.endpoint.completion import Endpoint
from facts.local.secret_values import api_key
from facts.observe import observe
from gates.core.check import Gate, Observed
from gates.core.violation import Violation
from gates.core.waiver import apply_waivers, blocking
from gates.gate_sets import check
from schema.core.errors import SpecError
from schema.desired.kubernetes import ClusterData, host_part, is_cluster
from schema.desired.plan import Plan, Runtime
from schema.inputs import load as loader
from schema.inputs.check import host_data
from schema.inputs.host_data import HostData
from schema.inputs.runbooks import kind_of, runbooks
from schema.observed.snapshot import NodeSnapshot, Unreadable

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


def load(runtimes: Collection[Runtime] = INSTALLED) -> Plan:
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
            return loader.plan(
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
        found = host_data(host.name, merged, sources, kind_of(_runbooks(), HostData))
    except SpecError as error:
        raise _refused(error) from None
    assert isinstance(found, kind), f"{type(found).__name__} is no {kind.__name__}"
    return found


def gate(
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
        report(violation)
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


def report(violation: Violation, with_cause: bool = False) -> None:
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
