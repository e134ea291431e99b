"""What a host lacks that comes back by itself, what is set there, and how that is proven."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyinfra import logger, state
from pyinfra.api.exceptions import DeployError

from deploys.plans.rig import (
    Procedure,
    engine_may_run,
    files_in,
    is_up,
    once_a_run,
    units_in,
    wider,
)
from facts.looks import Hosts
from facts.node import ask_each, real
from gates.core import Violation
from gates.firmware import armable, differences
from operations.apply import Steps, folder_steps, texts_of, unit_step
from operations.engine import file_steps
from operations.host import Target, remove_steps, write_steps
from operations.rollback import undo_only
from operations.run import StepFailed
from schema.host import HostFacts, HostSettings
from schema.keys import HostSettingsData
from schema.plan import Plan
from schema.render_host import (
    GUARD,
    JOURNAL_PATH,
    MANAGER_PATH,
    MEMORY_GUARD_PATH,
    PATHS,
    PSTORE,
    HostPlan,
    guard_text,
    host_documents,
    panic_sysctls,
)
from schema.snapshot import FileState, NodeSnapshot, Unreadable

UNDO_TIMEOUT_S = 120
_FOLDERS = tuple(dict.fromkeys(path.rpartition("/")[0] for path in (*PATHS, MEMORY_GUARD_PATH)))


@dataclass(frozen=True)
class Want:
    """What a run is asked for, and on which nodes; `plan` has the files and units in its look."""

    plan: Plan
    nodes: frozenset[str]
    data: HostSettingsData


@dataclass(frozen=True)
class HostWork:
    """The steps of one run, by node, and what is wanted there; None: it is taken away."""

    wanted: Mapping[str, HostPlan | None]
    steps: Mapping[str, Steps]
    before: Mapping[str, Mapping[str, str | None]]
    members: frozenset[str]


revert = undo_only("kernel, PID 1, journal and guard are as they were", UNDO_TIMEOUT_S)


@once_a_run
def parse_request(rig: Procedure) -> Want:
    """What --data asks for; DeployError when `only` is no node of the rig."""
    data = rig.data(HostSettingsData)
    nodes = frozenset(rig.asked_nodes(data.only))
    plan = wider(rig.plan, nodes, (*PATHS, MEMORY_GUARD_PATH, *_FOLDERS), (GUARD, PSTORE))
    return Want(plan, nodes, data)


@once_a_run
def plan(rig: Procedure, want: Want) -> HostWork:
    """The work of this run; DeployError where a host cannot be asked, or a guard not be armed."""
    looks = {name: _settings(name, row) for name, row in _ask(rig).items() if name in want.nodes}
    wanted: dict[str, HostPlan | None] = {}
    blocked: list[Violation] = []
    for name in sorted(want.nodes):
        snapshot, now = rig.snapshots[name], looks[name]
        wanted[name] = None if want.data.remove else _wanted(want.data, snapshot, now)
        guard = wanted[name]
        if guard is not None and guard.guard_mib:
            blocked += armable(name, now, guard.guard_mib, _available(snapshot))
        for line in () if guard is None else _notes(snapshot, now, guard):
            logger.warning(f"    {name}: {line}")
    if blocked:
        rig.gate_more(blocked)
    files = {name: files_in(rig.snapshots[name]) for name in rig.snapshots}
    steps: dict[str, Steps] = {name: [] for name in rig.snapshots}
    for name in want.nodes:
        steps[name] = _steps(wanted[name], rig.snapshots[name], files[name], looks[name])
    return HostWork(
        wanted=wanted,
        steps=steps,
        before={name: texts_of(found) for name, found in files.items()},
        members=frozenset(name for name, todo in steps.items() if todo),
    )


def _ask(rig: Procedure) -> Mapping[str, HostFacts | Unreadable]:
    return ask_each(real(state), rig.plan, Hosts())


def _settings(name: str, facts: HostFacts | Unreadable) -> HostSettings:
    found = facts if isinstance(facts, Unreadable) else facts.settings
    if isinstance(found, Unreadable):
        raise DeployError(
            f"{name}: cannot be asked how it is set up: {found.unreadable}; on {name}: "
            "sudo rignode host '{}' shows it"
        )
    return found


def _available(snapshot: NodeSnapshot) -> int | None:
    """MemAvailable while the engine is up; None where it is not, or nobody can tell."""
    memory = snapshot.memory
    if isinstance(memory, Unreadable) or not engine_may_run(snapshot):
        return None
    return memory.available


def _shares_memory(snapshot: NodeSnapshot) -> bool:
    gpus = snapshot.gpus
    return not isinstance(gpus, Unreadable) and any(gpu.unified_memory for gpu in gpus.gpus)


def _wanted(data: HostSettingsData, snapshot: NodeSnapshot, now: HostSettings) -> HostPlan:
    """What this host can have of it: in a container kernel and watchdog are another host's."""
    guarded = data.memory_guard
    if guarded is None:
        guarded = _shares_memory(snapshot)
    values = {} if now.contained else panic_sysctls(data.panic, data.panic_on)
    unit = units_in(snapshot).get(GUARD)
    # What was so before the first run stays what a removal goes back to.
    former = {name: now.sysctls[name] for name in values if name in now.sysctls}
    former[GUARD] = "active" if is_up(unit) else "inactive"
    return HostPlan(
        sysctls={name: value for name, value in values.items() if name in now.sysctls},
        watchdog_s=0 if now.contained or not now.watchdogs else data.watchdog,
        journal_mib=data.journal_mib,
        guard_mib=data.memory_guard_mib if guarded else 0,
        former={**former, **(now.wanted.former if now.wanted else {})},
    )


def _notes(snapshot: NodeSnapshot, now: HostSettings, host: HostPlan) -> list[str]:
    """What cannot be had here, and what helps."""
    if now.contained:
        return [f"a container ({now.virtual}): watchdog and panics are its host's"]
    found: list[str] = []
    if not now.watchdogs:
        module = "sbsa_gwdt" if snapshot.identity.arch == "aarch64" else "iTCO_wdt or sp5100_tco"
        found.append(
            f"no hardware watchdog: where the kernel itself hangs, it stays down; its driver "
            f"may not be loaded: sudo modprobe {module}, then a line with its name in "
            "/etc/modules-load.d/watchdog.conf"
        )
    if now.pstore is None:
        found.append(
            "no pstore: a panic's own words are lost; what the journal had is kept up to 10 s "
            "before it"
        )
    if not host.guard_mib and _shares_memory(snapshot):
        found.append("GPU and host share their memory, and no guard ends the engine in time")
    return found


def _steps(
    host: HostPlan | None, snapshot: NodeSnapshot, files: Mapping[str, FileState], now: HostSettings
) -> Steps:
    documents = () if host is None else host_documents(host)
    written = file_steps(documents, files)
    kept = {document.path for document in documents}
    stale = [path for path in PATHS if path not in kept and files[path].kind == "file"]
    steps = folder_steps([path.rpartition("/")[0] for path in sorted(kept)], files)
    steps += written
    steps += [{"op": "absent", "path": path} for path in stale]
    changed = {str(step["path"]) for step in steps}
    former = now.wanted.former if now.wanted else {}
    values = host.sysctls if host else former
    differing = {n: v for n, v in values.items() if n in now.sysctls and now.sysctls[n] != v}
    if differing:
        steps.append({"op": "sysctl", "values": differing})
    silent = host is not None and host.watchdog_s not in (0, now.runtime_watchdog_s)
    if MANAGER_PATH in changed or silent:
        steps.append({"op": "reread", "what": "manager"})
    if JOURNAL_PATH in changed or (host is not None and not now.journal.persistent):
        steps.append({"op": "reread", "what": "journald"})
    units = units_in(snapshot)
    pstore = units.get(PSTORE)
    if host and now.pstore and pstore is not None and pstore.enabled != "enabled":
        steps.append(unit_step(PSTORE, "start", enabled=True, reload=False))
    return steps + _guard_steps(host, snapshot, files, former.get(GUARD, "inactive"))


def _guard_steps(
    host: HostPlan | None, snapshot: NodeSnapshot, files: Mapping[str, FileState], former: str
) -> Steps:
    """What makes the guard run as wanted, or be again what it was."""
    unit = units_in(snapshot).get(GUARD)
    if unit is None:
        return []
    target = Target(
        unit,
        MEMORY_GUARD_PATH,
        files[MEMORY_GUARD_PATH],
        files[MEMORY_GUARD_PATH.rpartition("/")[0]],
    )
    if host is None or not host.guard_mib:
        steps = remove_steps(target, restart=former == "active")
        if target.now.kind == "file" and former != "active":
            steps[-1] = unit_step(GUARD, "stop", enabled=False)
        return steps
    steps = write_steps(target, guard_text(host.guard_mib), restart=True)
    if unit.enabled != "enabled" or not is_up(unit):
        steps = [step for step in steps if step["op"] != "unit"]
        steps.append(unit_step(GUARD, "restart", enabled=True))
    return steps


def verify(rig: Procedure, work: HostWork) -> str:
    """A line about each host as it says itself; StepFailed says what is not as it was set."""
    seen = _ask(rig)
    said = []
    for name in sorted(work.members):
        try:
            now = _settings(name, seen[name])
        except DeployError as error:
            raise StepFailed(str(error)) from None
        host = work.wanted[name]
        if (host is None) != (now.wanted is None):
            raise StepFailed(f"{name}: its host.json is not as it was written")
        wrong = differences(now, now.wanted) if now.wanted else []
        if wrong:
            raise StepFailed(f"{name}: {'; '.join(wrong)}")
        said.append(f"{name}: {_words(host)}")
    return "; ".join(said) or "the hosts are as they should be"


def _words(host: HostPlan | None) -> str:
    if host is None:
        return "host.json is gone, and its settings were taken back"
    words = [f"a hang is reset after {host.watchdog_s} s"] if host.watchdog_s else []
    if "kernel.panic" in host.sysctls:
        words.append(f"a panic reboots after {host.sysctls['kernel.panic']} s")
    words.append("the journal outlives a boot")
    if host.guard_mib:
        words.append(f"the engine is ended below {host.guard_mib} MiB")
    return ", ".join(words)
