"""A host that watches a stand-in endpoint and tells a real HTTP receiver."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.unit.node.support.host import Host
from tests.unit.node.support.transfers import Server, completion

SECRET = "T0P-S3CRET"


class Rig:
    """One look is one run of the real program."""

    def __init__(self, host: Host, endpoint: Server, hook: Server) -> None:
        self.host, self.endpoint, self.hook = host, endpoint, hook
        self.reply: tuple[int, object] = (200, completion())
        self.taken: tuple[int, object] = (200, {})
        self.logged = ""
        host.env["RIGBOOK_WATCH"] = str(host.root / "watch.json")
        self.configure(webhook=f"{hook.url}/{SECRET}")

    def configure(self, **changes: object) -> None:
        """Write watch.json."""
        body = {
            "format": 1, "rig": "lab", "node": "lab1", "misses": 3,
            "webhook": None, "webhook_file": None,
            "endpoint": {"url": self.endpoint.url, "model": "tiny", "reasoning": False,
                         "chat_template_kwargs": {}},
            **changes,
        }  # fmt: skip
        self.file("watch.json", json.dumps(body))

    def file(self, name: str, text: str) -> Path:
        path = self.host.root / name
        path.write_text(text)
        path.chmod(0o600)
        return path

    def look(self, code: int = 0) -> str:
        """One run of the timer's service; what it logged."""
        done = self.host.run(self.host.argv("watch"))
        self.logged += done.stdout + done.stderr
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def answers(self, *replies: tuple[int, object], taken: tuple[int, object] = (200, {})) -> str:
        """One look at each reply of the endpoint; what was logged."""
        self.taken = taken
        said = ""
        for self.reply in replies:
            said += self.look()
        return said

    @property
    def state_file(self) -> Path:
        return self.host.state / "watch" / "state.json"

    def alter(self, **changes: object) -> None:
        """Changes what the last look kept."""
        self.state_file.write_text(json.dumps({**self.state(), **changes}))

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.state_file.read_text())
        return found

    def told(self) -> list[str]:
        return [str(notice["status"]) for notice in self.hook.got]
