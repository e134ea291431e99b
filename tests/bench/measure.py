"""What is measured: each function does one thing once and gives its figures."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from deploys.common.load_and_gate import endpoint
from facts.endpoint.completion import ask
from facts.snapshot import Snapshot
from schema.desired.plan import UNIT
from tests.bench.checks import checks
from tests.infra.plugin import ROOT, Connections, Rig

RUN_TIMEOUT_S = 180
RESTART_TIMEOUT_S = 600
# Runs on the host: the command comes on stdin, its wall time and its largest process go back.
_PROBE = """\
import json, resource, subprocess, sys, time
command = sys.stdin.read()
started = time.monotonic()
subprocess.run(["sh", "-c", command], stdout=subprocess.DEVNULL, check=True)
took = time.monotonic() - started
print(json.dumps([took, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024]))
"""


class Bench:
    """The rig under measurement. Every measurement raises RuntimeError when it did not work."""

    def __init__(self, rig: Rig, connections: Connections) -> None:
        self._rig = rig
        self._connections = connections
        self._names = [node.name for node in rig.plan.rig.nodes]

    def serve(self) -> tuple[float, dict[str, int]]:
        """A serve run: its seconds, and its remote commands by node."""
        counts = self._connections.folder / "counts.json"
        data = [word for pair in self._rig.pairs for word in ("--data", pair)]
        arguments = [self._rig.inventory, "deploys/serve.py", "-y", *data]
        command = [sys.executable, "-m", "tests.bench.count_execs", str(counts), *arguments]
        seconds = timed(lambda: _run(command))
        by_address = json.loads(Path(counts).read_text())
        asked = {n: by_address.get(self._connections.target(n), 0) for n in self._names}
        if not all(asked.values()):
            raise RuntimeError(f"serve asked a node nothing: {asked}; the count is wrong")
        return seconds, asked

    def doctor(self) -> float:
        """Seconds of a doctor's run on a rig that serves; RuntimeError when it finds something."""
        program = str(Path(sys.executable).parent / "pyinfra")
        data = [word for pair in self._rig.pairs for word in ("--data", pair)]
        return timed(lambda: _run([program, self._rig.inventory, "deploys/doctor.py", "-y", *data]))

    def restart(self) -> float:
        """Seconds of deploys/restart.py: gates, stop, reap, shm, caches, start, a real answer."""
        program = str(Path(sys.executable).parent / "pyinfra")
        data = [word for pair in self._rig.pairs for word in ("--data", pair)]
        command = [program, self._rig.inventory, "deploys/restart.py", "-y", *data]
        return timed(lambda: _run(command, timeout_s=RESTART_TIMEOUT_S))

    def by_hand(self) -> float:
        """Seconds of the bare minimum: systemctl stop head, workers; start workers, head; answer.

        The engine's own part of a restart, with nobody looking.
        """
        head = self._rig.plan.rig.head.name
        workers = [node.name for node in self._rig.plan.rig.workers]

        def all_of_it() -> None:
            for verb, order in (("stop", [head, *workers]), ("start --no-block", [*workers, head])):
                for name in order:
                    self._ssh(name, f"sudo systemctl {verb} {UNIT}")
            deadline = time.monotonic() + RESTART_TIMEOUT_S
            while not ask(endpoint(self._rig.plan), 60.0).ok:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"no completion in {RESTART_TIMEOUT_S} s after systemctl")
                time.sleep(1)

        return timed(all_of_it)

    def cli_start(self) -> float:
        """Seconds of pyinfra's start: Python, pyinfra, config.py, inventory, group_data."""
        program = str(Path(sys.executable).parent / "pyinfra")
        return timed(lambda: _run([program, self._rig.inventory, "debug-inventory"]))

    def connect(self) -> float:
        """Seconds until a new ssh connection to every node, at the same time, has run `true`."""
        return timed(lambda: self._everywhere(lambda name: self._ssh(name, "true")))

    def snapshot(self) -> float:
        """Seconds for one snapshot of every node, at the same time, over open connections."""

        def look(name: str) -> None:
            request = self._rig.plan.requests[name].model_dump_json()
            done = self._connections.host(name).run(Snapshot().command(request))
            if done.rc != 0:
                raise RuntimeError(f"{name}: {done.stderr[-500:]}")

        return timed(lambda: self._everywhere(look))

    def script(self) -> float:
        """Seconds for one script with the same checks a node, over new connections."""

        def check(name: str) -> None:
            listed = checks(self._rig.plan, self._rig.plan.rig.node(name))
            lines = [c for c in listed if c.shell]
            # stdin is the script itself: no check may read from it.
            text = "".join(
                f"{{ {c.shell}; }} </dev/null >&2 || exit {i}\n" for i, c in enumerate(lines, 1)
            )
            done = self._ssh(name, "sudo sh -s", text, check=False)
            if done.returncode:
                what = lines[done.returncode - 1].name if done.returncode <= len(lines) else "ssh"
                raise RuntimeError(f"script on {name}: {what}: {done.stderr[-500:]}")

        def whole() -> None:
            self._everywhere(check)
            self.completion()

        return timed(whole)

    def completion(self) -> float:
        """Seconds for one real chat completion."""
        answer = ask(endpoint(self._rig.plan), 60.0)
        if not answer.ok:
            raise RuntimeError(f"no completion: {answer.detail}")
        return answer.seconds

    def on_host(self) -> tuple[float, int]:
        """Of one snapshot on the host itself, the worst node's: seconds, bytes of its largest
        process."""
        found = []
        for name in self._names:
            request = self._rig.plan.requests[name].model_dump_json()
            probe = f"sudo python3 -c '{_PROBE}'"
            done = self._ssh(name, probe, Snapshot().command(request))
            took, size = json.loads(done.stdout.splitlines()[-1])
            found.append((took, size))
        return max(took for took, _ in found), max(size for _, size in found)

    def _ssh(
        self, name: str, command: str, stdin: str = "", check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """A command over a connection of its own."""
        config = str(self._connections.config(name))
        alone = ["ssh", "-F", config, "-o", "ControlMaster=no", "-o", "ControlPath=none"]
        return _run([*alone, self._connections.target(name), command], stdin, check)

    def _everywhere(self, work: Callable[[str], object]) -> None:
        with ThreadPoolExecutor(len(self._names)) as pool:
            list(pool.map(work, self._names))


def timed(work: Callable[[], object]) -> float:
    """Wall seconds of `work`."""
    started = time.monotonic()
    work()
    return time.monotonic() - started


def _run(
    command: list[str], stdin: str = "", check: bool = True, timeout_s: int = RUN_TIMEOUT_S
) -> subprocess.CompletedProcess[str]:
    """A command in the project's root; RuntimeError with its last lines when it fails."""
    done = subprocess.run(
        command,
        cwd=ROOT,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    if check and done.returncode != 0:
        said = f"{done.stdout}{done.stderr}"[-2000:]
        raise RuntimeError(f"{' '.join(command)[:200]}: exit status {done.returncode}: {said}")
    return done
