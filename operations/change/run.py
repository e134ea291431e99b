"""One change of a rig while it runs: what its hosts' greenlets share.

pyinfra runs an operation on all hosts at once and goes on with the hosts that did not fail. A rig
is one thing: when a step fails on one host, every host stops there and the rig goes back to what
it was. `Run.step` does that: hosts that take part in a step wait for each other at its end, and
one of them calls `revert`.
"""

from __future__ import annotations

import json
import shlex
import time
import uuid
from collections.abc import Callable, Iterable

from gevent.event import Event
from gevent.lock import RLock
from pyinfra.api import FunctionCommand, Host, State

from facts.rignode.context import real
from operations.change import lease
from operations.change.node_call import StepFailed, call
from operations.change.ownership import LOST, Ownership, operator
from schema.desired.plan import Plan

# The longest that one host waits for the others at the end of a step.
RENDEZVOUS_S = 900


def new_change_id(deploy: str) -> str:
    """A change's id: UTC time, deploy, and four hex digits so that two operators never share."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    return f"{stamp}-{deploy}-{uuid.uuid4().hex[:4]}"


class _Barrier:
    """The end of a step: opens when every member has arrived."""

    def __init__(self, members: frozenset[str]) -> None:
        self.waiting = set(members)
        self.open = Event()

    def arrive(self, name: str) -> None:
        self.waiting.discard(name)
        if not self.waiting:
            self.open.set()


class Run:
    """A change in progress on a rig. `revert` brings the rig back to what it was before.

    `owner` is given where the run goes on in a change that another one left open. `lease_s`: the
    nodes go back by themselves after so many seconds without a sign of life (None: they do not).
    """

    def __init__(
        self,
        state: State,
        deploy: str,
        plan: Plan,
        waivers: tuple[tuple[str, str], ...] = (),
        revert: Callable[[Run], str] | None = None,
        owner: Ownership | None = None,
        lease_s: int | None = None,
    ) -> None:
        self.state = real(state)
        self.deploy = deploy
        self.plan = plan
        self.resumed = owner is not None
        self.owner = owner or Ownership(self.state, new_change_id(deploy), deploy)
        self.id = self.owner.change
        self.waivers = waivers
        self.failure: str | None = None
        self.touched = self.owner.nodes
        # the nodes whose engine this run stopped and has not started since
        self.down: set[str] = set()
        # for deploys.common.cli_guards: what an interrupt leaves open
        self.state.__dict__["rigbook_run"] = self
        # by host, what node said about the steps of the last apply there
        self.did: dict[str, list[dict[str, object]]] = {}
        self.closed = False
        # True from the proof on: what is proven stays, whatever the journal's last line meets.
        self.proven = False
        # What the journal keeps beside the steps, for whoever undoes them: set before the first.
        self.context: dict[str, object] = {}
        # set by a revert that leaves the change open, for the same command to go on in
        self.stays_open = False
        self.lease_s = lease_s
        self._armed: str | None = None
        self._revert = revert
        self._barriers: dict[str, _Barrier] = {}
        self._lock = RLock()
        self._reverted = False
        self._said: set[tuple[str, str]] = set()
        self._gone: set[str] = set()

    def show_once(self, host: Host, key: str, show: Callable[[], None]) -> None:
        """Calls `show` once a run for a host: pyinfra runs an operation's body twice."""
        if (host.name, key) not in self._said:
            self._said.add((host.name, key))
            show()

    def host(self, node: str) -> Host:
        """The pyinfra host of a node of this rig."""
        return self.state.inventory.get_host(node)

    def change(self) -> dict[str, object]:
        """The change's header, as node's journal takes it."""
        return {
            "id": self.id,
            "deploy": self.deploy,
            "operator": operator(),
            "run": self.owner.token,
            "waivers": [{"code": code, "reason": reason} for code, reason in self.waivers],
            **({"blob": dict(self.context)} if self.context else {}),
        }

    def touch(self, node: str) -> None:
        """Notes a node before it is changed: a lost connection may leave an open change there.

        Before the first one, each node of the rig gets its keeper, where a lease was asked for;
        StepFailed when one does not.
        """
        with self._lock:
            if self.lease_s is not None and self._armed is None:
                self._arm(self.lease_s)
            if self._armed:
                raise StepFailed(self._armed)
        self.touched.add(node)

    def _arm(self, lease_s: int) -> None:
        self._armed = ""
        for name, wanted in lease.requests(self.plan, lease_s).items():
            self.owner.kept.add(name)
            request = {"change": self.change(), "lease": wanted}
            try:
                call(self.state, self.host(name), "lease", request)
            except StepFailed as error:
                self._armed = str(error)
                raise

    def _release(self) -> None:
        """Ends the change where only a keeper was: nothing was changed there."""
        for name in sorted(self.owner.kept - self.touched):
            request = {"change": self.id, "run": self.owner.token, "reason": "nothing was changed"}
            try:
                call(self.state, self.host(name), "undo", request)
            except StepFailed as error:
                if error.code != "no_change":
                    self.host(name).log(str(error))

    def new_way_in(self) -> None:
        """With a lease: sees that each node takes a new connection; StepFailed names one that does
        not. What cuts the operator off is no good end of a change.
        """
        if self.lease_s is not None:
            for name in sorted(self.touched):
                lease.new_way_in(self.state, name)

    def apply(self, node: str, steps: list[dict[str, object]], timeout_s: int = 120) -> bool:
        """Journalled steps on one node; True when they changed something."""
        self.touch(node)
        request = {"change": self.change(), "steps": steps}
        answer = call(self.state, self.host(node), "apply", request, timeout_s)
        self.did[node] = answer.get("steps", [])
        return bool(answer["changed"])

    def announce(self) -> None:
        """Opens the change on the rig's nodes that have none of it yet: with one rank stopped, the
        check of the pair on another one would start its half anew, in the middle of it.
        """
        for node in self.plan.rig.nodes:
            if node.name not in self.touched:
                self.apply(node.name, [])

    def close(self, status: str, reason: str) -> None:
        """Ends this change on every node that it touched; StepFailed names those that refused."""
        if status == "COMMITTED" and not self.proven:
            self.new_way_in()
        failed = []
        # The journal takes 2000 characters (node/change/apply.py); a host's whole log may be
        # behind it.
        reason = reason if len(reason) <= 1900 else f"{reason[:1900]} …"
        for node in sorted(self.touched | self.owner.kept):
            try:
                request = {"change": self.id, "status": status, "reason": reason}
                request["run"] = self.owner.token
                answer = call(self.state, self.host(node), "close", request)
                for line in (*answer.get("freed", ()), *answer.get("not_freed", ())):
                    self.host(node).log(line)
            except StepFailed as error:
                self._note_lost(error)
                # A node on which nothing had to be changed has no such change.
                if error.code != "no_change":
                    failed.append(str(error))
        if failed:
            raise StepFailed("; ".join(failed))
        self.closed = True
        self.owner.end(settled=True)

    def _note_lost(self, error: StepFailed) -> None:
        if error.code in LOST:
            self.owner.lost = str(error)

    def step(
        self,
        label: str,
        members: Iterable[str],
        work: Callable[[], object],
        wait_s: float | None = None,
    ) -> FunctionCommand:
        """A pyinfra command for one host's part of a step that `members` do at the same time.

        `wait_s`: the longest that the first to end waits for the others, in seconds (None:
        RENDEZVOUS_S).
        """

        def execute(state: State, host: Host) -> bool:
            wait = RENDEZVOUS_S if wait_s is None else wait_s
            return self._execute(label, host, frozenset(members), work, wait)

        return FunctionCommand(execute, (), {})

    def _execute(
        self,
        label: str,
        host: Host,
        members: frozenset[str],
        work: Callable[[], object],
        wait_s: float,
    ) -> bool:
        self.owner.begin()
        if self.failure is None and self.owner.lost is not None:
            self._fail(host, self.owner.lost)
        if self.failure is None:
            try:
                work()
            except StepFailed as error:
                self._note_lost(error)
                self._fail(host, str(error))
            except Exception as error:  # a defect of ours must not leave the rig half changed
                self._fail(host, f"{label}: {type(error).__name__}: {error}")
        with self._lock:
            barrier = self._barriers.setdefault(label, _Barrier(members - self._gone))
            barrier.arrive(host.name)
        if not barrier.open.wait(wait_s) and self.failure is None:
            late = ", ".join(sorted(barrier.waiting))
            self._fail(host, f"{label}: {late} did not finish within {wait_s:g} s")
        if self.failure is None:
            return True
        with self._lock:
            # pyinfra goes on without it: nobody may wait for it at a later step
            self._gone.add(host.name)
            for other in self._barriers.values():
                other.arrive(host.name)
        self._revert_once(host)
        return False

    def _not_closed(self) -> str:
        """What to tell, and to type, when the proof came and a node did not close the change."""
        request = json.dumps({"change": self.id, "status": "COMMITTED", "reason": "proven"})
        return (
            f"the proof came and nothing is undone; change {self.id} is not closed in the journals "
            "named above. Mend what they name, then on that node: "
            f"sudo rignode close {shlex.quote(request)}"
        )

    def rollback(self) -> str:
        """The command that undoes this change."""
        rig = shlex.quote(str(self.state.__dict__.get("rigbook_inventory", "INVENTORY")))
        return f"pyinfra {rig} deploys/rollback.py -y --data change={self.id}"

    def _fail(self, host: Host, line: str) -> None:
        for part in line.splitlines():
            host.log_styled(part, fg="red")
        with self._lock:
            if self.failure is None:
                self._ends(line)
            self.failure = self.failure or line

    def _ends(self, line: str) -> None:
        """Adds to what the run ends with, as the last line on the screen."""
        words: list[str] = self.state.__dict__.setdefault("rigbook_last_words", [])
        words.append(line.partition("\n")[0])

    def _say(self, host: Host, line: str, colour: str) -> None:
        host.log_styled(line, fg=colour)
        self._ends(line)

    def _revert_once(self, host: Host) -> None:
        with self._lock:
            if self._reverted:
                return
            self._reverted = True
            if not self.touched or self.closed:
                if not self.closed:
                    self._release()
                self.owner.end(settled=True)
                return
            if self.owner.lost is not None:
                self._say(host, "nothing is undone: the change is another run's", "red")
                return
            if self.proven:
                self._say(host, self._not_closed(), "red")
                return
            self.owner.end(self._go_back(host))

    def give_back(self, host: Host) -> None:
        """Ends a change that was only for a while: goes back to what was there before, and tells
        it. StepFailed when it did not come back whole; the change stays OPEN then.
        """
        assert self._revert is not None
        with self._lock:
            self._reverted = True
        try:
            line = self._revert(self)
        except StepFailed as error:
            self.owner.end(settled=False)
            raise StepFailed(
                f"could not go back whole: {error}; finish it with: {self.rollback()}"
            ) from None
        self._release()
        self.closed = True
        self.owner.end(settled=True)
        host.log_styled(line, fg="green")

    def _go_back(self, host: Host) -> bool:
        """Undoes the change, and tells it; whether it is settled then."""
        if self._revert is None:
            self._say(host, f"change {self.id} stays OPEN; undo it with: {self.rollback()}", "red")
            return False
        host.log_styled("going back to what was there before", fg="yellow")
        try:
            self._say(host, self._revert(self), "yellow")
        except Exception as error:
            line = f"could not go back whole: {error}; finish it with: {self.rollback()}"
            self._say(host, line, "red")
            if self.lease_s is not None:
                text = f"else the nodes go back by themselves in about {self.lease_s} s"
                host.log_styled(text, fg="yellow")
            return False
        self._release()
        return not self.stays_open
