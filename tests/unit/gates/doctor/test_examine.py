"""The doctor's own findings: one broken value gives one code, and what it explains."""

from __future__ import annotations

from typing import Any

import pytest

from gates.core.check import GIB
from gates.core.codes import CODES
from gates.doctor.examine import DOCTOR, examine
from gates.doctor.rank import Finding
from gates.gate_sets import check
from schema.desired.plan import UNIT, Plan
from schema.observed.machine import ShmSegment
from schema.observed.snapshot import Unreadable
from schema.observed.units import GhostFile, Override
from schema.render.engine_files import SCRIPT_PATH
from tests.unit.builders import engine_parts as e
from tests.unit.builders import host_parts as h
from tests.unit.builders import snapshots as f
from tests.unit.builders.spark_rig import spark_plan

PLAN = spark_plan()
HEAD, WORKER = "spark1", "spark2"
DROP_IN = f"/etc/systemd/system/{UNIT}.d/10-mine.conf"
SEGMENT = ShmSegment(name="psm_1", size=2**28, uid=0, inode=7, mtime=h.NOW - 900, mappers=())
LOOP = {
    "active_state": "activating",
    "sub_state": "auto-restart",
    "result": "exit-code",
    "exit_kind": "exited",
    "exit_status": 1,
    "restarts": 41,
    "restart_times": (h.NOW - 1200, h.NOW - 30),
    "errors": ("ValueError: Free memory on device cuda:0 (4.75/119.67 GiB) on startup is less than "
               "desired GPU memory utilization (0.9, 107.7 GiB)",),
}  # fmt: skip
GHOST_EXEC = ("/usr/bin/docker", "exec", "vllm_ds4", "bash", "/workspace/vllm-head-090.sh")
OLD_UNIT: dict[str, Any] = {
    "name": "vllm-ds4-head.service",
    "fragment": "/etc/systemd/system/vllm-ds4-head.service",
    "exec_start": GHOST_EXEC,
}
HAND = h.process(
    77, "/usr/bin/python3", "/usr/local/bin/vllm", "serve", "/models/DeepSeek-V4-Flash",
    "--max-model-len", "200000", "--max-num-seqs", "4", container_id=e.FOREIGN, ppid=40,
)  # fmt: skip


def more_shm(seen: Any) -> Any:
    return f.put(
        seen, "shm", (SEGMENT, SEGMENT.model_copy(update={"name": "sem.mp-x", "size": 32}))
    )


def units(*changed: Any) -> Any:
    """Replaces our unit by these, the pair's timer kept."""
    return lambda seen: f.put(seen, "units", (*changed, *seen.units[1:]))


def ended(unit: Any) -> Any:
    """Replaces our unit by one whose engine is gone, container and processes with it."""

    def change(seen: Any) -> Any:
        seen = f.put(f.put(seen, "docker.containers", ()), "engine_processes", ())
        seen = f.put(seen, "memory.available", 114 * GIB)
        return units(unit)(f.put(seen, "ports", ()))

    return change


def beside(unit: Any) -> Any:
    """Adds a unit of somebody else."""
    return lambda seen: f.put(seen, "units", (*seen.units, unit))


def foreign_box(seen: Any) -> Any:
    box = e.foreign_container(restart_policy="no")
    seen = f.put(seen, "docker.containers", (*seen.docker.containers, box))
    return f.put(seen, "engine_processes", (*seen.engine_processes, HAND))


def by_hand(seen: Any) -> Any:
    shell = {"container_id": None, "unit": None, "ppid": 500, "parent_comm": "bash"}
    return f.put(seen, "engine_processes", (h.process(77, *HAND.argv, **shell),))


def value(path: str, new: Any) -> Any:
    return lambda seen: f.put(seen, path, new)


def argv(node: str, old: str, new: str) -> Any:
    """The node's live command line with one word replaced; an empty one is left out."""
    words = f.serving(PLAN)[node].engine_processes[0].argv
    changed = tuple(new if word == old else word for word in words if word != old or new)
    return value("engine_processes.0.argv", changed)


SCRIPT = next(n for n, d in enumerate(PLAN.documents[HEAD]) if d.path == SCRIPT_PATH)
UP, DOWN = f.serving, f.healthy
JSON = '{"method":"deepseek_mtp","num_speculative_tokens":2}'
LATER = h.change("COMMITTED", opened_unix_s=h.NOW + 600)
ELDER = h.change("COMMITTED", opened_unix_s=h.NOW - 7200)

# code, node, rig before, what is broken on that node, words of the finding
BROKEN: list[tuple[str, str, Any, Any, str]] = [
    ("clock-jump", WORKER, UP, value("journal.changes", (LATER,)), "in the future"),
    ("clock-jump", HEAD, UP, value("journal.changes", (ELDER,)), "the boot 3600 s"),
    ("sysctl-differs", WORKER, UP, value("sysctls", {"vm.swappiness": "1"}), "spark2 1"),
    ("shm-stale", WORKER, UP, more_shm, "256.0 MiB in /dev/shm/psm_1 /dev/shm/sem.mp-x"),
    ("foreign-engine", HEAD, UP, foreign_box, "max_model_len 200000, recipe says 131072"),
    ("restart-policy", HEAD, UP, value("docker.containers.0.restart_policy", "always"), "ours"),
    ("unit-disabled", WORKER, UP, value("units.0.enabled", "disabled"), "after a reboot"),
    ("unit-not-reloaded", HEAD, UP, value("units.0.needs_reload", True), "daemon-reload"),
    ("second-unit", HEAD, UP, beside(h.unit(**OLD_UNIT)), "vllm-ds4-head.service"),
    ("json-quotes-lost", HEAD, UP, argv(HEAD, JSON, JSON.replace('"', "")), "{method:deepseek"),
    ("worker-not-headless", WORKER, UP, argv(WORKER, "--headless", ""), "headless not set"),
    ("drift", HEAD, UP, argv(HEAD, "131072", "200000"), "max_model_len 200000, recipe says 131072"),
    ("wedged-pair", HEAD, UP, value("connections", ()), ""),
]  # fmt: skip
DOCTORS_OWN = frozenset(
    {
        *(code for code, *_ in BROKEN),
        # Tested below and in test_doctor_answers.
        "rebooted-midway",
        "drop-in-no-reset",
        "script-ghost",
        "crash-loop",
        "engine-down",
        "answer-slow",
        "cannot-answer",
        "no-answer",
    }
)


def found(base: Any, *changes: tuple[str, Any], plan: Plan = PLAN) -> list[Finding]:
    """What the doctor finds beyond what it says of that rig unbroken."""
    seen = base(plan)
    usual = {(v.code, v.node) for v in examine(plan, base(plan))}
    for node, change in changes:
        seen[node] = change(seen[node])
    return [v for v in examine(plan, seen) if (v.code, v.node) not in usual]


def test_a_serving_rig_has_only_the_recipes_warnings() -> None:
    assert [v.code for v in examine(PLAN, f.serving(PLAN))] == [
        "hca-two-ports", "image-latest", "privileged"]  # fmt: skip


def test_a_rig_that_was_never_served_is_down_and_nothing_else() -> None:
    blocks = [v for v in examine(PLAN, f.healthy(PLAN)) if v.severity == "block"]
    assert [(v.code, v.node) for v in blocks] == [("engine-down", HEAD), ("engine-down", WORKER)]
    assert "never served" in blocks[0].cause and "deploys/serve.py" in blocks[0].remedy


@pytest.mark.parametrize(
    ("code", "node", "base", "change", "words"), BROKEN[:-1], ids=[b[0] for b in BROKEN[:-1]]
)
def test_one_broken_value_gives_one_code(
    code: str, node: str, base: Any, change: Any, words: str
) -> None:
    (one,) = found(base, (node, change))
    assert (one.code, one.node, one.severity) == (code, node, CODES[code].severity)
    assert words in f"{one.summary} {one.evidence} {one.remedy}"
    assert one.cause and "\n" not in one.summary + one.evidence + one.remedy + one.cause


def test_what_serve_mends_does_not_block_serve() -> None:
    own = {v.code for gate in DOCTOR for v in gate(PLAN, {})}
    assert own == set()
    for code, node, base, change, _ in BROKEN:
        seen = base(PLAN)
        seen[node] = change(seen[node])
        assert code not in {v.code for v in check(PLAN, seen)}, code


def test_segments_that_are_new_or_mapped_or_of_others_are_left_alone() -> None:
    for update in ({"mtime": h.NOW - 5}, {"mappers": (990,)}, {"name": "postgres.1"}):
        assert found(UP, (HEAD, value("shm", (SEGMENT.model_copy(update=update),)))) == []


def test_a_hand_launch_explains_the_orphan_the_port_and_the_memory() -> None:
    def mess(seen: Any) -> Any:
        seen = f.put(by_hand(seen), "memory.available", 9 * 2**30)
        held = h.port(8000, pid=77, process="vllm", unit=None)
        return f.put(seen, "ports", (held,))

    first, *rest = found(DOWN, (HEAD, mess))
    assert first.code == "foreign-engine" and "launched by hand (bash, pid 500)" in first.summary
    assert "ports 8000" in first.evidence and first.remedy.endswith("kill 77")
    assert {"engine-orphan@spark1", "port-taken@spark1", "memory-short@spark1"} <= {*first.explains}
    assert {v.code for v in rest} == {"engine-orphan", "port-taken", "memory-short"}


def test_a_policy_of_a_foreign_vllm_and_of_anybody_else() -> None:
    foreign = e.foreign_container(argv=("vllm", "serve"), restart_policy="always")
    harmless = e.foreign_container(name="db", restart_policy="always")
    own = f.serving(PLAN)[HEAD].docker.containers
    added = [value("docker.containers", (*own, box)) for box in (foreign, harmless)]
    (one,) = found(UP, (HEAD, added[0]))
    assert "sudo docker update --restart=no vllm_ds4 && sudo docker stop" in one.remedy
    assert found(UP, (HEAD, added[1])) == []


def test_units_that_are_off_or_do_other_work_are_no_second_supervisor() -> None:
    off = h.unit(**OLD_UNIT, active_state="inactive", sub_state="dead", enabled="disabled")
    other = h.unit(name="web.service", exec_start=("/usr/bin/docker", "start", "nginx"))
    pair = h.unit(name="rigbook-pair.service", exec_start=("/x", "vllm"))
    for unit in (off, other, pair):
        assert found(UP, (HEAD, beside(unit))) == []


def test_ghosts() -> None:
    """On the host, in ExecStartPre, and inside a container: each named with its path."""
    pre = GhostFile(step="ExecStartPre", path="/opt/clean.sh")
    (one,) = found(UP, (HEAD, value("units.0.ghosts", (pre,))))
    assert (one.code, one.severity) == ("unit-ghost", "warn") and "ExecStartPre" in one.evidence
    failed = h.unit(active_state="failed", sub_state="failed", exit_status=203, result="exit-code",
                    exec_start=("/usr/bin/docker", "run"), exec_start_exists=False,
                    drop_ins=(DROP_IN,))  # fmt: skip
    first, *_ = found(UP, (HEAD, units(failed)))
    assert (first.code, first.severity) == ("unit-ghost", "block")
    assert {"engine-down@spark1", "wedged-pair@spark1"} & {*first.explains}
    inside = GhostFile(step="ExecStart", path=GHOST_EXEC[-1], container="vllm_ds4")
    seed = h.unit(**OLD_UNIT, **LOOP, ghosts=(inside,))
    codes = {v.code: v for v in found(DOWN, (HEAD, beside(seed)))}
    assert set(codes) == {"script-ghost", "crash-loop", "second-unit"}
    assert "which is not in container vllm_ds4" in codes["script-ghost"].summary
    assert "engine-down@spark1" in codes["script-ghost"].explains


def test_script_ghost_of_our_own_container() -> None:
    (folder, drift) = found(UP, (HEAD, value(f"files.{SCRIPT}.kind", "directory")))
    assert (folder.code, drift.code) == ("script-ghost", "drift")
    assert "directory" in folder.evidence
    lost = [
        m for m in f.serving(PLAN)[HEAD].docker.containers[0].mounts if "serve.sh" not in m.target
    ]
    (one,) = found(UP, (HEAD, value("docker.containers.0.mounts", tuple(lost))))
    assert (one.code, one.severity) == ("script-ghost", "warn") and "no mount" in one.summary
    log = ("/bin/bash: /rigbook/serve.sh: No such file or directory",)
    died = h.unit(**{**LOOP, "exit_status": 127, "errors": log})
    gone = ended(died)
    codes = {v.code: v for v in found(UP, (HEAD, gone))}
    assert "/rigbook/serve.sh" in codes["script-ghost"].summary
    assert "crash-loop@spark1" in codes["script-ghost"].explains
    assert "missing inside the container" in codes["crash-loop"].cause


def test_a_drop_in_without_the_reset() -> None:
    torn = Override(path=DROP_IN, exec_start=("/usr/bin/docker exec x",), resets=False)
    bad = h.unit(load_state="bad-setting", overrides=(torn,), drop_ins=(DROP_IN,),
                 active_state="inactive", sub_state="dead")  # fmt: skip
    stopped = ended(bad)
    found_ = found(UP, (HEAD, stopped))
    first = found_[0]
    assert (first.code, first.severity) == ("drop-in-no-reset", "block")
    assert DROP_IN in first.evidence and "engine-down@spark1" in first.explains
    right = h.unit(overrides=(torn.model_copy(update={"resets": True}),), drop_ins=(DROP_IN,))
    assert {v.code for v in found(UP, (HEAD, units(right)))} == {"drift"}


def test_a_crash_loop_says_how_often_since_when_and_why() -> None:
    crashed = ended(h.unit(**LOOP))
    loop = next(v for v in found(UP, (HEAD, crashed)) if v.code == "crash-loop")
    assert "42 starts" in loop.summary and "exited with status 1" in loop.evidence
    assert "2026-05-28 20:06:40 UTC" in loop.evidence and "memory was short" in loop.cause
    assert "engine-down@spark1" in loop.explains
    gave_up = {**LOOP, "active_state": "failed", "sub_state": "failed",
               "result": "start-limit-hit"}  # fmt: skip
    stopped = ended(h.unit(**gave_up))
    assert any("systemd gave up" in v.summary for v in found(UP, (HEAD, stopped)))


@pytest.mark.parametrize(("age", "restarts", "loops"), [(60, 3, True), (86_400, 3, False),
                                                       (60, 1, False)])  # fmt: skip
def test_a_unit_that_runs_again_for_long_is_no_loop(age: int, restarts: int, loops: bool) -> None:
    times = (h.NOW - 900, h.NOW - 60) if restarts > 1 else (h.NOW - 60,)
    unit = h.unit(restarts=restarts, restart_times=times, since_unix_s=h.NOW - age)
    assert ("crash-loop" in {v.code for v in found(UP, (HEAD, units(unit)))}) is loops


def test_a_reboot_in_mid_change_explains_the_open_change() -> None:
    change = h.change("OPEN", boot_id="another")
    first, second = found(UP, (WORKER, value("journal.changes", (change,))))
    assert (first.code, second.code) == ("rebooted-midway", "change-open")
    assert first.explains == ("change-open@spark2",) and f"change={change.id}" in first.remedy


def test_a_loading_engine_is_to_be_waited_for() -> None:
    (one,) = (v for v in found(UP, (HEAD, value("ports", ()))) if v.code == "engine-down")
    assert "starting for 600 s of 900 s" in one.summary and "verify.py" in one.remedy
    slow = (value("ports", ()), units(h.unit(since_unix_s=h.NOW - 1000)))
    (one,) = (v for v in found(UP, *((HEAD, c) for c in slow)) if v.code == "engine-down")
    assert "hangs" in one.cause and "serve.py" in one.remedy


def test_docker_down_is_the_one_cause() -> None:
    silent = Unreadable(unreadable="no /var/run/docker.sock: docker is not installed or running")
    first, *_ = found(UP, (HEAD, value("docker", silent)))
    assert first.code == "docker-unreadable" and "daemon is down" in first.cause
    assert "engine-down@spark1" in first.explains


@pytest.mark.parametrize("section", ["units", "docker", "files", "engine_processes", "connections",
                                     "shm", "sysctls", "journal", "memory", "ports"])  # fmt: skip
def test_an_unknown_section_is_a_finding_and_no_error(section: str) -> None:
    gone = Unreadable(unreadable="permission denied")
    codes = {v.code for v in found(UP, (HEAD, value(section, gone)))}
    assert f"{section.replace('_', '-')}-unreadable" in codes and "gate-error" not in codes


def test_nothing_known_at_all() -> None:
    assert [v.code for v in examine(PLAN, {}) if v.severity == "block"] == ["nodes-reachable"] * 2
