"""Stand-in for the hosts of a rig behind pyinfra's @fake connector; runs in pyinfra's process.

The connector's canned responses cannot read a packed request or change with what was done, so a
FakeNode answers instead: it keeps a snapshot, a journal and a unit's state, and checks each
request with node's own checks. Every command is recorded in the scenario's folder.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import gevent
from pyinfra.connectors.fake import FakeConnector
from pyinfra.connectors.util import CommandOutput, OutputLine

from node import lease, verbs
from node.change import journal, kinds
from node.core import owner, validate
from node.core.errors import NodeError
from node.engine import answer as engine_answer
from node.engine import config
from node.transfer import protocol
from node.venv import artifact
from operations import host
from schema.plan import UNIT
from schema.render_engine import NODE_PATH
from tests.plans.support import doubles
from tests.plans.support.doubles import CONTAINER, LOOKING, MAGIC, USUAL, Sent, TreeDouble, sent

VARIABLE = "RIGBOOK_TEST_SCENARIO"
SCENARIO = "scenario.json"
RECORD = "commands.jsonl"
# the engine's key, as the node has it in its file of secrets
NODES_KEY = "RIGBOOK_TEST_NODES_KEY"
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
    for name, node in nodes.items():
        node.kernel = scenario.get("kernels", {}).get(name)
        node.everybody = list(nodes.values())

    run = FakeConnector.run_shell_command

    def with_stdin(connector: FakeConnector, command: Any, **arguments: Any) -> Any:
        connector.__dict__["stdin_sent"] = arguments.get("_stdin", "")
        return run(connector, command, **arguments)

    def look_up(connector: FakeConnector, command: str) -> tuple[bool, CommandOutput]:
        name = connector.host.name
        stdin = connector.__dict__["stdin_sent"]
        # Exactly what was sent, for the tests; a lost line would let a test pass wrongly.
        with (folder / RECORD).open("a") as record:
            record.write(json.dumps([name, command, stdin]) + "\n")
        done, out, err = nodes[name].answer(sent(name, command, stdin))
        lines = [OutputLine("stdout", line) for line in out.splitlines()]
        return done, CommandOutput(lines + [OutputLine("stderr", x) for x in err.splitlines()])

    # pyinfra's stand-in drops what goes to stdin, and answers only from a fixed map
    replaced: Any = FakeConnector
    replaced.run_shell_command, replaced._lookup_response = with_stdin, look_up
    # a stand-in has booted before the next look
    host.POLL_S = 0.05
    return [(name, {"fake_delay": 0, "fake_delay_jitter": 0, **data}) for name, data in
            scenario["hosts"]]  # fmt: skip


# what systemd tells of a timer beside its state
_REST = "\nSubState=-\nNRestarts=0\nResult=success\nExecMainStatus=0\nInvocationID=1\nLastLine=-"


class FakeNode:
    """Stand-in for node and systemd on one host.

    `faults`, by `HOST:WHAT`: `apply WORD` (an error document), `start` ("dies"), `former` (how our
    unit is, once a former setup's engine has our port; with `former-stays` also after an undo),
    `snapshot` (raw text), `undo` (an error document), `check` (what dropin answers), `backups` and
    `keeps` (rows of tree_double.py), `as-backup`, `answers` (a verb's whole answer), `lost` (what
    breaks the connection), `blob` (what its changes kept beside the steps), `slow` (what takes a
    moment), `ctrl-c` (pressed while the client loads), `nccl` (lines of its log), `says VERB` (a
    reading verb's answer, or a list of them), `then WORD` (answers or errors, each once).
    """

    def __init__(self, name: str, snapshot: Json | None, faults: Json, folder: Path) -> None:
        self.name, self.folder = name, folder
        # what stands for the host's file of secrets
        self.secrets = folder / f"{name.rpartition('/')[2]}.secrets.env"
        self.now: Json = snapshot or {}
        self.before = json.dumps(self.now)
        self.faults = {key.partition(":")[2]: v for key, v in faults.items()
                       if key.partition(":")[0] == name}  # fmt: skip
        self.everybody: list[FakeNode] = []
        self.changes: dict[str, Json] = {}
        # what `node kernel` says; None: a container, which has no boot of its own
        self.kernel: Json | None = None
        self.starts = self.asked = self.boots = 0
        self.timer = "active"
        self.dying = False
        rows, kept = (list(self.faults.get(key, [])) for key in ("backups", "keeps"))
        self.trees = TreeDouble(rows, name, kept, bool(self.faults.get("as-backup")))

    def answer(self, command: Sent) -> tuple[bool, str, str]:
        """What the host says to a command: done or not, stdout, stderr."""
        if command.parts:
            return doubles.several_double_answer(command, self.answer)
        if self.faults.get("lost") == command.what:
            raise OSError("stand-in: the line was cut")
        if self.faults.get("slow") == command.what:
            gevent.sleep(0.3)
        if command.verb == "snapshot":
            raw = self.faults.get("snapshot")
            return True, raw if raw is not None else json.dumps(self.now), ""
        if command.verb == "kernel":
            return True, json.dumps({"ok": True, **(self.kernel or CONTAINER)}), ""
        said = self.faults.get(f"says {command.verb}")
        if said is not None:
            return True, json.dumps({"ok": True, **self._said(said)}), ""
        if command.verb in USUAL:
            return True, json.dumps({"ok": True, **USUAL[command.verb]}), ""
        if command.verb == "unit-state":
            if ".timer" in command.raw:
                state = self.faults.get("timer", self.timer)
                return True, f"ActiveState={state}{_REST}", ""
            return True, self._unit_state(), ""
        if command.verb == "nccl-log":
            return True, str(self.faults.get("nccl", "")), ""
        if command.verb == "boot-id":
            locked = bool(self.faults.get("no root"))
            boot = f"boot {self.boots}" if self.boots else "b"
            return not locked, boot, "sudo: a password is required" if locked else ""
        if command.verb in ("reboot", "start-enabled"):
            # an enabled engine comes up by itself
            self.boots += command.verb == "reboot"
            self._set_active("start")
            return True, "", ""
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

    def _said(self, said: Any) -> Json:
        """A canned answer; of a list each in turn, the last one again and again."""
        queue: list[Json] = [said] if isinstance(said, dict) else said
        return queue.pop(0) if len(queue) > 1 else queue[0]

    def _verb(self, command: Sent) -> Json:
        planned = self.faults.get(command.what)
        if planned is not None:
            # as on a real host: a step that fails leaves its change open, a change refused does not
            if command.verb == "apply" and planned["code"] not in ("change_open", "locked"):
                id_ = command.request["change"]["id"]
                self.changes.setdefault(id_, {"id": id_, "steps": []})
            raise NodeError(planned["error"], planned["code"], planned.get("remedy", ""))
        if queue := self.faults.get(f"then {command.what}"):
            if "error" in (said := queue.pop(0)):
                raise NodeError(said["error"], said["code"])
            return dict(said)
        answers = self.faults.get("answers", {})
        if command.verb == "weights download" and self.faults.get("brings"):
            self._bring(command.request)
        if command.verb in answers:
            return dict(answers[command.verb])
        if command.verb == "apply":
            return self._apply(command.request)
        if command.verb == "dropin":
            return {"problems": [], "ghosts": [], "exec_start": [], **self.faults.get("check", {})}
        if command.verb == "secrets look":
            return owner.look_at_secrets({**command.request, "path": str(self.secrets)})
        if command.verb == "engine answer":
            return self._engine_answer(command.request)
        if command.verb in LOOKING:
            # node's own function, on the folders that the test made on this machine
            return verbs.run(command.verb, command.request)
        if command.verb.startswith("measure "):
            return doubles.measure_double_answer(command.verb, command.request, self.faults)
        if command.verb == "patch tool":
            return self._tool(command.request)
        if command.verb.startswith("tree "):
            return self.trees.answer(command.verb, command.request)
        if command.verb.startswith(("image ", "weights ")):
            return self._transfer(command.verb, command.request)
        if command.verb == "lease":
            header = journal.parse_change(command.request["change"])
            lease.parse_lease({**command.request["lease"], "change": header["id"]})
            self.changes[header["id"]] = {"id": header["id"], "steps": []}
            return {"change": header["id"], "status": "OPEN", "changed": True}
        id_ = validate.change_id(command.request["change"])
        if id_ not in self._known():
            raise NodeError(f"no change {id_}", "no_change")
        if command.verb == "journal":
            return {"change": self._known()[id_]}
        if command.verb == "undo":
            return self._undo(id_, command.request)
        if command.verb in ("claim", "beat"):
            return self._claim(id_, command)
        validate.keys(command.request, "request", ("change", "status", "reason", "run"))
        validate.choice(command.request["status"], "status", journal.STATUSES[1:])
        validate.text(command.request["reason"], "reason", 2000)
        return self._settled(id_, command.request["status"])

    def _engine_answer(self, request: Json) -> Json:
        """As node's verb: asks the engine that its own file names, from this process."""
        told = next((f["content"] for f in self.now["files"] if f["path"] == NODE_PATH), None)
        if told is None:
            raise NodeError(f"no {NODE_PATH}", "no_engine")
        end = config.endpoint(json.loads(told)["endpoint"], "endpoint")
        reply = engine_answer.ask_completion(end, request["timeout_s"], os.environ.get(NODES_KEY))
        return {"answered": reply.ok, "detail": reply.detail, "final": reply.final,
                "model": reply.model, "wants_key": reply.wants_key, "where": end.url}  # fmt: skip

    def _settled(self, id_: str, status: str) -> Json:
        for row in self.now.get("journal", {}).get("changes", ()):
            row["status"] = status if row["id"] == id_ else row["status"]
        return {"change": {"id": id_}, "changed": True}

    def _claim(self, id_: str, command: Sent) -> Json:
        """As node's claim: the change is that run's, and what it did to the files is gone."""
        if command.verb == "claim" and command.request["take_back"] and self.now["units"]:
            self._set_active("stop")
        row = self._known()[id_]
        said = {"status": "OPEN", "run": command.request["run"], "operator": "milo@forge"}
        return {**said, "deploy": "serve", "quiet_s": 0.0, "mine": True, "claimed": True,
                "steps": [], "state": row}  # fmt: skip

    def _transfer(self, verb: str, request: Json) -> Json:
        """As node's transfer verbs: checks the request, and has what the giver has."""
        if verb.endswith("offer"):
            protocol.parse_request(request, ["want" if verb.startswith("image") else "path"])
            return {"peers": {address: {"done": True} for address in request["peers"]}}
        if verb == "weights hash":
            files = self.now["weights"][0]["files"]
            sums = [{**f, "sha256": hashlib.sha256(f["name"].encode()).hexdigest()} for f in files]
            return {"files": sums, "hashed": len(sums), "changed": []}
        header = journal.parse_change(request["change"])
        protocol.parse_address(request["from"])
        validate.key(request["key"], "key")
        self.changes[header["id"]] = {"id": header["id"], "steps": []}
        part = "docker" if verb.startswith("image") else "weights"
        others = (node.now[part] for node in self.everybody if node.now and node is not self)
        self.now[part] = json.loads(json.dumps(next(others)))
        return {"layers": 2, "bytes": 10**7, "wire_bytes": 10**7, "wire_s": 0.5, "load_s": 1.0,
                "took_s": 1.1, "files": ["a"], "extra": [], "outside": [],
                "pruned": []}  # fmt: skip

    def _bring(self, request: Json) -> None:
        """As a download: the change is open, and the files are there."""
        header = journal.parse_change(request["change"])
        self.changes[header["id"]] = {"id": header["id"], "steps": []}
        files = [{"name": f["name"], "size": f["size"], "magic": MAGIC, "sha256": f["sha256"]}
                 for f in request["files"]]  # fmt: skip
        row = self.now["weights"][0]
        self.now["weights"] = [{**row, "exists": True, "files": files, "folder": request["path"]}]

    def _known(self) -> dict[str, Json]:
        """This run's changes, and those that the snapshot's journal had before."""
        old = self.now.get("journal", {}).get("changes", ())
        unit = {"op": "unit", "unit": UNIT, "active": "start"}
        kept = {"steps": [unit], "blob": self.faults.get("blob")}
        return {c["id"]: {"id": c["id"], **kept} for c in old} | self.changes

    def _apply(self, request: Json) -> Json:
        validate.keys(request, "request", ("change", "steps", "dry"), ("change", "steps"))
        header = journal.parse_change(request["change"])
        for number, step in enumerate(request["steps"]):
            kinds.parse(step, f"steps[{number}]")
        new = {"id": header["id"], "steps": [], "blob": header["blob"]}
        change = self.changes.setdefault(header["id"], new)
        for step in request["steps"]:
            change["steps"].append(step)
            if step.get("for_unit"):
                self._override(step)
            if step["op"] == "file":
                self._write(step)
            elif step["op"] in ("grub", "hold"):
                assert self.kernel is not None
                doubles.act(self.kernel, step)
            elif str(step.get("unit")).endswith(".timer") and step["active"]:
                self.timer = "inactive" if step["active"] == "stop" else "active"
            elif step.get("unit") == UNIT and step["active"]:
                self._set_active(step["active"])
        return {"change": header["id"], "status": "OPEN", "changed": True, "steps": []}

    def _override(self, step: Json) -> None:
        """What systemd shows of a unit after its drop-in was written or removed."""
        unit = next(u for u in self.now["units"] if u["name"] == step["for_unit"])
        others = [path for path in unit["drop_ins"] if path != step["path"]]
        unit["drop_ins"] = others + ([step["path"]] if step["op"] == "file" else [])
        lines = [x for x in step.get("content", "").splitlines() if x.startswith("ExecStart=/")]
        for line in lines:
            unit["exec_start"] = line.partition("=")[2].split()

    def _tool(self, request: Json) -> Json:
        validate.keys(request, "request", ("change", "tool"), ("change", "tool"))
        header = journal.parse_change(request["change"])
        tool = artifact.parse_tool(request["tool"], "tool")
        self.changes.setdefault(header["id"], {"id": header["id"], "steps": []})
        artifact.save_tool_marker(tool)
        said = {"applied": 23, "skipped": 36, "failed": 0}
        return {"change": header["id"], "changed": True, "said": said, "files": ["/a.py"]}

    def _undo(self, id_: str, request: Json) -> Json:
        validate.keys(request, "request", ("change", "overwrite", "start_units", "reason",
                                          "run", "despite"), ("change",))  # fmt: skip
        validate.text(request.get("reason", ""), "reason", 2000)
        _ = [validate.path(path, "overwrite") for path in request.get("overwrite", ())]
        self.now = json.loads(self.before)
        self._settled(id_, "ROLLED_BACK")
        if self.faults.get("former-stays"):
            doubles.former_answers(self.now, "active/running")
        self.dying = False
        (self.folder / DOWN).unlink(missing_ok=True)
        return {"change": id_, "status": "ROLLED_BACK"}

    def _write(self, step: Json) -> None:
        binary = base64.b64decode(step.get("content_base64", ""))
        if binary and Path(step["path"]).is_file():  # a patched file, in the test's own folder
            Path(step["path"]).write_bytes(binary)
            return
        raw = step["content"].encode() if "content" in step else binary
        if "secrets" in step:
            rows = owner.parse_secrets(step["secrets"], "secrets")
            raw = owner.render_secrets(str(self.secrets), rows, step["quoted"])
            self.secrets.write_bytes(raw)
        state = {
            "path": step["path"],
            "kind": "file",
            "sha256": hashlib.sha256(raw).hexdigest(),
            "size": len(raw),
            "mode": step["mode"],
            "uid": 0,
            "gid": 0,
            "content": step.get("content"),
        }
        others = [f for f in self.now["files"] if f["path"] != step["path"]]
        self.now["files"] = [*others, state]

    def _set_active(self, active: str) -> None:
        unit = self.now["units"][0]
        if active == "stop":
            unit.update(active_state="inactive", sub_state="dead")
            self.now["engine_processes"] = []
            if "unreadable" not in self.now["docker"]:
                self.now["docker"]["containers"] = []
            if not self.faults.get("port-stays"):
                self.now["ports"] = [p for p in self.now["ports"] if p["port"] == 22]
            return
        unit.update(active_state="active", sub_state="running", load_state="loaded")
        self.starts += 1
        doubles.launch(self.now)
        if self.faults.get("start") == "dies":
            self.dying = True
            (self.folder / DOWN).touch()
        if former := self.faults.get("former"):
            doubles.former_answers(self.now, str(former))

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
