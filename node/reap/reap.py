"""reap: end the engine processes that no live supervisor owns, and prove that they are gone."""

from __future__ import annotations

import contextlib
import time

from node.change import transaction
from node.core.errors import Json, NodeError
from node.reap import proof, terminate
from node.reap.find import Candidate
from node.reap.ownership import Verdicted
from node.reap.request import JudgedView, ReapRequest, inspect_host, parse_request
from node.reap.verdict import Verdict, prove
from node.systemd import hold as systemd_hold

MAX_ROUNDS = 4
KILL_S = 5.0  # a killed process is gone at once, or it waits in the kernel


class _Reaping:
    """One reap under way: its journal, its step, and what became of each process."""

    def __init__(self, job: ReapRequest, log: transaction.Transaction) -> None:
        self.job = job
        self.log = log
        left = [row for row in log.rows if row["op"] == "reap" and row["state"] == "intent"]
        # of a run that was killed: this one finishes it
        self.entry: Json | None = left[0] if left else None
        self.ended: list[Json] = []
        self.known: list[Candidate] = []
        self.unit: Json | None = None

    def announce(self, orphans: list[Verdicted]) -> None:
        """Write who is about to be signalled, before any signal."""
        before = self.entry["identities"] if self.entry else []
        new = [row.as_json() for row in orphans if row.as_json() not in before]
        if new or self.entry is None:
            self.entry = self.log.begin("reap", identities=before + new, verdict=None)

    def end(self, orphans: list[Verdicted]) -> None:
        """End these, and note how."""
        reasons = {row.candidate.stat.pid: row.why for row in orphans}
        found = [row.candidate for row in orphans]
        for one, how in terminate.end(found, self.job.term_s, KILL_S):
            self.ended.append({**one.as_json(), "how": how, "why": reasons[one.stat.pid]})
            if how in ("TERM", "KILL", "alive"):
                self.known.append(one)

    def release(self, verdict: str) -> None:
        """Give the unit back; after "needs_reboot" it stays stopped, since it could not start."""
        said = systemd_hold.release(self.job.unit, self.log, verdict != "needs_reboot")
        if said and self.unit is None:
            self.unit = {"unit": self.job.unit, "held": False, "before": None,
                         "why": "a run that was killed had held it"}  # fmt: skip
        if self.unit is not None:
            self.unit["restored"] = said or "nothing to restore"

    def finish(self, verdict: Verdict) -> None:
        """Write the verdict: with it the step is done."""
        if self.entry is not None:
            self.entry.update(state="done", verdict=verdict.name, evidence=verdict.evidence)
            self.log.write()


def reap(request: Json) -> Json:
    """Find the orphans, end them, and prove it.

    Gives verdict, ended, spared, ports, memory_before, memory_after, evidence, unit, change and
    took_s (docs/reference/node.md). Raises NodeError for a bad request, a held lock, another open
    change, or a unit that does not stop.
    """
    started = time.monotonic()
    job = parse_request(request)
    before = proof.measure()
    proof.check_possible(job.wanted, before)
    if job.dry:
        answer = _dry(job, before)
    else:
        with transaction.opened(job.change, "reap") as log:
            run = _Reaping(job, log)
            try:
                verdict = _reap(run)
            except BaseException:
                # the first error is the one to tell; the journal keeps what this one leaves
                with contextlib.suppress(NodeError, OSError):
                    run.release("")
                raise
            run.release(verdict.name)
            run.finish(verdict)
        answer = _answer(job, verdict.seen, before, verdict.name, verdict.evidence)
        answer.update(ended=run.ended, unit=run.unit, change=log.change_id)
    return {**answer, "took_s": round(time.monotonic() - started, 3)}


def _answer(job: ReapRequest, seen: JudgedView, before: Json, verdict: str, evidence: str) -> Json:
    """Gives the answer without what was done."""
    return {
        "verdict": verdict,
        "ended": [],
        "spared": [row.as_json() for row in seen.spared],
        "ports": proof.port_rows(seen.view, job.ports),
        "memory_before": before,
        "memory_after": proof.measure(),
        "evidence": evidence,
        "unit": None,
        "change": None,
    }


def _dry(job: ReapRequest, before: Json) -> Json:
    """Gives what a reap would do; nothing is written or signalled."""
    seen = inspect_host(job)
    foreign = seen.foreign(job.ports)
    verdict = "refused" if foreign else "orphans" if seen.orphans else "nothing"
    answer = _answer(job, seen, before, verdict, "; ".join(foreign))
    answer["ended"] = [{**row.as_json(), "how": "would be ended"} for row in seen.orphans]
    return answer


def _reap(run: _Reaping) -> Verdict:
    """Look, hold, end, and prove."""
    job = run.job
    seen = inspect_host(job)
    foreign = seen.foreign(job.ports)
    if foreign:
        return Verdict(seen, "refused", "; ".join(foreign))
    if seen.orphans:
        run.announce(seen.orphans)
        if job.hold:
            run.unit = systemd_hold.stop_and_hold(job.unit, run.log)
            seen = inspect_host(job)  # what the stop left
            foreign = seen.foreign(job.ports)
            if foreign:
                return Verdict(seen, "refused", "; ".join(foreign))
    for _ in range(MAX_ROUNDS):
        if not seen.orphans or any(row["how"] == "alive" for row in run.ended):
            break
        run.announce(seen.orphans)
        run.end(seen.orphans)
        seen = inspect_host(job)
    verdict = prove(job, seen, run.known)
    if verdict.name == "clean" and run.entry is None:
        return verdict._replace(name="nothing")
    return verdict
