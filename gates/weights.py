"""Gates of the weights: there, whole, of the loader's format, equal on every node."""

from __future__ import annotations

from collections.abc import Iterator

from gates.base import Observed, gather, gib, known, per_node
from gates.codes import violation
from gates.violation import Violation
from schema.engine import Plan
from schema.rig import Node
from schema.snapshot import NodeSnapshot, Weights, WeightsFile

SUFFIXES = (".safetensors", ".gguf", ".bin", ".pt", ".pth")
MAX_HEADER = 100_000_000


def format_of(magic: str) -> str:
    """The format that a file's first 16 bytes (hex) tell.

    safetensors: 8 bytes little-endian length of a JSON header, then `{`; its loader refuses a
    header over 100 MB. A clone without git-lfs leaves text pointers of 130 bytes.
    """
    head = bytes.fromhex(magic)
    if head.startswith(b"GGUF"):
        return "gguf"
    if head.startswith(b"version https://"):
        return "a git-lfs pointer, not the file itself"
    if head.startswith(b"PK\x03\x04"):
        return "a PyTorch zip"
    length = int.from_bytes(head[:8], "little")
    if len(head) > 8 and 2 <= length <= MAX_HEADER and head[8:9] == b"{":
        return "safetensors"
    if not head.strip(b"\0"):
        return "empty or zeroes, as an unfinished download leaves it"
    return f"unknown (starts with {head[:8].hex()})"


def weights_of(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Weights | None:
    """What the host says of the recipe's weights; None when it was not asked."""
    path = plan.specs[node.name].weights
    return next((w for w in known(snapshot.weights, "weights") if w.path == path), None)


def tensors(plan: Plan, weights: Weights) -> list[WeightsFile]:
    """The files of the loader's format; where there are none, those of any other format."""
    suffix = f".{plan.recipe.weights.format}"
    own = [f for f in weights.files if f.name.endswith(suffix)]
    return own or [f for f in weights.files if f.name.endswith(SUFFIXES)]


def fetch(plan: Plan, node: Node) -> str:
    """The line that brings the weights to a node."""
    path = plan.specs[node.name].weights
    return f"on {node.name}: hf download {plan.recipe.weights.source} --local-dir {path}"


def copy(plan: Plan, source: Node, target: Node) -> str:
    """The line that makes `target`'s weights those of `source`; a folder needs its trailing /."""
    paths = [plan.specs[n.name].weights for n in (source, target)]
    paths = [path if path.endswith(SUFFIXES) else f"{path}/" for path in paths]
    address = target.fabric_address or target.lan_address
    return (
        f"on {source.name}: rsync -a --checksum --partial {paths[0]} "
        f"{target.ssh_user}@{address}:{paths[1]}"
    )


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
            remedy=fetch(plan, node),
            unknown=weights is None,
        )


@per_node
def weights_magic(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """Each file is what its loader reads: `invalid magic characters` comes after minutes (A2)."""
    weights = weights_of(plan, node, snapshot)
    wanted = plan.recipe.weights.format
    files = tensors(plan, weights) if weights else []
    wrong = [f"{f.name} is {format_of(f.magic)}" for f in files if format_of(f.magic) != wanted]
    if wrong:
        yield violation(
            "weights-magic",
            node.name,
            f"{len(wrong)} weights files on {node.name} are not {wanted}, which the recipe loads",
            evidence="; ".join(wrong[:5]) + (" …" if len(wrong) > 5 else ""),
            remedy=fetch(plan, node),
        )


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
            remedy=fetch(plan, node),
        )


def weights_equal(plan: Plan, observed: Observed) -> list[Violation]:
    """Names, sizes, first bytes and (deep) hashes agree: ranks of two models answer nonsense.

    Hidden files and .md files are left out; downloads leave their own there.
    """
    seen, found = gather(plan, observed, lambda node, s: weights_of(plan, node, s))
    present = [(node, _compared(weights)) for node, weights in seen if weights and weights.exists]
    for node, files in present[1:]:
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
                    remedy=copy(plan, first, node),
                )
            )
    return found


def _compared(weights: Weights) -> dict[str, WeightsFile]:
    return {f.name: f for f in weights.files if not f.name.startswith(".") and f.name[-3:] != ".md"}


def _differ(one: dict[str, WeightsFile], other: dict[str, WeightsFile], name: str) -> bool:
    if name not in one or name not in other:
        return True
    a, b = one[name], other[name]
    hashed = a.sha256 is not None and b.sha256 is not None
    return (a.size, a.magic) != (b.size, b.magic) or (hashed and a.sha256 != b.sha256)


def _file(file: WeightsFile | None) -> str:
    if file is None:
        return "absent"
    content = f"sha256 {file.sha256[:12]}" if file.sha256 else f"starts {file.magic}"
    return f"{file.size} bytes ({gib(file.size)}), {content}"


GATES = (weights_present, weights_magic, weights_whole, weights_equal)
