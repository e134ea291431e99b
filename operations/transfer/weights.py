"""The weights of a rig: from the node that has them to the others; hashed everywhere on request."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from typing import Any

from pyinfra import host
from pyinfra.api import FunctionCommand, Host, operation

from operations.change.apply import Steps, describe
from operations.change.run import Run
from operations.transfer.transfer import DEADLINE_S, Transfer, came, watched_call


@operation()
def move(
    run: Run,
    number: int,
    transfers: Sequence[Transfer],
    paths: Mapping[str, str],
    replaced: Mapping[str, Sequence[tuple[str, int]]],
    owner: str,
    prune: bool,
    then: Mapping[str, Steps],
) -> Generator[FunctionCommand, None, None]:
    """
    Bring the files that a node lacks, or has otherwise, from a node that has them all.

    + run: the change
    + number: which round of it this is
    + transfers: who gives, who takes, and by which way, at the same time
    + paths: the weights' path on each node
    + replaced: by node, name and bytes of the files there that are replaced or deleted
    + owner: who owns the files here
    + prune: delete what the giving node has not
    + then: by node, journalled steps once the files are there
    """
    members = {each.source: each for each in transfers}
    members |= {name: each for each in transfers for name in each.targets}
    transfer = members.get(host.name)
    if transfer is None:
        host.noop("nothing of it moves here")
        return
    label = f"move {number}"
    run.show_once(host, label, lambda: host.log(_line(transfer, host.name, paths)))
    former = replaced.get(host.name)
    if former and host.name in transfer.targets:
        run.show_once(host, "replaced", lambda: host.log_styled(_replaces(former), fg="yellow"))
    reporter = host
    yield run.step(
        label,
        members,
        lambda: _part(run, reporter, transfer, paths[reporter.name], owner, prune, then),
        DEADLINE_S,
    )


def _line(transfer: Transfer, name: str, paths: Mapping[str, str]) -> str:
    way = transfer.route.words
    if name == transfer.source:
        return f"give {paths[name]} to {', '.join(transfer.targets)}, {way}"
    return f"get what lacks in {paths[name]} from {transfer.source}, {way}"


def _replaces(files: Sequence[tuple[str, int]]) -> str:
    size = sum(size for _, size in files)
    names = ", ".join(f"{name} ({_size(size)})" for name, size in files)
    many = "" if len(files) == 1 else "s"
    return f"replaces {len(files)} file{many}, {_size(size)}, which are kept for an undo: {names}"


def _size(size: int) -> str:
    if size < 1e6:
        return f"{size} bytes"
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.2f} MB"


def _part(
    run: Run,
    reporter: Host,
    transfer: Transfer,
    path: str,
    owner: str,
    prune: bool,
    then: Mapping[str, Steps],
) -> None:
    if reporter.name == transfer.source:
        gave = transfer.offer({"path": path})
        if gave.get("not_kept"):
            reporter.log_styled(
                f"its hashes are not kept, the next move takes them anew: {gave['not_kept']}",
                fg="yellow",
            )
        return
    answer = transfer.receive(reporter.name, {"path": path, "owner": owner, "prune": prune})
    reporter.log_styled(arrived(answer), fg="green")
    if answer["outside"]:
        listed = ", ".join(answer["outside"][:5])
        reporter.log_styled(
            f"{transfer.source} has links out of its folder, which are not moved: {listed}",
            fg="yellow",
        )
    for row in answer.get("freed", ()):
        reporter.log(f"removed {row['path']} ({_size(row['bytes'])}): that change is settled")
    former = answer.get("replaced", ())
    if former:
        size = _size(sum(row["size"] for row in former))
        reporter.log(f"{len(former)} former files, {size}, are kept in {answer['displaced']}")
    for name in answer["extra"]:
        verb = "deleted" if name in answer["pruned"] else "left here (prune=true deletes it)"
        reporter.log_styled(f"{name} is not on {transfer.source}: {verb}", fg="yellow")
    if steps := then.get(reporter.name):
        run.apply(reporter.name, steps)
        reporter.log("; ".join(describe(step) for step in steps))


@operation()
def download(
    run: Run,
    node: str,
    request: Mapping[str, Any],
    words: str,
    then: Mapping[str, Steps],
) -> Generator[FunctionCommand, None, None]:
    """
    Bring a model's files from the hub onto one node, each compared with what the hub says of it.

    + run: the change
    + node: the node that downloads
    + request: what node's `weights download` takes, without the change
    + words: what comes, for a person
    + then: by node, journalled steps once the files are there
    """
    if host.name != node:
        host.noop(f"the hub's files come to {node}")
        return
    reporter = host
    run.show_once(host, "download", lambda: host.log(words))

    def work() -> None:
        run.touch(node)
        more = {"change": run.change(), "deadline_s": DEADLINE_S}
        answer = watched_call(run, node, "weights", "download", {**request, **more})
        size = f"{len(answer['files'])} files, {answer['bytes'] / 1e9:.2f} GB"
        reporter.log_styled(
            f"{size}, in {answer['took_s']:.0f} s, each as the hub says", fg="green"
        )
        if steps := then.get(node):
            run.apply(node, steps)

    yield run.step("download", [node], work, DEADLINE_S)


def arrived(answer: Mapping[str, Any]) -> str:
    """A line about what a target got, from node's answer."""
    if not answer["files"]:
        return f"every file was here; {answer['took_s']:.1f} s"
    size, damaged = came(answer)
    sent = answer["bytes"] - answer.get("resumed_bytes", 0)
    rate = sent / max(0.01, answer["wire_s"]) / 1e6
    return (
        f"{len(answer['files'])} files, {size}, in "
        f"{answer['wire_s']:.1f} s ({rate:.0f} MB/s), each with its source's sha256{damaged}"
    )


@operation()
def hash_all(
    run: Run, members: Collection[str], paths: Mapping[str, str], found: dict[str, Any]
) -> Generator[FunctionCommand, None, None]:
    """
    Read every file of the weights and take its sha256, on all nodes at once.

    + run: the run (nothing is journalled: only the hashes beside the weights are written)
    + members: the nodes that hash; empty when nobody asked
    + paths: the weights' path on each node
    + found: filled with each node's answer
    """
    if host.name not in members:
        host.noop("nobody asked for full hashes (verify=true)")
        return
    run.show_once(host, "hash", lambda: host.log(f"sha256 of every file in {paths[host.name]}"))
    node = host.name
    yield run.step("hash", members, lambda: _hash(run, node, paths[node], found), DEADLINE_S)


def _hash(run: Run, node: str, path: str, found: dict[str, Any]) -> None:
    found[node] = watched_call(run, node, "weights", "hash", {"path": path, "again": True})


def differences(found: Mapping[str, Mapping[str, Any]], names: Callable[[str], bool]) -> list[str]:
    """Lines about files whose hashes differ between nodes; `names` says which files count."""
    hashes = {
        node: {f["name"]: f["sha256"] for f in answer["files"] if names(f["name"])}
        for node, answer in found.items()
    }
    first, *others = hashes
    return [
        f"{name}: {first} has {_short(hashes[first].get(name))}, {node} has "
        f"{_short(hashes[node].get(name))}"
        for node in others
        for name in sorted({*hashes[first], *hashes[node]})
        if hashes[first].get(name) != hashes[node].get(name)
    ]


def _short(digest: str | None) -> str:
    return f"sha256 {digest[:12]}" if digest else "no such file"
