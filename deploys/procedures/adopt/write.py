"""Writes inventory, group data and recipe of what serves, once they were loaded and compared."""

from __future__ import annotations

import datetime
import getpass
import ipaddress
import tempfile
from collections.abc import Mapping
from pathlib import Path

from pyinfra import logger, state
from pyinfra.api.exceptions import DeployError

from deploys.common.cli_guards import ROOT
from deploys.common.load_and_gate import dry_run, inventory_name, once_a_run
from deploys.procedures.adopt import prove
from deploys.procedures.adopt.look import Seen, chosen, container_of, host_values
from deploys.procedures.adopt.report import next_command, supervisor
from schema.adoption.command_line import parse
from schema.adoption.files import Written, usual_home, written
from schema.adoption.live import LiveNode
from schema.core.errors import SpecError
from schema.desired.plan import Plan
from schema.inputs import load
from schema.observed.machine import Gpus
from schema.observed.network import Link, Network
from schema.observed.snapshot import NodeSnapshot


@once_a_run
def write(seen: Seen, name: str | None, port: int | None) -> None:
    """Writes the files of the rig `name` and tells what differs; without a name, how to go on.

    DeployError: a file of that name is there, a node runs no engine or several, or what was found
    makes no recipe that loads; nothing was written then.
    """
    if name is None:
        _say_next(seen, port)
        return
    taken = [path for path in _paths(name) if (ROOT / path).exists()]
    if taken:
        raise DeployError(
            f"{taken[0]} is there already, and nothing is overwritten: choose another name, "
            + next_command("write=OTHER")
        )
    nodes = live_nodes(seen, port)
    by = {n: [supervisor(row) for row in seen.former(n).supervisors] for n in seen.formers}
    ssh = {node.name: _ssh(host_values(node.name)) for node in nodes}
    made = written(name, nodes, by, ssh, datetime.date.today().isoformat())
    plan = loaded(made, name)
    if dry_run():
        for path, text in made.files.items():
            logger.info(f"would write {path}:\n{text}")
    else:
        save(made, ROOT)
        logger.info(f"wrote {', '.join(made.files)}")
    for need in made.needs:
        logger.warning(f"needs you: {need}")
    prove.tell(plan, seen, prove.differences(plan, seen, port))
    logger.info(f"next: read catalog/recipes/{name}.yaml, then "
                f"pyinfra inventory/{name}.py deploys/adopt.py -y")  # fmt: skip


def save(made: Written, root: Path) -> None:
    """Writes the files below the project's root; FileExistsError where one is there."""
    for path, text in made.files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        with (root / path).open("x", encoding="utf-8") as file:
            file.write(text)


def _paths(name: str) -> tuple[str, ...]:
    return (f"inventory/{name}.py", f"group_data/{name}.py", f"catalog/recipes/{name}.yaml")


def _say_next(seen: Seen, port: int | None) -> None:
    """How to go on: with a recipe, what differs from it; without one, how to write it."""
    if not any(former.engines for former in map(seen.former, seen.formers)):
        return
    hosts = {host.name: host_values(host.name) for host in state.inventory}
    if not all(values.get("recipe") for values in hosts.values()):
        logger.info(f"next: {next_command('write=NAME')} writes inventory, group_data and recipe")
        return
    try:
        plan = load.plan(hosts, None, ROOT, ("adopt",))
    except SpecError as error:
        raise DeployError(f"{inventory_name()} does not load: {error}") from None
    if plan.deployment is None:
        prove.tell(plan, seen, prove.differences(plan, seen, port))
        logger.info(f"next: {next_command('take=true')} hands the rig over, with a way back")


def live_nodes(seen: Seen, port: int | None = None) -> list[LiveNode]:
    """The nodes in rank order with all that the files need; DeployError when a node cannot tell."""
    engines = {name: chosen(seen, name, port) for name in seen.formers}
    heads = [name for name, engine in engines.items() if engine.is_head]
    ranks = sorted(engine.node_rank for engine in engines.values())
    if len(heads) != 1 or ranks != list(range(len(ranks))):
        told = ", ".join(f"{n} rank {e.node_rank}" for n, e in engines.items())
        raise DeployError(
            f"these hosts are no one rig ({told}): an inventory holds the nodes of one model, with "
            "the ranks 0, 1, 2 …"
        )
    join = parse(engines[heads[0]].argv).join
    nodes = []
    for name, engine in sorted(engines.items(), key=lambda item: item[1].node_rank):
        snapshot, given = seen.snapshot(name), host_values(name)
        links = snapshot.network.links if isinstance(snapshot.network, Network) else ()
        lan = _lan_address(name, given, links)
        link, fabric = (None, None)
        if len(engines) > 1:
            link, fabric = _fabric(given, links, str(join.get("master_addr", "")), lan)
        user = str(given.get("ssh_user") or getpass.getuser())
        nodes.append(LiveNode(
            name=name,
            ssh_user=user,
            home=str(given.get("home") or usual_home(user)),
            lan_address=lan,
            fabric_address=fabric,
            fabric_device=link.name if link else None,
            fabric_mtu=link.mtu if link else 9000,
            has_gpu=_has_gpu(snapshot),
            engine=engine,
            container=container_of(seen.former(name), engine),
        ))  # fmt: skip
    return nodes


def _has_gpu(snapshot: NodeSnapshot) -> bool:
    gpus = snapshot.gpus
    return isinstance(gpus, Gpus) and bool(gpus.gpus) and not gpus.stand_in


def _is_address(text: object) -> bool:
    try:
        ipaddress.ip_address(str(text))
    except ValueError:
        return False
    return True


def _plain(link: Link) -> list[str]:
    """A link's addresses without their prefix lengths, IPv4 first."""
    found = [address.partition("/")[0] for address in link.addresses]
    return sorted(found, key=lambda address: ":" in address)


def _lan_address(name: str, given: Mapping[str, object], links: tuple[Link, ...]) -> str:
    """Where the host is reached: as the inventory says, else its first address."""
    for text in (given.get("lan_address"), given.get("ssh_hostname"), name):
        if text and _is_address(text):
            return str(text)
    own = [a for link in links if link.name != "lo" and not link.name.startswith(("docker", "veth"))
           for a in _plain(link) if not a.startswith("fe80:")]  # fmt: skip
    if not own:
        raise DeployError(f"{name}: no address of it is known: lan_address: is missing in "
                          f"{inventory_name()}")  # fmt: skip
    return own[0]


def _fabric(
    given: Mapping[str, object], links: tuple[Link, ...], master: str, lan: str
) -> tuple[Link | None, str]:
    """The link between the nodes and this node's address on it: as the inventory says, else the one
    that holds the head's --master-addr, or an address of its network.
    """
    wanted = str(given.get("fabric_address") or "")
    for link in links:
        for text in link.addresses:
            address = text.partition("/")[0]
            if address == wanted or (not wanted and _same_network(text, master)):
                return link, address
    return None, wanted or lan


def _same_network(interface: str, address: str) -> bool:
    try:
        return ipaddress.ip_address(address) in ipaddress.ip_interface(interface).network
    except ValueError:
        return False


def _ssh(values: Mapping[str, object]) -> dict[str, object]:
    """The keys that pyinfra connects by."""
    return {k: v for k, v in values.items() if k.startswith("ssh_") and v is not None}


def loaded(made: Written, name: str) -> Plan:
    """The plan that the files make, read back by the loader from a folder of their own."""
    hosts = _run(made.files[f"inventory/{name}.py"])[name]
    common = _run(made.files[f"group_data/{name}.py"])
    assert isinstance(hosts, list)
    with tempfile.TemporaryDirectory(prefix="rigbook-adopt-") as folder:
        path = Path(folder) / f"catalog/recipes/{name}.yaml"
        path.parent.mkdir(parents=True)
        path.write_text(made.files[f"catalog/recipes/{name}.yaml"], encoding="utf-8")
        try:
            return load.plan({n: {**common, **own} for n, own in hosts}, None, Path(folder), ())
        except SpecError as error:
            raise DeployError(f"what runs makes no recipe that loads, so nothing was written: "
                              f"{'; '.join(error.problems)}") from None  # fmt: skip


def _run(text: str) -> dict[str, object]:
    """The names that a file of ours defines."""
    found: dict[str, object] = {}
    exec(compile(text, "<adopt>", "exec"), found)
    return {k: v for k, v in found.items() if not k.startswith("__") and not callable(v)}
