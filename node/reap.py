"""Orphans of an engine: found, proven, ended by pid and start time; shared memory."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import signal
import stat
import time
from collections.abc import Iterable
from typing import NamedTuple

from node import orphans as node_orphans
from node.change import journal, transaction, unit_step
from node.core import proc, validate
from node.core.errors import Json, NodeError
from node.orphans import (
    Candidate,
    Owners,
    ProcessView,
    Verdicted,
    Wanted,
    is_dead,
    is_stuck,
    judge_all,
)
from node.rules.engine import is_engines

# What a reap is asked to do, and one judged look at the host.

_KEYS = ("change", "unit", "container", "ports", "hold", "term_s", "settle_s", "vram_free_mib",
         "memory_available_bytes", "dry")  # fmt: skip


class ReapRequest(NamedTuple):
    """A checked request."""

    change: Json | None
    unit: str
    container: str
    ports: list[int]
    hold: bool
    term_s: float
    settle_s: float
    wanted: Wanted
    dry: bool


class JudgedView(NamedTuple):
    """One look, judged."""

    view: ProcessView
    orphans: list[Verdicted]
    spared: list[Verdicted]

    def foreign(self, ports: list[int]) -> list[str]:
        """Gives the wanted ports that stay held by somebody else than our own live engine."""
        free = {row.candidate.stat.pid for row in self.orphans}
        free |= {row.candidate.stat.pid for row in self.spared if row.is_own}
        reasons = {row.candidate.stat.pid: row.why for row in self.spared}
        found: list[str] = []
        for port in ports:
            pids = self.view.holders.get(port)
            if pids is None or (pids and all(pid in free for pid in pids)):
                continue
            why = [reasons[pid] for pid in pids if pid in reasons and pid not in free]
            who = node_orphans.holder_words(self.view, port)
            found.append(f"port {port} is held by {who}" + (f": {why[0]}" if why else ""))
        return found


def parse_request(request: Json) -> ReapRequest:
    """Gives the request with every value checked and absent ones filled in."""
    body = validate.keys(request, "request", _KEYS)
    header = body.get("change")
    ports = [
        int(validate.number(row, f"ports[{n}]", 1, 65535))
        for n, row in enumerate(validate.array(body.get("ports") or [], "ports", 64))
    ]
    limits: dict[str, float | None] = {}
    for key, most in (("vram_free_mib", 1 << 24), ("memory_available_bytes", 1 << 50)):
        limits[key] = None if body.get(key) is None else validate.number(body[key], key, 0, most)
    job = ReapRequest(
        None if header is None else journal.parse_change(header),
        validate.unit(body.get("unit", "rigbook-engine.service"), "unit"),
        validate.image(body.get("container", "rigbook-engine"), "container"),
        sorted(set(ports)),
        validate.boolean(body.get("hold", False), "hold"),
        validate.number(body.get("term_s", 10), "term_s", 0, 300),
        validate.number(body.get("settle_s", 30), "settle_s", 0, 600),
        Wanted(limits["vram_free_mib"], limits["memory_available_bytes"]),
        validate.boolean(body.get("dry", False), "dry"),
    )
    if job.hold and job.change is None and not job.dry:
        raise validate.bad("hold needs a change: the unit's state before is kept in it")
    return job


def inspect_host(job: ReapRequest) -> JudgedView:
    """Gives one look at the host with a judgement of each candidate; reads only."""
    owners = Owners(job.unit, job.container)
    view = node_orphans.inspect_processes(job.ports, job.unit, owners.our_container_id())
    judged = judge_all(view, owners)
    return JudgedView(
        view, [row for row in judged if row.is_orphan], [row for row in judged if not row.is_orphan]
    )


# The verdict of a reap: wait until all is as wanted, or say what is not and what that means.

POLL_S = 0.25


class Verdict(NamedTuple):
    """The last look, the verdict (docs/reference/node.md) and the evidence in words."""

    seen: JudgedView
    name: str
    evidence: str


class _Now(NamedTuple):
    """What is not as wanted at one moment, each in words."""

    alive: list[str]
    held: list[str]
    lacks: list[str]
    listed: list[int]
    memory: Json

    def is_settled(self, seen: JudgedView) -> bool:
        """Gives True when nothing is left to wait for."""
        return not (self.alive or self.held or self.lacks or self.listed or seen.orphans)


def prove_verdict(job: ReapRequest, seen: JudgedView, known: list[Candidate]) -> Verdict:
    """Gives the verdict, at the latest after settle_s. `known` are those that were signalled."""
    deadline = time.monotonic() + job.settle_s
    pids = {one.stat.pid for one in known}
    while True:
        memory = node_orphans.measure_memory()
        now = _Now(
            alive=node_orphans.survivors(known),
            held=seen.foreign(job.ports),
            lacks=node_orphans.memory_lacks(job.wanted, memory),
            listed=[row["pid"] for row in memory["processes"] or [] if row["pid"] in pids],
            memory=memory,
        )
        if now.is_settled(seen):
            return Verdict(seen, "clean", "")
        if time.monotonic() >= deadline:
            return _unsettled(job, seen, now)
        time.sleep(POLL_S)
        seen = inspect_host(job)


def _unsettled(job: ReapRequest, seen: JudgedView, now: _Now) -> Verdict:
    """Gives the verdict on a host that did not settle."""
    listed = now.memory["processes"] or []
    ports = [] if now.held else [p for p in job.ports if p in seen.view.holders]
    held = [f"port {p} is held by {node_orphans.holder_words(seen.view, p)}" for p in ports]
    said = [*now.alive, *now.held, *held, *now.lacks]
    said.append(
        f"the driver lists: {', '.join(node_orphans.computing_pids(listed)) or 'no process'}"
    )
    # a socket without a process is the kernel's: nobody can be ended for it
    unseen = any(seen.view.holders.get(port) == [] for port in job.ports)
    if now.alive or unseen or now.listed:
        return Verdict(seen, "needs_reboot", "; ".join(said))
    if seen.orphans or now.held:
        said += [f"pid {row.candidate.stat.pid} is there again: {row.why}" for row in seen.orphans]
        return Verdict(seen, "refused", "; ".join(said))
    # memory that a spared process holds is its own: a reboot is no answer to that
    spared = {row.candidate.stat.pid for row in seen.spared}
    if any(row["pid"] in spared for row in listed):
        return Verdict(seen, "clean", "; ".join(said))
    return Verdict(seen, "needs_reboot", "; ".join(said))


# End processes by identity: a pidfd each, looked at again once it is open, TERM, then KILL.

# the same numbers on every architecture; Python has them from 3.9 on (os.pidfd_open)
_PIDFD_SEND_SIGNAL = 424
_PIDFD_OPEN = 434


class Ended(NamedTuple):
    """What became of one process.

    `how` is "TERM" or "KILL" (it ended after that), "gone" (by itself), "changed" (the pid is
    another process now: nothing was signalled) or "alive" (KILL did not end it in its time).
    """

    candidate: Candidate
    how: str


def _syscall(number: int, *args: int) -> int:
    """Gives the result of a system call. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    words = [ctypes.c_long(arg) for arg in args]
    result = int(libc.syscall(ctypes.c_long(number), *words))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def pidfd_open(pid: int) -> int | None:
    """Gives a descriptor of the process, or None when there is none of that pid.

    Raises NodeError on a kernel without pidfds (before Linux 5.3).
    """
    try:
        return _syscall(_PIDFD_OPEN, pid, 0)
    except OSError as error:
        if error.errno == errno.ESRCH:
            return None
        raise NodeError(
            f"pidfd_open: {error.strerror}: nothing is ended without it", "no_pidfd",
            "Linux 5.3 or newer is needed",
        ) from None  # fmt: skip


def send(fd: int, number: int) -> None:
    """Signal the process of a pidfd; one that is gone is no error."""
    with contextlib.suppress(ProcessLookupError):
        _syscall(_PIDFD_SEND_SIGNAL, fd, number, 0, 0)


def wait(fds: Iterable[int], seconds: float) -> set[int]:
    """Gives the pidfds whose processes have ended; returns when all have, or after `seconds`."""
    pending, ended = set(fds), set()
    poll = select.poll()
    for fd in pending:
        poll.register(fd, select.POLLIN)
    deadline = time.monotonic() + seconds
    while pending:
        left = deadline - time.monotonic()
        for fd, _ in poll.poll(max(0, int(left * 1000))):
            poll.unregister(fd)
            pending.discard(fd)
            ended.add(fd)
        if left <= 0:
            break
    return ended


def is_same(one: Candidate) -> bool | None:
    """Gives True when the pid is still the process that was judged, None when it is gone."""
    now = proc.stat(one.stat.pid)
    if now is None or is_dead(now):
        return None
    if now.start_ticks != one.stat.start_ticks or proc.boot_id() != one.boot_id:
        return False
    if now.state == "D" and is_stuck(now):
        return True
    argv = proc.argv(one.stat.pid)
    return proc.exe(one.stat.pid) == one.exe and (argv[0] if argv else now.comm) == one.argv0


def end_process(candidates: list[Candidate], term_s: float, kill_s: float) -> list[Ended]:
    """End the processes: TERM, up to `term_s` seconds, KILL, up to `kill_s` seconds."""
    fds: dict[int, Candidate] = {}
    results: list[Ended] = []
    try:
        for one in candidates:
            fd = pidfd_open(one.stat.pid)
            # compared only now: from here on the descriptor cannot become another process
            same = None if fd is None else is_same(one)
            if fd is not None:
                fds[fd] = one
            if not same:
                results.append(Ended(one, "gone" if same is None else "changed"))
        todo = [fd for fd, one in fds.items() if all(row.candidate is not one for row in results)]
        for number, name, seconds in (
            (signal.SIGTERM, "TERM", term_s),
            (signal.SIGKILL, "KILL", kill_s),
        ):
            for fd in todo:
                send(fd, number)
            ended = wait(todo, seconds)
            results += [Ended(fds[fd], name) for fd in todo if fd in ended]
            todo = [fd for fd in todo if fd not in ended]
        results += [Ended(fds[fd], "alive") for fd in todo]
    finally:
        for fd in fds:
            os.close(fd)
    return results


# reap: end the engine processes that no live supervisor owns, and prove that they are gone.

MAX_ROUNDS = 4
KILL_S = 5.0  # a killed process is gone at once, or it waits in the kernel


class _Reaping:
    """One reap under way: its journal, its step, and what became of each process."""

    def __init__(self, job: ReapRequest, log: transaction.Transaction) -> None:
        self.job = job
        self.log = log
        left = [row for row in log.rows if row["op"] == "reap" and row["state"] == "intent"]
        # of a run that was killed: this one finishes it
        self.entry: Json | None = left[0] if left else None
        self.ended: list[Json] = []
        self.known: list[Candidate] = []
        self.unit: Json | None = None

    def announce(self, orphans: list[Verdicted]) -> None:
        """Write who is about to be signalled, before any signal."""
        before = self.entry["identities"] if self.entry else []
        new = [row.as_json() for row in orphans if row.as_json() not in before]
        if new or self.entry is None:
            self.entry = self.log.begin("reap", identities=before + new, verdict=None)

    def end(self, orphans: list[Verdicted]) -> None:
        """End these, and note how."""
        reasons = {row.candidate.stat.pid: row.why for row in orphans}
        found = [row.candidate for row in orphans]
        for one, how in end_process(found, self.job.term_s, KILL_S):
            self.ended.append({**one.as_json(), "how": how, "why": reasons[one.stat.pid]})
            if how in ("TERM", "KILL", "alive"):
                self.known.append(one)

    def release(self, verdict: str) -> None:
        """Give the unit back; after "needs_reboot" it stays stopped, since it could not start."""
        said = unit_step.release_hold(self.job.unit, self.log, verdict != "needs_reboot")
        if said and self.unit is None:
            self.unit = {"unit": self.job.unit, "held": False, "before": None,
                         "why": "a run that was killed had held it"}  # fmt: skip
        if self.unit is not None:
            self.unit["restored"] = said or "nothing to restore"

    def finish(self, verdict: Verdict) -> None:
        """Write the verdict: with it the step is done."""
        if self.entry is not None:
            self.entry.update(state="done", verdict=verdict.name, evidence=verdict.evidence)
            self.log.write()


def reap(request: Json) -> Json:
    """Find the orphans, end them, and prove it.

    Gives verdict, ended, spared, ports, memory_before, memory_after, evidence, unit, change and
    took_s (docs/reference/node.md). Raises NodeError for a bad request, a held lock, another open
    change, or a unit that does not stop.
    """
    started = time.monotonic()
    job = parse_request(request)
    before = node_orphans.measure_memory()
    node_orphans.check_possible(job.wanted, before)
    if job.dry:
        answer = _dry(job, before)
    else:
        with transaction.opened(job.change, "reap") as log:
            run = _Reaping(job, log)
            try:
                verdict = _reap(run)
            except BaseException:
                # the first error is the one to tell; the journal keeps what this one leaves
                with contextlib.suppress(NodeError, OSError):
                    run.release("")
                raise
            run.release(verdict.name)
            run.finish(verdict)
        answer = _answer(job, verdict.seen, before, verdict.name, verdict.evidence)
        answer.update(ended=run.ended, unit=run.unit, change=log.change_id)
    return {**answer, "took_s": round(time.monotonic() - started, 3)}


def _answer(job: ReapRequest, seen: JudgedView, before: Json, verdict: str, evidence: str) -> Json:
    """Gives the answer without what was done."""
    return {
        "verdict": verdict,
        "ended": [],
        "spared": [row.as_json() for row in seen.spared],
        "ports": node_orphans.port_rows(seen.view, job.ports),
        "memory_before": before,
        "memory_after": node_orphans.measure_memory(),
        "evidence": evidence,
        "unit": None,
        "change": None,
    }


def _dry(job: ReapRequest, before: Json) -> Json:
    """Gives what a reap would do; nothing is written or signalled."""
    seen = inspect_host(job)
    foreign = seen.foreign(job.ports)
    verdict = "refused" if foreign else "orphans" if seen.orphans else "nothing"
    answer = _answer(job, seen, before, verdict, "; ".join(foreign))
    answer["ended"] = [{**row.as_json(), "how": "would be ended"} for row in seen.orphans]
    return answer


def _reap(run: _Reaping) -> Verdict:
    """Look, hold, end, and prove."""
    job = run.job
    seen = inspect_host(job)
    foreign = seen.foreign(job.ports)
    if foreign:
        return Verdict(seen, "refused", "; ".join(foreign))
    if seen.orphans:
        run.announce(seen.orphans)
        if job.hold:
            run.unit = unit_step.stop_and_hold(job.unit, run.log)
            seen = inspect_host(job)  # what the stop left
            foreign = seen.foreign(job.ports)
            if foreign:
                return Verdict(seen, "refused", "; ".join(foreign))
    for _ in range(MAX_ROUNDS):
        if not seen.orphans or any(row["how"] == "alive" for row in run.ended):
            break
        run.announce(seen.orphans)
        run.end(seen.orphans)
        seen = inspect_host(job)
    verdict = prove_verdict(job, seen, run.known)
    if verdict.name == "clean" and run.entry is None:
        return verdict._replace(name="nothing")
    return verdict


# shm: remove the engine's shared memory segments that no process maps or has open.

FOLDER = "/dev/shm"
# how long `shm` waits for young segments to be old enough
WAIT_S = 5.0
_GONE = " (deleted)"
_YOUNG = "s old: one that is being made is not mapped yet"


class Segment(NamedTuple):
    """A file of FOLDER as it was seen; `age_s` is since its last change of any kind."""

    name: str
    inode: int
    size: int
    uid: int
    age_s: float


class Users(NamedTuple):
    """Who uses which inode, and the processes whose maps or files cannot be read."""

    pids: dict[int, set[int]]
    unreadable: list[int]


def segments(fd: int) -> list[Segment]:
    """Gives the engine's segments in the opened folder, by name; links are none."""
    found: list[Segment] = []
    now = time.time()
    for name in sorted(filter(is_engines, os.listdir(fd))):
        try:
            info = os.stat(name, dir_fd=fd, follow_symlinks=False)
        except FileNotFoundError:
            continue
        if stat.S_ISREG(info.st_mode):
            age = now - max(info.st_mtime, info.st_ctime)
            found.append(Segment(name, info.st_ino, info.st_size, info.st_uid, age))
    return found


def users(fd: int, wanted: set[int]) -> Users:
    """Gives the processes that map or have open one of these inodes of the folder's device."""
    device = os.fstat(fd).st_dev
    column = b"%02x:%02x" % (os.major(device), os.minor(device))
    found = Users({inode: set() for inode in wanted}, [])
    for pid in proc.pids():
        try:
            with open(f"/proc/{pid}/maps", "rb") as file:
                raw = file.read()
            numbers = os.listdir(f"/proc/{pid}/fd")
        except PermissionError:
            # some sandboxes hide pid 1, even from root; init maps no engine's segment
            found.unreadable.extend([pid] if pid != 1 else [])
            continue
        except OSError:
            continue  # it has ended
        for line in raw.splitlines() if column in raw else []:
            fields = line.split(None, 5)
            if len(fields) > 4 and fields[3] == column and int(fields[4]) in wanted:
                found.pids[int(fields[4])].add(pid)
        for number in numbers:
            inode = _opened_inode(pid, number, device)
            if inode in wanted:
                found.pids[inode].add(pid)
    return found


def _opened_inode(pid: int, number: str, device: int) -> int:
    """Gives the inode of a descriptor that points to a file of the device, else 0."""
    path = f"/proc/{pid}/fd/{number}"
    try:
        target = os.readlink(path)
        if target.endswith(_GONE) or not is_engines(os.path.basename(target)):
            return 0
        info = os.stat(path)
    except OSError:
        return 0
    return info.st_ino if info.st_dev == device else 0


def _why_kept(one: Segment, used: Users, min_age_s: float) -> str:
    """Gives why a segment is kept, "" when it may go."""
    if used.unreadable:
        return f"whether pid {used.unreadable[0]} maps it cannot be read"
    pids = sorted(used.pids[one.inode])
    if pids:
        return f"in use by pid {', '.join(map(str, pids))}"
    if one.age_s < min_age_s:
        return f"{one.age_s:.1f} {_YOUNG}"
    return ""


def shm(request: Json) -> Json:
    """Remove unused segments; gives removed, kept (each with why), freed_bytes and change.

    Raises NodeError for a bad request, a held lock or another open change.
    """
    body = validate.keys(request, "request", ("change", "min_age_s", "dry"))
    header = body.get("change")
    checked = None if header is None else journal.parse_change(header)
    min_age_s = validate.number(body.get("min_age_s", 5), "min_age_s", 0, 86400)
    dry = validate.boolean(body.get("dry", False), "dry")
    with transaction.opened(None if dry else checked, "shm") as log:
        fd = os.open(FOLDER, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return _clean(fd, min_age_s, dry, log)
        finally:
            os.close(fd)


def _clean(fd: int, min_age_s: float, dry: bool, log: transaction.Transaction) -> Json:
    """Do it in the opened folder."""
    found = segments(fd)
    used = users(fd, {one.inode for one in found})
    kept = {one.name: _why_kept(one, used, min_age_s) for one in found}
    left_s = [min_age_s - one.age_s for one in found if kept[one.name].endswith(_YOUNG)]
    if left_s and max(left_s) <= WAIT_S and not dry:  # an engine that has just ended leaves such
        time.sleep(max(left_s) + 0.1)
        found = segments(fd)
        used = users(fd, {one.inode for one in found})
        kept = {one.name: _why_kept(one, used, min_age_s) for one in found}
    going = [one for one in found if not kept[one.name]]
    removed: list[Segment] = going
    if going and not dry:
        entry = log.begin("shm", segments=[one._asdict() for one in going], removed=[])
        used = users(fd, {one.inode for one in going})  # again, right before they go
        removed = []
        for one in going:
            kept[one.name] = _why_kept(one, used, 0) or _unlink(fd, one)
            removed += [] if kept[one.name] else [one]
        entry.update(state="done", removed=[one.name for one in removed])
        log.write()
    return {
        "removed": [_row(one) for one in removed],
        "kept": [{**_row(one), "why": kept[one.name]} for one in found if kept[one.name]],
        "freed_bytes": sum(one.size for one in removed),
        "change": log.change_id,
    }


def _unlink(fd: int, one: Segment) -> str:
    """Remove a segment when its name is still the file that was judged; gives why not, or ""."""
    try:
        if os.stat(one.name, dir_fd=fd, follow_symlinks=False).st_ino != one.inode:
            return "another segment has its name now"
        os.unlink(one.name, dir_fd=fd)
    except FileNotFoundError:
        return "gone meanwhile"
    return ""


def _row(one: Segment) -> Json:
    """Gives a segment for the answer."""
    return {"name": one.name, "size": one.size, "uid": one.uid, "inode": one.inode}
