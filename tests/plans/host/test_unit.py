"""unit: what is asked of which node, what is sent, and what is refused before anything is."""

from __future__ import annotations

import hashlib

import pytest

from schema.desired.plan import Plan
from schema.observed.files import FileState
from schema.render.drop_in import HEADER
from tests.plans.support.rigs import change_open
from tests.plans.support.scenario import HEAD, WORKER, Runs, Scenario, Snapshots, serving
from tests.unit.builders.host_parts import NOW, unit
from tests.unit.builders.snapshots import put

DS4 = "vllm-ds4-head.service"
FOLDER = f"/etc/systemd/system/{DS4}.d"
PATH = f"{FOLDER}/50-rigbook-exec.conf"
TEXT = HEADER + "\n[Service]\nExecStart=\nExecStart=/usr/bin/sleep infinity\n"


def data(*pairs: str) -> tuple[str, ...]:
    """The words of these --data."""
    return tuple(word for pair in (f"unit={DS4}", *pairs) for word in ("--data", pair))


def unit_run(*pairs: str, how: tuple[str, ...] = ("-y",)) -> tuple[str, ...]:
    """The command line of the deploy."""
    return ("deploys/unit.py", *how, *data(*pairs))


def state(path: str, text: str | None, kind: str) -> FileState:
    """A path as a snapshot shows it."""
    found = hashlib.sha256(text.encode()).hexdigest() if text is not None else None
    mode = {"file": "0644", "directory": "0755"}.get(kind)
    owner = None if kind == "absent" else 0
    return FileState(path=path, kind=kind, sha256=found, size=None, mode=mode, uid=owner, gid=owner,
                     content=text)  # fmt: skip


def rig(text: str | None, **changes: object) -> Snapshots:
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
SCENARIOS = {
    "dry": Scenario(unit_run(SLEEP, how=("--dry", "--diff")), rig(None)),
    "repoint": Scenario(unit_run(SLEEP), rig(None)),
    "same": Scenario(unit_run(SLEEP), rig(TEXT)),
    "running": Scenario(
        unit_run(SLEEP, how=("--dry",)), rig(None, active_state="active", sub_state="running")
    ),
    "between two deaths": Scenario(
        unit_run(SLEEP, how=("--dry", "--diff")),
        rig(None, active_state="active", sub_state="running", restarts=1, since_unix_s=NOW - 1),
    ),
    "limits": Scenario(
        unit_run("restart=always", "start_limit_burst=3", how=("--dry", "--diff")), rig(TEXT)
    ),
    "remove": Scenario(unit_run("remove=true", how=("--dry", "--diff")), rig(TEXT)),
    "none to remove": Scenario(unit_run("remove=true"), rig(None)),
    "ghost": Scenario(unit_run("exec_start=/opt/gone"), rig(None), faults=GHOSTS),
    "torn": Scenario(
        unit_run(SLEEP, "waive=unit-ghost", "reason=x"), rig(None), faults={**TORN}
    ),
    "waived": Scenario(
        unit_run("exec_start=/opt/gone", "waive=unit-ghost", "reason=later"),
        rig(None),
        faults=GHOSTS,
    ),
    "silent": Scenario(unit_run(SLEEP), rig(None), faults={f"{HEAD}:lost": "dropin"}),
    "elsewhere": Scenario(unit_run(SLEEP, f"only={WORKER}"), rig(None)),
    "no such node": Scenario(unit_run(SLEEP, "only=lab9"), rig(None)),
    "no unit": Scenario(("deploys/unit.py", "-y", "--data", SLEEP), rig(None)),
    "nothing asked": Scenario(unit_run(), rig(None)),
    "both": Scenario(unit_run(SLEEP, "remove=true"), rig(None)),
    "no order": Scenario(unit_run(SLEEP, "drop_in=ghost"), rig(None)),
    "ours": Scenario(
        ("deploys/unit.py", "-y", "--data", "unit=rigbook-engine.service", "--data", SLEEP)
    ),
    "hostile": Scenario(unit_run("exec_start=/bin/sh\n-c x"), rig(None)),
    "change open": Scenario(unit_run(SLEEP), change_open),
}  # fmt: skip


@pytest.fixture(scope="module")
def ran() -> Runs:
    """All runs of this module."""
    return Runs(SCENARIOS)


def test_dry_shows_the_file_of_the_node_that_has_the_unit_and_sends_nothing(ran: Runs) -> None:
    dry = ran["dry"]
    assert dry.status == 0 and dry.changing == (), dry.output
    for line in (f"make the folder {FOLDER}", f"write {PATH} (mode 0644, owner root)",
                 "+ExecStart=", "+ExecStart=/usr/bin/sleep infinity",
                 f"have systemd read its units again, then restart {DS4}"):  # fmt: skip
        assert f"[{HEAD}] {line}\n" in dry.stderr
        assert f"[{WORKER}] {line}\n" not in dry.stderr
    assert dry.of(HEAD) == ["snapshot", "dropin"] and dry.of(WORKER) == ["snapshot"]


def test_a_repoint_is_one_change_and_ends_blessed(ran: Runs) -> None:
    done = ran["repoint"]
    assert done.status == 0, done.output
    assert done.steps == ["lab1 apply directory+file+unit", "lab1 close COMMITTED"]
    (sent,) = [command for command in done.changing if command.verb == "apply"]
    folder, file, systemd = sent.request["steps"]
    assert (folder["path"], file["path"], file["content"]) == (FOLDER, PATH, TEXT)
    assert (file["for_unit"], file["expect_sha256"]) == (DS4, "absent")
    assert (systemd["active"], systemd["daemon_reload"]) == ("restart", True)
    assert f"{DS4} starts /usr/bin/sleep infinity" in done.stderr


@pytest.mark.parametrize("name", ["same", "none to remove"])
def test_a_second_run_changes_nothing(ran: Runs, name: str) -> None:
    again = ran[name]
    assert again.status == 0 and again.changing == (), again.output
    assert [command.verb for command in again.commands] == ["snapshot", "snapshot"]


def test_a_unit_that_runs_is_not_restarted(ran: Runs) -> None:
    running = ran["running"].stderr
    assert "have systemd read its units again\n" in running and "then restart" not in running
    assert "this counts from its next start on" in running


def test_a_crash_loop_seen_in_its_short_active_phase_comes_anew(ran: Runs) -> None:
    shown = ran["between two deaths"].stderr
    assert f"then restart {DS4}" in shown and "from its next start" not in shown


def test_other_directives_replace_the_file_whole(ran: Runs) -> None:
    shown = ran["limits"].stderr
    for line in ("-ExecStart=/usr/bin/sleep infinity", "+Restart=always", "+StartLimitBurst=3"):
        assert f"[{HEAD}] {line}\n" in shown


def test_its_removal_is_shown(ran: Runs) -> None:
    shown = ran["remove"].stderr
    assert f"[{HEAD}] remove {PATH}\n" in shown and f"[{HEAD}] -ExecStart=\n" in shown


def test_a_waived_ghost_is_written_and_not_started(ran: Runs) -> None:
    (sent,) = [command for command in ran["waived"].changing if command.verb == "apply"]
    assert sent.request["change"]["waivers"] == [{"code": "unit-ghost", "reason": "later"}]
    _, file, systemd = sent.request["steps"]
    assert file["accept_ghosts"] is True and systemd["active"] is None
    assert "waived unit-ghost" in ran["waived"].stderr


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("ghost", f"nothing was changed: {HEAD}: {DS4}: ExecStart starts /opt/gone, which does"),
        ("torn", f"nothing was changed: {HEAD}: {DS4}: {DS4}: Unit has a bad unit file setting."),
        ("silent", f"{HEAD}: did not say whether {DS4} would be sound"),
        ("elsewhere", f"{WORKER}: systemd knows no unit {DS4}"),
        ("no such node", f"only=lab9: no such node; the rig has: {HEAD}, {WORKER}"),
        ("no unit", "--data unit=NAME.service is missing"),
        ("nothing asked", "give --data remove=true, or what the drop-in is to set"),
        ("both", "give --data remove=true, or what the drop-in is to set"),
        ("no order", "drop_in=ghost: no order among drop-ins"),
        ("ours", "serve writes this unit and a drop-in would outlive it"),
        ("hostile", "holds a newline or another control character"),
        ("change open", "change-open"),
    ],
)
def test_what_is_refused(ran: Runs, name: str, part: str) -> None:
    """One clear line, and nothing was changed."""
    ran[name].refused(part)
