"""The host of a Kubernetes rig: its gates, and the runbooks of a host there."""

from __future__ import annotations

import dataclasses
from typing import Any

from schema.cluster import ClusterData
from schema.keys import runbooks
from schema.plan import Plan
from schema.snapshot import Identity, Unreadable, Watched
from tests.plans.support.scenario import (
    HEAD,
    Ends,
    Runs,
    Scenario,
    Snapshots,
    Table,
    bare,
    data,
    done,
    each_row,
    quiet,
    refused,
    said,
    scenario,
)
from tests.unit.builders import host_parts
from tests.unit.builders.host_parts import NOW, OLD_KERNEL, change, kube_look, library_look
from tests.unit.builders.rigs import put

MIB = 1024**2
ASK = data("url=http://10.96.0.10:8000", "model=qwen")
YES = {"answered": True, "detail": "qwen answered in 0.7 s", "final": False, "model": "qwen",
       "where": "http://10.96.0.9:8000"}  # fmt: skip
CLUSTER = {"says kube look": said(kube_look()), "says library look": said(library_look()),
           "says kube answer": YES}  # fmt: skip


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
    assert isinstance(seen.identity, Identity)
    later = seen.identity.clock_unix_s + 3600.0
    row = change("COMMITTED").model_copy(update={"opened_unix_s": later})
    return {HEAD: put(seen, "journal.changes", (row,))}


def run(deploy: str, *arguments: str, seen: Any = bare) -> Scenario:
    """A runbook on the stand-in."""
    made = scenario(f"deploys/{deploy}.py", *arguments, faults=CLUSTER)
    return dataclasses.replace(made, seen=seen)


ILL = {
    "driver-missing": ill("gpus", Unreadable(unreadable="nvidia-smi: not found")),
    "memory-short": ill("memory.available", 300 * MIB),
    "disk-room": full_disk,
    "clock-jump": clock_set_back,
    "wedged-silent": ill(
        "watch",
        Watched(status="down", looked_unix_s=NOW - 20, silent="no token was made: for 130 s"),
    ),
    "journal-broken": ill("journal.broken", ("journal/x.json: not JSON",)),
}
# Each runbook with a key of --data that it does not take, and who does.
STRAYS = {
    "serve": ("kernel=current", "kernel: serve does not take it; allowed: with kernel;"),
    "verify": ("waive=x", "waive: verify does not take it; allowed: with gpu_limit, host,"),
    "doctor": ("change=x", "change: doctor does not take it; allowed: with rollback;"),
    "libvgpu": ("limit=24000m", "limit: libvgpu does not take it; allowed: with gpu_limit;"),
    "gpu_limit": ("remove=true", "remove: gpu_limit does not take it; allowed: with host,"),
    "rollback": ("library=x", "library: rollback does not take it; allowed: with libvgpu;"),
    "kernel": ("json=true", "json: kernel does not take it; allowed: with doctor;"),
    "reboot": ("candidate=x", "candidate: reboot does not take it; allowed: with kernel;"),
}
CHARTS = ("backup", "stop", "restart", "upgrade", "restore")
PIN = data("kernel=current")
TABLE: Table = {
    **{code: (run("doctor", "-y", *ASK, seen=seen), Ends(None, (), (f"{code} [{HEAD}]",)))
       for code, seen in ILL.items() if code != "clock-jump"},
    "clock-jump": (run("doctor", "-y", *ASK, seen=clock_set_back), quiet(f"clock-jump [{HEAD}]")),
    # no pod starts on a host with a full disk
    "serve disk": (run("serve", "-y", *ASK, seen=full_disk), refused("disk-room")),
    # the stand-in is a container, which has no GRUB: that is said, as on the other rigs
    "kernel": (run("kernel", "--dry", *PIN), refused("finding(s) block", "pin")),
    "kernel with grub": (
        dataclasses.replace(
            run("kernel", "-y", *PIN), 
            kernels={HEAD: host_parts.kernel_facts(apt=host_parts.apt(holds=()))}),
        done(f"default kernel: {OLD_KERNEL} (saved)", "holds",
             steps=["lab1 apply file+hold+grub", "lab1 close COMMITTED"])),
    "reboot": (run("reboot", "--dry", *ASK), done("reboot, then wait up to")),
    "reboot disk": (
        run("reboot", "--dry", seen=ill("journal.lock_held", True)), refused("lock-held")),
    **{name: (run(name, "--dry"), refused(
        "is a Kubernetes rig, whose chart installs the engine and stops it: its runbooks are "
        f"{', '.join(sorted(runbooks(ClusterData)))}"))
       for name in CHARTS},
    **{f"key of {name}": (run(name, "--dry", *data(pair)), Ends(
        None, last=(f"--data: {words}", "--data help=true lists the keys"), asks=[]))
       for name, (pair, words) in STRAYS.items()},
    "keys of two": (
        scenario("deploys/libvgpu.py", "deploys/doctor.py", "--dry", *data("limit=1m")),
        refused("limit: doctor or libvgpu does not take it; allowed: with gpu_limit")),
    "help": (scenario("deploys/gpu_limit.py", *data("help=true")), Ends(
        says=("(whole number, 0 to 1048576 MiB; default: 256)\n",),
        never=("  library", "  profile"), asks=[])),
    "help of both": (scenario("deploys/doctor.py", *data("help=true")), Ends(
        says=("  namespace: ",), asks=[])),
}  # fmt: skip
test_each_run_ends_as_its_row_says = each_row(TABLE)


def test_what_the_chart_does_is_refused_in_a_line(ran: Runs) -> None:
    for run in ran.each(CHARTS):
        assert len(run.last_words.splitlines()) == 1


def test_a_key_of_another_runbook_is_refused_in_a_line(ran: Runs) -> None:
    for run in ran.each(f"key of {name}" for name in STRAYS):
        assert len(run.last_words.splitlines()) == 1


def test_help_lists_the_keys_of_a_kubernetes_rig(ran: Runs) -> None:
    """Apart from those of the other rigs, where a runbook has both."""
    both = ran["help of both"].output
    assert both.index("  recipe: ") < both.index("doctor on a Kubernetes rig: keys")
    assert both.count("\n  json: ") == 2
