"""gpu_limit: the arithmetic it prints, what it sends, what it refuses, and its way back."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from gates.cluster import VARIABLE
from schema.plan import Plan
from tests.plans.support import scenario
from tests.plans.support.scenario import (
    HEAD,
    Ends,
    Runs,
    Scenario,
    Snapshots,
    Table,
    data,
    done,
    each_row,
    failed,
    quiet,
    refused,
    said,
)
from tests.unit.builders.host_parts import NAME, OOM, kube_look, unit
from tests.unit.builders.rigs import put

LIMIT = "deploys/gpu_limit.py"
ABSENT = {"kind": "env", "index": -1, "value": None, "why": None}


def seen(value: str = "23000m", log: tuple[str, ...] = (), **more: object) -> dict[str, Any]:
    """The Deployment with every limit that gpu_limit asks for."""
    document = said(kube_look(value, log))
    names = [VARIABLE, *(f"{VARIABLE}_{n}" for n in range(8))]
    variables = {name: dict(ABSENT) for name in names} | {NAME: document["variables"][NAME]}
    return {**document, "variables": {**variables, "OTHER": dict(ABSENT)}, **more}


def rolled(value: str, live: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    """The same after its rollout; `live` is what its processes have."""
    document = seen(value, **more)
    document["rollout"]["generation"] = 2
    document["pods"][0]["uid"] = "u2"
    document["pods"][0]["live"] = {"processes": len(live), "values": {NAME: list(live)}}
    return document


PLANNED = seen(changes=[{"path": f"spec.env[{NAME}].value", "before": "23000m",
                         "after": "24000m"}])  # fmt: skip
STUCK = rolled("24000m", log=("booting", "asyncio.exceptions.TimeoutError"))
STUCK["pods"][0].update(stuck="CrashLoopBackOff", restarts=3)
STUCK["rollout"]["done"] = False
# the state that the seed's limit of 0m leaves: the pod that is to go is stuck
LOOP = seen()
LOOP["pods"][0].update(stuck="CrashLoopBackOff", restarts=9)
OLD = {**LOOP, "rollout": {**LOOP["rollout"], "done": False, "generation": 2}}
FLOW = [seen(), PLANNED, rolled("24000m", ("24000m",))]
ANSWER = ("url=http://10.96.0.10:8000", "model=qwen")
YES = {"answered": True, "detail": "20 characters in 0.7 s", "final": False, "model": "qwen"}
NO = {"answered": False, "detail": "Connection refused", "final": False, "model": ""}
DEAD = {**NO, "detail": "HTTP 500: dflash daemon has exited unexpectedly", "final": True}
CUT = {"files": [{"path": "/m.gguf", "size": 9, "format": "gguf", "said": "",
                  "broken": "cut off: its header promises 10 bytes, there are 9"}]}  # fmt: skip
MODELS = 'models={"/m.gguf": "gguf"}'
SET = "limit=24000m"


def limit(
    *pairs: str, looks: object, how: str = "-y", card: tuple[str, ...] = ("hardware_mib=24463",),
    **faults: object,
) -> Scenario:  # fmt: skip
    """A run of gpu_limit on a rig whose Deployment shows `looks`; `models_look=` and the like."""
    said = {f"says {key.replace('_', ' ')}": value for key, value in faults.items()}
    return scenario.scenario(
        LIMIT, how, *data(*card, *pairs), faults={"says kube look": looks, **said}
    )


def variables(**more: object) -> dict[str, Any]:
    """The Deployment with these variables changed."""
    return {**seen(), "variables": {**seen()["variables"], **more}}


WITH_4, WITH_0 = "--prefix-cache-slots 4", "--prefix-cache-slots 0"
FIX = f'edit={{"{WITH_4}": "{WITH_0}"}}'


def edited(text: str | None, document: dict[str, Any] | None = None, **more: object) -> Any:
    """The Deployment whose command line has that text, None: neither of the two."""
    found = {**(document or variables()), **more}
    place = {"kind": "args", "index": 0, "value": text, "why": None}
    if text is None:
        why = f"{WITH_4!r} stands 2 times in command and args of container engine"
        place = {"kind": "unclear", "index": -1, "value": None, "why": why}
    found["pods"][0]["live"] = {"processes": 2, "values": {}}
    return {**found, "variables": {**found["variables"], WITH_4: place}}


SECRET = "T0P-S3CRET"
GUARD = ("guard=true", f"webhook=http://127.0.0.1:1/{SECRET}")


def watched(edits: dict[str, str], **values: str) -> dict[str, Any]:
    """The Deployment while a guard watches these values and texts in its container."""
    return seen(guard={"container": "engine", "values": values, "edits": edits, "webhook": True,
                       "webhook_file": None, "differs": []})  # fmt: skip


def with_guard(plan: Plan) -> Snapshots:
    """A host that an earlier run left guarding."""
    host = scenario.bare(plan)[HEAD]
    assert isinstance(host.files, tuple)
    there = {"kind": "file", "sha256": "a" * 64, "size": 1, "mode": "0600", "uid": 0, "gid": 0}
    files = tuple(row.model_copy(update=there) if "limit" in row.path else row
                  for row in host.files)  # fmt: skip
    timer = unit(name="rigbook-limit.timer", active_state="active", enabled="enabled")
    return {HEAD: put(put(host, "files", files), "units", (timer,))}


UNCLEAR = {"kind": "unclear", "index": -1, "value": None, "why": "more than once"}
SENT, UNDONE = (["lab1 apply kube", f"lab1 {end}"] for end in ("close COMMITTED", "undo"))
TABLE: Table = {
    # ready means a real completion: A4, A5: a pod that runs and dies at its first request is not
    "answers": (limit(*ANSWER, SET, looks=FLOW, kube_answer=[NO, YES]), done(
        "no completion yet: Connection refused",
        "qwen answers at http://10.96.0.10:8000: 20 characters")),
    "dies": (limit(*ANSWER, SET, looks=FLOW, kube_answer=DEAD), failed(
        "dflash daemon has exited unexpectedly", steps=UNDONE)),
    "mends": (limit(SET, looks=[LOOP, PLANNED, OLD, rolled("24000m")]), done(steps=SENT)),
    # A2's sibling: found by its header before the pod starts, not minutes after
    "cut model": (limit(SET, MODELS, looks=FLOW, models_look=CUT), refused("model-file")),
    "set": (limit(SET, looks=FLOW), done(
        "limit     25,165,824,000 bytes = 24,000.0 MiB = 23.44 GiB",
        "left      485,490,688 bytes = 463.0 MiB", "'23000m' becomes '24000m'",
        "seen in 1 processes of lucebox-1", steps=SENT)),
    "same": (limit(SET, looks=seen("24000m")), quiet()),
    # A5: without a limit it is computed from the OOM line
    "computed": (limit("reserve_mib=463", looks=[seen(log=(OOM,)), PLANNED], how="--dry"), Ends(
        says=("Device 0 OOM 24232551680 / 24117248000: 115,303,680 bytes",
              "limit     25,165,824,000 bytes", "headroom 933,272,320 bytes"))),
    "injected": (limit(SET, looks=[*FLOW[:2], rolled("24000m", ("0m",))]), failed(
        f"its process has {NAME}=0m, not 24000m", steps=UNDONE)),
    "stuck": (limit(SET, looks=[*FLOW[:2], STUCK]), failed(
        "lucebox-1: CrashLoopBackOff, 3 restarts", "asyncio.exceptions.TimeoutError",
        steps=UNDONE)),
    "zero": (limit("limit=0m", looks=seen()), refused("'0m' is 0 bytes to HAMi-core")),
    "nothing known": (limit(looks=seen()), refused("no `Device N OOM` in the pods' logs")),
    "two": (limit(SET, looks=variables(**{VARIABLE: seen()["variables"][NAME]})), refused(
        f"sets {VARIABLE}, {NAME}; name the one: --data device=N")),
    "unclear": (limit(SET, looks=variables(**{NAME: UNCLEAR})), refused("more than once")),
    "set of a limit": (limit(f'set={{"{NAME}": "0m"}}', looks=seen(), card=()), refused(
        "is a memory limit; give it as --data limit=")),
    # another variable goes the same way without a limit
    "other": (limit('set={"OTHER": "1"}', looks=[seen(), PLANNED], card=(), how="--dry"), quiet(
        never=("hardware",))),
    # the seed's layer 3: a text of the command line
    "edit": (limit(FIX, looks=[edited(WITH_4), edited(WITH_4, changes=PLANNED["changes"]),
                               edited(WITH_0, rolled("23000m"))], card=()), done(
        f"has {WITH_0!r}", f"2 processes of lucebox-1, {WITH_0!r} in the template alone",
        steps=SENT)),
    "edit same": (limit(FIX, looks=edited(WITH_0), card=()), quiet(f"has {WITH_0!r} already")),
    "edit lost": (limit(FIX, looks=[edited(WITH_4), edited(WITH_4), edited(
        WITH_4, rolled("23000m"))], card=()), failed("again: overwritten by others", steps=UNDONE)),
    "edit unclear": (limit(FIX, looks=edited(None), card=()), refused("stands 2 times")),
    "edit of a limit": (limit(f'edit={{"{NAME}=23000m": "{NAME}=0m"}}', looks=seen(), card=()),
                        refused("edit: this is a memory limit; give it as --data limit=")),
    # a guard: what is guarded already stays so, and the webhook is in no command
    "guarded": (limit(SET, *GUARD, looks=[watched({}, OTHER="1"), *FLOW[1:]]), done(
        steps=["lab1 apply kube+directory+file+unit", SENT[1]], never=(SECRET,))),
    "guard dry": (limit(SET, *GUARD, looks=[seen(), PLANNED], how="--dry"), quiet(
        "write /etc/rigbook/limit.json (mode 0600, owner root)",
        "enable and start rigbook-limit.timer", never=(SECRET,))),
    "guard edits": (limit(FIX, *GUARD, looks=[
        edited(WITH_4, watched({"--slots 9": WITH_4, "a b": "c d"})), edited(WITH_4),
        edited(WITH_0, rolled("23000m"))], card=()), done(f"has {WITH_0!r}")),
    "guard alone": (limit(SET, *GUARD, looks=seen("24000m")), done(
        f"has {NAME}=24000m already", f"has {NAME}=24000m; 1 of 1",
        steps=["lab1 apply directory+file+unit", SENT[1]])),
    "guard ends": (dataclasses.replace(
        limit(SET, looks=seen("24000m")), seen=with_guard), done(
        steps=["lab1 apply unit+absent", SENT[1]])),
    "guard dark": (limit(SET, "guard=true", looks=seen(guard={"unreadable": "not JSON"})), refused(
        "not JSON")),
    "flags": (limit('flags={"--prefix-cache-slots": 0}', looks=seen(), card=()), refused(
        "flags: a command line is edited by its exact text; give edit=")),
    "no text": (limit('edit={"OTHER": "1"}', looks=seen(), card=()), refused(
        "'OTHER' is no text with another one in its place", "a variable goes by set")),
}  # fmt: skip
test_each_run_ends_as_its_row_says = each_row(TABLE)


def test_one_variable_is_set_where_nobody_wrote_meanwhile(ran: Runs) -> None:
    step = ran["set"].changing[0].request["steps"][0]
    assert (step["set"], step["resource_version"]) == ({NAME: "24000m"}, "1")


def test_a_text_goes_with_the_one_in_its_place(ran: Runs) -> None:
    step = ran["edit"].changing[0].request["steps"][0]
    assert (step["set"], step["edit"], step["clear_cache"]) == ({}, {WITH_4: WITH_0}, False)


def state_of(run: Any) -> dict[str, Any]:
    """What a run wrote for its guard."""
    steps = run.changing[0].request["steps"]
    written = next(step for step in steps if step.get("path") == "/etc/rigbook/limit.json")
    assert written["mode"] == "0600"
    body: dict[str, Any] = json.loads(written["content"])
    return body


def test_a_guard_keeps_what_it_watches_and_adds_what_is_set(ran: Runs) -> None:
    assert state_of(ran["guarded"])["set"] == {NAME: "24000m", "OTHER": "1"}
    # from the chart's own text, which it brings when it is deployed again
    assert state_of(ran["guard edits"])["edit"] == {"--slots 9": WITH_0, "a b": "c d"}
    assert all(SECRET not in command.raw for command in ran["guarded"].commands)


def test_what_the_plugin_injects_is_seen_in_the_process_and_the_change_goes_back(ran: Runs) -> None:
    """Fault 49: the template says one thing, the process has another."""
    TABLE["injected"][1].check(ran["injected"])


def test_a_crash_loop_ends_the_wait_at_once_with_the_last_lines(ran: Runs) -> None:
    """Incident A4: not after the deadline of ten minutes."""
    TABLE["stuck"][1].check(ran["stuck"])


def test_a_pod_that_was_stuck_before_does_not_end_the_wait_for_the_new_one(ran: Runs) -> None:
    """Incident A3: the limit is changed because the pod is in a crash loop."""
    TABLE["mends"][1].check(ran["mends"])
