"""Firmware and hands: what stands against a machine that nobody can reach (B6, B7, fault 38)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from gates.core.check import Gate, Observed, deploy_command, per_node, require
from gates.core.codes import violation
from gates.core.violation import Violation
from gates.firmware.probes import PROBES, Answer, connected
from schema.core.errors import SpecError
from schema.desired.plan import Plan
from schema.desired.rig import Node
from schema.machine.attestation import recorded, standing
from schema.machine.checklist import Checklist, Item, checklist_for
from schema.observed.hardware import Board, HardwareFacts, MachineSnapshot, Nic, Wol, lan_cards
from schema.observed.snapshot import NodeSnapshot, Unreadable

BARE_METAL = "none"
Lists = Mapping[str, Checklist]


@dataclass(frozen=True)
class ItemState:
    """How an item stands: `ok`, `open` (a person has to look), `wrong` or `unknown` (as read)."""

    item: Item
    state: Literal["ok", "open", "wrong", "unknown"]
    said: str


def hardware(snapshot: NodeSnapshot) -> HardwareFacts:
    """The node's hardware; UnknownSection where it was not asked or not answered."""
    if not isinstance(snapshot, MachineSnapshot):
        return require(Unreadable(unreadable="nobody asked for it"), "hardware")
    return require(snapshot.hardware, "hardware")


def own_board(facts: HardwareFacts) -> Board | None:
    """The board, None where the machine does not say."""
    return None if isinstance(facts.board, Unreadable) else facts.board


def cards_of(facts: HardwareFacts, node: Node, named: str | None) -> tuple[Nic, ...]:
    """The cards that must wake the node: the named one, else those of its LAN address."""
    if named is None:
        return lan_cards(facts, str(node.lan_address))
    nics = () if isinstance(facts.nics, Unreadable) else facts.nics
    return tuple(nic for nic in nics if nic.name == named)


def states(
    checklist: Checklist, facts: HardwareFacts, cards: Sequence[Nic], now: float
) -> tuple[ItemState, ...]:
    """How each item of a list stands; `now` is the operator's clock, in Unix seconds."""
    said = recorded(facts)
    found = []
    for item in checklist.items:
        read: Answer | None = PROBES[item.probe](facts, cards) if item.probe else None
        if read and read[0]:
            found.append(ItemState(item, "ok", read[1]))
        elif item.valid_days is not None:
            holds, words = standing(said.get(item.id), item, own_board(facts), now)
            words = f"{read[1]}; {words}" if read else words
            found.append(ItemState(item, "ok" if holds else "open", words))
        else:
            assert read is not None  # schema/machine/checklist.py: read, attested, or both
            found.append(ItemState(item, "unknown" if read[0] is None else "wrong", read[1]))
    return tuple(found)


def rebootable(lists: Lists, now: float, nodes: frozenset[str] | None = None) -> tuple[Gate, ...]:
    """The gate before a reboot of `nodes` (None: all): nobody must be needed at the board.

    A board that shows a sink has, as a rule, somebody who can look: there the finding only warns.
    """

    @per_node
    def hands_needed(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
        """What a person must have seen at a headless board, before it goes down (38, B6, B7)."""
        if nodes is not None and node.name not in nodes:
            return
        facts = hardware(snapshot)
        if require(facts.virtual, "hardware") != BARE_METAL:
            return
        require(facts.attestations, "hardware")
        board = own_board(facts)
        try:
            checklist = checklist_for(board, lists)
        except SpecError as error:
            require(Unreadable(unreadable=str(error)), "hardware")
            return
        rows = states(checklist, facts, cards_of(facts, node, None), now)
        missing = [row for row in rows if "reboot" in row.item.blocks and row.state != "ok"]
        if not missing:
            return
        listed = "; ".join(
            f"{n}. {row.item.id} = {row.item.expected}: {row.said}"
            for n, row in enumerate(missing, 1)
        )
        names = ",".join(row.item.id for row in missing if row.item.valid_days is not None)
        only = () if len(plan.rig.nodes) == 1 else (f"only={node.name}",)
        yield violation(
            "hands-needed",
            node.name,
            f"{node.name} ({board.title if board else 'board unknown'}) may need somebody's hands "
            f"after a reboot: {len(missing)} of its checklist {checklist.name} not attested",
            evidence=listed,
            remedy=f"{deploy_command(plan, 'firmware', *only)} says how; then "
            f"{deploy_command(plan, 'firmware', f'attest={names}', 'by=YOURNAME', *only)} -y",
            severity="warn" if connected(facts) else "block",
        )

    return (hands_needed,)


@per_node
def wol_unarmed(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
    """A card that could wake the machine and would not: found out when it is down (B7)."""
    facts = hardware(snapshot)
    if require(facts.virtual, "hardware") != BARE_METAL:
        return
    for nic in cards_of(facts, node, None):
        if isinstance(nic.wol, Wol) and nic.wol.able and not nic.wol.armed:
            yield violation(
                "wol-unarmed",
                node.name,
                f"{nic.name} of {node.name} does not wake by a magic packet, and could",
                evidence=f"ethtool: supports {nic.wol.supports}, set {nic.wol.set}; "
                f"{nic.manager} runs the card",
                remedy=deploy_command(plan, "firmware") + " -y",
            )


def card_there(named: str | None, nodes: frozenset[str]) -> Gate:
    """The gate before a card is armed: there is one, by the LAN address or by its name."""

    @per_node
    def wol_card(plan: Plan, node: Node, snapshot: NodeSnapshot) -> Iterator[Violation]:
        """A packet to the wrong card wakes nothing."""
        if node.name not in nodes:
            return
        facts = hardware(snapshot)
        nics = require(facts.nics, "hardware")
        if cards_of(facts, node, named):
            return
        there = ", ".join(f"{nic.name} {nic.mac} {' '.join(nic.addresses)}" for nic in nics)
        what = f"no card {named}" if named else f"no card that carries {node.lan_address}"
        yield violation(
            "wol-card",
            node.name,
            f"{node.name} has {what}",
            evidence=f"cards: {there or 'none'}",
            remedy=deploy_command(plan, "firmware", "nic=CARD", f"only={node.name}"),
        )

    return wol_card


def doctor(lists: Lists, now: float) -> tuple[Gate, ...]:
    """The findings as warnings: they are about the next time that the machine is down."""

    def soft(gate: Gate) -> Gate:
        def run(plan: Plan, observed: Observed) -> list[Violation]:
            return [replace(found, severity="warn") for found in gate(plan, observed)]

        return run

    return tuple(soft(gate) for gate in (*rebootable(lists, now), wol_unarmed))
