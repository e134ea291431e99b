"""Images and weights from node to node."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import gevent
from pyinfra import host
from pyinfra.api import FunctionCommand, Host, operation

from operations.apply import Steps, describe
from operations.run import Run, call, run_as_root

# One transfer between nodes: the source offers, the targets receive, this end only coordinates.
#
# The key is made here for one transfer and goes to both by stdin. What passes does not touch the
# operator's machine.

# A transfer of 150 GB over 1 Gb/s takes 20 minutes; a link at a tenth of that three hours.
DEADLINE_S = 4 * 3600
LOOK_EVERY_S = 3.0


@dataclass(frozen=True)
class Route:
    """How the targets reach the source: address and own device (None: any) by node."""

    addresses: Mapping[str, str]
    devices: Mapping[str, str | None]
    port: int

    @property
    def words(self) -> str:
        """The way, for a person."""
        named = dict.fromkeys(device for device in self.devices.values() if device)
        return f"out of {', '.join(named)}" if named else "over the LAN"

    def listen(self, source: str, name: str | None = None) -> dict[str, Any]:
        """Where the source listens, as node takes it; `name`: who goes there, by its own device."""
        device = self.devices[name or source]
        return {"address": self.addresses[source], "port": self.port, "device": device}


def tree(source: str, targets: Sequence[str]) -> list[list[tuple[str, tuple[str, ...]]]]:
    """Who gives to whom, in rounds, so that the source's link is not the bound of many targets.

    Two targets get theirs at the same time: a second round would take as long. Of more, whoever has
    all of it gives to one that has nothing, and N targets take log2(N + 1) rounds.
    """
    if len(targets) <= 2:
        return [[(source, tuple(targets))]] if targets else []
    having, waiting = [source], list(targets)
    rounds: list[list[tuple[str, tuple[str, ...]]]] = []
    while waiting:
        pairs = list(zip(having, waiting, strict=False))
        rounds.append([(giver, (taker,)) for giver, taker in pairs])
        having += [taker for _, taker in pairs]
        waiting = waiting[len(pairs) :]
    return rounds


class Transfer:
    """A transfer under way; its greenlets share the key, and what came of each node."""

    def __init__(
        self, run: Run, what: str, source: str, targets: tuple[str, ...], route: Route
    ) -> None:
        self.run, self.what, self.source, self.targets = run, what, source, targets
        self.route = route
        self._key = secrets.token_hex(32)

    def offer(self, more: Mapping[str, Any]) -> dict[str, Any]:
        """The source's part; node's answer when every target has all. Raises StepFailed."""
        request = {
            "listen": self.route.listen(self.source),
            "peers": [self.route.addresses[name] for name in self.targets],
            "key": self._key,
            "deadline_s": DEADLINE_S,
            **more,
        }
        host = self.run.host(self.source)
        return call(self.run.state, host, f"{self.what} offer", request, DEADLINE_S)

    def receive(self, name: str, more: Mapping[str, Any]) -> dict[str, Any]:
        """One target's part in the run's change; node's answer. Raises StepFailed."""
        # Before the call: a lost connection may have left an open change there.
        self.run.touch(name)
        return self.fetch(name, {"change": self.run.change(), **more})

    def fetch(self, name: str, more: Mapping[str, Any]) -> dict[str, Any]:
        """One target's part, with its progress shown; node's answer. Raises StepFailed."""
        request = {
            "from": self.route.listen(self.source, name),
            "key": self._key,
            "deadline_s": DEADLINE_S,
            **more,
        }
        return watched_call(self.run, name, self.what, "receive", request)


def watched_call(
    run: Run, name: str, what: str, does: str, request: dict[str, Any]
) -> dict[str, Any]:
    """The answer of a node to the verb `what does`, its progress shown meanwhile; StepFailed."""
    host = run.host(name)
    watcher = gevent.spawn(watch, run, host, what)
    try:
        return call(run.state, host, f"{what} {does}", request, DEADLINE_S)
    finally:
        watcher.kill()


def came(answer: Mapping[str, Any]) -> tuple[str, str]:
    """Two parts of the line about what came: its size with what was here of it, and the damage."""
    resumed = answer.get("resumed_bytes", 0)
    again = f", of which {resumed / 1e6:.1f} MB came in an earlier run" if resumed else ""
    damaged = f"; {answer['damaged']} damaged blocks came again" if answer.get("damaged") else ""
    return f"{answer['bytes'] / 1e6:.1f} MB{again}", damaged


def watch(run: Run, host: Host, what: str) -> None:
    """Shows a node's progress file (node/transfer/spool.py) as it changes, until it is killed."""
    path = f"/var/lib/rigbook/spool/{what}.progress"
    said = ""
    while True:
        gevent.sleep(LOOK_EVERY_S)
        try:
            _, output = run_as_root(run.state, host, f"cat {path} 2>/dev/null || true", 10)
            line = str(json.loads(output.stdout_lines[-1])["line"])
        except Exception:  # a look that fails says nothing about the transfer
            continue
        if line != said:
            host.log(line)
            said = line


# Copies of backups from node to node: to a peer that keeps them, and back.


@dataclass(frozen=True)
class Move:
    """A backup that goes from one node to another. `keeps`: the taker keeps it for `owner`, the
    host's own name; else it comes back to it.
    """

    transfer: Transfer
    backup: str
    owner: str
    keeps: bool
    # what the taker answered
    came: dict[str, Any] = field(default_factory=dict)

    @property
    def giver(self) -> str:
        """The node that gives."""
        return self.transfer.source

    @property
    def taker(self) -> str:
        """The node that takes."""
        return self.transfer.targets[0]

    @property
    def words(self) -> str:
        """What it does, for a person."""
        way = self.transfer.route.words
        if self.keeps:
            return f"copy {self.backup} to {self.taker}, {way}, or read the copy back there"
        return f"bring {self.backup} back from {self.giver}, {way}"


@operation()
def move_copies(run: Run, moves: Sequence[Move]) -> Generator[FunctionCommand, None, None]:
    """
    Bring backups from node to node, one after another, and read them back where they came.

    + run: the run (nothing is journalled: a backup changes nothing but its own folder)
    + moves: what goes where
    """
    members = {name for one in moves for name in (one.giver, one.taker)}
    if host.name not in members:
        host.noop("no copy of a backup goes from here or comes here")
        return
    reporter = host
    for number, one in enumerate(moves):
        if host.name == (one.giver if one.keeps else one.taker):
            run.show_once(host, f"copy {number}", partial(host.log, one.words))
        # all of them at each step: a giver whose taker is busy with another would not be called
        work = partial(_copies_part, run, reporter, one)
        yield run.step(f"copy {number}", members, work, DEADLINE_S)
        if one.keeps:
            yield run.step(f"note {number}", members, partial(_note, run, reporter, one))


def _copies_part(run: Run, reporter: Host, one: Move) -> None:
    if reporter.name == one.giver:
        one.transfer.offer({"backup": one.backup, "host": None if one.keeps else one.owner})
        return
    if reporter.name != one.taker:
        return
    wanted = {"backup": one.backup, "host": one.owner if one.keeps else None}
    answer = one.transfer.fetch(one.taker, wanted)
    one.came.update(answer)
    size, damaged = came(answer)
    what = f"{one.backup} is back from {one.giver}, and whole"
    if one.keeps:
        did = "copied, and read back" if answer["made"] else "was there; it was read back"
        what = f"{one.backup} {did} in {answer['place']}"
    reporter.log_styled(f"{what}: {size}, {answer['took_s']:.1f} s{damaged}", fg="green")


def _note(run: Run, reporter: Host, one: Move) -> None:
    """The node whose backup it is notes that its copy was read back there."""
    if reporter.name == one.giver:
        note = {"backup": one.backup, "place": f"{one.taker}:{one.came['place']}"}
        call(run.state, reporter, "tree note", note)


# The weights of a rig: from the node that has them to the others; hashed everywhere on request.


@operation()
def move_weights(
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
        lambda: _weights_part(run, reporter, transfer, paths[reporter.name], owner, prune, then),
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


def _weights_part(
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
