"""host: what is set on which machine, what it says where a part cannot be had, and the way back."""

from __future__ import annotations

import json
from typing import Any

from schema.plan import Document, Plan
from schema.render_host import (
    GUARD,
    MEMORY_GUARD_PATH,
    PATHS,
    PSTORE,
    HostPlan,
    guard_argv,
    guard_text,
    host_documents,
    panic_sysctls,
)
from tests.plans.support.doubles import HOST, SETTINGS
from tests.plans.support.scenario import (
    HEAD,
    WORKER,
    Runs,
    Scenario,
    Seen,
    Snapshots,
    Table,
    change_open,
    data,
    done,
    each_row,
    failed,
    quiet,
    refused,
    serving,
)
from tests.unit.builders.engine_parts import absent_file, written_file
from tests.unit.builders.host_parts import unit
from tests.unit.builders.rigs import put

RUN = ("deploys/host.py", "-y")
GIB = 1 << 30
OFF = dict.fromkeys(panic_sysctls(0, ("hung_task",)), "0")
ON = panic_sysctls(10, ("softlockup", "hung_task"))
DOG = {"name": "watchdog0", "identity": "SBSA Generic Watchdog", "state": "inactive",
       "timeout_s": 60}  # fmt: skip
HELD = {**DOG, "state": "active"}
GUARDED = {"program": "/usr/bin/earlyoom", "argv": list(guard_argv(2048))}
IDLE = {"program": "/usr/bin/earlyoom", "argv": None}
WANTED = {"format": 1, "sysctls": ON, "watchdog_s": 60, "journal_mib": 2048, "guard_mib": 0,
          "former": {**OFF, GUARD: "inactive"}}  # fmt: skip


def says(**changes: Any) -> dict[str, Any]:
    """What a host says of itself: a Spark's watchdog, nothing set."""
    new = {**SETTINGS, "watchdogs": [DOG], "sysctls": OFF, **changes}
    return {**HOST, "settings": new}


BARE = says()
SET = says(watchdogs=[HELD], runtime_watchdog_s=60.0, sysctls=ON, wanted=WANTED)
GUARD_SET = says(watchdogs=[HELD], runtime_watchdog_s=60.0, sysctls=ON, guard=GUARDED,
                 wanted={**WANTED, "guard_mib": 2048})  # fmt: skip


NO, YES = data("memory_guard=false"), data("memory_guard=true")


def scenario(*rows: dict[str, Any], words: tuple[str, ...] = NO, **more: Any) -> Scenario:
    """A run on both hosts, which say these of themselves, one after the other."""
    faults = {f"{name}:says host": list(rows) for name in (HEAD, WORKER)}
    return Scenario((*RUN, *words), faults=faults, **more)


def rig(
    guard: str | None = None, *documents: Document, free: int = 20 * GIB, **changes: Any
) -> Seen:
    """A rig that serves; `guard` is the state of earlyoom's unit, None where it is not installed.

    `documents` are the files that lie there.
    """
    folders = {path.rpartition("/")[0] for path in (*PATHS, MEMORY_GUARD_PATH)}
    here = {document.path: written_file(document) for document in documents}
    made = {path.rpartition("/")[0] for path in here}
    for path in sorted(folders):
        kind = "directory" if path in made else "absent"
        here[path] = absent_file(path).model_copy(update={"kind": kind})
    files = [
        here.get(path, absent_file(path)) for path in (*PATHS, MEMORY_GUARD_PATH, *sorted(folders))
    ]
    rows = [unit(name=PSTORE, active_state="inactive", enabled="disabled")]
    if guard is not None:
        on = {"active": "enabled"}.get(guard, "disabled")
        rows.append(unit(name=GUARD, active_state=guard, enabled=on))

    def make(plan: Plan) -> Snapshots:
        seen = dict(serving(plan))
        for name, shot in seen.items():
            assert isinstance(shot.units, tuple) and isinstance(shot.files, tuple)
            shot = put(shot, "units", (*shot.units, *rows))
            shot = put(shot, "memory.available", free)
            known = {file.path for file in files}
            kept = (file for file in shot.files if file.path not in known)
            seen[name] = put(shot, "files", (*kept, *files))
        return seen

    return make


def lying(guard_mib: int = 0) -> tuple[Document, ...]:
    """The files of a host that is set up."""
    former = {**OFF, GUARD: "inactive"}
    files = host_documents(HostPlan(ON, 60, 2048, guard_mib, former))
    drop_in = Document(MEMORY_GUARD_PATH, guard_text(guard_mib), "0644")
    return (*files, drop_in) if guard_mib else files


UP = rig("active", *lying(2048))
TABLE: Table = {
    "set": (scenario(BARE, SET, seen=rig()), done(
        "write /etc/systemd/system.conf.d/90-rigbook-host.conf", "kernel.panic = 10",
        "PID 1 reads its files", "journald reads its files",
        "no pstore: a panic's own words are lost",
        "a hang is reset after 60 s, a panic reboots after 10 s, the journal outlives a boot")),
    "dry": (Scenario(("deploys/host.py", "--dry", "--diff", *NO), faults={
        f"{name}:says host": BARE for name in (HEAD, WORKER)}, seen=rig()), quiet(
        "+RuntimeWatchdogSec=60", "+SystemMaxUse=2048M", "+kernel.softlockup_panic = 1")),
    "again": (scenario(SET, seen=rig(None, *lying())), quiet(never=("Traceback", "write /"))),
    "own values": (
        scenario(BARE, says(watchdogs=[HELD], runtime_watchdog_s=30.0, sysctls={
            **OFF, "kernel.panic": "60", "vm.panic_on_oom": "1"}, wanted={
            **WANTED, "watchdog_s": 30, "sysctls": {"kernel.panic": "60"}}), seen=rig(),
            words=(*NO, *data("watchdog=30", "panic=60", "panic_on=oom"))),
        done("kernel.panic = 60, vm.panic_on_oom = 1", "a hang is reset after 30 s")),
    "no watchdog": (
        scenario(says(watchdogs=[]), says(sysctls=ON, wanted={**WANTED, "watchdog_s": 0}),
                 seen=rig()),
        done("no hardware watchdog", "sudo modprobe", never=("system.conf.d", "is reset"))),
    "a container": (
        scenario(says(virtual="systemd-nspawn"), says(virtual="systemd-nspawn", wanted={
            **WANTED, "watchdog_s": 0, "sysctls": {}}), seen=rig()),
        done("watchdog and panics are its host's", never=("system.conf.d", "kernel.panic ="))),
    "pstore": (
        scenario(says(pstore="efi_pstore"), {**SET, "settings": {
            **SET["settings"], "pstore": "efi_pstore"}}, seen=rig()),
        done(f"enable and start {PSTORE}", never=("no pstore",))),
    "does not hold": (
        scenario(BARE, says(sysctls=ON, wanted=WANTED), seen=rig()),
        failed("PID 1's watchdog is 0 s, not 60 s", "ROLLED_BACK")),
    "guard": (scenario(says(guard=IDLE), GUARD_SET, seen=rig("inactive"), words=YES), done(
        f"write {MEMORY_GUARD_PATH}", f"enable and restart {GUARD}",
        "the engine is ended below 2048 MiB")),
    "guard again": (scenario(GUARD_SET, seen=UP, words=YES), quiet(never=("write /",))),
    "guard other": (scenario(GUARD_SET, seen=rig("active", *lying(4096)), words=YES), done(
        f"write {MEMORY_GUARD_PATH}", f"then restart {GUARD}")),
    "guard missing": (scenario(BARE, seen=rig(), words=YES), refused(
        "guard-missing", "has no earlyoom", "mask --runtime earlyoom.service && sudo apt-get")),
    "guard tight": (
        scenario(says(guard=IDLE), seen=rig("inactive", free=5 * GIB // 2), words=YES),
        refused("guard-tight", "serves with 2.50 GiB available", "memory_guard_mib=1706")),
    "remove": (scenario(GUARD_SET, BARE, seen=UP, words=data("remove=true")), done(
        "remove /etc/sysctl.d/90-rigbook-host.conf", f"remove {MEMORY_GUARD_PATH}",
        "kernel.panic = 0", f"disable and stop {GUARD}",
        "host.json is gone, and its settings were taken back")),
    "remove nothing": (scenario(BARE, seen=rig(), words=data("remove=true")), quiet()),
    "open": (scenario(BARE, seen=change_open), refused("change-open")),
    "silent": (
        Scenario(RUN, faults={f"{HEAD}:says host": {**BARE, "settings": {
            "unreadable": "busctl: no bus"}}}, seen=rig()),
        refused("cannot be asked how it is set up: busctl: no bus")),
    # GPU and host share their memory on a GB10
    "unified": (scenario(BARE, seen=rig(), words=()), refused("guard-missing")),
    "unified, no guard": (scenario(SET, seen=rig(None, *lying())), quiet(
        "GPU and host share their memory, and no guard")),
    "no such panic": (scenario(BARE, words=data("panic_on=all")), refused("panic_on")),
    "no such node": (scenario(BARE, words=data("only=lab9")), refused("only=lab9: no such node")),
}  # fmt: skip
test_each_run_ends_as_its_row_says = each_row(TABLE)


def sent(ran: Runs, name: str, node: str = "lab1") -> list[dict[str, Any]]:
    """The steps that one node got."""
    (one,) = [c for c in ran[name].commands if c.verb == "apply" and c.host.endswith(node)]
    steps: list[dict[str, Any]] = one.request["steps"]
    return steps


def test_files_come_before_those_who_read_them(ran: Runs) -> None:
    words = [step.get("what", step["op"]) for step in sent(ran, "set")]
    assert words.index("sysctl") > words.index("file")
    assert words[-2:] == ["manager", "journald"]
    files = {step["path"]: step for step in sent(ran, "set") if step["op"] == "file"}
    wanted = json.loads(files["/etc/rigbook/host.json"]["content"])
    assert wanted["former"]["kernel.panic"] == "0" and wanted["former"][GUARD] == "inactive"


def test_the_guard_is_checked_as_its_whole_unit(ran: Runs) -> None:
    (drop_in,) = [s for s in sent(ran, "guard") if s.get("path") == MEMORY_GUARD_PATH]
    assert drop_in["for_unit"] == GUARD
    # limits in KiB; what swap is left counts for nothing
    assert "-M 2097152,1048576 -s 100,100 " in drop_in["content"]
    assert '--prefer "^(VLLM::|vllm$$)"' in drop_in["content"]


def test_a_guard_that_was_off_is_off_again(ran: Runs) -> None:
    (last,) = [s for s in sent(ran, "remove") if s.get("unit") == GUARD]
    assert (last["active"], last["enabled"]) == ("stop", False)
    (values,) = [s["values"] for s in sent(ran, "remove") if s["op"] == "sysctl"]
    assert set(values.values()) == {"0"}
