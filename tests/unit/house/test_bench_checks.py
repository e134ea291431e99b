"""The bench compares like with like: twenty checks, one playbook for all nodes, a true count."""

from __future__ import annotations

import subprocess
import sys

from schema.desired.plan import Plan
from tests.bench.checks import checks, host_vars
from tests.bench.report import Figures, rows
from tests.infra.plugin import ROOT, load_rig


def _plan() -> Plan:
    return load_rig(str(ROOT / "inventory/spark.py")).plan


def test_twenty_checks_each_as_a_task_and_as_a_line_of_shell() -> None:
    plan = _plan()
    for node in plan.rig.nodes:
        listed = checks(plan, node)
        assert len(listed) == 20
        assert [check.name for check in listed if not check.shell] == ["a real completion"]
        for check in listed:
            done = subprocess.run(["sh", "-n"], input=check.shell, text=True, check=False)
            assert done.returncode == 0, check


def test_one_playbook_serves_all_nodes() -> None:
    plan = _plan()
    head, worker = plan.rig.nodes
    variables = host_vars(plan, head).keys()
    for one, other in zip(checks(plan, head), checks(plan, worker), strict=True):
        copies = "ansible.builtin.copy" in one.task
        assert copies or one.task == other.task, one.name
    assert variables == host_vars(plan, worker).keys()
    assert host_vars(plan, head)["peer"] == str(worker.fabric_address)


def test_no_task_can_change_a_host() -> None:
    """A rig that is not as planned must make the playbook fail, never be mended by it."""
    plan = _plan()
    reads = {"command", "slurp", "stat", "find", "wait_for", "uri"}
    for check in checks(plan, plan.rig.head):
        module = next(key for key in check.task if key.startswith("ansible.builtin."))
        assert check.task.get("check_mode") is True or module.split(".")[-1] in reads, check.name
        assert "command" not in module or check.task["changed_when"] is False, check.name


def test_a_missed_target_is_shown_as_missed() -> None:
    good = Figures(
        [2.0], [3], [20.0], [15.0], [1.5], [0.3], [0.3], [0.6], [0.2], [0.4], [50_000_000],
        [1.4], [65.0], [60.0],
    )  # fmt: skip
    assert [row.met for row in rows(good) if row.target] == [True] * 7
    bad = Figures(
        [2.0], [4], [10.0], [9.0], [0.5], [0.3], [0.3], [0.6], [0.2], [0.6], [70_000_000],
        [3.1], [71.0], [60.0],
    )  # fmt: skip
    assert [row.met for row in rows(bad) if row.target] == [False] * 7


def test_the_most_commands_of_any_round_count() -> None:
    figures = Figures(
        [2.0] * 3, [2, 9, 2], [20.0] * 3, [15.0] * 3, [1.5] * 3, [0.3] * 3, [0.3] * 3, [0.6],
        [0.2] * 3, [0.4], [1], [2.0], [60.0], [60.0],
    )  # fmt: skip
    measured = {row.what: row.measured for row in rows(figures)}
    assert measured["serve: remote commands a host"] == "9"


def test_channels_are_counted_in_a_process_of_its_own() -> None:
    """Importing the counter patches the standard library, so it is run, not imported."""
    code = """
from collections import Counter
from tests.bench.count_execs import count_channels
from paramiko.channel import Channel
calls = []
for name in ("exec_command", "invoke_shell", "invoke_subsystem"):
    setattr(Channel, name, lambda self, *a, name=name: calls.append(name))
counts = Counter()
count_channels(counts)
class Transport:
    def getpeername(self): return ("10.0.0.1", 22)
channel = Channel(1)
channel.transport = Transport()
channel.exec_command("true"); channel.exec_command("true"); channel.invoke_subsystem("sftp")
print(dict(counts), calls)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    called = ["exec_command", "exec_command", "invoke_subsystem"]
    assert done.stdout.strip() == f"{{'10.0.0.1': 3}} {called}"
