"""Stand-in for the hosts of a rig behind pyinfra's @fake connector; runs in pyinfra's process.

The connector's canned responses cannot read a packed request or change with what was done, so a
FakeNode answers instead: it keeps a snapshot, a journal and a unit's state, and checks each
request with node's own checks. Every command is recorded in the scenario's folder.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import gevent
from pyinfra.connectors.fake import FakeConnector
from pyinfra.connectors.util import CommandOutput, OutputLine

from node import check, journal, steps
from node.errors import NodeError
from schema.engine import UNIT
from tests.deploys.commands import Sent, sent

VARIABLE = "RIGBOOK_TEST_SCENARIO"
SCENARIO = "scenario.json"
RECORD = "commands.jsonl"
# While this file is in the scenario's folder the engine's double refuses to answer.
DOWN = "engine-down"
Json = dict[str, Any]


def scenario_hosts() -> list[Any]:
    """The scenario's hosts as pyinfra's inventory takes them; from here on they answer."""
    folder = Path(os.environ[VARIABLE])
    scenario = json.loads((folder / SCENARIO).read_text())
    nodes = {
        name: FakeNode(name, scenario["snapshots"].get(name), scenario["faults"], folder)
        for name, _ in scenario["hosts"]
    }

    def look_up(connector: FakeConnector, command: str) -> tuple[bool, CommandOutput]:
        name = connector.host.name
        # Exactly what was sent, for the tests; a lost line would let a test pass wrongly.
        with (folder / RECORD).open("a") as record:
            record.write(json.dumps([name, command]) + "\n")
        done, out, err = nodes[name].answer(sent(name, command))
        lines = [OutputLine("stdout", line) for line in out.splitlines()]
        return done, CommandOutput(lines + [OutputLine("stderr", x) for x in err.splitlines()])

    FakeConnector._lookup_response = look_up  # type: ignore[method-assign]
    return [(name, {"fake_delay": 0, "fake_delay_jitter": 0, **data}) for name, data in
            scenario["hosts"]]  # fmt: skip


class FakeNode:
    """Stand-in for node and systemd on one host.

    `faults`, by `HOST:WHAT`: `apply WORD` (an error document), `start` ("dies"), `snapshot` (raw
    text), `undo` (an error document), `lost` (what breaks the connection), `slow` (what takes
    a moment).
    """

    def __init__(self, name: str, snapshot: Json | None, faults: Json, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.now: Json = snapshot or {}
        self.before = json.dumps(self.now)
        self.faults = {key.partition(":")[2]: v for key, v in faults.items()
                       if key.partition(":")[0] == name}  # fmt: skip
        self.changes: dict[str, Json] = {}
        self.starts = 0
        self.asked = 0
        self.dying = False

    def answer(self, command: Sent) -> tuple[bool, str, str]:
        """What the host says to a command: done or not, stdout, stderr."""
        if self.faults.get("lost") == command.what:
            raise OSError("stand-in: the line was cut")
        if self.faults.get("slow") == command.what:
            gevent.sleep(0.3)
        if command.verb == "snapshot":
            raw = self.faults.get("snapshot")
            return True, raw if raw is not None else json.dumps(self.now), ""
        if command.verb == "unit-state":
            return True, self._unit_state(), ""
        if command.verb == "log":
            return True, "loading weights\nstand-in engine: ValueError: no such flag", ""
        if command.verb == "systemctl-stop":
            self._set_active("stop")
            return True, "", ""
        try:
            document = {"ok": True, **self._verb(command)}
        except NodeError as error:
            document = error.as_json()
        return bool(document["ok"]), json.dumps(document), ""

    def _verb(self, command: Sent) -> Json:
        planned = self.faults.get(command.what)
        if planned is not None:
            raise NodeError(planned["error"], planned["code"], planned.get("remedy", ""))
        if command.verb == "apply":
            return self._apply(command.request)
        id_ = check.change_id(command.request["change"])
        if id_ not in self._known():
            raise NodeError(f"no change {id_}", "no_change")
        if command.verb == "journal":
            return {"change": self._known()[id_]}
        if command.verb == "undo":
            return self._undo(id_, command.request)
        check.keys(command.request, "request", ("change", "status", "reason"))
        check.choice(command.request["status"], "status", journal.STATUSES[1:])
        check.text(command.request["reason"], "reason", 2000)
        return {"change": {"id": id_}, "changed": True}

    def _known(self) -> dict[str, Json]:
        """This run's changes, and those that the snapshot's journal had before."""
        old = self.now.get("journal", {}).get("changes", ())
        unit = {"op": "unit", "unit": UNIT, "active": "start"}
        return {c["id"]: {"id": c["id"], "steps": [unit]} for c in old} | self.changes

    def _apply(self, request: Json) -> Json:
        check.keys(request, "request", ("change", "steps", "dry"), ("change", "steps"))
        header = journal.checked_change(request["change"])
        for number, step in enumerate(request["steps"]):
            steps.checked(step, f"steps[{number}]")
        change = self.changes.setdefault(header["id"], {"id": header["id"], "steps": []})
        for step in request["steps"]:
            change["steps"].append(step)
            if step["op"] == "file":
                self._write(step)
            elif step.get("unit") == UNIT and step["active"]:
                self._set_active(step["active"])
        return {"change": header["id"], "status": "OPEN", "changed": True, "steps": []}

    def _undo(self, id_: str, request: Json) -> Json:
        check.keys(request, "request", ("change", "overwrite", "start_units"), ("change",))
        for path in request["overwrite"]:
            check.path(path, "overwrite")
        self.now = json.loads(self.before)
        self.dying = False
        (self.folder / DOWN).unlink(missing_ok=True)
        return {"change": id_, "status": "ROLLED_BACK"}

    def _write(self, step: Json) -> None:
        raw = step["content"].encode()
        state = {
            "path": step["path"],
            "kind": "file",
            "sha256": hashlib.sha256(raw).hexdigest(),
            "size": len(raw),
            "mode": step["mode"],
            "uid": 0,
            "gid": 0,
            "content": step["content"],
        }
        others = [f for f in self.now["files"] if f["path"] != step["path"]]
        self.now["files"] = [*others, state]

    def _set_active(self, active: str) -> None:
        unit = self.now["units"][0]
        if active == "stop":
            unit.update(active_state="inactive", sub_state="dead")
            self.now["engine_processes"] = []
            self.now["docker"]["containers"] = []
            if not self.faults.get("port-stays"):
                self.now["ports"] = [p for p in self.now["ports"] if p["port"] == 22]
            return
        unit.update(active_state="active", sub_state="running", load_state="loaded")
        self.starts += 1
        if self.faults.get("start") == "dies":
            self.dying = True
            (self.folder / DOWN).touch()

    def _unit_state(self) -> str:
        self.asked += 1
        unit = self.now["units"][0]
        active, sub, result, code = unit["active_state"], unit["sub_state"], "success", 0
        # A dying engine looks well at the first look, as a real one does.
        if self.dying and self.asked > 1:
            active, sub, result, code = "failed", "failed", "exit-code", 1
        return (
            f"ActiveState={active}\nSubState={sub}\nNRestarts=0\nResult={result}\n"
            f"ExecMainStatus={code}\nInvocationID={self.name[-4:]}{self.starts}\nLastLine=loading"
        )
