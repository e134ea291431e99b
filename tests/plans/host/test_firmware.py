"""firmware: what is set and listed, what an attestation needs, and what reboot refuses without."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from schema.hardware import HardwareFacts, NmConnection, Wol
from schema.host import Machines
from schema.snapshot import Unreadable
from tests.plans.support.scenario import (
    HEAD,
    WORKER,
    Ends,
    Runs,
    Scenario,
    Table,
    data,
    done,
    each_row,
    failed,
    host,
    quiet,
    refused,
)
from tests.unit.builders import host_parts

RUN = ("deploys/firmware.py", "-y")
DRY = ("deploys/firmware.py", "--dry", "--diff")
REBOOT = ("deploys/reboot.py", "-y")
ATTEST = (*RUN, *data(f"only={HEAD}", "by=milo"))


def machine(number: int, **changes: Any) -> dict[str, Any]:
    """A board of the rig as `node hardware` reports it; its LAN address is the stand-in's."""
    mac = f"04:7c:16:aa:bb:0{number}"
    card = host_parts.nic(mac=mac, permanent=mac, **changes.pop("card", {}))
    made: HardwareFacts = host_parts.hardware_facts(**{"nics": (card,), **changes})
    return made.model_dump(mode="json")


def seen(*rows: dict[str, Any], **faults: object) -> dict[str, object]:
    """Both hosts with these looks at their hardware, one after the other."""
    return {f"{HEAD}:says hardware": list(rows), f"{WORKER}:says hardware": list(rows), **faults}


def scenario(arguments: tuple[str, ...], *rows: dict[str, Any], **more: Any) -> Scenario:
    """A run against both boards, whose cards are named because their addresses are stand-ins."""
    words = arguments if "firmware" not in arguments[0] else (*arguments, *data("nic=enp5s0"))
    return Scenario(words, faults=seen(*rows, **more.pop("faults", {})), **more)


def kept_in(folder: Path, scenarios: dict[str, Scenario]) -> Runs:
    """The runs, with an operator's folder of their own."""
    env = {"XDG_STATE_HOME": str(folder)}
    return Runs({name: dataclasses.replace(one, env=env) for name, one in scenarios.items()})


DISPLAY = data("attest=display")
OFF = {"wol": Wol(supports="pumbg", set="d")}
NM = {"manager": "NetworkManager", **OFF}
PROFILE = NmConnection(connection="LAN 1", uuid="6a2d", wake_on_lan="ignore")
AWAKE = {"sleep.target": "loaded", "suspend.target": "masked"}
NAMES = {"lo": ("127.0.0.1/8",), "enp5s0": ("127.0.0.2/8",)}
DONE = host_parts.every()
BOTH = [(HEAD, host(1, "127.0.0.2")), (WORKER, host(2, "127.0.0.2"))]
UNKNOWN = Unreadable(unreadable="systemd-detect-virt: not found")
TABLE: Table = {
    "arm": (
        scenario(RUN, machine(1, card=OFF, sleep=AWAKE), machine(1)),
        done("enp5s0 wakes by a magic packet, it does not go to sleep"),
    ),
    # what a person must do is a numbered list with how and why
    "dry": (
        scenario(DRY, machine(1, card=OFF, sleep=AWAKE)),
        quiet(
            "+WakeOnLan=magic",
            "mask sleep.target",
            "BIOS 1.A30; checklist msi-mag-z890",
            "for a person at the board, 5 to do:",
            "3. erp_disabled: ErP Ready = Disabled (open: never attested)",
            "how: Del at power on, then Settings, Advanced, Power Management Setup",
            "why: it was enabled on the seed's board",
            "--data attest=display,ac_power_on,erp_disabled,pcie_wake,smart_plug --data "
            "by=YOURNAME",
        ),
    ),
    "by NetworkManager": (
        scenario(RUN, machine(1, card=NM), machine(1)),
        Ends(says=("write /etc/NetworkManager/conf.d/90-rigbook-wol-enp5s0.conf",)),
    ),
    "profile": (
        scenario(RUN, machine(1, card={**NM, "nm": PROFILE}), machine(1)),
        quiet(
            "profile LAN 1 sets wake-on-lan to ignore",
            "nmcli connection modify 6a2d 802-3-ethernet.wake-on-lan default",
        ),
    ),
    "by a unit": (
        scenario(RUN, machine(1, card={**OFF, "link_file": None}), machine(1)),
        done("enable rigbook-wol-enp5s0.service"),
    ),
    "cannot wake": (
        scenario(RUN, machine(1, card={"wol": Wol(supports=None, set=None)})),
        quiet("cannot wake by a magic packet (ethtool names no Wake-on-LAN)"),
    ),
    "does not arm": (
        scenario(RUN, machine(1, card=OFF), machine(1, card=OFF)),
        failed("is not armed", "ROLLED_BACK"),
    ),
    "attest": (
        scenario(
            (*ATTEST, *data("attest=erp_disabled,ac_power_on")),
            machine(1),
            machine(
                1,
                attestations=(
                    host_parts.machine_said("erp_disabled"),
                    host_parts.machine_said("ac_power_on"),
                ),
            ),
        ),
        done("erp_disabled, ac_power_on attested by milo"),
    ),
    "unknown item": (
        scenario((*ATTEST, *data("attest=erp_disable")), machine(1)),
        refused("unknown item 'erp_disable'", "did you mean erp_disabled?"),
    ),
    "read item": (
        scenario((*ATTEST, *data("attest=wol")), machine(1)),
        refused("attest=wol: Linux reads this one"),
    ),
    "no BIOS": (
        scenario((*ATTEST, *DISPLAY), machine(1, board=host_parts.board(bios_version=None))),
        refused("does not say its BIOS version", "sudo dmidecode -t bios"),
    ),
    "a container": (
        scenario((*ATTEST, *DISPLAY), machine(1, virtual="docker")),
        refused("is no board but docker"),
    ),
    "unknown kind": (
        scenario((*ATTEST, *DISPLAY), machine(1, virtual=UNKNOWN)),
        refused("is unknown: systemd-detect-virt: not found"),
    ),
    "nobody": (scenario((*RUN, *DISPLAY), machine(1)), refused("--data: by: is missing")),
    "nothing": (
        scenario((*RUN, *data("by=milo")), machine(1)),
        refused("--data: attest: is missing"),
    ),
    "two boards": (
        scenario((*RUN, *DISPLAY, *data("by=milo")), machine(1)),
        refused("a person looks at one board", "only=NODE"),
    ),
    "two lines": (
        scenario((*RUN, *DISPLAY, *data(f"only={HEAD}", "by=a\nb")), machine(1)),
        refused("holds a newline"),
    ),
    "no such node": (
        scenario((*RUN, *data("only=lab9")), machine(1)),
        refused("only=lab9: no such node"),
    ),
    "no such card": (
        Scenario((*RUN, *data("nic=eno9")), faults=seen(machine(1))),
        refused("wol-card", "no card eno9"),
    ),
    "unreadable": (
        Scenario(RUN, faults={f"{HEAD}:says hardware": {"format": 2}}),
        refused("hardware-unreadable"),
    ),
    "reboot": (
        scenario(REBOOT, machine(1)),
        refused("hands-needed", "may need somebody's hands", "deploys/firmware.py"),
    ),
    "candidate": (
        scenario(("deploys/kernel.py", "-y", *data("candidate=6.1.0-9")), machine(1)),
        refused("hands-needed", "deploys/firmware.py"),
    ),
    "reboot attested": (
        scenario((REBOOT[0], "--dry"), machine(1, attestations=DONE)),
        done(never=("block hands-needed",)),
    ),
    "reboot expired": (
        scenario(REBOOT, machine(1, attestations=host_parts.every(10_000))),
        refused("hands-needed"),
    ),
    "reboot new BIOS": (
        scenario(
            REBOOT, machine(1, attestations=DONE, board=host_parts.board(bios_version="1.A40"))
        ),
        refused("hands-needed"),
    ),
    "reboot waived": (
        scenario(
            (REBOOT[0], "--dry", *data("waive=hands-needed", "reason=somebody stands beside it")),
            machine(1),
        ),
        done(never=("block hands-needed",)),
    ),
    # it warns before the machine is down
    "doctor": (
        scenario(("deploys/doctor.py", "-y"), machine(1, card=OFF, addresses=NAMES)),
        Ends(None, says=("warn hands-needed",), never=("block hands-needed",)),
    ),
}
test_each_run_ends_as_its_row_says = each_row(TABLE)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """All runs of this module."""
    folder = tmp_path_factory.mktemp("state")
    return kept_in(folder, {name: scenario for name, (scenario, _) in TABLE.items()})


def test_a_card_is_armed_for_good_and_sleep_is_masked_as_one_change(ran: Runs) -> None:
    for node in ("lab1", "lab2"):
        mine = [step for step in ran["arm"].steps if step.startswith(node)]
        assert mine == [f"{node} apply file+wol+link+unit", f"{node} close COMMITTED"]


def test_an_attestation_is_one_step_on_one_node(ran: Runs) -> None:
    run = ran["attest"]
    assert {step.split()[0] for step in run.steps} == {"lab1"}
    (applied,) = [c for c in run.commands if c.verb == "apply"]
    files = {s["path"]: s for s in applied.request["steps"] if "attestations" in s["path"]}
    step = files["/var/lib/rigbook/attestations/erp_disabled.json"]
    said = json.loads(step["content"])
    assert (said["by"], said["bios_version"], step["mode"]) == ("milo", host_parts.BIOS, "0600")


def test_the_refusal_of_a_reboot_holds_the_list(ran: Runs) -> None:
    assert "1. display = a dummy HDMI plug" in ran["reboot"].output
    assert "attested by milo for BIOS 1.A30; it is 1.A40 now" in ran["reboot new BIOS"].output
    assert "days ago, valid for 365" in ran["reboot expired"].output


def test_what_wake_needs_is_kept_and_not_by_a_look(ran: Runs, tmp_path: Path) -> None:
    kept = scenario(RUN, machine(1, card=OFF, addresses=NAMES), machine(1),
                    hosts=BOTH)  # fmt: skip
    look = scenario(DRY, machine(1, card=OFF, addresses=NAMES), hosts=BOTH)
    runs = {
        "kept": kept_in(tmp_path / "a", {"kept": kept})["kept"],
        "look": kept_in(tmp_path / "b", {"look": look})["look"],
    }
    assert runs["kept"].status == 0, runs["kept"].output
    text = (tmp_path / "a/rigbook/machines/lab.json").read_text()
    record = Machines.model_validate_json(text).nodes[HEAD]
    assert (record.mac, record.nic, record.wol) == ("04:7c:16:aa:bb:01", "enp5s0", "g")
    assert record.broadcast == "127.255.255.255" and "erp_disabled" in record.open
    assert runs["look"].status == 0 and not (tmp_path / "b").exists()


def test_an_unreadable_section_is_unknown_not_absent() -> None:
    facts = host_parts.hardware_facts(nics=Unreadable(unreadable="nmcli did not answer in 10 s"))
    assert HardwareFacts.model_validate(facts.model_dump(mode="json")) == facts
