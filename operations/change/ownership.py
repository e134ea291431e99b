"""A run's ownership of a change: its token, the signs that it lives, and how it takes one up.

node compares the token at each write (node/change/claim.py; docs/adr/0022).
"""

from __future__ import annotations

import getpass
import socket
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from typing import Any

import gevent
from pyinfra.api import State

from facts.rignode.call import AskFailed, ask_node
from facts.rignode.context import real
from node.rules.heartbeat import BEAT_S, DEAD_S
from operations.change.alive_here import AliveHere, deploy_here, is_alive_here
from operations.change.node_call import StepFailed, call

# A dead run's last command may hold a node's lock: a stop takes 30 s, then docker's own time.
LOCK_WAIT_S = 300.0
POLL_S = 2.0
TELL_S = 10.0
# node's codes for a change that is another run's, or that somebody has ended.
LOST = ("taken_up", "change_closed")
Tell = Callable[[str], object]


def operator() -> str:
    """Who runs this, as the journal keeps it: user@host."""
    return f"{getpass.getuser()}@{socket.gethostname()}"


def proven_dead(change: str, by: str) -> bool:
    """Whether the run of `by` (user@host) that has the change was this machine's, and is dead."""
    return by == operator() and is_alive_here(change) is False


class Progress:
    """A wait that is told every TELL_S seconds and has an end."""

    def __init__(self, tell: Tell, limit_s: float) -> None:
        self._tell, self._limit_s = tell, limit_s
        self._started = time.monotonic()
        self._told = 0.0

    def wait(self, why: str) -> None:
        """Waits for POLL_S seconds; StepFailed once the limit is reached."""
        spent = time.monotonic() - self._started
        if spent >= self._limit_s:
            raise StepFailed(f"{why}: still so after {spent:.0f} s", "waited")
        if not self._told or spent - self._told >= TELL_S:
            self._told = spent or 0.1
            self._tell(f"waits: {why}: {spent:.0f} s of {self._limit_s:.0f} s")
        gevent.sleep(POLL_S)


class Ownership:
    """What a run has of a change. `nodes` are those on which the change is or may be open; `lost`
    says that another run has it by now. `kept` are those with a keeper
    (operations/change/lease.py).
    """

    def __init__(self, state: State, change: str, deploy: str) -> None:
        self.state = real(state)
        self.change = change
        self.deploy = deploy
        self.token = uuid.uuid4().hex
        self.nodes: set[str] = set()
        self.kept: set[str] = set()
        self.lost: str | None = None
        self._here = AliveHere(change, deploy)
        self._heart: gevent.Greenlet[..., None] | None = None
        self._beats: list[gevent.Greenlet[..., None]] = []
        self._ended = False

    def begin(self) -> None:
        """Says from now on that this run lives."""
        if self._heart is None:
            self._here.hold()
            self._heart = gevent.spawn(self._live)

    def end(self, settled: bool) -> None:
        """This run writes no more; a change that is not settled is anybody's at once."""
        if self._ended:
            return
        self._ended = True
        if self._heart is not None:
            self._heart.kill(block=False)
        # one that is under way would come after it, and say that the run lives
        gevent.joinall(self._beats, timeout=BEAT_S)
        if not settled and self.lost is None:
            self._beat_all(over=True)
        self._here.let_go(settled)

    def _live(self) -> None:
        while self.lost is None:
            gevent.sleep(BEAT_S)
            self._beat_all()

    def _beat_all(self, **more: object) -> None:
        nodes = sorted(self.nodes | self.kept)
        jobs = [gevent.spawn(self._beat, node, more) for node in nodes]
        self._beats = [job for job in self._beats if not job.dead] + jobs
        # a node that hangs or boots is asked again; it must not keep the others from theirs
        gevent.joinall(jobs, timeout=BEAT_S)

    def _beat(self, node: str, more: Mapping[str, object]) -> None:
        request = {"change": self.change, "run": self.token, **more}
        try:
            host = self.state.inventory.get_host(node)
            said = ask_node(self.state, host, "beat", request, int(BEAT_S))
        except (AskFailed, KeyError):
            return
        if not said["mine"] and said["run"] != self.token:
            self.lost = (
                f"{node}: change {self.change} was taken up by {said['operator']} "
                f"({said['deploy']}) and is {said['status']}: this run is over"
            )

    def claim(
        self,
        node: str,
        former: str | None,
        tell: Tell,
        take_back: bool = False,
        keep: Collection[str] = (),
        timeout_s: int = 120,
    ) -> dict[str, Any]:
        """Makes the change this run's on a node, if it is the run `former`'s there; node's answer,
        whose `claimed` says whether. Waits for the host's lock; StepFailed as node refuses.
        """
        # first, or another run takes this one, which has the change, for the dead one
        self._here.hold()
        request: dict[str, Any] = {
            "change": self.change, "run": self.token, "former": former, "operator": operator(),
            "deploy": self.deploy, "take_back": take_back, "keep": list(keep),
        }  # fmt: skip
        progress = Progress(tell, LOCK_WAIT_S)
        host = self.state.inventory.get_host(node)
        while True:
            try:
                answer = call(self.state, host, "claim", request, timeout_s)
            except StepFailed as error:
                if error.code != "locked":
                    raise
                progress.wait(str(error).partition(";")[0])
                continue
            if answer["claimed"]:
                self.nodes.add(node)
            return answer

    def claim_from_whom_it_has(
        self, node: str, former: str | None, tell: Tell, forced: bool, limit_s: float
    ) -> dict[str, Any]:
        """As `claim`, for a rollback: waits for another rollback of the change, and takes it from a
        run that is dead, or (`forced`) from any. Not claimed: somebody rolled it back.
        """
        progress = Progress(tell, limit_s)
        while True:
            # of two of this machine, the one that has the file goes first
            if not self._here.held and deploy_here(self.change) == self.deploy:
                whose = f"{node}: change {self.change} is {operator()}'s ({self.deploy})"
                progress.wait(f"{whose}, who rolls it back")
                continue
            answer = self.claim(node, former, tell)
            if answer["claimed"] or answer["status"] == "ROLLED_BACK":
                return answer
            by, quiet = answer["operator"], answer["quiet_s"]
            dead = quiet >= DEAD_S or (by == operator() and self._here.hold())
            who = f"{node}: change {self.change} is {by}'s ({answer['deploy']})"
            if not dead and answer["deploy"] == "rollback":
                progress.wait(f"{who}, who rolls it back")
            elif dead or forced:
                former = answer["run"]
            else:
                raise StepFailed(
                    f"{who}, last sign of life {quiet:.0f} s ago; wait for it, or, if that run is "
                    f"to end: --data change={self.change}",
                    "taken_up",
                )
