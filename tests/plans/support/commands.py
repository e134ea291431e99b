"""What a recorded remote command asks of a host: node's verb and request, or a systemd question."""

from __future__ import annotations

import base64
import json
import re
import zlib
from dataclasses import dataclass, field
from typing import Any

from schema.desired.plan import UNIT

# The words of facts/rignode/pack.py: arguments and modules are two base64 words behind printf.
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

    Verbs that are not node's: unit-state and log (facts/unit_state.py), systemctl-stop
    (operations/rollback/revert.py), other.
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
