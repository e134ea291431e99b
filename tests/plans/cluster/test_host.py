"""The host of a Kubernetes rig: its gates, and the runbooks of a host there."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from schema.desired.plan import Plan
from schema.observed.snapshot import Unreadable
from tests.plans.support.clusters import bare, said, scenario
from tests.plans.support.scenario import HEAD, Runs, Scenario, Snapshots
from tests.unit.builders import kernel_parts as k
from tests.unit.builders.host_parts import change
from tests.unit.builders.kernel_parts import OLD
from tests.unit.builders.kube_parts import look
from tests.unit.builders.library_parts import look as library_look
from tests.unit.builders.snapshots import put

MIB = 1024**2
ASK = ("--data", "url=http://10.96.0.10:8000", "--data", "model=qwen")
YES = {"answered": True, "detail": "qwen answered in 0.7 s", "final": False, "model": "qwen",
       "where": "http://10.96.0.9:8000"}  # fmt: skip
CLUSTER = {"says kube look": said(look()), "says library look": said(library_look()),
           "says answer look": YES}  # fmt: skip


def ill(path: str, value: object) -> Any:
    """The stand-in host with one value changed."""
    return lambda plan: {HEAD: put(bare(plan)[HEAD], path, value)}


def full_disk(plan: Plan) -> Snapshots:
    """No room where the journal lies."""
    seen = bare(plan)[HEAD]
    assert isinstance(seen.disks, tuple)
    full = tuple(disk.model_copy(update={"free": MIB}) for disk in seen.disks)
    return {HEAD: put(seen, "disks", full)}


def clock_set_back(plan: Plan) -> Snapshots:
    """The last change was made an hour from now, as on a host whose clock nobody keeps."""
    seen = bare(plan)[HEAD]
    row = change("COMMITTED").model_copy(
        update={"opened_unix_s": seen.identity.clock_unix_s + 3600.0}
    )
    return {HEAD: put(seen, "journal.changes", (row,))}


def run(deploy: str, *arguments: str, seen: Any = bare) -> Scenario:
    """A runbook on the stand-in."""
    made = scenario(f"deploys/{deploy}.py", *arguments, faults=CLUSTER)
    return dataclasses.replace(made, seen=seen)


ILL = {
    "driver": ("driver-missing", ill("gpus", Unreadable(unreadable="nvidia-smi: not found"))),
    "memory": ("memory-short", ill("memory.available", 300 * MIB)),
    "disk": ("disk-room", full_disk),
    "clock": ("clock-jump", clock_set_back),
    "journal": ("journal-broken", ill("journal.broken", ("journal/x.json: not JSON",))),
}
# Each runbook with a key of --data that it does not take, and who does.
STRAYS = {
    "serve": ("kernel=current", "kernel: serve does not take it; allowed: with kernel;"),
    "verify": (
        "waive=x",
        "waive: verify does not take it; allowed: with gpu_limit, kernel,",
    ),
    "doctor": ("change=x", "change: doctor does not take it; allowed: with rollback;"),
    "libvgpu": ("limit=24000m", "limit: libvgpu does not take it; allowed: with gpu_limit;"),
    "gpu_limit": ("remove=true", "remove: gpu_limit does not take it; allowed: with libvgpu;"),
    "rollback": ("library=x", "library: rollback does not take it; allowed: with libvgpu;"),
    "kernel": ("json=true", "json: kernel does not take it; allowed: with doctor;"),
    "reboot": ("candidate=x", "candidate: reboot does not take it; allowed: with kernel;"),
}
SCENARIOS = {
    **{f"doctor {name}": run("doctor", "-y", *ASK, seen=seen) for name, (_, seen) in ILL.items()},
    "serve disk": run("serve", "-y", *ASK, seen=full_disk),
    "kernel": run("kernel", "--dry", "--data", "kernel=current"),
    "kernel with grub": dataclasses.replace(
        run("kernel", "-y", "--data", "kernel=current"),
        kernels={HEAD: k.facts(apt=k.apt(holds=()))},
    ),
    "reboot": run("reboot", "--dry", *ASK),
    "reboot disk": run("reboot", "--dry", seen=ill("journal.lock_held", True)),
    **{name: run(name, "--dry") for name in ("backup", "stop", "restart", "upgrade", "restore")},
    **{f"key of {name}": run(name, "--dry", "--data", pair) for name, (pair, _) in STRAYS.items()},
    "keys of two": scenario(
        "deploys/libvgpu.py", "deploys/doctor.py", "--dry", "--data", "limit=1m"
    ),
    "help": scenario("deploys/gpu_limit.py", "--data", "help=true"),
    "help of both": scenario("deploys/doctor.py", "--data", "help=true"),
}


@pytest.fixture(scope="module")
def ran() -> Runs:
    """All runs of this module."""
    return Runs(SCENARIOS)


@pytest.mark.parametrize("name", ILL)
def test_the_doctor_asks_the_gates_of_the_host(ran: Runs, name: str) -> None:
    done, code = ran[f"doctor {name}"], ILL[name][0]
    assert f"{code} [{HEAD}]" in done.output, done.output
    assert done.changing == () and "Traceback" not in done.output


def test_serve_does_not_start_a_pod_on_a_host_with_a_full_disk(ran: Runs) -> None:
    ran["serve disk"].refused("disk-room")


def test_the_kernel_is_planned_or_refused_in_a_line(ran: Runs) -> None:
    """The stand-in is a container, which has no GRUB: that is said, as on the other rigs."""
    ran["kernel"].refused("finding(s) block", "pin")
    done = ran["kernel with grub"]
    assert done.status == 0 and f"default kernel: {OLD} (saved)" in done.output, done.output
    assert done.steps[-1] == "lab1 close COMMITTED" and "holds" in done.output


def test_a_reboot_is_planned(ran: Runs) -> None:
    done = ran["reboot"]
    assert done.status == 0 and "reboot, then wait up to" in done.output, done.output
    ran["reboot disk"].refused("lock-held")


@pytest.mark.parametrize("name", ["backup", "stop", "restart", "upgrade", "restore"])
def test_what_the_chart_does_is_refused_in_a_line(ran: Runs, name: str) -> None:
    ran[name].refused("is a Kubernetes rig, whose chart installs the engine and stops it")
    assert len(ran[name].last_words.splitlines()) == 1


@pytest.mark.parametrize("name", STRAYS)
def test_a_key_of_another_runbook_is_refused_here_too(ran: Runs, name: str) -> None:
    done = ran[f"key of {name}"]
    done.refused(f"--data: {STRAYS[name][1]}", "--data help=true lists the keys")
    assert done.commands == () and len(done.last_words.splitlines()) == 1


def test_two_runbooks_take_the_keys_of_both(ran: Runs) -> None:
    ran["keys of two"].refused("limit: doctor or libvgpu does not take it; allowed: with gpu_limit")


def test_help_lists_the_keys_of_a_kubernetes_rig(ran: Runs) -> None:
    """Apart from those of the other rigs, where a runbook has both."""
    alone, both = ran["help"], ran["help of both"]
    assert alone.status == both.status == 0 and alone.commands == both.commands == ()
    assert "(whole number, 0 to 1048576 MiB; default: 256)\n" in alone.output
    assert "  library" not in alone.output and "  profile" not in alone.output
    assert both.output.index("  recipe: ") < both.output.index("doctor on a Kubernetes rig: keys")
    assert both.output.count("\n  json: ") == 2 and "  namespace: " in both.output
