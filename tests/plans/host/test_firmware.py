"""firmware: what is set and listed, what an attestation needs, and what reboot refuses without."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from schema.machine.wake_record import Machines
from schema.observed.hardware import HardwareFacts, NmConnection, Wol
from schema.observed.snapshot import Unreadable
from tests.plans.support.scenario import HEAD, WORKER, Runs, Scenario
from tests.unit.builders import machine_parts as m

RUN = ("deploys/firmware.py", "-y")
DRY = ("deploys/firmware.py", "--dry", "--diff")
REBOOT = ("deploys/reboot.py", "-y")
ATTEST = (*RUN, "--data", f"only={HEAD}", "--data", "by=milo", "--data")


def machine(number: int, **changes: Any) -> dict[str, Any]:
    """A board of the rig as `node hardware` reports it; its LAN address is the stand-in's."""
    mac = f"04:7c:16:aa:bb:0{number}"
    card = m.nic(mac=mac, permanent=mac, **changes.pop("card", {}))
    made: HardwareFacts = m.facts(**{"nics": (card,), **changes})
    return made.model_dump(mode="json")


def seen(*rows: dict[str, Any], **faults: object) -> dict[str, object]:
    """Both hosts with these looks at their hardware, one after the other."""
    return {f"{HEAD}:says hardware": list(rows), f"{WORKER}:says hardware": list(rows), **faults}


def scenario(arguments: tuple[str, ...], *rows: dict[str, Any], **more: Any) -> Scenario:
    """A run against both boards, whose cards are named because their addresses are stand-ins."""
    words = arguments if "firmware" not in arguments[0] else (*arguments, "--data", "nic=enp5s0")
    return Scenario(words, faults=seen(*rows, **more.pop("faults", {})), **more)


def kept_in(folder: Path, scenarios: dict[str, Scenario]) -> Runs:
    """The runs, with an operator's folder of their own."""
    env = {"XDG_STATE_HOME": str(folder)}
    return Runs({name: dataclasses.replace(one, env=env) for name, one in scenarios.items()})


OFF = {"wol": Wol(supports="pumbg", set="d")}
NM = {"manager": "NetworkManager", **OFF}
PROFILE = NmConnection(connection="LAN 1", uuid="6a2d", wake_on_lan="ignore")
AWAKE = {"sleep.target": "loaded", "suspend.target": "masked"}
NAMES = {"lo": ("127.0.0.1/8",), "enp5s0": ("127.0.0.2/8",)}
DONE = m.every()
SCENARIOS = {
    "arm": scenario(RUN, machine(1, card=OFF, sleep=AWAKE), machine(1)),
    "dry": scenario(DRY, machine(1, card=OFF, sleep=AWAKE)),
    "by NetworkManager": scenario(RUN, machine(1, card=NM), machine(1)),
    "profile": scenario(RUN, machine(1, card={**NM, "nm": PROFILE}), machine(1)),
    "by a unit": scenario(RUN, machine(1, card={**OFF, "link_file": None}), machine(1)),
    "cannot wake": scenario(RUN, machine(1, card={"wol": Wol(supports=None, set=None)})),
    "does not arm": scenario(RUN, machine(1, card=OFF), machine(1, card=OFF)),
    "attest": scenario((*ATTEST, "attest=erp_disabled,ac_power_on"), machine(1), machine(
        1, attestations=(m.said("erp_disabled"), m.said("ac_power_on")))),
    "unknown item": scenario((*ATTEST, "attest=erp_disable"), machine(1)),
    "read item": scenario((*ATTEST, "attest=wol"), machine(1)),
    "no BIOS": scenario((*ATTEST, "attest=display"), machine(1, board=m.board(bios_version=None))),
    "a container": scenario((*ATTEST, "attest=display"), machine(1, virtual="docker")),
    "unknown kind": scenario((*ATTEST, "attest=display"), machine(
        1, virtual=Unreadable(unreadable="systemd-detect-virt: not found"))),
    "nobody": scenario((*RUN, "--data", "attest=display"), machine(1)),
    "nothing": scenario((*RUN, "--data", "by=milo"), machine(1)),
    "two boards": scenario((*RUN, "--data", "attest=display", "--data", "by=milo"), machine(1)),
    "two lines": scenario((*ATTEST, "attest=display", "--data", "by=a\nb"), machine(1)),
    "no such node": scenario((*RUN, "--data", "only=lab9"), machine(1)),
    "no such card": Scenario((*RUN, "--data", "nic=eno9"), faults=seen(machine(1))),
    "unreadable": Scenario(RUN, faults={f"{HEAD}:says hardware": {"format": 2}}),
    "reboot": scenario(REBOOT, machine(1)),
    "candidate": scenario(("deploys/kernel.py", "-y", "--data", "candidate=6.1.0-9"), machine(1)),
    "reboot attested": scenario((*REBOOT[:1], "--dry"), machine(1, attestations=DONE)),
    "reboot expired": scenario(REBOOT, machine(1, attestations=m.every(10_000))),
    "reboot new BIOS": scenario(REBOOT, machine(
        1, attestations=DONE, board=m.board(bios_version="1.A40"))),
    "reboot waived": scenario((*REBOOT[:1], "--dry", "--data", "waive=hands-needed", "--data",
                               "reason=somebody stands beside it"), machine(1)),
    "doctor": scenario(("deploys/doctor.py", "-y"), machine(1, card=OFF, addresses=NAMES)),
}  # fmt: skip


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """All runs of this module."""
    return kept_in(tmp_path_factory.mktemp("state"), SCENARIOS)


def test_a_card_is_armed_for_good_and_sleep_is_masked_as_one_change(ran: Runs) -> None:
    run = ran["arm"]
    assert run.status == 0, run.output
    for node in ("lab1", "lab2"):
        mine = [step for step in run.steps if step.startswith(node)]
        assert mine == [f"{node} apply file+wol+link+unit", f"{node} close COMMITTED"]
    assert "enp5s0 wakes by a magic packet, it does not go to sleep" in run.output


def test_what_a_person_must_do_is_a_numbered_list_with_how_and_why(ran: Runs) -> None:
    out = ran["dry"].output
    assert ran["dry"].status == 0 and ran["dry"].changing == ()
    assert "+WakeOnLan=magic" in out and "mask sleep.target" in out
    for part in (
        "BIOS 1.A30; checklist msi-mag-z890",
        "for a person at the board, 5 to do:",
        "3. erp_disabled: ErP Ready = Disabled (open: never attested)",
        "how: Del at power on, then Settings, Advanced, Power Management Setup",
        "why: it was enabled on the seed's board",
        "--data attest=display,ac_power_on,erp_disabled,pcie_wake,smart_plug --data by=YOURNAME",
    ):
        assert part in out, (part, out)


def test_by_whom_a_card_is_armed_at_a_boot(ran: Runs) -> None:
    assert "write /etc/NetworkManager/conf.d/90-rigbook-wol-enp5s0.conf" in (
        ran["by NetworkManager"].output
    )
    unit = ran["by a unit"]
    assert "enable rigbook-wol-enp5s0.service" in unit.output and unit.status == 0, unit.output
    profile = ran["profile"]
    assert "profile LAN 1 sets wake-on-lan to ignore" in profile.output
    assert "nmcli connection modify 6a2d 802-3-ethernet.wake-on-lan default" in profile.output
    assert profile.changing == () and profile.status == 0


def test_a_card_that_cannot_wake_is_said_and_left_alone(ran: Runs) -> None:
    run = ran["cannot wake"]
    assert run.status == 0 and run.changing == ()
    assert "cannot wake by a magic packet (ethtool names no Wake-on-LAN)" in run.output


def test_a_card_that_is_not_armed_afterwards_goes_back(ran: Runs) -> None:
    run = ran["does not arm"]
    assert run.status == 1 and "is not armed" in run.output and "ROLLED_BACK" in run.output
    assert "close COMMITTED" not in " ".join(run.steps)


def test_an_attestation_is_one_step_on_one_node(ran: Runs) -> None:
    run = ran["attest"]
    assert run.status == 0, run.output
    assert {step.split()[0] for step in run.steps} == {"lab1"}
    assert "erp_disabled, ac_power_on attested by milo" in run.output
    (applied,) = [c for c in run.commands if c.verb == "apply"]
    files = {s["path"]: s for s in applied.request["steps"] if "attestations" in s["path"]}
    step = files["/var/lib/rigbook/attestations/erp_disabled.json"]
    said = json.loads(step["content"])
    assert (said["by"], said["bios_version"], step["mode"]) == ("milo", m.BIOS, "0600")


REFUSED = {
    "unknown item": ("unknown item 'erp_disable'", "did you mean erp_disabled?"),
    "read item": ("attest=wol: Linux reads this one",),
    "no BIOS": ("does not say its BIOS version", "sudo dmidecode -t bios"),
    "a container": ("is no board but docker",),
    "unknown kind": ("is unknown: systemd-detect-virt: not found",),
    "nobody": ("--data: by: is missing",),
    "nothing": ("--data: attest: is missing",),
    "two boards": ("a person looks at one board", "only=NODE"),
    "two lines": ("holds a newline",),
    "no such node": ("only=lab9: no such node",),
    "no such card": ("wol-card", "no card eno9"),
    "unreadable": ("hardware-unreadable",),
    "reboot": ("hands-needed", "may need somebody's hands", "deploys/firmware.py"),
    "reboot expired": ("hands-needed",),
    "candidate": ("hands-needed", "deploys/firmware.py"),
    "reboot new BIOS": ("hands-needed",),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused_and_changes_nothing(ran: Runs, name: str) -> None:
    ran[name].refused(*REFUSED[name])


def test_the_refusal_of_a_reboot_holds_the_list(ran: Runs) -> None:
    assert "1. display = a dummy HDMI plug" in ran["reboot"].output
    assert "attested by milo for BIOS 1.A30; it is 1.A40 now" in ran["reboot new BIOS"].output
    assert "days ago, valid for 365" in ran["reboot expired"].output


@pytest.mark.parametrize("name", ["reboot attested", "reboot waived"])
def test_an_attested_or_waived_board_may_reboot(ran: Runs, name: str) -> None:
    assert "block hands-needed" not in ran[name].output and ran[name].status == 0, ran[name].output


def test_the_doctor_warns_before_the_machine_is_down(ran: Runs) -> None:
    out = ran["doctor"].output
    assert "warn hands-needed" in out and "block hands-needed" not in out


def test_what_wake_needs_is_kept_and_not_by_a_look(ran: Runs, tmp_path: Path) -> None:
    kept = scenario(RUN, machine(1, card=OFF, addresses=NAMES), machine(1),
                    hosts=_hosts)  # fmt: skip
    look = scenario(DRY, machine(1, card=OFF, addresses=NAMES), hosts=_hosts)
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


def _hosts(address: str) -> list[Any]:
    from tests.plans.support.scenario import host

    return [(HEAD, host(1, "127.0.0.2")), (WORKER, host(2, "127.0.0.2"))]


def test_an_unreadable_section_is_unknown_not_absent() -> None:
    facts = m.facts(nics=Unreadable(unreadable="nmcli did not answer in 10 s"))
    assert HardwareFacts.model_validate(facts.model_dump(mode="json")) == facts
