"""Bad input on the command line and in the inventory: a clear line, exit status 1, no change."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.plans.support import scenario
from tests.plans.support.doubles import Reply
from tests.plans.support.scenario import HEAD, INVENTORY, ROOT, WORKER, Runs, Scenario, data, host
from tests.unit.builders.rigs import healthy

SERVE = ("deploys/serve.py", "-y")
ELSEWHERE = Path(tempfile.gettempdir())
# What `make setup` gives: the project's packages are found from any folder.
INSTALLED = {"PYTHONPATH": str(ROOT)}
CANARY = "rigbook-canary"
MAC = "00:1a:2b:3c:4d:5e"
EVIL = f"; touch {CANARY}; #"


def serve(*arguments: str, **changes: Any) -> Scenario:
    """A serve run on a rig that is ready."""
    return Scenario((*SERVE, *arguments), healthy, **changes)


def rollback(*arguments: str) -> Scenario:
    """A rollback run on a rig that is ready."""
    return Scenario(("deploys/rollback.py", "-y", *arguments), healthy)


def outside(*arguments: str, inventory: str = INVENTORY) -> Scenario:
    """A serve run that was started in another folder, with whole paths."""
    deploy = str(ROOT / "deploys/serve.py")
    return Scenario(
        (deploy, "-y", *arguments), healthy, folder=ELSEWHERE, inventory=str(ROOT / inventory),
        env=INSTALLED,
    )  # fmt: skip


# Name: the run, what its last words have to say.
REFUSED = {
    "recipe": (serve(*data("recipe=tyni")), ("unknown recipe 'tyni'", "qwen3.6-27b, tiny")),
    "profile": (
        serve(*data("profile=fast")),
        ("unknown profile 'fast'", "allowed: balanced, latency, throughput"),
    ),
    "profile twice": (
        serve(*data("profile=latency", "profile=balanced")), ("--data: 'profile' is given twice",)
    ),
    "host twice": (
        serve(hosts=[(HEAD, host(1, "127.0.0.2")), (HEAD, host(2, "127.0.0.3"))]),
        (f": {HEAD!r} is given twice; allowed: once",),
    ),
    "key": (serve(*data("profil=fast")), (
        "unknown key 'profil'", "did you mean profile?; allowed: ",
        "; --data help=true lists all keys")),
    "another's key": (
        rollback(*data("version=0.19.2")),
        ("--data: version: rollback does not take it; allowed: with driver, upgrade; --data help",),
    ),
    "nobody's waiver": (
        Scenario(("deploys/verify.py", "-y", *data("waive=fabric-mtu", "reason=x")), healthy),
        ("--data: waive: verify does not take it; allowed: with adopt, backup, bench, driver,",
         "--data: reason: verify does not take it"),
    ),
    "two runbooks": (
        Scenario(("deploys/stop.py", "deploys/watch.py", "-y", *data("misses=2", "keep=1")),
                 healthy),
        ("--data: keep: stop or watch does not take it; allowed: with backup",),
    ),
    "no weights there": (
        Scenario(("deploys/stop.py", "-y", *data("deep=true")), healthy),
        ("deep: stop does not take it; allowed: with adopt, doctor, report, restart, serve, ",),
    ),
    "another's value": (
        serve(data={"misses": 0}), (f"{INVENTORY}: host {HEAD}: misses: is 0; allowed: 1 or more",)
    ),
    "types": (
        serve(*data("deep=perhaps", "profile=7", "rank=zero", 'recipe={"a": 1}')),
        ("deep: is the text 'perhaps'", "profile: is the number 7", "rank: is the text 'zero'",
         "recipe: is a map"),
    ),
    "no value": (serve("--data", "profile"), ("--data 'profile' has no value", "key=value")),
    "address": (
        serve(data={"lan_address": "192.168.1.300"}),
        (f"{INVENTORY}: host {HEAD}: lan_address: '192.168.1.300' is not an address",),
    ),
    "two heads": (serve(data={"role": "head"}), ("has 2 heads", HEAD, WORKER)),
    "no data": (serve(hosts=[(HEAD, {})]), ("role: is missing", "recipe: is missing")),
    "one host of two": (
        serve(hosts=[(WORKER, host(2, "127.0.0.2"))]),
        ("has 0 heads (none)",),
    ),
    "hostile data": (
        rollback(*data(f"recipe={EVIL}", f"profile=$(touch {CANARY})", f"change=`touch {CANARY}`",
                       "overwrite=-rf", f"reason=a\ntouch {CANARY}", "waive=-x")),
        ("recipe: '; touch", "profile: '$(touch", "change: '`touch", "overwrite[0]: '-rf'",
         "reason: 'a\\ntouch", "waive[0]: '-x'"),
    ),
    "hostile inventory": (
        serve(data={"ssh_user": f"$(touch {CANARY})", "fabric_device": EVIL, "rig": "`x`",
                    "home": f"/home/a\ntouch {CANARY}", "lan_address": EVIL}),
        (f"{INVENTORY}: host {HEAD}: ssh_user: '$(touch", "fabric_device: '; touch", "rig: '`x`'",
         "home: '/home/a\\ntouch", "lan_address: '; touch"),
    ),
    "traversal": (serve(*data("recipe=../../etc/passwd")), ("recipe: '../../etc/passwd'",)),
    "other folder": (outside(), ("start pyinfra in rigbook's own folder", f"cd {ROOT}")),
    "other folder, our rigs": (
        outside(inventory="inventory/spark.py"),
        ("start pyinfra in rigbook's own folder", f"cd {ROOT}"),
    ),
    "other folder, our config": (
        outside("--config", str(ROOT / "config.py")),
        ("start pyinfra in rigbook's own folder", f"cd {ROOT}"),
    ),
    "limit": (serve("--limit", "nobody"), ("leave no host", HEAD, WORKER)),
    "serial": (serve("--serial"), ("--serial breaks the order",)),
    "parallel": (serve("--parallel", "1"), ("--parallel 1 breaks a rig of 2 hosts",)),
    "torn key": (
        Scenario(SERVE, healthy, env={"RIGBOOK_API_KEY": "s3cret\n"}),
        ("RIGBOOK_API_KEY has characters no HTTP header can hold",),
    ),
    "no wait": (serve("--no-wait"), ("--no-wait breaks the order",)),
    "empty": (serve(hosts=[]), (f"{INVENTORY} is not there or has no hosts",)),
    "no inventory": (serve(inventory="inventory/nosuch.py"), ("inventory/nosuch.py is not there",)),
    "nobody to ask": (Scenario(SERVE[:1], healthy), ("no terminal to confirm at", "--dry")),
}  # fmt: skip
REASON = f"it's $(touch {CANARY}) `touch {CANARY}` \" ; touch {CANARY} #"
PASSING = {
    "hostile reason": Scenario(
        (*SERVE, *data("waive=fabric-mtu", f"reason={REASON}")), scenario.short_mtu, answers=Reply
    ),
    "hostile path": Scenario(
        ("deploys/rollback.py", "-y", *data(f"overwrite=/etc/$(touch {CANARY})")),
        scenario.one_forgotten,
    ),
    "help": Scenario(("deploys/watch.py", *data("help=true")), healthy),
    "described": Scenario(SERVE, healthy, data={"misses": 5, "mac": MAC}, answers=Reply),
    "chdir": Scenario(
        ("deploys/serve.py", "--dry", "--chdir", str(ROOT)), healthy, folder=ELSEWHERE
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def ran() -> Runs:
    """All runs of this module."""
    return Runs({name: case[0] for name, case in REFUSED.items()} | PASSING)


@pytest.mark.parametrize("name", REFUSED)
def test_bad_input_is_refused_before_any_host_is_asked(ran: Runs, name: str) -> None:
    """The line names the key, what is wrong and what is allowed; no host hears of it."""
    ran[name].refused(*REFUSED[name][1])
    assert ran[name].commands == ()


@pytest.mark.parametrize(
    "name",
    ["recipe", "profile", "key", "another's key", "two runbooks", "no value", "limit",
     "other folder"],
)  # fmt: skip
def test_one_slip_is_one_line(ran: Runs, name: str) -> None:
    """What --data says is the same for all hosts, so it is said once."""
    assert "\n" not in ran[name].last_words


@pytest.mark.parametrize("name", ["types", "hostile data", "hostile inventory"])
def test_every_problem_has_a_line_of_its_own(ran: Runs, name: str) -> None:
    """All slips at once, each saying what is allowed; control characters are shown escaped."""
    lines = ran[name].last_words.splitlines()
    assert len(lines) >= len(REFUSED[name][1])
    assert all("allowed:" in line for line in lines)


def test_hostile_text_never_reaches_a_shell(ran: Runs) -> None:
    """Free text travels packed: no command line has a word of it, the journal has all of it."""
    for name in ("hostile reason", "hostile path"):
        assert ran[name].status == 0, ran[name].output
        assert ran[name].changing
        assert not any(CANARY in command.raw for command in ran[name].commands)
    applied = next(c for c in ran["hostile reason"].changing if c.verb == "apply")
    assert applied.request["change"]["waivers"][0]["reason"] == REASON


def test_no_canary_appeared(ran: Runs) -> None:
    """Nothing that a value said was done."""
    for folder in (ROOT, ELSEWHERE, Path.home()):
        assert not (folder / CANARY).exists()


def test_the_keys_of_a_runbook_are_printed_without_a_host(ran: Runs) -> None:
    """Nobody is asked for Enter, and no host is connected to."""
    help_run = ran["help"]
    assert help_run.status == 0, help_run.output
    assert help_run.commands == () and "Connecting" not in help_run.output
    lines = help_run.stdout.splitlines()
    line = "  interval: between two looks (whole number, 10 to 86400 seconds; default: 60)"
    assert line in lines and not any(line.startswith("  mac:") for line in lines)


def test_what_describes_a_host_is_no_matter_of_the_runbook(ran: Runs) -> None:
    """Inventory and group_data speak to all runbooks: serve takes what watch and wake read."""
    assert ran["described"].status == 0, ran["described"].output


def test_the_other_folder_has_a_way(ran: Runs) -> None:
    """--chdir does what the message asks for."""
    assert ran["chdir"].status == 0, ran["chdir"].output
    assert ran["chdir"].changing == ()
