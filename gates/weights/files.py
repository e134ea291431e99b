"""What a node's weights files are, and the line that brings them to another node."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gates.core.check import Observed, answering_nodes, deploy_command, require
from node.rules import magic
from schema.desired.plan import Plan
from schema.desired.rig import Node
from schema.observed.files import Weights, WeightsFile
from schema.observed.snapshot import NodeSnapshot, Unreadable

SUFFIXES = (".safetensors", ".gguf", ".bin", ".pt", ".pth")
_REPO = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
# what lies beside weights for people; no engine opens it
UNREAD = (".md", ".png", ".jpg", ".jpeg", ".gif", ".webp", ".svg", ".pdf")


def format_of(file: WeightsFile) -> str:
    """The format that a file's first bytes tell."""
    return magic.format_of(bytes.fromhex(file.magic))


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
        if format_of(f) == magic.POINTER
        and not f.name.startswith(".")
        and not f.name.lower().endswith(UNREAD)
    ]
