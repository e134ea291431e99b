"""One change of a rig while it runs: what its hosts' greenlets share.

pyinfra runs an operation on all hosts at once and goes on with the hosts that did not fail. A rig
is one thing: when a step fails on one host, every host stops there and the rig goes back to what
it was. `Run.step` does that: hosts that take part in a step wait for each other at its end, and
one of them calls `revert`.
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import json
import os
import secrets
import shlex
import socket
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import gevent
from gevent.event import Event
from gevent.lock import RLock
from pyinfra.api import FunctionCommand, Host, State, StringCommand
from pyinfra.api.exceptions import ConnectError

from facts import pack
from facts.node import (
    AskFailed,
    as_root,
    ask_node,
    bounded,
    document_of,
    in_host,
    late,
    real,
    reconnect,
)
from node.rules.engine import BEAT_S, DEAD_S, LEASE_PORT
from node.rules.text import printable
from schema.host import state_folder
from schema.plan import Node, Plan

# Calls node's changing verbs on a host, and turns what they answer into results or one line.


class StepFailed(Exception):
    """A step did not work: `str()` is the one clear line for the operator, with the evidence.

    `code` is node's own word for it, empty where node did not answer.
    """

    def __init__(self, line: str, code: str = "") -> None:
        # a log's last lines stand below each other
        super().__init__("\n".join(map(printable, line.split("\n"))))
        self.code = code


def call(
    state: State,
    host: Host,
    verb: str,
    request: dict[str, Any],
    timeout_s: int = 120,
) -> dict[str, Any]:
    """Runs a changing verb of node on `host` (installing node by its hash first) and answers its
    JSON document. Raises StepFailed with node's own line, or what the host said instead.

    The request goes through stdin: every user of a host can read its command lines.
    """
    sent = pack.install_call(verb, request)
    command = StringCommand(bounded(sent.line, timeout_s))
    try:
        _, output = in_host(
            state,
            host,
            host.run_shell_command,
            command,
            print_output=state.print_output,
            print_input=state.print_input,
            **as_root(host),
            _stdin=sent.stdin,
            limit_s=timeout_s,
        )
    except TimeoutError:
        raise StepFailed(late(host.name, verb, timeout_s)) from None
    except Exception as error:  # any transport error: paramiko, gevent, OSError
        raise StepFailed(f"{host.name}: {verb}: the connection failed: {error}") from error
    try:
        return document_of(host.name, verb, output, timeout_s)
    except AskFailed as error:
        raise StepFailed(str(error), error.code) from None


def run_as_root(state: State, host: Host, command: str, limit_s: int) -> tuple[bool, Any]:
    """Runs a sh command as root, ended after `limit_s`: whether it did its work, and what it wrote.
    Raises StepFailed where no answer came.
    """
    words = " ".join(command.split()[:3])
    asked = StringCommand(bounded(command, limit_s))
    try:
        done, output = in_host(
            state, host, host.run_shell_command, asked, limit_s=limit_s, **as_root(host)
        )
    except TimeoutError:
        raise StepFailed(late(host.name, words, limit_s)) from None
    except Exception as error:  # any transport error: paramiko, gevent, OSError
        raise StepFailed(f"{host.name}: {words}: the connection failed: {error}") from error
    return done, output


# Which runs of this machine live: a file for each change, held by flock as long as its run lives.
#
# So a run that was killed is known to be dead at once here; elsewhere its silence has to grow old.


def _path(change: str) -> Path:
    return state_folder() / "runs" / change


def is_alive_here(change: str) -> bool | None:
    """Whether a run of this machine has the change now; None: none of this machine ever had it."""
    try:
        fd = os.open(_path(change), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except OSError:
        return True
    finally:
        os.close(fd)


def died_here() -> bool:
    """Whether a run of this machine is dead, and nobody was told what became of its change."""
    try:
        changes = [path.name for path in _path("").iterdir()]
    except OSError:
        return False
    return any(is_alive_here(change) is False for change in changes)


def forget_run(change: str) -> None:
    """What became of a dead run's change is told: it is none of this machine's any more."""
    with contextlib.suppress(OSError):
        _path(change).unlink()


def deploy_here(change: str) -> str | None:
    """The deploy of the run of this machine that has the change now; None: there is none."""
    if not is_alive_here(change):
        return None
    try:
        return _path(change).read_text()
    except OSError:
        return None


class AliveHere:
    """One run's file. A folder that cannot be written is no reason not to run.

    `succeeds` says that a run of this machine had the change before, and is dead.
    """

    def __init__(self, change: str, deploy: str) -> None:
        self._path = _path(change)
        self._deploy = deploy
        self._fd = -1
        self.succeeds = False

    def hold(self) -> bool:
        """Says that the run lives, until `let_go` or its end, unless another one that lives has the
        change; `succeeds`.
        """
        if self._fd < 0:
            with contextlib.suppress(OSError):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                had = self._path.exists()
                fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    os.close(fd)
                else:
                    os.truncate(fd, 0)
                    os.write(fd, self._deploy.encode())
                    self._fd, self.succeeds = fd, had
        return self.succeeds

    @property
    def held(self) -> bool:
        """Whether this run has the file."""
        return self._fd >= 0

    def let_go(self, settled: bool) -> None:
        """Ends it; of a change that is not settled the file stays: its run is dead."""
        if self._fd < 0:
            return
        if settled:
            with contextlib.suppress(OSError):
                self._path.unlink()
        os.close(self._fd)
        self._fd, self.succeeds = -1, False


# A run's ownership of a change: its token, the signs that it lives, and how it takes one up.
#
# node compares the token at each write (node/change/transaction.py; docs/adr/0022).

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
    (operations/run.py).
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


# The lease of a run's change: each node of the rig goes back by itself when the run falls silent.
#
# The keepers (node/lease) are there before the first step. They agree with each other, so a node
# that
# the run does not change has one as well (docs/adr/0027).

LOOK_S = 60
AS_ROOT = "cat /proc/sys/kernel/random/boot_id"


def lease_requests(plan: Plan, seconds: int) -> dict[str, dict[str, Any]]:
    """What each node's keeper gets: the lease in seconds, a key of this change, who its peers are.

    The addresses are those of the fabric and of the LAN: one cut cable does not keep the keepers
    from agreeing.
    """
    key = secrets.token_hex(32)
    nodes = plan.rig.nodes
    return {
        node.name: {
            "seconds": seconds,
            "key": key,
            "node": node.name,
            "head": node is plan.rig.head,
            "port": LEASE_PORT,
            "addresses": _addresses(node),
            "peers": {other.name: _addresses(other) for other in nodes if other is not node},
        }
        for node in nodes
    }


def _addresses(node: Node) -> list[str]:
    found = (node.fabric_address, node.lan_address)
    return [str(address) for address in found if address is not None]


def lease_new_way_in(state: State, name: str) -> None:
    """Sees that a node still takes a new connection and lets it be root; StepFailed when not.

    What a change does to network, sshd, sudo or a firewall shows only there: the connection of the
    run itself goes on.
    """
    host = state.inventory.get_host(name)
    try:
        reconnect(state, host, LOOK_S)
    except (ConnectError, OSError, EOFError) as error:
        raise StepFailed(f"{name}: no new connection comes about: {error}") from error
    if not host.connected:
        raise StepFailed(f"{name}: no new connection comes about")
    done, output = run_as_root(state, host, AS_ROOT, LOOK_S)
    if not done:
        raise StepFailed(
            f"{name}: a new connection cannot become root: {printable(output.stderr[-200:])}"
        )


# A verb of node that takes long: while it works, the operator sees how far it is.

# A line for the operator this often while a host works.
REPORT_S = 10.0


def call_with_progress(
    state: State,
    host: Host,
    verb: str,
    request: Mapping[str, Any],
    timeout_s: int,
    progress: Callable[[], Iterable[str]],
) -> dict[str, Any]:
    """node's answer to `verb`; every REPORT_S seconds until then the lines that `progress` gives.

    `timeout_s`: the longest that it may take. StepFailed as `call` raises it.
    """
    job = gevent.spawn(_caught, state, host, verb, dict(request), timeout_s)
    while not job.ready():
        job.join(REPORT_S)
        for line in () if job.ready() else progress():
            host.log(line)
    answer = job.get()
    if isinstance(answer, StepFailed):
        raise answer
    return dict(answer)


def _caught(state: State, host: Host, verb: str, request: dict[str, Any], timeout_s: int) -> Any:
    """The answer or the StepFailed: gevent prints what a greenlet raises."""
    try:
        return call(state, host, verb, request, timeout_s)
    except StepFailed as error:
        return error


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
        # for deploys.plans.cli: what an interrupt leaves open
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
        for name, wanted in lease_requests(self.plan, lease_s).items():
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
                lease_new_way_in(self.state, name)

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
