"""Before a start: memory, page cache, orphans; a unit held stopped."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from node import gpus, units
from node.change import journal, transaction, unit_step
from node.change.kinds import Steps
from node.core import errors, files, proc, systemctl, validate
from node.core.errors import CannotRead, Json, NodeError, io_reason
from node.core.run import TimedOut, run
from node.core.systemctl import BOOTED, inspect_unit
from node.docker import api
from node.engine import config
from node.engine import peer as engine_peer
from node.engine.config import Engine
from node.orphans import Candidate, inspect_processes, measure_memory, own_ancestors
from node.reap import reap, shm
from node.rules.engine import (
    GIB,
    MOST_TAKEN,
    card_need,
    is_assigned,
    is_leaked,
    is_unified,
    share_of,
)
from node.transfer import manifest

# Whether the engine's start finds the memory that it will ask for, on this host, now.
#
# For a host that starts its engine with no operator at hand; node/rules/engine.py has the rule.


class Shortage(NamedTuple):
    """Why the start would fail. `system` is the need in bytes where it is the system's memory."""

    evidence: str
    system: int | None


def system_need(engine: Engine) -> int | None:
    """Gives the bytes of system memory that the start needs; None where the GPUs have their own.

    Raises CannotRead when the GPUs cannot be read.
    """
    if not engine.needs_nvidia:
        return engine.memory.cpu_bytes
    if any(is_unified(row["name"]) for row in gpus.read_gpus()["gpus"]):
        return share_of(int(gpus.read_memory()["total"]), engine.memory.gpu_memory_utilization)
    return None


def caches_in_the_way(need: int) -> bool:
    """Gives True when MemFree is below a need: some loaders count that, not MemAvailable."""
    return int(gpus.read_memory()["free"]) < need


def shortage(engine: Engine) -> Shortage | None:
    """Gives why the memory is not enough, or None when it is. Raises CannotRead."""
    need = system_need(engine)
    if need is not None:
        seen = gpus.read_memory()
        if seen["available"] >= need:
            return None
        users = len(gpus.read_gpus()["processes"]) if engine.needs_nvidia else 0
        return Shortage(_system(seen, need, users), need)
    report = gpus.read_gpus()
    rows = [
        row
        for row in report["gpus"]
        if is_assigned(int(row["index"]), str(row["uuid"]), engine.memory.devices)
    ]
    rows = sorted(rows, key=lambda row: int(row["index"]))[: engine.memory.gpus]
    if len(rows) < engine.memory.gpus:
        return Shortage(f"{len(rows)} GPUs for {engine.memory.gpus} ranks", None)
    for row in rows:
        found = _card(row, engine.memory.gpu_memory_utilization, report["processes"])
        if found:
            return Shortage(found, None)
    return None


def memory_margin(engine: Engine) -> str | None:
    """Gives in words that the start itself may take what it needs, where that was measured.

    The start goes on: vLLM looks by itself, and refuses within seconds. Raises CannotRead.
    """
    need = system_need(engine) if engine.needs_nvidia else None
    seen = gpus.read_memory()
    took = seen["start_took"]
    if need is None or took is None or seen["available"] - took >= need:
        return None
    return (
        f"{_gib(seen['available'])} available, {_gib(took)} of it went to the last start itself, "
        f"{_gib(need)} needed: vLLM may refuse to start"
    )


def _system(seen: Json, need: int, users: int) -> str:
    lost = seen["unaccounted"]
    leaked = is_leaked(lost, need - seen["available"], users)
    return (
        f"{_gib(seen['available'])} available, {_gib(need)} needed (MemFree "
        f"{_gib(seen['free'])}, page cache {_gib(seen['page_cache'])}, "
        f"Shmem {_gib(seen['shmem'])})"
        + (f"; no process holds {_gib(lost)}: only a reboot brings it back" if leaked else "")
    )


def _card(row: Json, share: float, processes: list[Json]) -> str | None:
    """Gives what a GPU with memory of its own lacks, with those who hold it."""
    name = f"GPU {row['index']} ({row['name']})"
    total, free = row["memory_total_mib"], row["memory_free_mib"]
    if total is None or free is None:
        return f"{name} does not report its memory"
    need = card_need(int(total), row["memory_used_mib"], int(free), share)
    if free >= need:
        return None
    holders = [
        f"pid {p['pid']} {p['process_name']} {p['used_mib']} MiB"
        for p in processes
        if p["gpu_uuid"] == row["uuid"]
    ]
    held = ", ".join(holders) or "no listed process (another namespace, or a driver fault)"
    return f"{name}: {free} of {total} MiB free, {need} MiB needed; held by: {held}"


def _gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB"


# Measures what the engine's own start takes of a unified memory before vLLM looks at it.
#
# prelaunch sees what is available. Then docker, Python, CUDA and NCCL start, and vLLM says in its
# log
# what is free to it: about 102 GiB where 110 to 111 were available (GLM-5.3-Flash-EXL3-2x#47).

# of a start that passes and of one that fails (vllm, v1/worker/gpu_worker.py and utils.py)
_SEEN = re.compile(r"Free memory on device (?:\S+ )?\((\d+(?:\.\d+)?)/[\d.]+ GiB\) on startup")


def note_start(available: int) -> None:
    """Keep what is available as a start begins, in bytes. A failure is logged, and no more."""
    try:
        before = gpus.load_start_memory()
        now = {**before, "begun_unix_s": int(time.time()), "available": available}
        files.save_state(gpus.start_memory_path(), now)
    except OSError as error:
        errors.log(f"{gpus.start_memory_path()}: {error}", errors.WARNING)


def measure_start(engine: Engine) -> None:
    """Compare what was available as the last start began with what vLLM then saw, and keep it.

    A start that vLLM said nothing of is passed over, and a difference above MOST_TAKEN: somebody
    else took that. A failure is logged.
    """
    try:
        state = gpus.load_start_memory()
        begun, available = state["begun_unix_s"], state["available"]
        if begun is None or available is None:
            return
        until = begun + int(engine.start_budget_s)
        for line in units.log_between(engine.unit, begun, until):
            seen = _SEEN.search(line)
            taken = available - int(float(seen[1]) * GIB) if seen else None
            if taken is not None and 0 <= taken <= MOST_TAKEN:
                state["taken"] = taken
        files.save_state(gpus.start_memory_path(), {**state, "begun_unix_s": None})
    except OSError as error:
        errors.log(f"{gpus.start_memory_path()}: {error}", errors.WARNING)


# caches: drop the page cache once, before a launch, and only where the memory is needed.

DROP = "/proc/sys/vm/drop_caches"
# pages and slab objects (Documentation/admin-guide/sysctl/vm.rst)
_ALL = b"3\n"
SYNC_S = 120.0


def _measure() -> Json:
    """Gives the memory in bytes and the GPU's processes."""
    return {**measure_memory(), **gpus.read_memory()}


def _met(seen: Json, available: float | None, free: float | None) -> bool:
    """Gives True when both needs are met; none is met always."""
    return (available is None or seen["available"] >= available) and (
        free is None or seen["free"] >= free
    )


def _engines() -> list[Candidate]:
    """Gives the engine processes that live on this host, loading or serving."""
    view = inspect_processes((), "", None)
    ours = own_ancestors(view.stats)
    return [
        one for pid, one in sorted(view.candidates.items()) if one.is_proven and pid not in ours
    ]


def engines_running(name: str) -> str:
    """Gives what loads or runs an engine on this host now, in words, or "".

    `name` is the container's name, and the unit's without its suffix. A unit that starts this very
    program (its ExecStartPre) does not count.
    """
    for one in _engines():
        return f"pid {one.stat.pid} {one.argv0[:60]} is an engine ({one.signs[0]})"
    service = f"{name}.service"
    try:
        if os.path.exists(api.SOCKET):
            row = api.get(f"/containers/{name}/json", absent_ok=True)
            if row and row["State"].get("Running"):
                return f"the container {name} runs"
    except CannotRead as error:
        return f"whether the container {name} runs is not known: {error}"
    if proc.unit_of(proc.cgroup(os.getpid())) == service or not os.path.isdir(BOOTED):
        return ""
    now = inspect_unit(service)["active"]
    return f"the unit {service} is {now}" if now in ("active", "activating", "reloading") else ""


def caches(request: Json) -> Json:
    """Drop the caches when a need is not met; gives verdict, met, why, before, after and change.

    Verdict: "nothing" (no need, or met without), "refused" (an engine loads or runs), "dropped",
    "would_drop" (dry). Raises NodeError for a bad request, a held lock, another open change, and
    where the kernel does not let us.
    """
    keys = ("change", "need_available_bytes", "need_free_bytes", "unless_running", "dry")
    body = validate.keys(request, "request", keys)
    header = body.get("change")
    checked = None if header is None else journal.parse_change(header)
    needs: list[float | None] = [
        None if body.get(key) is None else validate.number(body[key], key, 0, 1 << 50)
        for key in ("need_available_bytes", "need_free_bytes")
    ]
    name = validate.image(body.get("unless_running", "rigbook-engine"), "unless_running")
    dry = validate.boolean(body.get("dry", False), "dry")
    with transaction.opened(None if dry else checked, "caches") as log:
        return _caches(needs, name, dry, log)


def _caches(needs: list[float | None], name: str, dry: bool, log: transaction.Transaction) -> Json:
    """Do it, with the request checked."""
    before = _measure()
    if needs == [None, None] or _met(before, *needs):
        why = "no need was given" if needs == [None, None] else "there is enough"
        return _answer("nothing", why, before, before, needs, log)
    busy = engines_running(name)
    if busy:
        why = f"{busy}; caches are dropped before a launch only"
        return _answer("refused", why, before, before, needs, log)
    if dry:
        return _answer("would_drop", "the need is not met", before, before, needs, log)
    fd = _open()
    try:
        entry = log.begin("caches", before=before)
        _drop(fd)
    finally:
        os.close(fd)
    after = _measure()
    entry.update(state="done", after=after)
    log.write()
    gained = after["free"] - before["free"]
    return _answer("dropped", f"MemFree rose by {gained} bytes", before, after, needs, log)


def _answer(
    verdict: str,
    why: str,
    before: Json,
    after: Json,
    needs: list[float | None],
    log: transaction.Transaction,
) -> Json:
    """Gives the answer."""
    return {"verdict": verdict, "met": _met(after, *needs), "why": why, "before": before,
            "after": after, "change": log.change_id}  # fmt: skip


def _open() -> int:
    """Gives the opened switch. Raises NodeError (`no_drop_caches`) where we may not write it."""
    try:
        return os.open(DROP, os.O_WRONLY | os.O_CLOEXEC)
    except OSError as error:
        raise _refused(error) from None


def _refused(error: OSError) -> NodeError:
    """Gives the error for a kernel that does not let us."""
    return NodeError(
        f"{DROP}: {error.strerror}: the caches cannot be dropped here", "no_drop_caches",
        "run as root on the host itself, not in a container",
    )  # fmt: skip


def _drop(fd: int) -> None:
    """Write dirty pages back, since they cannot be dropped; then drop once."""
    try:
        done = run(["sync"], SYNC_S)
    except TimedOut:
        raise NodeError(f"sync did not end in {SYNC_S:g} s", "io", "look for a slow disk") from None
    if done.rc:
        raise NodeError(f"sync: {done.last_line()}", "io")
    try:
        os.write(fd, _ALL)
    except OSError as error:
        raise _refused(error) from None


# What prelaunch clears away: the work of the verbs reap, shm and caches, without a change; and the
# weights that it does not let an engine load.
#
# Nothing is held: it runs inside the start of the very unit, and takes no lock, for which another
# verb may wait that has asked for this start.

MIB = 1 << 20


def end_orphans(engine: Engine) -> list[str]:
    """Ends engine processes that nobody owns and removes unmapped segments; gives what was done.

    Raises NodeError (`orphans`) when the way is not free: a port that somebody else holds, or
    memory that only a reboot frees.
    """
    named = {} if engine.container is None else {"container": engine.container}
    answer = reap({"unit": engine.unit, "ports": list(engine.ports), "hold": False, **named})
    lines = [f"ended pid {row['pid']} {row['argv0']} ({row['how']}): {row['why']}"
             for row in answer["ended"]]  # fmt: skip
    if answer["verdict"] not in ("clean", "nothing"):
        raise NodeError(f"{answer['verdict']}: {answer['evidence']}", "orphans", "rignode reap")
    cleared = shm({})
    if cleared["removed"]:
        names = ", ".join(row["name"] for row in cleared["removed"])
        lines.append(f"removed from /dev/shm ({cleared['freed_bytes'] // MIB} MiB): {names}")
    return lines


def require_whole_weights(engine: Engine) -> None:
    """Raise NodeError (`weights_incomplete`) for weights that are half of one set, half of another:
    the engine would load them without an error."""
    change = manifest.incomplete(manifest.snapshot_of(engine.weights))
    if change is not None:
        raise NodeError(
            f"{engine.weights} is half of one set and half of another: change {change} was cut off",
            "weights_incomplete",
            f"rignode undo {change}; or finish it: deploys/weights.py",
        )


def drop_caches(engine: Engine, need: int) -> str:
    """Drops the page cache once when less than `need` bytes are free; gives what came of it."""
    # the unit's name stands for a venv: caches looks at both
    name = engine.container or engine.unit.rpartition(".")[0]
    answer = caches({"need_free_bytes": need, "unless_running": name})
    return f"page cache: {answer['verdict']}: {answer['why']}"


# The engine's unit while its files go back: held, its orphans ended, its memory awaited.

MEMORY_S = 30.0
MEMORY_POLL_S = 0.2


def engine_if_stopped() -> Engine | None:
    """Gives this host's engine when it is known and its unit is stopped, else None."""
    try:
        engine = config.load_engine()
        return engine if systemctl.inspect_unit(engine.unit)["active"] in systemctl.DOWN else None
    except NodeError:
        return None


@contextlib.contextmanager
def unit_held(steps: Steps, engine: Engine | None) -> Iterator[None]:
    """Holds an engine's unit for as long as something is done; None: nothing is held."""
    try:
        if engine is not None:
            unit_step.hold(engine.unit, steps)
        yield
    finally:
        if unit_step.lift_hold(steps):
            if journal.find(steps.change["id"]):  # it is dropped where nothing was changed
                steps.write()
            systemctl.systemctl("daemon-reload")


def end_leftovers(engine: Engine) -> list[str]:
    """Ends what the stopped engine left behind; gives a line for each thing done or in the way."""
    try:
        return end_orphans(engine)
    except (NodeError, CannotRead) as error:
        return [f"the way is not free: {error}"]
    except OSError as error:
        return [f"orphans could not be looked for: {io_reason(error)}"]


def await_memory(engine: Engine) -> list[str]:
    """Waits until the next start finds its memory; gives a line where it took a while or failed.

    The start itself decides: it has a budget of its own, and says why it refuses.
    """
    began = time.monotonic()
    while True:
        try:
            found = shortage(engine)
            lacks = found.evidence if found else ""
        except CannotRead as error:
            lacks = str(error)
        took = time.monotonic() - began
        if not lacks:
            return [] if took < 1 else [f"its memory was free after {took:.0f} s"]
        if took >= MEMORY_S:
            return [f"memory, after {took:.0f} s: {lacks}"]
        time.sleep(MEMORY_POLL_S)


class EngineHold(transaction.Around):
    """What an undo does around the files of a stopped engine; nothing where none is stopped."""

    def __init__(self) -> None:
        # known before its file goes back; None: no engine here, or one that goes on running
        self.engine: Engine | None = None

    def _rows(self, lines: list[str]) -> list[Json]:
        unit = self.engine.unit if self.engine else ""
        return [{"op": "clear", "unit": unit, "detail": line} for line in lines]

    def hold(self, steps: Steps, units: list[str]) -> None:
        """Hold the stopped engine's unit when it is one of these."""
        found = engine_if_stopped()
        if found is not None and found.unit in units:
            self.engine = found
            unit_step.hold(found.unit, steps)

    def clear(self) -> list[Json]:
        """End what the engine left behind."""
        return self._rows(end_leftovers(self.engine)) if self.engine else []

    def lift(self, steps: Steps) -> None:
        """Let starts pass again."""
        unit_step.lift_hold(steps)

    def await_start(self) -> list[Json]:
        """Wait for the start's memory."""
        if self.engine is None:
            return []
        # as it is now: the files of the former engine are back
        return self._rows(await_memory(engine_if_stopped() or self.engine))


def claim_change(request: Json) -> Json:
    """`claim`, with the engine held while files go back (node/change/transaction.py)."""
    return transaction.claim(request, EngineHold())


# prelaunch: what must be so before the engine starts (the unit's ExecStartPre).
#
# It waits for the fabric, docker and the peers with budgets, removes what a crash left behind, and
# refuses a start that cannot get its memory: three refusals end the unit's start limit before a
# crash loop fills memory and caches.

PRELAUNCH_POLL_S = 1.0
PROGRESS_S = 10.0
DOCKER_WAIT_S = 120.0
# memory of ended processes comes back within a second; a driver may load late at boot
MEMORY_WAIT_S = 60.0


def wait_for_memory(what: str, budget_s: float, missing: Callable[[], str | None]) -> None:
    """Waits until `missing` gives None; says every 10 s what it gives.

    Raises NodeError (`not_ready`) after `budget_s` seconds.
    """
    started = time.monotonic()
    told = started
    while True:
        reason = missing()
        now = time.monotonic()
        if reason is None:
            if told > started:
                errors.log(f"{what}: there after {now - started:.0f} s")
            return
        if now - started >= budget_s:
            raise NodeError(f"{what}: {reason}, after {now - started:.0f} s", "not_ready")
        if now - told >= PROGRESS_S:
            told = now
            errors.log(f"waiting for {what}: {now - started:.0f} s of {budget_s:.0f} s; {reason}")
        time.sleep(PRELAUNCH_POLL_S)


def wait_for_fabric(engine: Engine) -> None:
    """Waits for our address on the fabric's device. Raises NodeError (`not_ready`)."""
    link = engine.fabric
    if link is None:
        return
    what = f"the fabric ({link.device}, {link.address})"
    wait_for_memory(what, link.wait_s, lambda: engine_peer.missing_link(link.device, link.address))
    found = engine_peer.link_mtu(link.device)
    if found is not None and found < link.mtu:
        errors.log(f"{link.device} has MTU {found}, the rig wants {link.mtu}", errors.WARNING)


def wait_for_docker() -> None:
    """Waits until docker takes requests. Raises NodeError (`not_ready`)."""
    wait_for_memory(
        "docker", DOCKER_WAIT_S, lambda: None if api.daemon_answers() else "no answer yet"
    )


def wait_for_peers(engine: Engine) -> None:
    """The head waits, within its start budget, until every peer's host is on the fabric.

    A head that starts alone would hold its memory at a rendezvous that nobody comes to.
    """
    link = engine.fabric
    if link is None or engine.role != "head":
        return
    deadline = time.monotonic() + engine.start_budget_s
    for peer in engine.peers:

        def silent(peer: str = peer, source: str = link.address) -> str | None:
            return None if engine_peer.peer_answers(peer, source) else "no answer on the fabric"

        wait_for_memory(f"the peer {peer}", max(1.0, deadline - time.monotonic()), silent)


def remove_leftover(engine: Engine) -> None:
    """Removes a container of our name that a crash of docker or of the host left behind."""
    if engine.container is None:
        return
    try:
        if api.remove_container(engine.container):
            errors.log(f"removed the container {engine.container} that was left over")
    except CannotRead as error:
        raise NodeError(str(error), "not_ready") from None


def make_room(engine: Engine) -> None:
    """Drops the page cache where it is in the way, and refuses a start without its memory.

    Raises NodeError (`memory_short`) with the numbers and the holders.
    """

    def lacking() -> str | None:
        try:
            found = shortage(engine)
        except CannotRead as error:
            return str(error)
        return found.evidence if found else None

    try:
        need = system_need(engine) if engine.needs_nvidia else None
    except CannotRead:
        need = None  # `lacking` asks again, and says why
    if need is not None and caches_in_the_way(need):
        errors.log(drop_caches(engine, need))
    try:
        wait_for_memory("memory for the start", MEMORY_WAIT_S, lacking)
    except NodeError as error:
        raise NodeError(str(error), "memory_short", "rignode reap; ls -l /dev/shm") from None
    if need is not None:
        _note_start(engine)


def _note_start(engine: Engine) -> None:
    """Measures the last start on unified memory, says what that leaves, and notes this one."""
    measure_start(engine)
    try:
        short, available = memory_margin(engine), int(gpus.read_memory()["available"])
    except CannotRead as error:
        errors.log(str(error), errors.WARNING)
        return
    if short is not None:
        errors.log(short, errors.WARNING)
    note_start(available)


def prelaunch(engine: Engine) -> None:
    """All of it, in order; returns when the engine may start. Raises NodeError."""
    require_whole_weights(engine)
    wait_for_fabric(engine)
    if engine.container is not None:
        wait_for_docker()
    remove_leftover(engine)
    for line in end_orphans(engine):
        errors.log(line)
    wait_for_peers(engine)
    make_room(engine)
    # again: all of the waiting may lie in between
    require_whole_weights(engine)


def run_prelaunch() -> None:
    """The verb: reads this host's engine and makes it ready to start."""
    engine = config.load_engine()
    prelaunch(engine)
    errors.log(f"ready: {engine.role} (rank {engine.rank}) of rig {engine.rig}")


def stop_container() -> None:
    """The verb `container stop`: quiet when there is none."""
    name = config.load_engine().container
    try:
        if name is not None:
            api.stop_container(name, 30)
    except CannotRead as error:
        raise NodeError(str(error), "container") from None


def remove_container() -> None:
    """The verb `container remove`: quiet when there is none.

    It runs after each stop: what a failed start took of the memory is known from there on.
    """
    engine = config.load_engine()
    name = engine.container
    measure_start(engine)
    try:
        if name is not None:
            api.remove_container(name)
    except CannotRead as error:
        raise NodeError(str(error), "container") from None
