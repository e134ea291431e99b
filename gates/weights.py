"""The files of a model: there, whole, of the kind that the engine reads."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import wraps
from pathlib import PurePosixPath

from gates.core import (
    Gate,
    Observed,
    Violation,
    answering_nodes,
    collect_check,
    deploy_command,
    gib,
    per_node,
    require,
    violation,
)
from node.rules import text
from schema.plan import Node, Plan
from schema.snapshot import NodeSnapshot, Unreadable, Weights, WeightsFile

# What a node's weights files are, and the line that brings them to another node.

SUFFIXES = (".safetensors", ".gguf", ".bin", ".pt", ".pth")
_REPO = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
# what lies beside weights for people; no engine opens it
UNREAD = (".md", ".png", ".jpg", ".jpeg", ".gif", ".webp", ".svg", ".pdf")


def format_of(file: WeightsFile) -> str:
    """The format that a file's first bytes tell."""
    return text.format_of(bytes.fromhex(file.magic))


def weights_of(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Weights | None:
    """What the host says of the recipe's weights; None when it was not asked."""
    path = plan.specs[node.name].weights
    return next((w for w in require(snapshot.weights, "weights") if w.path == path), None)


def tensors(plan: Plan, weights: Weights) -> list[WeightsFile]:
    """The files of the loader's format; where there are none, those of any other format."""
    suffix = f".{plan.recipe.weights.format}"
    own = [f for f in weights.files if f.name.endswith(suffix)]
    return own or [f for f in weights.files if f.name.endswith(SUFFIXES)]


def fetch_command(plan: Plan, node: Node, observed: Observed | None = None) -> str:
    """The line that brings the weights to a node: from another that has them, else a download."""
    path = plan.specs[node.name].weights
    for other, snapshot in answering_nodes(plan, observed or {}):
        if other.name != node.name and not isinstance(snapshot.weights, Unreadable):
            weights = weights_of(plan, other, snapshot)
            if weights is not None and weights.exists and is_whole(plan, weights):
                return deploy_command(plan, "weights", f"from={other.name}")
    if _REPO.fullmatch(plan.recipe.weights.source):
        wanted = f"download={plan.recipe.weights.source}"
        return deploy_command(plan, "weights", wanted, f"from={node.name}")
    return f"on {node.name}: hf download {plan.recipe.weights.source} --local-dir {path}"


def copy_command(plan: Plan, source: Node, target: Node) -> str:
    """The line that makes `target`'s weights those of `source`."""
    return deploy_command(plan, "weights", f"from={source.name}") + (
        f" (or, if those of {target.name} are right: from={target.name})"
    )


def is_whole(plan: Plan, weights: Weights) -> bool:
    """Whether a node's weights look whole by themselves: format, index, number, lengths."""
    files = tensors(plan, weights)
    shards = plan.recipe.weights.shards
    return bool(files) and not (
        weights.incomplete
        or weights.missing_shards
        or pointers(weights)
        or (shards is not None and len(files) < shards)
        or any(format_of(f) != plan.recipe.weights.format or is_truncated(f) for f in files)
    )


def differ(one: WeightsFile, other: WeightsFile) -> bool:
    """Whether two files are not the same: by sha256 where both are known, else by size, first bytes
    and the hash of their ends."""
    if one.sha256 is not None and other.sha256 is not None:
        return (one.size, one.sha256) != (other.size, other.sha256)
    probed = one.probe is not None and other.probe is not None
    return (one.size, one.magic) != (other.size, other.magic) or (
        probed and one.probe != other.probe
    )


def unread(present: Sequence[Weights]) -> int:
    """How many files, of those that are compared, have no sha256 on some node: of these, names,
    sizes and ends alone are known to be the same."""
    return len({f.name for w in present for f in compared(w) if f.sha256 is None})


def compared(weights: Weights) -> list[WeightsFile]:
    """The files that have to be the same on every node: hidden and .md files are left out, since
    downloads leave their own there."""
    return [f for f in weights.files if not f.name.startswith(".") and f.name[-3:] != ".md"]


def replaced(giver: Weights, taker: Weights, prune: bool) -> list[WeightsFile]:
    """The files of `taker` that a move from `giver` replaces, or with `prune` deletes.

    Hidden files are never moved.
    """
    given = {file.name: file for file in giver.files}
    return [
        file
        for file in taker.files
        if not any(part.startswith(".") for part in file.name.split("/"))
        and (prune if file.name not in given else differ(file, given[file.name]))
    ]


def is_truncated(file: WeightsFile) -> bool:
    """Whether a file is not as long as its own header says, or its header cannot be read.

    A GGUF may be padded at its end; the loader of safetensors refuses bytes that nobody owns.
    """
    if file.header_says is None:
        return file.broken is not None
    short = file.size < file.header_says
    return short or (file.size > file.header_says and format_of(file) != "gguf")


def pointers(weights: Weights) -> list[WeightsFile]:
    """The git-lfs pointers in place of files that an engine reads: a clone without git-lfs."""
    return [
        f
        for f in weights.files
        if format_of(f) == text.POINTER
        and not f.name.startswith(".")
        and not f.name.lower().endswith(UNREAD)
    ]


# Gates of the weights: there, whole, of the loader's format, equal on every node.


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
    seen, found = collect_check(plan, observed, lambda node, s: weights_of(plan, node, s))
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
