"""unit: what is asked of which node, what is sent, and what is refused before anything is."""

from __future__ import annotations

import hashlib
from typing import Any

from schema.plan import Plan
from schema.render_unit import HEADER
from schema.snapshot import FileState
from tests.plans.support.scenario import (
    HEAD,
    WORKER,
    Runs,
    Scenario,
    Seen,
    Snapshots,
    Table,
    change_open,
    data,
    done,
    each_row,
    quiet,
    refused,
    serving,
)
from tests.unit.builders.host_parts import NOW, unit
from tests.unit.builders.rigs import put

DS4 = "vllm-ds4-head.service"
FOLDER = f"/etc/systemd/system/{DS4}.d"
PATH = f"{FOLDER}/50-rigbook-exec.conf"
TEXT = HEADER + "\n[Service]\nExecStart=\nExecStart=/usr/bin/sleep infinity\n"


def state(path: str, text: str | None, kind: str) -> FileState:
    """A path as a snapshot shows it."""
    found = hashlib.sha256(text.encode()).hexdigest() if text is not None else None
    mode = {"file": "0644", "directory": "0755"}.get(kind)
    owner = None if kind == "absent" else 0
    return FileState(path=path, kind=kind, sha256=found, size=None, mode=mode, uid=owner, gid=owner,
                     content=text)  # fmt: skip


def rig(text: str | None, **changes: object) -> Seen:
    """Both nodes serve; the head has the seed's unit, and its drop-in where `text` is one."""

    def make(plan: Plan) -> Snapshots:
        seen = dict(serving(plan))
        ds4 = unit(**{"name": DS4, "active_state": "activating", "sub_state": "auto-restart",
                      "exec_start": ("/workspace/vllm-head-090.sh",), "exec_start_exists": False,
                      "drop_ins": (PATH,) if text else (), **changes})  # fmt: skip
        absent = unit(name=DS4, load_state="not-found", fragment=None)
        files = (state(PATH, text, "file" if text else "absent"),
                 state(FOLDER, None, "directory" if text else "absent"))  # fmt: skip
        for name, one in ((HEAD, ds4), (WORKER, absent)):
            seen[name] = put(seen[name], "units", (*seen[name].units, one))
            seen[name] = put(seen[name], "files", (*seen[name].files, *files))
        return seen

    return make


SLEEP = "exec_start=/usr/bin/sleep infinity"
GHOSTS = {f"{HEAD}:check": {"ghosts": ["ExecStart starts /opt/gone, which does not exist"]}}
TORN = {f"{HEAD}:check": {"problems": [f"{DS4}: Unit has a bad unit file setting."]}}
BARE, DRY = rig(None), ("--dry", "--diff")
GONE = "exec_start=/opt/gone"


def run(
    *pairs: str, seen: Seen = BARE, how: tuple[str, ...] = ("-y",), unit: str = DS4, **more: Any
) -> Scenario:
    """A run of unit."""
    return Scenario(("deploys/unit.py", *how, *data(f"unit={unit}", *pairs)), seen, **more)


SHOWN = (f"make the folder {FOLDER}", f"write {PATH} (mode 0644, owner root)", "+ExecStart=",
         "+ExecStart=/usr/bin/sleep infinity",
         f"have systemd read its units again, then restart {DS4}")  # fmt: skip
LOOKS = ["snapshot", "snapshot"]
ACTIVE = {"active_state": "active", "sub_state": "running"}
TABLE: Table = {
    "dry": (run(SLEEP, how=DRY), quiet(
        *(f"[{HEAD}] {line}\n" for line in SHOWN),
        never=tuple(f"[{WORKER}] {line}\n" for line in SHOWN), asks=["dropin", *LOOKS])),
    "repoint": (run(SLEEP), done(
        f"{DS4} starts /usr/bin/sleep infinity",
        steps=["lab1 apply directory+file+unit", "lab1 close COMMITTED"])),
    "same": (run(SLEEP, seen=rig(TEXT)), quiet(asks=LOOKS)),
    # a unit that runs is not restarted
    "running": (run(SLEEP, how=DRY[:1], seen=rig(None, **ACTIVE)), quiet(
        "have systemd read its units again\n", "this counts from its next start on",
        never=("then restart",))),
    # a crash loop seen in its short active phase comes anew
    "between two deaths": (
        run(SLEEP, how=DRY, seen=rig(None, **ACTIVE, restarts=1, since_unix_s=NOW - 1)),
        quiet(f"then restart {DS4}", never=("from its next start",))),
    # other directives replace the file whole
    "restart": (
        run("restart=always", "restart_sec=3", how=DRY, seen=rig(TEXT)),
        quiet(*(f"[{HEAD}] {line}\n" for line in (
            "-ExecStart=/usr/bin/sleep infinity", "+Restart=always", "+RestartSec=3")))),
    "remove": (run("remove=true", how=DRY, seen=rig(TEXT)), quiet(
        f"[{HEAD}] remove {PATH}\n", f"[{HEAD}] -ExecStart=\n")),
    "none to remove": (run("remove=true"), quiet(asks=LOOKS)),
    "ghost": (run(GONE, faults=GHOSTS), refused(
        f"nothing was changed: {HEAD}: {DS4}: ExecStart starts /opt/gone, which does")),
    "torn": (run(SLEEP, "waive=unit-ghost", "reason=x", faults=TORN), refused(
        f"nothing was changed: {HEAD}: {DS4}: {DS4}: Unit has a bad unit file setting.")),
    "waived": (
        run(GONE, "waive=unit-ghost", "reason=later", faults=GHOSTS),
        done("waived unit-ghost")),
    "silent": (run(SLEEP, faults={f"{HEAD}:lost": "dropin"}), refused(
        f"{HEAD}: did not say whether {DS4} would be sound")),
    "elsewhere": (run(SLEEP, f"only={WORKER}"), refused(f"{WORKER}: systemd knows no unit {DS4}")),
    "no such node": (
        run(SLEEP, "only=lab9"),
        refused(f"only=lab9: no such node; the rig has: {HEAD}, {WORKER}")),
    "no unit": (
        Scenario(("deploys/unit.py", "-y", *data(SLEEP)), BARE),
        refused("--data unit=NAME.service is missing")),
    "nothing asked": (run(), refused("give --data remove=true, or what the drop-in is to set")),
    "both": (
        run(SLEEP, "remove=true"),
        refused("give --data remove=true, or what the drop-in is to set")),
    "no order": (run(SLEEP, "drop_in=ghost"), refused("drop_in=ghost: no order among drop-ins")),
    "ours": (
        run(SLEEP, unit="rigbook-engine.service", seen=serving),
        refused("serve writes this unit and a drop-in would outlive it")),
    "hostile": (
        run("exec_start=/bin/sh\n-c x"), refused("holds a newline or another control character")),
    "change open": (run(SLEEP, seen=change_open), refused("change-open")),
}  # fmt: skip
test_each_run_ends_as_its_row_says = each_row(TABLE)


def test_a_repoint_is_one_change(ran: Runs) -> None:
    (sent,) = [command for command in ran["repoint"].changing if command.verb == "apply"]
    folder, file, systemd = sent.request["steps"]
    assert (folder["path"], file["path"], file["content"]) == (FOLDER, PATH, TEXT)
    assert (file["for_unit"], file["expect_sha256"]) == (DS4, "absent")
    assert (systemd["active"], systemd["daemon_reload"]) == ("restart", True)
    assert ran["dry"].of(HEAD) == ["snapshot", "dropin"]


def test_a_waived_ghost_is_written_and_not_started(ran: Runs) -> None:
    (sent,) = [command for command in ran["waived"].changing if command.verb == "apply"]
    assert sent.request["change"]["waivers"] == [{"code": "unit-ghost", "reason": "later"}]
    _, file, systemd = sent.request["steps"]
    assert file["accept_ghosts"] is True and systemd["active"] is None
