"""How the tests run the program: as a zipapp in a process of its own, like a host does.

Where the start itself proves nothing, the process is a fork of a warm one (tests/forkserver.py).
"""

from __future__ import annotations

import importlib.util
import io
import json
import marshal
import os
import signal
import stat
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from gates.doctor import examine
from node.engine.config import Engine, parse_engine
from schema.snapshot import Health, NodeSnapshot
from tests.forkserver import Forkserver, shared
from tests.unit.builders import rigs
from tests.unit.builders.rigs import spark_plan

# A limit for what would otherwise run for hours.


class StillRunning(BaseException):
    """The limit is over; no handler of the tested code takes it for an error of its own."""


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Fails once this much CPU time of the process was used."""

    def over(number: int, frame: FrameType | None) -> None:
        raise StillRunning(f"it still runs after {seconds:g} s of CPU")

    former = signal.signal(signal.SIGVTALRM, over)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, former)


# Lines that a test has to show although it passed: its table of cells. Also from a worker.

KEY = "rigbook table"
Show = Callable[[str], None]


def shown(reports: list[object]) -> list[str]:
    """The lines of finished tests, in their order."""
    rows: list[str] = []
    for report in reports:
        for key, line in getattr(report, "user_properties", ()):
            if key == KEY:
                rows.append(str(line))
    return rows


# As the zipapp's own start, with every module in place.
PRELOAD = """\
import sys, zipfile
sys.path.insert(0, {pyz!r})
sys.dont_write_bytecode = True
import importlib
for name in sorted(zipfile.ZipFile({pyz!r}).namelist()):
    if name.startswith("node/") and name.endswith(".py"):
        importlib.import_module(name[:-3].replace("/", ".").replace(".__init__", ""))
"""
RUN = "import sys; from node.__main__ import main; sys.exit(main(sys.argv[1:]))"
OLD = "old content\n"
NEW = "new content\n"

SYSTEMCTL = """\
#!/bin/sh
# rigbook stand-in for systemctl: unit states are files, every call is logged
here=$(dirname "$0")/units
[ "$1" = --no-ask-password ] && shift
verb=$1; shift
echo "$verb $*" >> "$here/log"
for last; do :; done
[ -e "$here/fail-$verb" ] && { echo "Job for $last failed." >&2; exit 1; }
read_state() { cat "$here/$1" 2>/dev/null || echo "$2"; }
case $verb in
show) echo "LoadState=loaded"; echo "UnitFileState=$(read_state "$last.enabled" disabled)"
      echo "ActiveState=$(read_state "$last.active" inactive)"; echo "NeedDaemonReload=no"
      echo "InvocationID=$(read_state "$last.starts" "")"; echo "Result=exit-code";;
start|restart) echo "$verb" >> "$here/$last.count"
      wc -l < "$here/$last.count" > "$here/$last.starts"
      read_state "$last.becomes" active > "$here/$last.active";;
reset-failed) ;;
stop) echo inactive > "$here/$last.active";;
enable) echo enabled > "$here/$last.enabled";;
disable) echo disabled > "$here/$last.enabled";;
daemon-reload) ;;
*) exit 2;;
esac
"""


def compiled(zipapp: bytes) -> bytes:
    """The zipapp with each module's bytecode beside it, which saves each start 0.1 s."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(zipapp)) as plain, zipfile.ZipFile(made, "w") as archive:
        for name in plain.namelist():
            source = plain.read(name)
            archive.writestr(name, source)
            code = compile(source, f"rignode/{name}", "exec", dont_inherit=True)
            # Unchecked (PEP 552): no time and no hash of the source is compared.
            head = importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8)
            archive.writestr(name + "c", head + marshal.dumps(code))
    return b"#!/usr/bin/env python3\n" + made.getvalue()


@dataclass
class Host:
    """A host made of folders: its own state root, PATH doubles and a place for files."""

    root: Path
    pyz: Path
    python: str = sys.executable
    env: dict[str, str] = field(default_factory=dict)

    @property
    def state(self) -> Path:
        """The state root (RIGBOOK_STATE)."""
        return self.root / "state"

    @property
    def bin(self) -> Path:
        """The folder that comes first on PATH."""
        return self.root / "bin"

    def environ(self) -> dict[str, str]:
        """The environment of every run."""
        path = f"{self.bin}:{os.environ['PATH']}"
        return {**os.environ, "RIGBOOK_STATE": str(self.state), "PATH": path, **self.env}

    def argv(self, verb: str, *args: str) -> list[str]:
        """The command line of a verb."""
        return [*self._start, *verb.split(), *args]

    @property
    def _start(self) -> list[str]:
        return [self.python, "-I", "-B", str(self.pyz)]

    def run(
        self, argv: Sequence[str], stdin: str = "", timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the host's environment; the program itself as a fork of a warm one."""
        start, words = list(argv[:4]), list(argv[4:])
        if start == self._start and self.python == sys.executable:
            preload = PRELOAD.format(pyz=str(self.pyz))
            warm = shared(str(self.pyz), lambda: Forkserver(start[:3], preload, RUN))
            return warm.run([str(self.pyz), *words], stdin, self.environ(), timeout=timeout)
        return subprocess.run(
            argv, input=stdin, env=self.environ(), capture_output=True, text=True, timeout=timeout
        )

    def call(self, verb: str, request: object = None) -> dict[str, Any]:
        """The verb's answer; its exit status must fit `ok`, and stderr must be empty."""
        done = self.run(self.argv(verb), json.dumps(request if request is not None else {}))
        assert done.stderr == "", done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        assert done.returncode == (0 if answer["ok"] else 1), (done.returncode, answer)
        return answer

    def holding(self) -> subprocess.Popen[str]:
        """A process that holds the host's lock until its stdin ends."""
        code = (
            "import sys\nfrom node.core.files import Lock\n"
            "with Lock('a test'):\n    print('held', flush=True)\n    sys.stdin.read()\n"
        )
        child = subprocess.Popen(
            [self.python, "-c", code], env={**self.environ(), "PYTHONPATH": str(self.pyz)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert child.stdout and child.stdout.readline() == "held\n"
        return child

    def file(self, name: str = "file.conf", text: str | None = OLD, mode: int = 0o640) -> Path:
        """A file of the host, `text` None for one that is not there."""
        path = self.root / name
        if text is not None:
            path.write_text(text)
            path.chmod(mode)
        return path

    def double(self, name: str, script: str) -> Path:
        """An executable that comes first on PATH."""
        path = self.bin / name
        path.write_text(script)
        path.chmod(0o755)
        return path

    def systemctl(self) -> Path:
        """Put the labelled stand-in for systemctl on PATH; gives the folder of its states."""
        units = self.bin / "units"
        units.mkdir()
        self.double("systemctl", SYSTEMCTL)
        return units

    def leftovers(self) -> list[str]:
        """Temp files that nothing cleaned up, in the host's folders."""
        return sorted(str(path) for path in self.root.rglob("*.rigbook-*"))


def change(name: str = "change-1", **more: object) -> dict[str, object]:
    """The `change` of a request."""
    return {"id": name, "deploy": "serve", "operator": "tester@here", "waivers": [], **more}


def file_step(path: Path, text: str = NEW, mode: str = "0644", **more: object) -> dict[str, object]:
    """A file step."""
    return {"op": "file", "path": str(path), "content": text, "mode": mode, **more}


def unit_step(active: str | None, enabled: bool | None = None, **more: object) -> dict[str, object]:
    """A unit step of `engine.service`."""
    step: dict[str, object] = {"op": "unit", "unit": "engine.service", "enabled": enabled}
    return {**step, "active": active, "daemon_reload": True, **more}


def apply_request(
    *steps: dict[str, object], name: str = "change-1", **more: object
) -> dict[str, object]:
    """An apply request; `more` is for its change."""
    return {"change": change(name, **more), "steps": list(steps)}


def unsigned(path: Path) -> dict[str, Any]:
    """A change of the journal without its checksum: written back it is as of an older program."""
    change: dict[str, Any] = json.loads(path.read_text())
    change.pop("sha256", None)
    return change


def mode(path: Path) -> int:
    """A path's permission bits."""
    return stat.S_IMODE(path.stat().st_mode)


def target(link: Path) -> str:
    """Where a symbolic link points."""
    return str(link.readlink())


# node.json of a rig of two nodes on this machine's loopback, and one way to change it.

UNIT = "rigbook-engine.service"


def document(url: str = "http://127.0.0.1:1", **changes: object) -> dict[str, Any]:
    """The file's content; keywords replace top-level keys."""
    return {
        "format": 1, "rig": "lab", "node": "lab1", "role": "head", "rank": 0, "unit": UNIT,
        "container": "rigbook-engine", "image": "rigbook/vllm-cpu:0.32.0",
        "fabric": {"device": "lo", "address": "127.0.0.1", "mtu": 9000, "wait_s": 1},
        "peers": ["127.0.0.2"], "master": {"address": "127.0.0.1", "port": 29501},
        "endpoint": {"url": url, "model": "tiny", "reasoning": False, "chat_template_kwargs": {}},
        "ports": [8000, 29501], "start_budget_s": 30, "needs_nvidia": False,
        "memory": {"gpu_memory_utilization": 0.9, "gpus": 0, "cpu_bytes": 1024},
        "weights": "/srv/models/tiny", **changes,
    }  # fmt: skip


def engine(**changes: Any) -> Engine:
    """The engine as node reads it."""
    return parse_engine(document(**changes))


def engine_file(host: Host, **changes: Any) -> Path:
    """Writes the file where `host` looks for it."""
    path = host.root / "engine.json"
    path.write_text(json.dumps(document(**changes)))
    host.env["RIGBOOK_ENGINE"] = str(path)
    return path


# What the doctor's gates, all of them, say of a host's health.


def found_with(health: Health) -> list[tuple[str, str | None]]:
    """What the doctor says of the Spark pair when its head's health is this."""
    plan = spark_plan()
    seen: dict[str, Any] = dict(rigs.serving(plan))
    usual = {(v.code, v.node) for v in examine(plan, seen)}
    seen["spark1"] = rigs.put(seen["spark1"], "health", health)
    assert isinstance(seen["spark1"], NodeSnapshot)
    return [(v.code, v.node) for v in examine(plan, seen) if (v.code, v.node) not in usual]
