"""Whom wake.py wakes, by which card and from where, and what to look at when nobody comes."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface

import gevent
from pyinfra import logger, state
from pyinfra.api import Host, State
from pyinfra.api.exceptions import ConnectError, DeployError

from deploys.plans.cli import connected_now
from deploys.plans.rig import Procedure, data_of, inventory_name, once_a_run
from facts.node import AskFailed, ask_node, real
from operations.host import MAGIC_PORT, answers_ssh, cycle, own_address, send_here, wait_wake
from operations.run import StepFailed
from schema.core import SpecError
from schema.host import MachineRecord, machines_path, read_machines
from schema.keys import WakeData
from schema.load import host_data
from schema.plan import Node, Plan

SEND_TIMEOUT_S = 20
SSH_PORT = 22
EVERYWHERE = "255.255.255.255"


@dataclass(frozen=True)
class Sleeper:
    """One node: where its sshd answers, its card's address, and what was known when it was up."""

    node: Node
    ssh: tuple[str, int]
    mac: str
    broadcast: str
    record: MachineRecord | None
    plug: tuple[str, ...] | None
    asleep: bool


@dataclass(frozen=True)
class WakeWork:
    """Whom to wake, by node, and how."""

    sleepers: Mapping[str, Sleeper]
    via: str | None
    power_cycle: bool
    off_s: int
    budget_s: int

    def asleep(self, name: str) -> bool:
        """Whether this node is to be woken."""
        return name in self.sleepers and self.sleepers[name].asleep


@once_a_run
def plan(rig: Procedure) -> WakeWork:
    """What --data asks for, and who answers already, told once. DeployError before a packet."""
    data = rig.data(WakeData)
    asked = rig.asked_nodes(data.only)
    rig.asked_nodes(data.via, "via")
    work = _plan(state, rig.plan, data, asked)
    report_plan(work)
    return work


def _plan(state: State, plan: Plan, data: WakeData, asked: Sequence[str]) -> WakeWork:
    wanted = [name for name in asked if name != data.via]
    if not wanted:
        raise DeployError(
            f"--data via={data.via}: the neighbour that sends cannot be the one asleep"
        )
    try:
        records = read_machines(plan.rig.name).nodes
    except SpecError as error:
        raise DeployError(str(error)) from None
    hosts = {name: _host_data(real(state).inventory.get_host(name)) for name in wanted}
    jobs = {
        name: gevent.spawn(answers_ssh, *_ssh(plan, name, raw)) for name, (_, raw) in hosts.items()
    }
    gevent.joinall(list(jobs.values()))
    sleepers = {
        name: _sleeper(plan, name, own, raw, records.get(name), not jobs[name].get())
        for name, (own, raw) in hosts.items()
    }
    down = [s for s in sleepers.values() if s.asleep]
    if data.power_cycle:
        _refuse_plug(plan, data, sleepers)
    elif data.mac is not None and len(down) > 1:
        raise DeployError("--data mac is one card's: add --data only=NODE, one of "
                          + ", ".join(s.node.name for s in down))  # fmt: skip
    return WakeWork(sleepers, data.via, data.power_cycle, data.off_s, data.budget)


def _refuse_plug(plan: Plan, data: WakeData, sleepers: Mapping[str, Sleeper]) -> None:
    if data.only is None and len(plan.rig.nodes) > 1:
        raise DeployError("--data power_cycle=true cuts one machine's power: add --data only=NODE")
    for name, one in sleepers.items():
        if not one.asleep:
            raise DeployError(f"{name} answers ssh: its power is not cut; shut it down first")
        if one.plug is None:
            raise DeployError(
                f"{name}: power_cycle_command is not set; in group_data, a program that is called "
                f"with off and on; or pull the plug by hand for {data.off_s} s, never less than 3"
            )


def _host_data(host: Host) -> tuple[WakeData, dict[str, object]]:
    merged, sources = data_of(host)
    return host_data(host.name, merged, sources, WakeData), merged


def _ssh(plan: Plan, name: str, raw: Mapping[str, object]) -> tuple[str, int]:
    address = raw.get("ssh_hostname") or plan.rig.node(name).lan_address
    return str(address), int(str(raw.get("ssh_port") or SSH_PORT))


def _sleeper(
    plan: Plan, name: str, own: WakeData, raw: Mapping[str, object],
    record: MachineRecord | None, asleep: bool,
) -> Sleeper:  # fmt: skip
    mac = own.mac or (record.mac if record else None)
    if mac is None and asleep:
        raise DeployError(
            f"{name}: its card's address is not known ({machines_path(plan.rig.name)} has none); "
            f"mac=… in the inventory or --data; or, once it is up: "
            f"pyinfra {inventory_name()} deploys/firmware.py -y"
        )
    return Sleeper(
        node=plan.rig.node(name),
        ssh=_ssh(plan, name, raw),
        mac=mac or "",
        broadcast=record.broadcast if record else EVERYWHERE,
        record=record,
        plug=own.power_cycle_command,
        asleep=asleep,
    )


def report_plan(work: WakeWork) -> None:
    """What is about to happen, and a warning where the packet may not get there."""
    for name, one in work.sleepers.items():
        if not one.asleep:
            logger.info(f"    {name} answers ssh at {one.ssh[0]}:{one.ssh[1]}")
            continue
        seen = one.record
        when = time.strftime("%Y-%m-%d", time.gmtime(seen.seen_unix_s)) if seen else ""
        about = (
            f"card {seen.nic}, Wake-on-LAN {seen.wol} when it was seen on {when}"
            if seen
            else "never seen by firmware.py"
        )
        logger.info(f"    {name} does not answer; {one.mac} ({about})")
        if work.via is None and not is_same_segment(one):
            logger.warning(
                f"    this machine is not on {seen.network if seen else 'the LAN of ' + name}: a "
                "router drops the packet; send it from a neighbour: --data via=HOST"
            )


def is_same_segment(one: Sleeper) -> bool:
    """Whether this machine is on the sleeper's segment; True where that is not known."""
    mine = own_address(str(one.node.lan_address))
    if one.record is None or mine is None:
        return mine is not None
    return IPv4Address(mine) in IPv4Interface(one.record.network).network


def wake_and_wait(state: State, work: WakeWork, host: Host) -> str:
    """Wakes one node and waits for its sshd; a line about it, or StepFailed."""
    one = work.sleepers[host.name]

    def say(line: str) -> None:
        host.log(line)

    if work.power_cycle and one.plug is not None:
        cycle(one.plug, work.off_s, say, gevent.sleep)
    took = wait_wake(
        send=lambda: send(state, work, one),
        up=lambda: answers_ssh(*one.ssh),
        budget_s=work.budget_s,
        say=say,
        pause=gevent.sleep,
    )
    look = "pyinfra INVENTORY deploys/doctor.py -y"
    return f"{host.name} answers ssh after {took:.0f} s; see what it is: {look}"


def send(state: State, work: WakeWork, one: Sleeper) -> str:
    """Sends the packet from here, or has the neighbour send it; a line about it."""
    if work.via is not None:
        return send_via(state, work.via, one)
    return send_here(one.mac, one.broadcast)


def send_via(state: State, via: str, one: Sleeper) -> str:
    """Has a neighbour send the packet; a line about it."""
    state = real(state)
    peer = state.inventory.get_host(via)
    request = {"mac": one.mac, "address": one.broadcast, "port": MAGIC_PORT}
    try:
        if not peer.__dict__.get("rigbook_peer"):
            connected_now(peer)
            peer.__dict__["rigbook_peer"] = True
        said = ask_node(state, peer, "wake", request, SEND_TIMEOUT_S)
    except (ConnectError, AskFailed) as error:
        raise StepFailed(f"the neighbour {via} did not send the packet: {error}") from None
    return f"magic packet for {one.mac} to {said['to']} from {via} ({said['source']})"


def likely_causes(work: WakeWork, name: str) -> list[str]:
    """What keeps a machine from waking, the likeliest first, with what is known of it (B6, B7)."""
    one = work.sleepers[name]
    seen = one.record
    unseen = seen.open if seen else ()

    def attested(item: str) -> str:
        if seen is None:
            return "never asked"
        return "nobody attested it" if item in unseen else "attested"

    card = f"{seen.nic} {seen.mac}" if seen else one.mac
    if seen is None:
        wol = "firmware.py never saw the card"
    else:
        wol = f"Wake-on-LAN was {seen.wol}" + (
            "" if seen.able else ", and it cannot wake by a packet"
        )
    display = "seen then" if seen and seen.display else "none seen then"
    plug = (
        f"--data power_cycle=true calls {' '.join(one.plug)}"
        if one.plug
        else "pull the plug and count to ten"
    )
    return [
        f"{name} did not come. What it may be, the likeliest first:",
        f"1. ErP Ready is on: no standby power for the card ({attested('erp_disabled')}); in the "
        "BIOS: disabled, and resume by PCI-E enabled",
        f"2. the power was off for less than 3 s, so the board saw no AC loss; {plug}; Restore "
        f"after AC Power Loss must be Power On ({attested('ac_power_on')})",
        f"3. POST waits for a display (sink: {display}; {attested('display')}): plug a monitor or "
        "a dummy HDMI, then power on",
        f"4. the wrong card or segment: the packet was for {card}; {wol}; "
        "the link light of that port must be on while the machine is off; --data via=HOST sends "
        "from a neighbour",
        f"When it is up again: pyinfra {inventory_name()} deploys/firmware.py",
    ]
