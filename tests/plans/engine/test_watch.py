"""watch: what it writes on which node, what it leaves alone, and that its secret stays one."""

from __future__ import annotations

from schema.keys import WatchData
from schema.load import host_data
from schema.plan import Plan
from schema.render_engine import WATCH_TIMER, watch_documents
from tests.plans.support.scenario import (
    HEAD,
    WORKER,
    Runs,
    Scenario,
    Seen,
    Snapshots,
    change_open,
    data,
    done,
    each_row,
    failed,
    host,
    quiet,
    refused,
    serving,
)
from tests.unit.builders.engine_parts import written_file
from tests.unit.builders.host_parts import pair_timer
from tests.unit.builders.rigs import put

SECRET = "T0P-S3CRET"
HOOK = f"webhook=http://127.0.0.1:1/{SECRET}"
WATCH = "deploys/watch.py"


def watching(plan: Plan) -> Snapshots:
    """The head watches already, every 30 s, and tells the journal."""
    seen = dict(serving(plan))
    address = str(plan.rig.head.lan_address)
    documents = watch_documents(
        plan, HEAD, host_data(HEAD, host(1, address, interval=30), {}, WatchData)
    )
    head = seen[HEAD]
    files = (*head.files, *map(written_file, documents))
    timer = pair_timer(name=WATCH_TIMER, fragment=f"/etc/systemd/system/{WATCH_TIMER}")
    seen[HEAD] = put(put(head, "files", files), "units", (*head.units, timer))
    return seen


def watch(*pairs: str, seen: Seen = serving, how: tuple[str, ...] = ("-y",)) -> Scenario:
    """A run of watch."""
    return Scenario((WATCH, *how, *data(*pairs)), seen)


DRY = ("--dry", "--diff")
CONFIG, LOOK = "/etc/rigbook/watch.json", "start rigbook-watch.service"
LINES = (f"write {CONFIG} (mode 0600, owner root)", f"enable and start {WATCH_TIMER}", LOOK)
LOOKS = ["snapshot", "snapshot"]
TABLE = {
    # the other node is looked at and left alone; the webhook is shown nowhere
    "dry": (watch(HOOK, how=DRY), quiet(
        *(f"[{HEAD}] {line}" for line in LINES),
        never=(*(f"[{WORKER}] {line}" for line in LINES), SECRET))),
    "worker": (watch(f"only={WORKER}", how=DRY), quiet(
        f"[{WORKER}] write {CONFIG}", never=(f"[{HEAD}] write /etc",))),
    "same": (watch("interval=30", seen=watching), quiet(asks=LOOKS)),
    # the timer runs with its new interval; new misses leave it alone
    "interval": (watch("interval=60", seen=watching, how=DRY[:1]), quiet(
        f"enable and restart {WATCH_TIMER}", never=(f"write {CONFIG}",))),
    "misses": (watch("interval=30", "misses=9", seen=watching, how=DRY[:1]), quiet(
        f"write {CONFIG}", LOOK, never=(WATCH_TIMER,))),
    "remove": (watch("remove=true", seen=watching, how=DRY[:1]), quiet()),
    "removed": (watch("remove=true", seen=watching), done(
        f"{HEAD} no longer watches: {WATCH_TIMER} is inactive")),
    # somebody started it again, or systemd still has it
    "removed, and it runs": (
        Scenario((WATCH, "-y", *data("remove=true")), watching,
                 faults={f"{HEAD}:timer": "active"}),
        failed(f"{HEAD}: {WATCH_TIMER} is active")),
    "nothing to remove": (watch("remove=true"), quiet(asks=LOOKS)),
    "no such node": (
        watch("only=lab9"), refused(f"only=lab9: no such node; the rig has: {HEAD}, {WORKER}")),
    "bad url": (
        watch(f"webhook=ftp://h/{SECRET}"),
        refused("webhook: is not a URL; allowed: http:// or https://")),
    "both": (
        watch(HOOK, "webhook_file=/root/hook"),
        refused("webhook: and webhook_file; allowed: one of them")),
    # what restarts an engine watches that engine itself
    "restart of a gateway": (
        watch("restart=true", "url=http://gateway:4000"),
        refused("restart: with url or only; allowed: the head watches its own engine")),
    "no prom": (watch("textfile=/var/x"), refused("allowed: one that ends with .prom")),
    "restart": (watch("interval=30", "restart=true", seen=watching, how=DRY[:1]), quiet(
        f"write {CONFIG}", LOOK, never=(WATCH_TIMER,))),
    "change open": (watch(seen=change_open), refused("change-open")),
}  # fmt: skip
test_each_run_ends_as_its_row_says = each_row(TABLE)


def test_the_webhook_is_in_no_error(ran: Runs) -> None:
    assert all(SECRET not in run.output for run in ran.each(("bad url", "both")))


def test_its_end_takes_everything_away(ran: Runs) -> None:
    """Timer first, so that no look meets a missing file."""
    lines = [line.strip() for line in ran["remove"].stderr.splitlines()]
    at = [lines.index(f"[{HEAD}] {what}") for what in (
        f"disable and stop {WATCH_TIMER}", f"remove {CONFIG}",
        "remove /etc/systemd/system/rigbook-watch.service",
        f"remove /etc/systemd/system/{WATCH_TIMER}", "have systemd read its units again",
    )]  # fmt: skip
    assert at == sorted(at)
