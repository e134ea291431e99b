"""What a reap is asked to do, and one judged look at the host."""

from __future__ import annotations

from typing import NamedTuple

from node.change import journal
from node.core import validate
from node.core.errors import Json
from node.reap import find, proof
from node.reap.find import ProcessView
from node.reap.ownership import Owners, Verdicted, judge_all
from node.reap.proof import Wanted

_KEYS = ("change", "unit", "container", "ports", "hold", "term_s", "settle_s", "vram_free_mib",
         "memory_available_bytes", "dry")  # fmt: skip


class ReapRequest(NamedTuple):
    """A checked request."""

    change: Json | None
    unit: str
    container: str
    ports: list[int]
    hold: bool
    term_s: float
    settle_s: float
    wanted: Wanted
    dry: bool


class JudgedView(NamedTuple):
    """One look, judged."""

    view: ProcessView
    orphans: list[Verdicted]
    spared: list[Verdicted]

    def foreign(self, ports: list[int]) -> list[str]:
        """Gives the wanted ports that stay held by somebody else than our own live engine."""
        free = {row.candidate.stat.pid for row in self.orphans}
        free |= {row.candidate.stat.pid for row in self.spared if row.is_own}
        reasons = {row.candidate.stat.pid: row.why for row in self.spared}
        found: list[str] = []
        for port in ports:
            pids = self.view.holders.get(port)
            if pids is None or (pids and all(pid in free for pid in pids)):
                continue
            why = [reasons[pid] for pid in pids if pid in reasons and pid not in free]
            who = proof.holder_words(self.view, port)
            found.append(f"port {port} is held by {who}" + (f": {why[0]}" if why else ""))
        return found


def parse_request(request: Json) -> ReapRequest:
    """Gives the request with every value checked and absent ones filled in."""
    body = validate.keys(request, "request", _KEYS)
    header = body.get("change")
    ports = [
        int(validate.number(row, f"ports[{n}]", 1, 65535))
        for n, row in enumerate(validate.array(body.get("ports") or [], "ports", 64))
    ]
    limits: dict[str, float | None] = {}
    for key, most in (("vram_free_mib", 1 << 24), ("memory_available_bytes", 1 << 50)):
        limits[key] = None if body.get(key) is None else validate.number(body[key], key, 0, most)
    job = ReapRequest(
        None if header is None else journal.parse_change(header),
        validate.unit(body.get("unit", "rigbook-engine.service"), "unit"),
        validate.image(body.get("container", "rigbook-engine"), "container"),
        sorted(set(ports)),
        validate.boolean(body.get("hold", False), "hold"),
        validate.number(body.get("term_s", 10), "term_s", 0, 300),
        validate.number(body.get("settle_s", 30), "settle_s", 0, 600),
        Wanted(limits["vram_free_mib"], limits["memory_available_bytes"]),
        validate.boolean(body.get("dry", False), "dry"),
    )
    if job.hold and job.change is None and not job.dry:
        raise validate.bad("hold needs a change: the unit's state before is kept in it")
    return job


def inspect_host(job: ReapRequest) -> JudgedView:
    """Gives one look at the host with a judgement of each candidate; reads only."""
    owners = Owners(job.unit, job.container)
    view = find.inspect_processes(job.ports, job.unit, owners.our_container_id())
    judged = judge_all(view, owners)
    return JudgedView(
        view, [row for row in judged if row.is_orphan], [row for row in judged if not row.is_orphan]
    )
