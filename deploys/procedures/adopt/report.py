"""Tells what serves on each host, who starts it, and what comes back at the next boot."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from pyinfra import logger
from pyinfra.api.exceptions import DeployError

from deploys.common.load_and_gate import inventory_name, once_a_run
from deploys.procedures.adopt.look import Seen, container_of
from schema.adoption.compare import OWN
from schema.observed.former import Former, FormerContainer, FormerEngine, Supervisor

_LINE = 400


@once_a_run
def report(seen: Seen) -> None:
    """Prints what was seen, a paragraph a host; DeployError when a host could not be asked."""
    for name, former in seen.formers.items():
        if isinstance(former, Former):
            for line in lines(former):
                logger.info(f"[{name}] {line}")
    if seen.silent:
        told = "; ".join(f"{name}: {why}" for name, why in seen.silent.items())
        raise DeployError(f"a rig is taken whole, and not every node could be looked at: {told}")


def lines(former: Former) -> Iterator[str]:
    """What one host runs, in lines for a person."""
    if not former.engines and not former.supervisors:
        yield (
            "no vLLM was found here by other means than rigbook, in what could be looked at"
            if former.unread
            else "no vLLM runs here by other means than rigbook, and nothing would start one"
        )
    for engine in former.engines:
        yield from _engine(engine, container_of(former, engine))
    if former.supervisors and not former.engines:
        yield "no vLLM was found running" if former.unread else "no vLLM runs now"
    for row in former.supervisors:
        yield f"started by {supervisor(row)}: {row.evidence[:_LINE]}"
    if former.engines or former.supervisors:
        again = [row.name for row in former.supervisors if row.starts_at_boot]
        none = f"nothing{' of what could be looked at' if former.unread else ''} starts it"
        yield f"at the next boot: {', '.join(again) or none}"
    for box in former.containers:
        if box.auto_remove:
            yield f"lost when it stops: container {box.name} (--rm), with all that was put into it"
    for text in former.unread:
        yield f"not looked at: {text}"


def _engine(engine: FormerEngine, box: FormerContainer | None) -> Iterator[str]:
    ways = {
        "main": f"as the main process of container {engine.container}",
        "exec": f"by docker exec in container {engine.container}",
        "pod": f"in pod {engine.container}",
        "host": f"in {engine.venv or engine.exe}",
    }
    yield (
        f"vLLM: pid {engine.pid} {ways[engine.inside_of]}, rank {engine.node_rank}, "
        + (f"port {engine.port}" if engine.is_head else "headless")
        + f", as {engine.user or engine.uid}"
    )
    yield f"  {shlex.join(engine.argv)}"
    image_env = box.image_env if box else {}
    own = {n: v for n, v in engine.env.items() if not OWN.match(n) and image_env.get(n) != v}
    if own:
        yield "  " + " ".join(f"{name}={shlex.quote(value)}" for name, value in own.items())
    if box is not None:
        content = box.digests[0] if box.digests else f"{box.image_id[:19]}, no registry's digest"
        yield f"  image {box.image} = {content}"
        for mount in box.mounts:
            only = " (read-only)" if mount.read_only else ""
            yield f"  mount {mount.source} at {mount.target}{only}"
        if box.changed:
            yield f"  put into the container by hand: {', '.join(box.changed)}"


def supervisor(row: Supervisor) -> str:
    """A supervisor by kind, name and state."""
    if row.kind == "unit":
        states = [row.enabled, row.active, row.restart and f"Restart={row.restart}"]
        return f"unit {row.name} ({', '.join(filter(None, states))})"
    kinds = {"container-policy": "docker's restart policy of", "compose": "compose project",
             "cron": "crontab", "pod": "Deployment", "shell": "hand, pid"}  # fmt: skip
    return f"{kinds[row.kind]} {row.name}"


def next_command(*data: str) -> str:
    """The command line of adopt with this inventory."""
    more = "".join(f" --data {item}" for item in data)
    return f"pyinfra {inventory_name()} deploys/adopt.py -y{more}"
