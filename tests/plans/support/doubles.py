"""What a recorded remote command asks of a host: node's verb and request, or a systemd question."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from types import TracebackType
from typing import Any

import gevent

from node.backup import store
from node.core import validate
from node.core.errors import NodeError
from node.transfer import protocol
from node.verbs import parse_parts
from schema.plan import CONTAINER as plan_CONTAINER
from schema.plan import UNIT
from schema.render_engine import SCRIPT_PATH
from schema.render_unit import argv_in
from tests.unit.builders.engine_parts import FOREIGN, foreign_container
from tests.unit.builders.host_parts import OUR_PROCESSES, port, process, unit

# The words of facts/pack.py: arguments and modules are two base64 words behind printf.
_PACKED = re.compile(r"printf %s ([A-Za-z0-9+/=]+\.[A-Za-z0-9+/=]+) \|")
# answered by node's own functions, on folders that the test made (tests/plans/support/fakehost.py)
LOOKING = frozenset({"patch look", "artifact", "wheels"})
READING = LOOKING | {
    "several",
    "dropin", "snapshot", "former", "kernel", "driver", "hardware", "host", "growth", "wake",
    "journal", "unit-state", "boot-id", "log", "nccl-log", "tree list", "tree copies",
    "library look", "library check",
    "kube look", "kube answer", "models look", "venv look", "venv check", "secrets look",
    "preflight", "engine answer", "weights hub", "rate look", "rate receive", "rate send",
    "measure load", "measure sample",
}  # fmt: skip


@dataclass(frozen=True)
class Sent:
    """One remote command: its host, its verb, node's request (empty for a shell command).

    Verbs that are not node's: unit-state and log (facts/plain.py), systemctl-stop
    (operations/rollback.py), other.
    """

    host: str
    verb: str
    request: dict[str, Any] = field(default_factory=dict)
    installs: bool = False
    raw: str = ""

    @property
    def parts(self) -> tuple[Sent, ...]:
        """The verbs that `several` runs, each as if it had been sent alone."""
        rows = self.request["parts"] if self.verb == "several" else ()
        return tuple(Sent(self.host, row["verb"], row["request"], False) for row in rows)

    @property
    def what(self) -> str:
        """The command in a word: `apply file+unit`, `apply start`, `close COMMITTED`, `undo` …

        `open` is an apply without steps, which only opens the change.
        """
        if self.verb == "apply" and not self.request["steps"]:
            return "open"
        if self.verb == "apply":
            words = [_word(step) for step in self.request["steps"]]
            return f"apply {'+'.join(dict.fromkeys(words))}"
        if self.verb == "close":
            return f"close {self.request['status']}"
        return self.verb

    @property
    def changes(self) -> bool:
        """Whether it may change something on the host (installing node is a change)."""
        if self.verb == "beat" and not self.request.get("over"):
            return False  # every 15 s, so only in a run that takes that long
        return self.installs or not (self.verb in READING or self.request.get("dry"))


def _word(step: dict[str, Any]) -> str:
    """`start` or `stop` for a step that moves the engine, else the step's kind."""
    moves = step.get("active") if step.get("unit") == UNIT else None
    return str(moves or step["op"])


def _arguments(words: str) -> list[str]:
    """The verb's words and its request as JSON, of the first of the two base64 words."""
    found = json.loads(zlib.decompress(base64.b64decode(words.partition(".")[0])))
    return [str(word) for word in found]


def sent(host: str, command: str, stdin: str | None = "") -> Sent:
    """Reads a command as `host` got it; `raw` is the line without its base64 word."""
    if stdin and "." in stdin:  # pack.stdin_call: nothing is installed
        *words, request = _arguments(stdin)
        return Sent(host, " ".join(words), json.loads(request), False, command)
    if stdin:
        header = json.loads(zlib.decompress(base64.b64decode(stdin.partition(":")[0])))
        words, request = header[:2]
        return Sent(host, " ".join(words), json.loads(request), True, command)
    packed = _PACKED.search(command)
    if packed:
        *words, request = _arguments(packed[1])
        shell = command.replace(packed[1], "PACKED")
        return Sent(host, " ".join(words), json.loads(request), False, shell)
    words_of = {
        "via NET/": "nccl-log",
        "systemctl show": "unit-state",
        "journalctl": "log",
        "systemctl stop": "systemctl-stop",
        "random/boot_id": "boot-id",
        "systemctl reboot": "reboot",
        "is-enabled -q": "start-enabled",
    }
    verb = next((verb for text, verb in words_of.items() if text in command), "other")
    return Sent(host, verb, {}, False, command)


# What a stand-in host usually answers, where a scenario says nothing else.

Json = dict[str, Any]
# how a safetensors file begins
MAGIC = "40000000000000007b22" + "20" * 6
_NONE = {"unreadable": "no GRUB here: container"}
CONTAINER: Json = {
    "format": 1, "arch": "x86_64", "running": "6.1.0", "boot_id": "b", "loader": "container",
    "loader_evidence": "stand-in", "module": None, "kernels": [], "user_driver": [],
    "loaded": None, "grub": _NONE, "boot": _NONE, "apt": _NONE, "secure_boot": None, "took_s": 0.0,
}  # fmt: skip

HARDWARE: Json = {
    "format": 1, "virtual": "docker", "processor": "", "nics": [], "addresses": {},
    "board": {"unreadable": "no SMBIOS"}, "displays": [], "graphics": [],
    "efi": {"unreadable": "no UEFI"}, "clock": {"unreadable": "no clock"}, "clock_unix_s": 0.0,
    "sleep": {}, "attestations": [], "took_s": 0.0,
}  # fmt: skip


GROWTH = [{"what": what, "count": 2, "bytes": 3 << 20, "unreadable": None} for what in
          ("changes", "blobs", "programs", "displaced", "backups", "images")]  # fmt: skip
ACCEPTED: Json = {"outcome": "accepted", "said": "", "unsure": "", "took_s": 8.0}
# two boots, the former one ended by a reboot that was asked for; host.py never ran there
SETTINGS: Json = {
    "virtual": "none", "watchdogs": [], "runtime_watchdog_s": 0.0, "sysctls": {},
    "journal": {"persistent": True, "bytes": 8 << 20}, "pstore": None,
    "guard": {"program": None, "argv": None}, "sshd_oom_score_adj": -1000, "wanted": None,
}  # fmt: skip
BOOTS: list[Json] = [
    {"boot_id": who * 32, "first_unix_s": 1.0, "last_unix_s": 2.0, "asked_for": ended,
     "tail": [], "pstore": []} for who, ended in (("a", True), ("b", None))
]  # fmt: skip
HOST: Json = {"format": 1, "settings": SETTINGS, "boots": BOOTS, "kills": [], "took_s": 0.1}
# of a container, whose firmware is another machine's
# `former`: nothing but what rigbook runs
USUAL = {
    "hardware": HARDWARE, "growth": {"rows": GROWTH}, "host": HOST, "preflight": ACCEPTED,
    "former": {}, "shm": {"removed": [], "kept": [], "changed": False},
}  # fmt: skip


# What a real host's `node kernel` says after a grub or hold step.


def act(kernel: Json, step: Json) -> None:
    """Alters the host's document of kernels as the step would."""
    if step["op"] == "hold":
        kernel["apt"]["holds"] = sorted({*kernel["apt"]["holds"], *step["packages"]})
        return
    grub = kernel["grub"]
    if step.get("next") is not None:
        return
    path = next(e["path"] for e in grub["entries"] if e["kernel"] == step["saved"]
                and "-advanced-" in e["path"].rpartition(">")[2])  # fmt: skip
    target = {"kernel": step["saved"], "entry": path, "title": "x", "how": "saved",
              "why": "saved_entry names it", "missing": []}  # fmt: skip
    grub.update(saves=True, saved_entry=path, next_entry=None, default=target, next=target,
                ours=True, grubenv="ok")  # fmt: skip
    grub["configured"] = {"value": "saved", "file": "zz-rigbook.cfg", "mode": "saved"}


# Stand-in for the engine's HTTP API on a loopback address: chat completions and /metrics.

METRICS = '# HELP vllm:x stand-in\nvllm:num_requests_running{model="tiny"} 0\nvllm:up 1\npy:x 2\n'
_COUNTER = count(2)


def loopback() -> str:
    """A loopback address of this test process alone, so that two runs never share port 8000."""
    number = next(_COUNTER)
    return f"127.{1 + os.getpid() % 250}.{1 + os.getpid() // 250 % 250}.{number % 250}"


def completion(content: object = "Hello.", **message: Any) -> dict[str, Any]:
    """A chat completion as vLLM answers it."""
    choice = {"index": 0, "message": {"role": "assistant", "content": content, **message}}
    return {"model": "tiny", "choices": [choice]}


@dataclass
class Reply:
    """What the double says to a chat request: status, body (a dict becomes JSON), seconds late."""

    body: dict[str, Any] | str = field(default_factory=completion)
    status: int = 200
    late_s: float = 0.0


class EngineDouble:
    """Answers as `reply()` says, until closed; `asked` holds the bodies of the chat requests,
    `keys` the Authorization of every request.

    `metrics` None: /metrics is not there. `key`: what it wants, else 401.
    """

    def __init__(
        self,
        reply: Callable[[], Reply] = Reply,
        address: str | None = None,
        port: int = 0,
        metrics: str | None = METRICS,
        key: str | None = None,
    ) -> None:
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        double = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                double.keys.append(self.headers["Authorization"])
                raw = self.rfile.read(int(self.headers["Content-Length"]))
                double.asked.append(json.loads(raw))
                refused = key is not None and self.headers["Authorization"] != f"Bearer {key}"
                answer = Reply("wants a key", 401) if refused else reply()
                time.sleep(answer.late_s)
                body = answer.body if isinstance(answer.body, str) else json.dumps(answer.body)
                known = self.path == "/v1/chat/completions"
                self._send(answer.status if known else 404, body)

            def do_GET(self) -> None:
                double.keys.append(self.headers["Authorization"])
                if self.path == "/health":
                    self._send(200, "")
                    return
                known = self.path == "/metrics" and metrics is not None
                self._send(200 if known else 404, metrics or "not found")

            def _send(self, status: int, body: str) -> None:
                self.send_response(status)
                self.end_headers()
                # The client of a late answer is gone by then.
                try:
                    self.wfile.write(body.encode())
                except OSError:
                    return

            def log_message(self, format: str, *args: object) -> None:
                """Nothing: pytest's output is for failures."""

        self.address = address or loopback()
        self._server = ThreadingHTTPServer((self.address, port), Handler)
        self._server.daemon_threads = True
        self.url = f"http://{self.address}:{self._server.server_address[1]}"
        # A short poll: shutdown waits for it, once a double.
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )

    def __enter__(self) -> EngineDouble:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()


# Stand-in for vLLM's own client on a host, and for a sample of the host.

# tokens a second of one stream; each round a little more, so that there is a spread
STREAM_TOK_S = 50.0


def measure_double_answer(verb: str, request: Json, faults: Json) -> Json:
    """What the verb gives; of a load the rounds that were asked for."""
    if verb == "measure load" and faults.get("ctrl-c"):
        os.kill(os.getpid(), signal.SIGINT)
        gevent.sleep(20)
    if verb == "measure sample":
        return {"available": 8 << 30, "page_cache": 1 << 30, "shmem": 1 << 20}
    if verb == "measure keep":
        return {"path": f"/var/lib/rigbook/measurements/{request['id']}.json", "changed": True}
    job = request["job"]
    rows = [_row(number, asked, job["tokens"]) for number, asked in enumerate(job["rounds"])]
    return {"client": "vllm bench serve 0.32.0", "rounds": rows, "error": None}


def _row(number: int, asked: Any, tokens: int) -> Json:
    if isinstance(asked, int):
        cold, cached = ({**_round(1, 1, 1.0), "ttft_s": [wait], "prompt_tokens": [asked]}
                        for wait in (asked / 1000, asked / 20_000))  # fmt: skip
        return {"cold": cold, "cached": cached}
    rate = STREAM_TOK_S + number / 10
    return {"round": _round(len(asked), tokens, tokens / rate)}


def _round(streams: int, tokens: int, seconds: float) -> Json:
    return {
        "seconds": seconds, "tokens": streams * tokens, "failed": 0, "ttft_s": [0.05] * streams,
        "stream_tok_s": [tokens / seconds] * streams, "itl_p50_s": 0.02, "itl_p95_s": 0.03,
        "errors": [], "prompt_tokens": [40] * streams,
    }  # fmt: skip


# Stand-in for `several`: each part is answered as if it had been asked alone.


def several_double_answer(
    command: Sent, alone: Callable[[Sent], tuple[bool, str, str]]
) -> tuple[bool, str, str]:
    """What the host says; an answer that is no document takes the place of all."""
    parse_parts(command.request, READING)
    texts = {part.verb: alone(part)[1] for part in command.parts}
    for text in texts.values():
        if not text.startswith("{"):
            return True, text, ""
    parts = {verb: json.loads(text) for verb, text in texts.items()}
    return True, json.dumps({"ok": True, "parts": parts}), ""


# Stand-in for node's tree verbs on one host: it keeps a list of backups and no files.

VERSIONS = {"vllm": "0.27.0", "torch": "2.8.0", "cuda": "12.8"}


def row(id_: str, verified: bool = True, **more: object) -> Json:
    """A backup as node lists it."""
    return {
        "id": id_, "usable": True, "problem": None, "verified_unix_s": 1.7e9 if verified else None,
        "tree": "/opt/engine/venv", "real": "/opt/engine/venv",
        "created_unix_s": 1.7e9, "age_s": 7300, "bytes": 800 << 20, "apparent_bytes": 3 << 30,
        "members": 77492, "versions": VERSIONS, "python": "3.12.4", "host": "stand-in", **more,
    }  # fmt: skip


def kept(host: str, id_: str, **more: object) -> Json:
    """A copy as the node that keeps it lists it."""
    return {"host": host, "backup": id_, "place": f"/kept/{host}/{id_}",
            "tree": "/opt/engine/venv", "bytes": 800 << 20, "problem": None, **more}  # fmt: skip


def noted(id_: str, is_here: bool = True, **more: object) -> Json:
    """A copy on another disk of the host, as it notes it."""
    return {"backup": id_, "place": f"/mnt/disk/rigbook/x/{id_}", "unix_s": 1.7e9,
            "is_here": is_here, "tree": "/opt/engine/venv" if is_here else None,
            "bytes": 800 << 20, **more}  # fmt: skip


class TreeDouble:
    """The tree verbs of one host; the newest backup of `rows` holds the tree as it is."""

    def __init__(self, rows: list[Json], name: str, others: list[Json], as_backup: bool) -> None:
        self.rows, self.name = rows, name
        # a copy on a disk of the host has no host
        self.others = [each for each in others if "host" in each]
        self.noted = [each for each in others if "host" not in each]
        self.as_backup = as_backup

    def answer(self, verb: str, request: Json) -> Json:
        """A verb's answer. Raises NodeError as node does."""
        return dict(getattr(self, verb.replace(" ", "_"))(request))

    def tree_list(self, request: Json) -> Json:
        """All backups."""
        return {"backups": self.rows, "partial": [], "working": [], "displaced": []}

    def tree_backup(self, request: Json) -> Json:
        """A new backup, unless the newest is verified."""
        tree = validate.path(request["tree"], "tree")
        known = bool(self.rows) and self.rows[0]["verified_unix_s"] is not None
        about = {"tree": tree, "members": 77492, "apparent_bytes": 3 << 30, "versions": VERSIONS}
        if request.get("dry"):
            assert "documents" not in request, "a reading command shows them to every user"
            validate.sha256(request["documents_sha256"], "documents_sha256")
            held = self.rows[0]["id"] if known else None
            return {"backup": held, "stored": not known, "shares": None, **about}
        made = store.new_id(tree)
        self.rows.insert(0, row(made, verified=False))
        return {"backup": made, "stored": True, "detail": "stored", "bytes": 800 << 20,
                "took_s": 11.0, **about}  # fmt: skip

    def tree_verify(self, request: Json) -> Json:
        """Marks one as verified."""
        for each in self.rows:
            if each["id"] == store.checked_id(request["backup"]):
                each["verified_unix_s"] = 1.7e9
                return {"backup": each["id"], "members": each["members"], "took_s": 7.0}
        raise NodeError("no backup", "no_backup")

    def tree_copy(self, request: Json) -> Json:
        """A copy that was made."""
        place = f"{validate.path(request['to'], 'to')}/rigbook/stand-in/{request['backup']}"
        return {"backup": request["backup"], "place": place, "made": True, "bytes": 800 << 20,
                "took_s": 9.0}  # fmt: skip

    def tree_copies(self, request: Json) -> Json:
        """What it keeps for others."""
        return {"host": self.name, "noted": self.noted, "others": self.others}

    def tree_offer(self, request: Json) -> Json:
        """As node's: checks the request."""
        protocol.parse_request(request, ["backup", "host"])
        return {"peers": {address: {"done": True} for address in request["peers"]}}

    def tree_receive(self, request: Json) -> Json:
        """One that comes to be kept, or comes back."""
        validate.keys(request, "request", ("backup", "host", "from", "key", "deadline_s"))
        protocol.parse_address(request["from"])
        place = f"/kept/{request['host']}/{request['backup']}"
        if request["host"] is None:
            self._came(request)
            place = f"/backups/{request['backup']}"
        return {"backup": request["backup"], "place": place, "made": True, "bytes": 800 << 20,
                "resumed_bytes": 0, "damaged": 0, "members": 77492, "took_s": 9.0}  # fmt: skip

    def tree_note(self, request: Json) -> Json:
        """As node's: checks the request."""
        validate.keys(request, "request", ("backup", "place"), ("backup", "place"))
        return {"backup": store.checked_id(request["backup"]), "copies": []}

    def tree_take(self, request: Json) -> Json:
        """One that comes back."""
        self._came(request)
        return {"backup": request["backup"], "place": "/mnt/disk", "members": 77492,
                "took_s": 9.0}  # fmt: skip

    def _came(self, request: Json) -> None:
        self.rows.append(row(store.checked_id(request["backup"])))

    def tree_unpack(self, request: Json) -> Json:
        """One that is unpacked and proven."""
        return {"backup": store.checked_id(request["backup"]), "changed": True, "took_s": 9.0}

    def tree_restore(self, request: Json) -> Json:
        """Brings a known backup back, unless the tree is as it is."""
        found = next(r for r in self.rows if r["id"] == store.checked_id(request["backup"]))
        detail = "the tree is as the backup" if self.as_backup else "bin/vllm is not there"
        files = [] if self.as_backup else ["write /etc/systemd/system/rigbook-engine.service"]
        return {"backup": found["id"], "tree": found["tree"], "real": found["real"],
                "changed": not self.as_backup, "detail": detail, "took_s": 13.0,
                "unpacks": not self.as_backup, "files": files}  # fmt: skip

    def tree_prune(self, request: Json) -> Json:
        """Takes all but the newest."""
        validate.keys(request, "request", ("keep", "displaced", "dry"), ("keep", "displaced"))
        listed = [{"id": each["id"], "bytes": 1 << 20, "why": "stand-in"} for each in self.rows]
        keep = request["keep"]
        if not request.get("dry"):
            self.rows = self.rows[:keep]
        return {"removed": listed[keep:], "kept": listed[:keep], "swept": [],
                "displaced_removed": [], "displaced_kept": [], "freed_bytes": 1 << 20,
                "dry": bool(request.get("dry"))}  # fmt: skip


# What a start leaves on a stand-in host: our engine as its launch script says, or a former one.

SEED = "vllm-ds4-head.service"


def launch(now: Json) -> None:
    """The processes, the container and the ports of an engine that has come up."""
    argv = argv_in(next((f["content"] for f in now["files"] if f["path"] == SCRIPT_PATH), "") or "")
    words = list(argv)
    own: Json = {"unit": UNIT, "container_id": None}
    if "unreadable" not in now["docker"]:
        own = {"unit": None, "container_id": OUR_PROCESSES}
        box = foreign_container(id=OUR_PROCESSES, name=plan_CONTAINER, restart_policy="no")
        now["docker"]["containers"] = [box.model_dump(mode="json")]
    server = process(910, "/usr/bin/python3", *words, **own)
    rank = process(990, "VLLM::Worker_TP0", ppid=910, **own)
    now["engine_processes"] = [p.model_dump(mode="json") for p in (server, rank)]
    others = [p for p in now["ports"] if p["port"] == 22]
    api = port(8000, pid=910, process="vllm", start_ticks=7, **own)
    now["ports"] = others + ([] if "--headless" in words else [api.model_dump(mode="json")])


def former_answers(now: Json, state: str) -> None:
    """The trial of fault 55: the seed's unit has started its engine again by `docker exec`, which
    took the port. `state` is our own unit's by then, such as `activating/auto-restart`.
    """
    held = port(8000, pid=77, process="python3", unit=None, container_id=FOREIGN, start_ticks=3)
    now["ports"] = [p for p in now["ports"] if p["port"] != 8000] + [held.model_dump(mode="json")]
    now["docker"]["containers"] += [foreign_container(restart_policy="no").model_dump(mode="json")]
    words = ("/usr/bin/docker", "exec", "vllm_ds4", "/workspace/vllm-head.sh")
    seed = unit(name=SEED, restart="on-failure", exec_start=words)
    now["units"].append(seed.model_dump(mode="json"))
    now["units"][0]["active_state"], _, now["units"][0]["sub_state"] = state.partition("/")
