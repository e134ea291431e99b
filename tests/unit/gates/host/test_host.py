"""D18: a backup that lies on one disk alone is named; its age is told."""

from __future__ import annotations

from typing import Any

import pytest

from gates import firmware, storage
from gates.core import GIB as core_GIB
from schema.artifact import BackupRow, Backups, CopyRow
from schema.host import HostFacts, HostWanted
from schema.plan import Plan
from schema.render_host import guard_argv, panic_sysctls
from schema.snapshot import Growth, Kept, Unreadable, What
from tests.unit.builders import rigs
from tests.unit.builders.host_parts import change
from tests.unit.builders.rigs import healthy, put, spark_plan

NOW = 1_000_000.0
HOUR = 3600
NEW, OLD = "20260102T000000Z-a1b2", "20260101T000000Z-a1b2"
COPY = (CopyRow(place=f"/mnt/disk/rigbook/a/{NEW}", unix_s=NOW - 3 * HOUR),)


def row(id_: str, verified: float | None, copies: tuple[CopyRow, ...] = (),
        problem: str | None = None) -> BackupRow:  # fmt: skip
    """A backup as a node lists it."""
    return BackupRow(id=id_, usable=problem is None, problem=problem, verified_unix_s=verified,
                     tree="/opt/engine/venv", age_s=5 * HOUR, copies=copies)  # fmt: skip


def stored(*rows: BackupRow) -> Backups:
    """These backups, newest first."""
    return Backups(backups=rows, partial=(), working=(), displaced=())


FIVE = NOW - 5 * HOUR
TABLE = {
    "no copy": (stored(row(NEW, FIVE), row(OLD, FIVE, COPY)), True,
                f"newest verified backup {NEW}, 5 h old, read 5 h ago; "
                "copies: none on another disk"),
    "a copy": (stored(row(NEW, FIVE, COPY)), False,
               f"newest verified backup {NEW}, 5 h old, read 5 h ago; "
               f"copies: /mnt/disk/rigbook/a/{NEW} (read 3 h ago)"),
    "the newest is not verified": (stored(row(NEW, None), row(OLD, FIVE, COPY)), False,
                                   f"newest verified backup {OLD}, 5 h old"),
    "the newest is damaged": (stored(row(NEW, FIVE, problem="rot"), row(OLD, FIVE)), True,
                              f"newest verified backup {OLD}"),
    "none is verified": (stored(row(NEW, None)), False, "none of 1 backups is verified"),
    "none": (stored(), False, None),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLE)
def test_a_backup_on_one_disk_is_named(name: str) -> None:
    seen, is_named, words = TABLE[name]
    plan = spark_plan()
    one = plan.rig.nodes[0].name
    found = storage.backup_findings(plan, healthy(plan), {one: seen})
    assert [(v.code, v.node, v.severity) for v in found] == (
        [("backup-one-disk", one, "warn")] if is_named else [])  # fmt: skip
    if is_named:
        assert f"deploys/backup.py --data to={plan.rig.nodes[1].name}" in found[0].remedy
    told = storage.backup_lines({one: seen}, NOW)
    assert (told == []) if words is None else told[0].startswith(f"{one}: {words}")


def test_a_rig_of_one_node_has_no_peer_to_name() -> None:
    plan = rigs.tower_plan()
    (one,) = plan.rig.nodes
    seen = {one.name: stored(row(NEW, FIVE))}
    found = storage.backup_findings(plan, rigs.healthy_tower(plan), seen)
    assert "deploys/backup.py --data to=FOLDER" in found[0].remedy


def test_backups_that_cannot_be_listed_are_no_silence() -> None:
    plan = spark_plan()
    seen = {node.name: Unreadable(unreadable="nothing (limit 120 s)") for node in plan.rig.nodes}
    found = storage.backup_findings(plan, healthy(plan), seen)
    assert {v.code for v in found} == {"backups-unreadable"} and len(found) == len(seen)
    assert storage.backup_lines(seen, NOW) == []


# What rigbook keeps: a line a node, and a warning with the command where it is much.

GIB = 1 << 30


def kept(what: What, size: int, why: str | None = None) -> Growth:
    """One kind of that many bytes."""
    return Growth(rows=(Kept(what=what, count=3, bytes=size, unreadable=why),))


@pytest.mark.parametrize("what", storage.LIMITS)
def test_only_what_is_above_its_limit_is_named(what: What) -> None:
    plan = spark_plan()
    seen, (one, *rest) = healthy(plan), [node.name for node in plan.rig.nodes]
    little = {name: kept(what, storage.LIMITS[what]) for name in (one, *rest)}
    assert storage.growth_findings(plan, seen, little) == []
    (found,) = storage.growth_findings(
        plan, seen, {**little, one: kept(what, storage.LIMITS[what] + 1)}
    )
    assert (found.code, found.node, found.severity) == ("growth-large", one, "warn")
    assert f'sudo rignode prune \'{{"what": "{what}", "keep": 1}}\'' in found.remedy


def test_what_cannot_be_told_is_no_silence() -> None:
    plan = spark_plan()
    seen, names = healthy(plan), [node.name for node in plan.rig.nodes]
    silent = kept("images", 0, "docker did not answer in 8 s")
    odd: dict[str, Growth | Unreadable] = dict.fromkeys(names, silent)
    odd[names[0]] = Unreadable(unreadable="nothing (limit 120 s)")
    found = storage.growth_findings(plan, seen, odd)
    assert [v.code for v in found] == ["growth-unreadable"] * len(names)
    assert {v.severity for v in found} == {"warn"}
    # a node that does not answer is named once, by another gate
    del seen[names[0]]
    assert [v.node for v in storage.growth_findings(plan, seen, odd)] == names[1:]


def test_the_line_has_counts_and_bytes() -> None:
    rows = (Kept(what="changes", count=12, bytes=1 << 20, unreadable=None),
            Kept(what="backups", count=1, bytes=5 * GIB, unreadable=None),
            Kept(what="displaced", count=0, bytes=0, unreadable=None),
            Kept(what="images", count=0, bytes=0, unreadable="docker hangs"))  # fmt: skip
    kept_there: dict[str, Growth | Unreadable] = {
        "a": Growth(rows=rows),
        "b": Unreadable(unreadable="x"),
    }
    assert storage.growth_lines(kept_there) == [
        "a: keeps changes 12 (1.0 MiB), backups 1 (5.00 GiB), displaced 0, images unknown"
    ]


# What the doctor says of a host that hung, or is set up no more, and of what memory killed.

NODE, DAY = "spark1", 86400.0
ON = panic_sysctls(10, ("softlockup", "hung_task"))
DOG = {"name": "watchdog0", "identity": "SBSA Generic Watchdog", "state": "active", "timeout_s": 60}
WANTED: dict[str, Any] = {
    "format": 1, "sysctls": ON, "watchdog_s": 60, "journal_mib": 2048, "guard_mib": 2048,
    "former": {},
}  # fmt: skip
SETTINGS: dict[str, Any] = {
    "virtual": "none", "watchdogs": [DOG], "runtime_watchdog_s": 60.0, "sysctls": ON,
    "journal": {"persistent": True, "bytes": 8 << 20}, "pstore": None,
    "guard": {"program": "/usr/bin/earlyoom", "argv": ["earlyoom", *guard_argv(2048)[1:]]},
    "sshd_oom_score_adj": -1000, "wanted": WANTED,
}  # fmt: skip
# NVIDIA/dgx-spark-playbooks issue 97, and a kernel of Debian 12 (sysrq c)
NO_MEM = "kernel: NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY]"
PANIC = "Kernel panic - not syncing: sysrq triggered crash"


@pytest.fixture(scope="module")
def plan() -> Plan:
    return spark_plan()


def boot(who: str, first: float, last: float, **changes: Any) -> dict[str, Any]:
    """A boot that ended some days before now, and was asked to."""
    return {"boot_id": who * 32, "first_unix_s": first, "last_unix_s": last, "asked_for": True,
            "tail": ["cron: x"], "pstore": [], **changes}  # fmt: skip


def now(plan: Plan) -> float:
    """The clock of the healthy rig."""
    return healthy(plan)[NODE].identity.clock_unix_s


def facts(plan: Plan, **changes: Any) -> HostFacts:
    """A host that is set up, and whose last end was asked for."""
    t = now(plan)
    rows = [boot("a", t - 3 * DAY, t - DAY), boot("b", t - DAY, t, asked_for=None, tail=[])]
    return HostFacts.model_validate(
        {"format": 1, "settings": SETTINGS, "boots": rows, "kills": [], "took_s": 0.1, **changes}
    )


def found(plan: Plan, one: Any, seen: Any = None) -> list[Any]:
    """The findings where one node says `one` of itself, and the other is well."""
    hosts = {node.name: facts(plan) for node in plan.rig.nodes} | {NODE: one}
    observed = seen or healthy(plan)
    return [
        *firmware.keeps_alive_findings(plan, observed, hosts),
        *firmware.boot_findings(plan, observed, hosts),
    ]


def test_a_host_that_is_as_it_was_set_is_silent(plan: Plan) -> None:
    assert found(plan, facts(plan)) == []
    # where host.py never ran nothing is wanted, whatever is set
    bare = {**SETTINGS, "wanted": None, "sysctls": {}, "runtime_watchdog_s": 0.0, "watchdogs": []}
    assert found(plan, facts(plan, settings=bare)) == []


DRIFT: dict[str, tuple[dict[str, Any], str]] = {
    "a sysctl": ({"sysctls": {**ON, "kernel.panic": "0"}}, "kernel.panic is 0, not 10"),
    "another kernel": ({"sysctls": {}}, "kernel.panic is not in this kernel, not 10"),
    "PID 1": ({"runtime_watchdog_s": 0.0}, "PID 1's watchdog is 0 s, not 60 s"),
    "nobody holds it": ({"watchdogs": [{**DOG, "state": "inactive"}]}, "open (watchdog0)"),
    "it is gone": ({"watchdogs": []}, "open (there is none)"),
    "journal": ({"journal": {"persistent": False, "bytes": 0}}, "kept in memory alone"),
    "guard off": ({"guard": {"program": "/usr/bin/earlyoom", "argv": None}}, "does not run"),
    # Debian's own default after a package was installed again
    "guard's words": ({"guard": {"program": "/bin/x", "argv": ["earlyoom", "-r", "3600"]}},
                      "runs with -r 3600"),
}  # fmt: skip


@pytest.mark.parametrize("name", DRIFT)
def test_what_is_no_longer_as_it_was_set_is_named(plan: Plan, name: str) -> None:
    changes, words = DRIFT[name]
    (one,) = found(plan, facts(plan, settings={**SETTINGS, **changes}))
    assert (one.code, one.node, one.severity) == ("host-differs", NODE, "warn")
    assert words in one.evidence


def test_a_kernel_that_does_not_tell_who_holds_its_watchdog(plan: Plan) -> None:
    silent = {**SETTINGS, "watchdogs": [{**DOG, "state": None}]}
    assert found(plan, facts(plan, settings=silent)) == []


@pytest.mark.parametrize(("changes", "keys"), [
    ({}, "journal_mib=2048 --data panic=10 --data panic_on=softlockup,hung_task --data watchdog=60"
         " --data memory_guard_mib=2048 --data memory_guard=true"),
    ({"sysctls": panic_sysctls(5, ()), "watchdog_s": 0, "guard_mib": 0},
     "journal_mib=2048 --data panic=5 --data 'panic_on=[]' --data memory_guard=false"),
    ({"sysctls": {}, "watchdog_s": 0, "guard_mib": 0},
     "journal_mib=2048 --data memory_guard=false"),
])  # fmt: skip
def test_the_remedy_asks_for_what_was_wanted(plan: Plan, changes: Any, keys: str) -> None:
    wanted = HostWanted.model_validate({**WANTED, **changes})
    assert firmware.command(plan, wanted) == f"pyinfra INVENTORY deploys/host.py --data {keys}"


def ended(plan: Plan, hours: float, **changes: Any) -> HostFacts:
    """A host that went down by itself so many hours ago."""
    t = now(plan)
    last = t - hours * 3600
    rows = [boot("a", t - 9 * DAY, last, asked_for=False, **changes),
            boot("b", last + 90, t, asked_for=None)]  # fmt: skip
    return facts(plan, boots=rows)


WORDS: dict[str, tuple[dict[str, Any], str]] = {
    "the driver's": ({"tail": [NO_MEM, "app: x"]}, f"last words: {NO_MEM}"),
    "the kernel's own": ({"tail": [NO_MEM], "pstore": ["Oops#1", PANIC, "R10: 0"]}, PANIC),
    "nothing that tells": ({"tail": ["app: GET / 200"]}, "ends with: app: GET / 200"),
    "nothing": ({"tail": []}, "none were kept"),
}


@pytest.mark.parametrize("name", WORDS)
def test_a_reboot_that_nobody_asked_for_is_told_with_its_last_words(plan: Plan, name: str) -> None:
    changes, words = WORDS[name]
    (one,) = found(plan, ended(plan, 8, **changes))
    assert (one.code, one.node) == ("rebooted-unasked", NODE)
    assert "which nobody asked for" in one.summary and words in one.evidence


def test_a_reboot_of_rigbooks_own_is_known_by_its_journal(plan: Plan) -> None:
    """Its last lines were lost; node's boot ids have dashes, journalctl's have none."""
    id_ = "-".join(["a" * 8, "a" * 4, "a" * 4, "a" * 4, "a" * 12])
    row = change("COMMITTED", deploy="reboot", boot_id=id_)
    seen = healthy(plan)
    assert (
        found(plan, ended(plan, 8), {**seen, NODE: put(seen[NODE], "journal.changes", (row,))})
        == []
    )
    other = change("COMMITTED", deploy="serve", boot_id=id_)
    assert found(plan, ended(plan, 8), {**seen, NODE: put(seen[NODE], "journal.changes", (other,))})


def test_what_is_old_is_no_news(plan: Plan) -> None:
    assert found(plan, ended(plan, 8 * 24)) == []


def test_a_reboot_on_purpose_since_then_ends_the_finding(plan: Plan) -> None:
    t = now(plan)
    rows = [boot("a", t - 9 * DAY, t - 8000, asked_for=False), boot("b", t - 7000, t - 500),
            boot("c", t - 400, t, asked_for=None)]  # fmt: skip
    assert found(plan, facts(plan, boots=rows)) == []


@pytest.mark.parametrize(("times", "code"), [(2, "rebooted-unasked"), (3, "reboot-loop")])
def test_a_loop_is_named_as_one(plan: Plan, times: int, code: str) -> None:
    t = now(plan)
    rows = [boot(who, t - 3600 * n - 3000, t - 3600 * n, asked_for=False, tail=[NO_MEM])
            for n, who in list(enumerate("abcdef", 1))[times - 1::-1]]  # fmt: skip
    rows.append(boot("9", t - 3000, t, asked_for=None))
    (one,) = found(plan, facts(plan, boots=rows))
    assert one.code == code
    if code == "reboot-loop":
        assert "inspect its hardware" in one.remedy and f"{times} times in a day" in one.summary


def killed(plan: Plan, hours: float, by: str = "earlyoom") -> dict[str, Any]:
    """A kill so many hours ago."""
    return {"unix_s": now(plan) - hours * 3600, "by": by, "process": "VLLM::EngineCor", "pid": 77,
            "why": "mem avail: 1900 of 124000 MiB ( 1.53%)"}  # fmt: skip


def test_what_memory_killed_is_told_with_the_reason_for_a_day(plan: Plan) -> None:
    (one,) = found(plan, facts(plan, kills=[killed(plan, 20), killed(plan, 2, "kernel")]))
    assert (one.code, one.node) == ("memory-kill", NODE)
    assert "kernel killed VLLM::EngineCor (pid 77)" in one.summary and "2 kills" in one.summary
    assert "1900 of 124000 MiB" in one.evidence
    assert found(plan, facts(plan, kills=[killed(plan, 25)])) == []


@pytest.mark.parametrize(("process", "told"), [("postgres", 0), ("VLLM::EngineCor", 1)])
def test_the_limit_of_another_container_is_its_own(plan: Plan, process: str, told: int) -> None:
    row = {**killed(plan, 2, "kernel"), "process": process, "why": "Memory cgroup out of memory; x"}
    assert len(found(plan, facts(plan, kills=[row]))) == told


UNKNOWN = Unreadable(unreadable="journalctl did not answer in 10 s")


@pytest.mark.parametrize("part", ["settings", "boots", "kills"])
def test_what_cannot_be_read_is_no_silence(plan: Plan, part: str) -> None:
    (one,) = found(plan, facts(plan, **{part: {"unreadable": UNKNOWN.unreadable}}))
    assert one.code == "host-unreadable" and f"{part}: journalctl" in one.evidence
    (one,) = found(plan, UNKNOWN)
    assert one.code == "host-unreadable"


@pytest.mark.parametrize("kept", [0, 1], ids=["no boot at all", "this one"])
def test_a_journal_without_former_boots_is_said(plan: Plan, kept: int) -> None:
    """A container, or a host whose journal was just emptied, has not even the boot that runs."""
    seen = facts(plan, boots=[boot("b", 1, now(plan), asked_for=None)][:kept])
    assert found(plan, seen) == [] and firmware.boots_lines({NODE: facts(plan)}) == []
    (line,) = firmware.boots_lines({NODE: seen})
    assert "how they ended is unknown" in line


def test_a_guard_is_armed_where_the_engine_keeps_its_distance(plan: Plan) -> None:
    row = facts(plan).settings
    assert not isinstance(row, Unreadable)
    assert list(firmware.armable(NODE, row, 2048, None)) == []
    assert list(firmware.armable(NODE, row, 2048, 3 * core_GIB)) == []
    (tight,) = firmware.armable(NODE, row, 2048, 3 * core_GIB - 1)
    assert tight.code == "guard-tight" and "memory_guard_mib=2047" in tight.remedy
    bare = row.model_copy(update={"guard": row.guard.model_copy(update={"program": None})})
    (missing,) = firmware.armable(NODE, bare, 2048, None)
    assert missing.code == "guard-missing" and "apt-get install -y earlyoom" in missing.remedy
