"""The gate before an upgrade: is the wanted version known to fail on this rig?

Release notes do not say it, and pip installs it cleanly: vLLM 0.20.2 on two RTX 5060 Ti died in
NCCL's init at every start (B1). The table says who saw what, and when.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gates.core.check import Observed, answering_nodes
from gates.core.codes import violation
from gates.core.violation import Violation
from schema.desired.plan import Plan
from schema.desired.rig import Node
from schema.observed.snapshot import NodeSnapshot, Unreadable
from schema.recipe.compatibility import TABLE, CompatibilityTable, Entry, Verdict, version, within

ENGINE = "vllm"
_KERNEL = re.compile(r"[0-9]+(\.[0-9]+)*(-[0-9]+)?")


@dataclass(frozen=True)
class RigFacts:
    """What the table's conditions ask of one node. None: the host could not say.

    `gpu`: its architectures such as sm_120, `cpu` where the recipe needs no GPU. `kernel` as
    `uname -r` prints it, `cmdline` its command line, `environ` the engine's environment.
    """

    node: str
    gpu: tuple[str, ...] | None
    tensor_parallel: int | None
    nodes: int
    driver: str | None
    kernel: str
    cmdline: str | None = None
    environ: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Judgement:
    """What the table says of a version on one node.

    `entry` decides, None where none holds. `doubts` are entries that say `broken`, outrank it and
    cannot be ruled out, because the host could not say what they ask.
    """

    entry: Entry | None
    doubts: tuple[Entry, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """works, broken, or unknown where nobody has reported anything."""
        return self.entry.verdict if self.entry else "unknown"


def facts_of(plan: Plan, node: Node, snapshot: NodeSnapshot) -> RigFacts:
    """The node's facts; tensor parallelism is the profile's."""
    gpu, driver = _gpu(plan, snapshot)
    spec = plan.specs.get(node.name)  # a chart's engine has none
    flag = spec.flags.get("tensor_parallel_size", 1) if spec else None
    return RigFacts(
        node=node.name,
        gpu=gpu,
        tensor_parallel=flag if isinstance(flag, int) else None,
        nodes=len(plan.rig.nodes),
        driver=driver,
        kernel=snapshot.identity.kernel,
        cmdline=snapshot.identity.cmdline or None,
        environ=spec.environ if spec else {},
    )


def _gpu(plan: Plan, snapshot: NodeSnapshot) -> tuple[tuple[str, ...] | None, str | None]:
    if not plan.recipe.expect.needs_nvidia:
        return ("cpu",), None
    if isinstance(snapshot.gpus, Unreadable) or not snapshot.gpus.gpus:
        return None, None
    caps = [gpu.compute_cap for gpu in snapshot.gpus.gpus]
    driver = snapshot.gpus.driver_version
    if any(cap is None for cap in caps):
        return None, driver
    return tuple(sorted({f"sm_{str(cap).replace('.', '')}" for cap in caps})), driver


def holds(entry: Entry, wanted: str | None, facts: RigFacts, about: str = ENGINE) -> bool | None:
    """Whether an entry is about this version of `about` on this node; None where that cannot be
    said.
    """
    size = facts.tensor_parallel
    answers = [
        within(entry.versions, wanted),
        _architecture(entry, facts.gpu),
        within(entry.tensor_parallel, None if size is None else str(size)),
        within(entry.nodes, str(facts.nodes)),
        within(entry.driver, facts.driver),
        within(entry.kernel, kernel_version(facts.kernel)),
        _without(entry, facts),
    ]
    if entry.engine != about or False in answers:
        return False
    return None if None in answers else True


def _architecture(entry: Entry, gpu: tuple[str, ...] | None) -> bool | None:
    if not entry.gpu:
        return True
    return None if gpu is None else bool(set(entry.gpu) & set(gpu))


def _without(entry: Entry, facts: RigFacts) -> bool | None:
    """Whether nothing is there that mends it."""
    if any(facts.environ.get(name) == value for name, value in entry.unless_env.items()):
        return False
    if not entry.unless_cmdline:
        return True
    return (
        None if facts.cmdline is None else not set(entry.unless_cmdline) & {*facts.cmdline.split()}
    )


def kernel_version(release: str) -> str | None:
    """`6.17.0-22-generic` as the version 6.17.0-22, which PEP 440 can compare."""
    found = _KERNEL.match(release)
    return found[0] if found else None


def judge(
    wanted: str | None, facts: RigFacts, table: CompatibilityTable, about: str = ENGINE
) -> Judgement:
    """What the table says of the version `wanted` of `about` on one node: the most specific entry,
    then the latest. `wanted` None: which one it is cannot be told.
    """
    answers = [(entry, holds(entry, wanted, facts, about)) for entry in table.entries]
    entry = max((e for e, yes in answers if yes), key=lambda e: e.rank, default=None)
    doubts = (e for e, yes in answers if yes is None and e.verdict == "broken")
    open_ = tuple(e for e in doubts if entry is None or e.rank > entry.rank)
    return Judgement(entry, open_)


def compatibility(
    wanted: str, plan: Plan, observed: Observed, table: CompatibilityTable
) -> list[Violation]:
    """The findings about a wanted version on every node that answered.

    Known to be broken blocks (waivable, with a reason); a broken entry that cannot be ruled out
    blocks as well (P5). Unknown warns. What works is no finding. ValueError for a version that is
    none.
    """
    version(wanted)
    found: list[Violation] = []
    for node, snapshot in answering_nodes(plan, observed):
        facts = facts_of(plan, node, snapshot)
        judged = judge(wanted, facts, table)
        if judged.verdict == "broken" and judged.entry:
            found.append(_broken(wanted, facts, judged.entry))
        elif judged.doubts:
            found.append(_doubtful(wanted, facts, judged.doubts))
        elif judged.verdict == "unknown":
            found.append(_unknown(wanted, facts, judged.entry, table.entries))
    return found


def describe(facts: RigFacts) -> str:
    """A node's facts as the findings name them."""
    gpu = "/".join(facts.gpu) if facts.gpu else "a GPU that did not say which"
    driver = f", driver {facts.driver}" if facts.driver else ""
    return (
        f"{gpu}, TP {facts.tensor_parallel}, {facts.nodes} node(s){driver}, kernel {facts.kernel}"
    )


def _broken(wanted: str, facts: RigFacts, entry: Entry) -> Violation:
    return violation(
        "version-broken",
        facts.node,
        f"{ENGINE} {wanted} is known to fail on this rig: {entry.reason}",
        evidence=f"{facts.node}: {describe(facts)}; {TABLE}, {entry.id}: {entry.text()}",
        remedy="stay on the version that serves; or take one that the table says works here: "
        f"grep -n 'verdict: works' -B 12 {TABLE}",
    )


def _doubtful(wanted: str, facts: RigFacts, entries: Sequence[Entry]) -> Violation:
    return violation(
        "version-broken",
        facts.node,
        f"{ENGINE} {wanted} may be known to fail on this rig: the host could not say what "
        f"{', '.join(entry.id for entry in entries)} asks",
        evidence=f"{facts.node}: {describe(facts)}; {TABLE}: "
        + "; ".join(entry.text() for entry in entries),
        remedy=f"on {facts.node}: nvidia-smi --query-gpu=name,compute_cap,driver_version "
        "--format=csv; mend the driver, then run this again",
        unknown=True,
    )


def _unknown(
    wanted: str, facts: RigFacts, entry: Entry | None, entries: Sequence[Entry]
) -> Violation:
    alike = [
        e for e in entries
        if e.engine == ENGINE and (not e.gpu or (facts.gpu and set(e.gpu) & set(facts.gpu)))
    ]  # fmt: skip
    last = max(alike, key=lambda e: e.date, default=None)
    said = entry or last
    word = "the table says unknown" if entry else f"{TABLE} has no entry for it"
    nearest = f"; the last word about such a rig: {said.id}: {said.text()}" if said else ""
    return violation(
        "version-unknown",
        facts.node,
        f"nobody has reported {ENGINE} {wanted} on this rig: {word}",
        evidence=f"{facts.node}: {describe(facts)}{nearest}",
        remedy="go on only where a verified backup can bring the old version back; then write what "
        f"you saw into {TABLE}, with your name as the source and today's date",
    )
