"""What the doctor says of a host that hung, or is set up no more, and of what memory killed."""

from __future__ import annotations

from typing import Any

import pytest

from gates.core.check import GIB
from gates.host import boots, keeps_alive
from schema.desired.plan import Plan
from schema.machine.host import HostFacts, HostWanted
from schema.observed.snapshot import Unreadable
from schema.render.host_files import guard_argv, panic_sysctls
from tests.unit.builders.host_parts import change
from tests.unit.builders.snapshots import healthy, put
from tests.unit.builders.spark_rig import spark_plan

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
    return [*keeps_alive.findings(plan, observed, hosts), *boots.findings(plan, observed, hosts)]


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
    assert keeps_alive.command(plan, wanted) == f"pyinfra INVENTORY deploys/host.py --data {keys}"


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
    assert found(plan, seen) == [] and boots.lines({NODE: facts(plan)}) == []
    (line,) = boots.lines({NODE: seen})
    assert "how they ended is unknown" in line


def test_a_guard_is_armed_where_the_engine_keeps_its_distance(plan: Plan) -> None:
    row = facts(plan).settings
    assert not isinstance(row, Unreadable)
    assert list(keeps_alive.armable(NODE, row, 2048, None)) == []
    assert list(keeps_alive.armable(NODE, row, 2048, 3 * GIB)) == []
    (tight,) = keeps_alive.armable(NODE, row, 2048, 3 * GIB - 1)
    assert tight.code == "guard-tight" and "memory_guard_mib=2047" in tight.remedy
    bare = row.model_copy(update={"guard": row.guard.model_copy(update={"program": None})})
    (missing,) = keeps_alive.armable(NODE, bare, 2048, None)
    assert missing.code == "guard-missing" and "apt-get install -y earlyoom" in missing.remedy
