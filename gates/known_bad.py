"""Is what runs or lies on a node known to fail there: its kernel, its driver, its engine's version?

The table is catalog/compatibility.yaml. A kernel came by a routine upgrade, and at the next reboot
no rank of a pair could register memory for RDMA (MiaAI-Lab DSpark#259); of a version that fails, a
crash loop says only "NCCL error" (B1).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gates.artifact import is_there, modules_where, own_venv, version_of
from gates.core import (
    Gate,
    Observed,
    Violation,
    answering_nodes,
    deploy_command,
    per_node,
    require,
    violation,
)
from gates.kernel import Wanted, kernel_facts, kernel_of, own_entries, wanted_release
from gates.processes import is_up
from schema.artifact import VLLM_INFO
from schema.compatibility import DRIVER, KERNEL, TABLE, CompatibilityTable, Entry, Verdict, within
from schema.compatibility import version as compatibility_version
from schema.host import Grub, KernelFacts
from schema.plan import Node, Plan
from schema.snapshot import NodeSnapshot, Unreadable

# The gate before an upgrade: is the wanted version known to fail on this rig?
#
# Release notes do not say it, and pip installs it cleanly: vLLM 0.20.2 on two RTX 5060 Ti died in
# NCCL's init at every start (B1). The table says who saw what, and when.

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


def judge_compatibility(
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
    compatibility_version(wanted)
    found: list[Violation] = []
    for node, snapshot in answering_nodes(plan, observed):
        facts = facts_of(plan, node, snapshot)
        judged = judge_compatibility(wanted, facts, table)
        if judged.verdict == "broken" and judged.entry:
            found.append(_broken(wanted, facts, judged.entry))
        elif judged.doubts:
            found.append(_doubtful(wanted, facts, judged.doubts))
        elif judged.verdict == "unknown":
            found.append(_unknown(wanted, facts, judged.entry, table.entries))
    return found


def describe_compatibility(facts: RigFacts) -> str:
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
        evidence=f"{facts.node}: {describe_compatibility(facts)}; {TABLE}, {entry.id}: "
        f"{entry.text()}",
        remedy="stay on the version that serves; or take one that the table says works here: "
        f"grep -n 'verdict: works' -B 12 {TABLE}",
    )


def _doubtful(wanted: str, facts: RigFacts, entries: Sequence[Entry]) -> Violation:
    return violation(
        "version-broken",
        facts.node,
        f"{ENGINE} {wanted} may be known to fail on this rig: the host could not say what "
        f"{', '.join(entry.id for entry in entries)} asks",
        evidence=f"{facts.node}: {describe_compatibility(facts)}; {TABLE}: "
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
        evidence=f"{facts.node}: {describe_compatibility(facts)}{nearest}",
        remedy="go on only where a verified backup can bring the old version back; then write what "
        f"you saw into {TABLE}, with your name as the source and today's date",
    )


# Whether what a node runs has shown that it works, so that a finding about it only warns.
Works = Callable[[NodeSnapshot], bool]


def below_gate(table: CompatibilityTable, works: Works = is_up) -> Gate:
    """The gate about the kernel and the driver that run."""

    @per_node
    def below_known_bad(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
        """The kernel and the driver under the engine."""
        facts = facts_of(plan, node, snapshot)
        then = f"then {deploy_command(plan, 'reboot', f'only={node.name}')} -y"
        yield from below(plan, facts, table, "runs", then, works(snapshot))

    return below_known_bad


def engine_gate(table: CompatibilityTable, works: Works = is_up) -> Gate:
    """The gate about the engine's version that lies there."""

    @per_node
    def engine_known_bad(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
        """The version in the venv, or in the image that the recipe names."""
        if plan.runtime == "deployment" or not _is_one(plan, node, snapshot):
            return  # a chart's engine is its own business
        version = version_of(plan, node, snapshot)
        facts = facts_of(plan, node, snapshot)
        judged = judge_compatibility(version, facts, table)
        if judged.verdict == "broken" and judged.entry and version:
            yield _lies_there(plan, version, facts, judged.entry, works(snapshot))
        elif judged.doubts and version is None:
            yield _not_told(plan, node, facts, judged.doubts)

    return engine_known_bad


def below(
    plan: Plan, facts: RigFacts, table: CompatibilityTable, does: str, then: str, works: bool
) -> Iterator[Violation]:
    """The findings about a node's kernel and driver: known to be broken, or not to be ruled out.

    `does`: what the node does with them; `then` follows what mends it.
    """
    versions = {KERNEL: kernel_version(facts.kernel), DRIVER: facts.driver}
    for about, version in versions.items():
        if version is None and facts.gpu == ("cpu",):
            continue
        judged = judge_compatibility(version, facts, table, about)
        sure = judged.entry if judged.verdict == "broken" else None
        entries = (sure,) if sure else judged.doubts
        if not entries:
            continue
        what = f"kernel {facts.kernel}"
        if about == DRIVER:
            what = f"driver {facts.driver or 'unknown'}"
        known = "is known to fail" if sure else "may be known to fail (the host could not say)"
        yield violation(
            "kernel-known-bad" if about == KERNEL else "driver-known-bad",
            facts.node,
            f"{facts.node} {does} {what}, which {known} on this rig: {entries[0].reason}",
            evidence=f"{describe_compatibility(facts)}, command line: "
            f"{facts.cmdline or 'not known'}; {TABLE}: "
            + "; ".join(f"{entry.id}: {entry.text()}" for entry in entries),
            remedy=_mend(plan, facts, entries[0], about, then),
            severity="warn" if works else None,
            unknown=sure is None,
        )


def _mend(plan: Plan, facts: RigFacts, entry: Entry, about: str, then: str) -> str:
    another = (
        f"{deploy_command(plan, 'kernel', 'kernel=RELEASE', f'only={facts.node}')} -y, with one "
        "that is not known for it"
    )
    if about == DRIVER:
        return f"on {facts.node}: install a driver that {TABLE} does not call broken, {then}"
    if not entry.unless_cmdline:
        return f"{another}, {then}"
    word = entry.unless_cmdline[0]
    name = re.sub(r"[^a-z0-9]", "", word.partition("=")[0].lower())
    line = f'GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT {word}"'
    return (
        f"on {facts.node}: echo {shlex.quote(line)} | sudo tee "
        f"/etc/default/grub.d/90-{name}.cfg && sudo update-grub, {then}; or {another}"
    )


def _is_one(plan: Plan, node: Node, snapshot: NodeSnapshot) -> bool:
    """Whether one engine lies there; else an image or a venv has findings of its own."""
    if isinstance(snapshot.docker, Unreadable) and plan.recipe.container is not None:
        return False
    venv = own_venv(plan, node, snapshot)
    two = venv is not None and len(venv.versions.get(ENGINE, ())) != 1
    return is_there(plan, node, snapshot) and not two


def _lies_there(plan: Plan, version: str, facts: RigFacts, entry: Entry, works: bool) -> Violation:
    """The finding about a version that lies there although the table calls it broken."""
    box = plan.recipe.container
    where = f"is in the image {box.image}" if box else "is installed"
    said = "works on this rig, and is known to fail there"
    remedy = (
        f"write what you see into {TABLE}: verdict works, your name as the source, today's date"
    )
    if not works:
        said = f"{where}, and known to fail on this rig"
        back = deploy_command(plan, "rollback", "backup=last")
        remedy = f"{deploy_command(plan, 'rollback')}; where no change is open: " + (
            f"name another image in catalog/recipes/{plan.recipe.name}.yaml, container.image"
            if box
            else back
        )
    return violation(
        "version-broken",
        facts.node,
        f"{ENGINE} {version} {said}: {entry.reason}",
        evidence=f"{facts.node}: {describe_compatibility(facts)}; {TABLE}, {entry.id}: "
        f"{entry.text()}",
        remedy=remedy,
        severity="warn" if works else None,
    )


def _not_told(plan: Plan, node: Node, facts: RigFacts, entries: tuple[Entry, ...]) -> Violation:
    """The finding about a build that does not tell its version on a rig where some fail."""
    return violation(
        "version-unknown",
        facts.node,
        f"which {ENGINE} this build is cannot be told, and some are known to fail on this rig",
        evidence=f"{facts.node}: {describe_compatibility(facts)}; {modules_where(plan, node)}: "
        "no one folder "
        f"{VLLM_INFO.rpartition('/')[0]} with a version that tells; {TABLE}: "
        + "; ".join(f"{entry.id}: {entry.text()}" for entry in entries),
        remedy=f"{deploy_command(plan, 'provenance')} says what it holds",
        unknown=True,
    )


# Is the kernel that comes up next, or the one that is to be pinned, known to fail on this rig?
#
# 7.0.0-1019-nvidia was staged for days before the reboot that an unrelated crash brought: what
# runs
# says nothing of what boots (MiaAI-Lab DSpark#259).


def boots(
    table: CompatibilityTable, name: str | None = None, nodes: frozenset[str] | None = None
) -> Gate:
    """The gate about the kernel that boots next on `nodes` (None: all), or about `name` (a release,
    or `current`), with the command line of its own menu entry and the driver of its module.
    """
    wanted = wanted_release(name) if name else None

    @per_node
    def boot_known_bad(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
        """A kernel that boots, with its driver, and on which the engine cannot start."""
        if nodes is not None and node.name not in nodes:
            return
        facts = kernel_facts(snapshot)
        if facts.loader != "grub":
            return  # boot-unknown names another loader
        release, options = _entry(facts, require(facts.grub, "kernel"), wanted)
        if release is None:
            return  # boot-unknown
        found = kernel_of(facts, release)
        there = facts_of(plan, node, snapshot)
        driver = found.module.version if found and found.module else there.driver
        there = replace(there, kernel=release, cmdline=options, driver=driver)
        does = "would pin" if wanted else "would boot next"
        yield from below(plan, there, table, does, "then run this again", works=False)

    return boot_known_bad


def moves_to(
    table: CompatibilityTable, drivers: Mapping[str, str | None], kernel: str | None
) -> Gate:
    """The gate about a driver that is to come, by node, with the kernel that will run below it
    (None: the one that runs now).
    """

    @per_node
    def pair_known_bad(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
        """A driver and a kernel on which the engine is known to fail, before either is there."""
        there = facts_of(plan, node, snapshot)
        facts = kernel_facts(snapshot)
        if kernel is not None and facts.loader == "grub":
            options = _entry(facts, require(facts.grub, "kernel"), wanted_release(kernel))[1]
            there = replace(there, kernel=kernel, cmdline=options)
        there = replace(there, driver=drivers.get(node.name) or there.driver)
        yield from below(plan, there, table, "would run", "then run this again", works=False)

    return pair_known_bad


def _entry(facts: KernelFacts, grub: Grub, wanted: Wanted | None) -> tuple[str | None, str | None]:
    """A kernel and the command line of its entry, None for what is not known."""
    release = wanted(facts) if wanted else grub.next.kernel
    paths = own_entries(grub, release) if wanted and release else [grub.next.entry]
    found = [e.options for e in grub.entries if e.path in paths and e.kernel == release]
    return release, found[0] if len(found) == 1 else None
