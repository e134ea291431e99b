"""Gates of the weights: there, whole, of the loader's format, equal on every node."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import wraps
from pathlib import PurePosixPath

from gates.core.check import Gate, Observed, collect, deploy_command, gib, per_node
from gates.core.codes import violation
from gates.core.violation import Violation
from gates.weights.files import (
    compared,
    copy_command,
    differ,
    fetch_command,
    format_of,
    is_truncated,
    is_whole,
    pointers,
    tensors,
    weights_of,
)
from schema.desired.plan import Plan
from schema.desired.rig import Node
from schema.observed.files import WeightsFile
from schema.observed.snapshot import NodeSnapshot


def _told_who_has_them(gate: Gate) -> Gate:
    """A gate whose remedy is the move from a node that has the weights, where there is one."""

    @wraps(gate)
    def run(plan: Plan, observed: Observed) -> list[Violation]:
        return [
            v
            if v.node is None or v.code.endswith("-unreadable")
            else replace(v, remedy=fetch_command(plan, plan.rig.node(v.node), observed))
            for v in gate(plan, observed)
        ]

    return run


@_told_who_has_them
@per_node
def weights_present(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """The weights are where the container mounts them; else vLLM asks the hub and fails late."""
    weights = weights_of(plan, node, snapshot)
    if weights is None or not weights.exists or not tensors(plan, weights):
        path = plan.specs[node.name].weights
        state = "there, without a weights file" if weights and weights.exists else "not there"
        yield violation(
            "weights-missing",
            node.name,
            f"the weights of {plan.recipe.model} are not on {node.name}",
            evidence=f"{path} " + ("was not looked at" if weights is None else f"is {state}"),
            remedy=fetch_command(plan, node),
            unknown=weights is None,
        )


@_told_who_has_them
@per_node
def weights_magic(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """Each file is what its loader reads: `invalid magic characters` comes after minutes (A2).

    And no file of the folder is a git-lfs pointer: a tokenizer that is one fails as late.
    """
    weights = weights_of(plan, node, snapshot)
    wanted = plan.recipe.weights.format
    files = tensors(plan, weights) if weights else []
    bad = [f for f in files if format_of(f) != wanted]
    others = [f for f in (pointers(weights) if weights else []) if f not in bad]
    wrong = [f"{f.name} is {format_of(f)}" for f in (*bad, *others)]
    if wrong:
        yield violation(
            "weights-magic",
            node.name,
            f"{len(wrong)} weights files on {node.name} are not {wanted}, which the recipe loads"
            if bad
            else f"{len(wrong)} files of the weights on {node.name} are pointers to files",
            evidence="; ".join(wrong[:5]) + (" …" if len(wrong) > 5 else ""),
            remedy=fetch_command(plan, node),
        )


@_told_who_has_them
@per_node
def weights_cut(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """Each tensors file is as long as its header says: a download that broke off is not."""
    weights = weights_of(plan, node, snapshot)
    short = [f for f in (tensors(plan, weights) if weights else []) if is_truncated(f)]
    if short:
        yield violation(
            "weights-cut",
            node.name,
            f"{len(short)} weights files on {node.name} are not as long as their headers say",
            evidence="; ".join(
                f"{f.name}: " + (f.broken or f"{f.size} bytes, its header says {f.header_says}")
                for f in short[:5]
            ),
            remedy=fetch_command(plan, node),
        )


@_told_who_has_them
@per_node
def weights_whole(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """All shards that the index names, as many as the recipe says (46 in the seed)."""
    weights = weights_of(plan, node, snapshot)
    files = tensors(plan, weights) if weights else []
    shards = plan.recipe.weights.shards
    missing = weights.missing_shards if weights else ()
    if files and (missing or (shards is not None and len(files) < shards)):
        yield violation(
            "weights-shards-missing",
            node.name,
            f"weights shards are missing on {node.name}",
            evidence=f"{len(files)} files, the recipe says {shards or 'nothing'}; named by the "
            f"index and not there: {', '.join(missing[:5]) or 'none'}",
            remedy=fetch_command(plan, node),
        )


def weights_equal(plan: Plan, observed: Observed) -> list[Violation]:
    """Names, sizes, ends and known hashes agree: ranks of two models answer nonsense."""
    seen, found = collect(plan, observed, lambda node, s: weights_of(plan, node, s))
    there = [(node, weights) for node, weights in seen if weights and weights.exists]
    present = [(node, {f.name: f for f in compared(w)}) for node, w in there]
    whole = [is_whole(plan, weights) for _, weights in there]
    for (node, files), complete in list(zip(present, whole, strict=True))[1:]:
        first, reference = present[0]
        differing = [n for n in sorted({*reference, *files}) if _differ(reference, files, n)]
        if differing:
            found.append(
                violation(
                    "weights-differ",
                    node.name,
                    f"{len(differing)} weights files differ between {first.name} and {node.name}",
                    evidence="; ".join(
                        f"{name}: {first.name} {_file(reference.get(name))}, "
                        f"{node.name} {_file(files.get(name))}"
                        for name in differing[:3]
                    )
                    + (" …" if len(differing) > 3 else ""),
                    # What is not whole gives to nobody: weights would refuse it.
                    remedy=copy_command(plan, first, node)
                    if complete == whole[0]
                    else deploy_command(
                        plan, "weights", f"from={first.name if whole[0] else node.name}"
                    ),
                )
            )
    return found


def _differ(one: dict[str, WeightsFile], other: dict[str, WeightsFile], name: str) -> bool:
    return name not in one or name not in other or differ(one[name], other[name])


def _file(file: WeightsFile | None) -> str:
    if file is None:
        return "absent"
    ends = f", ends hash to {file.probe[:12]}" if file.probe else ""
    content = f"sha256 {file.sha256[:12]}" if file.sha256 else f"starts {file.magic}{ends}"
    return f"{file.size} bytes ({gib(file.size)}), {content}"


@per_node
def weights_incomplete(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """No set is half switched: an engine would load shards of two models, and answer nonsense."""
    weights = weights_of(plan, node, snapshot)
    if weights is not None and weights.incomplete:
        yield violation(
            "weights-incomplete",
            node.name,
            f"the weights on {node.name} are half of one set and half of another",
            evidence=f"change {weights.incomplete} was cut off while it switched {weights.path}",
            remedy=f"{deploy_command(plan, 'weights')} finishes it; or back: "
            + deploy_command(plan, "rollback", f"change={weights.incomplete}"),
        )


@per_node
def weights_mounted(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """Links of a hub cache's snapshot lead to ../../blobs: the container has to have those, too."""
    weights = weights_of(plan, node, snapshot)
    folder = PurePosixPath((weights.folder or weights.path) if weights else "/")
    root = next((p for p in (folder, *folder.parents) if p.name.startswith("models--")), None)
    sources = [PurePosixPath(source) for source, _, _ in plan.specs[node.name].volumes]
    inner = [s for s in sources if root in s.parents and (s == folder or s in folder.parents)]
    outer = [s for s in sources if s == root or (root and s in root.parents)]
    if weights and weights.linked and root and inner and not outer:
        yield violation(
            "weights-mount",
            node.name,
            f"the engine's container on {node.name} would see links that lead nowhere",
            evidence=f"{weights.linked} files of {folder} are links into {root}/blobs, and the "
            f"container has {', '.join(map(str, inner))} of it",
            remedy=f"in catalog/recipes/{plan.recipe.name}.yaml, container.volumes: mount {root}, "
            f"or a folder above it, in the place of {inner[0]}, and let vllm_serve.model follow",
        )


GATES = (weights_incomplete, weights_present, weights_magic, weights_cut, weights_whole,
         weights_equal, weights_mounted)  # fmt: skip
