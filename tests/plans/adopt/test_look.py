"""adopt: what it says of hosts that serve by other means, and the files that it would write."""

from __future__ import annotations

from typing import Any

from schema.hardware import Former
from tests.plans.support.scenario import (
    HEAD,
    WORKER,
    Runs,
    Scenario,
    Table,
    broken,
    data,
    each_row,
    quiet,
    refused,
)
from tests.unit.builders import host_parts
from tests.unit.builders.host_parts import unit
from tests.unit.builders.rigs import healthy

LOOK = ("deploys/adopt.py", "-y")
DRY = ("deploys/adopt.py", "--dry")
JOIN = ("--nnodes", "2", "--master-addr", "10.0.0.1", "--master-port", "29501", "--node-rank")
HEADS = (*host_parts.ARGV, *JOIN, "0", "--api-key", "***")
SEED = host_parts.seed(argv=HEADS, secret_flags=("--api-key",))
SEED_WORKER = host_parts.seed(
    argv=(*host_parts.ARGV, *JOIN, "1", "--headless", "--api-key", "***"),
    secret_flags=("--api-key",),
    node_rank=1,
    is_head=False,
)
TWO = Former(engines=(host_parts.engine(), host_parts.engine(pid=900, port=8001)))
NOTHING = Former()
FORMER_UNIT = unit(
    name=host_parts.UNIT, exec_start=("/usr/bin/docker", "exec", host_parts.BOX, "bash")
)
# hosts and ssh, nothing of an engine
BARE = [(HEAD, {"lan_address": "192.168.1.11", "ssh_user": "milo"}),
        (WORKER, {"lan_address": "192.168.1.12", "ssh_user": "milo"})]  # fmt: skip


def looks(head: Any, worker: Any = NOTHING, *words: str, **more: Any) -> Scenario:
    """A look at two hosts with these former setups."""
    said = {HEAD: head, WORKER: worker}
    faults = {f"{name}:says former": host_parts.former_said(found) for name, found in said.items()}
    faults.update(more.pop("faults", {}))
    return Scenario(more.pop("how", LOOK) + words, more.pop("seen", healthy),
                    hosts=more.pop("hosts", BARE), faults=faults, **more)  # fmt: skip


TABLE: Table = {
    "bare": (looks(SEED, SEED_WORKER), quiet(
        f"[{HEAD}] vLLM: pid 812 by docker exec in container vllm_ds4, rank 0, port 8000, as root",
        "--api-key '***'", "HF_HOME=/models", "image nightly:latest = sha256:111111111111, no",
        f"[{HEAD}] started by unit vllm-ds4.service (enabled, active/running, Restart=on-failure)",
        "started by docker's restart policy of vllm_ds4: restart policy unless-stopped, running",
        "started by crontab /etc/crontab:12: @reboot root docker start vllm_ds4",
        "at the next boot: vllm-ds4.service, vllm_ds4, /etc/crontab:12",
        f"[{WORKER}] vLLM: pid 812 by docker exec in container vllm_ds4, rank 1, headless",
        "deploys/adopt.py -y --data write=NAME writes inventory, group_data and recipe",
        asks=["several", "several"])),
    "by hand": (looks(host_parts.by_hand(), host_parts.by_hand()), quiet(
        "started by hand, pid 812", "at the next boot: nothing starts it",
        "lost when it stops: container vllm_ds4 (--rm)")),
    "nothing": (looks(NOTHING), quiet(
        "no vLLM runs here by other means than rigbook, and nothing would start one",
        never=("next:",))),
    "off": (looks(Former(supervisors=(host_parts.by_unit(active="inactive/dead"),))), quiet(
        "no vLLM runs now", "started by unit vllm-ds4.service (enabled, inactive/dead")),
    "not all": (looks(Former(unread=("crontabs: Permission denied",))), quiet(
        "no vLLM was found here by other means than rigbook, in what could be looked at",
        "not looked at: crontabs: Permission denied",
        never=(f"[{HEAD}] no vLLM runs here by other means",))),
    "by hand, not all": (looks(
        host_parts.by_hand().model_copy(update={"unread": ("crontabs: Permission denied",)}),
        host_parts.by_hand()), quiet(
            f"[{HEAD}] at the next boot: nothing of what could be looked at starts it",
            f"[{WORKER}] at the next boot: nothing starts it")),
    "silent": (
        looks(SEED, SEED_WORKER, faults={f"{WORKER}:says former": {"engines": 7}}),
        refused("not every node could be looked at", WORKER, says=(f"[{HEAD}] vLLM: pid 812",))),
    # with an inventory that knows a recipe: what differs from it, and no files
    "compared": (looks(SEED, SEED_WORKER, hosts=None), quiet(
        f"[{HEAD}] the recipe renders the same:",
        "flag model differs: it runs with /models/x, the recipe renders /models/tiny",
        "variable HF_HOME differs: it runs with /models, the recipe renders not set",
        "mount /models/tiny differs: it runs with not set",
        f"[{WORKER}] flag host differs: it runs with not set, the recipe renders 0.0.0.0 (no",
        "option image differs: it runs with sha256:111",
        "deploys/adopt.py -y --data take=true hands the rig over",
        never=("--data write",))),
    "would write": (looks(SEED, SEED_WORKER, *data("write=mine"), how=DRY), quiet(
        "would write inventory/mine.py:", f'"{HEAD}",', '"fabric_address": "10.0.0.2"',
        "would write group_data/mine.py:", 'recipe = "mine"', 'fabric_device = "bond0"',
        "would write catalog/recipes/mine.yaml:", "# from @fake/lab1: pid 812 in container vllm",
        "# needs you: export VLLM_API_KEY", "needs you: container: no name leads to sha256:11111",
        f"[{HEAD}] the recipe renders the same: 7 flags, 1 variables, 0 mounts, 5 options",
        f"[{HEAD}] secrets, by name alone: flag api_key, variable VLLM_API_KEY",
        f"[{WORKER}] nothing differs", "pyinfra inventory/mine.py deploys/adopt.py -y")),
    "no engine": (looks(SEED, NOTHING, *data("write=mine")), refused(f"no vLLM runs on {WORKER}")),
    "two engines": (looks(TWO, NOTHING, *data("write=mine")), refused(
        f"{HEAD} runs 2 engines (pid 812 at port 8000, pid 900 at port 8001)", "--data port=8000")),
    "two heads": (looks(SEED, SEED, *data("write=mine")), refused("these hosts are no one rig")),
    "taken name": (looks(SEED, SEED_WORKER, *data("write=tiny")), refused(
        "catalog/recipes/tiny.yaml is there already, and nothing is overwritten",
        "deploys/adopt.py -y --data write=OTHER")),
    "no name": (looks(SEED, SEED_WORKER, *data("write=My-Rig")), refused(
        "--data: write: 'My-Rig' is not a group's name")),
    "no key": (looks(SEED, SEED_WORKER, *data("wrte=mine")), refused("unknown key 'wrte'")),
    "another's key": (looks(SEED, SEED_WORKER, *data("version=1.0.0")), refused(
        "version: adopt does not take it")),
    # the gate's remedy, as it is to be typed
    **{f"{runbook} beside it": (
        Scenario((f"deploys/{runbook}.py", "-y"), broken(healthy, (HEAD, "units.+", FORMER_UNIT))),
        refused("second-unit on @fake/lab1: vllm-ds4.service on @fake/lab1 starts a vLLM, too",
                "pyinfra tests/plans/support/inventory.py deploys/adopt.py -y;"))
       for runbook in ("serve", "restart", "reboot")},
}  # fmt: skip
test_each_run_ends_as_its_row_says = each_row(TABLE)


def test_no_file_is_written_by_a_dry_run(ran: Runs) -> None:
    assert ran["would write"].status == 0
    assert not (Scenario.folder / "inventory/mine.py").exists()
