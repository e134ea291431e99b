"""One transfer between nodes: the source offers, the targets receive, this end only coordinates.

The key is made here for one transfer and goes to both by stdin. What passes does not touch the
operator's machine.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gevent
from pyinfra.api import Host

from operations.change.node_call import call, run_as_root
from operations.change.run import Run

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
