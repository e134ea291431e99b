"""The GPU tier's host as an operator drives it, and as a person at its console."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paramiko

from facts.endpoint import Endpoint, ask
from lab import gpu
from lab.core import SSH_USER

ROOT = Path(__file__).resolve().parents[3]
LOGS = gpu.BASE / "logs"
INVENTORY = "inventory/gputower.py"
RECIPE = ROOT / "catalog" / "recipes" / "gpu-venv.yaml"
UNIT = "rigbook-engine"
VENV = "/opt/engine/venv"
PORT, HAND_PORT = 8000, 8001
MODEL = "/srv/models/gpu"
DEPLOY_S = 400
# what a driver shows in use while nobody computes is less
IDLE_MIB = 200
# the machine's own Python, which has PyTorch
PYTHON = os.environ.get("RIGBOOK_GPU_PYTHON", "python3")


@dataclass(frozen=True)
class Done:
    """A finished command: exit status, everything it printed, seconds."""

    rc: int
    text: str
    seconds: float

    @property
    def is_unchanged(self) -> bool:
        """Whether a run of pyinfra changed nothing."""
        rows = [line for line in self.text.splitlines() if line.strip().startswith("Grand total")]
        return self.rc == 0 and bool(rows) and rows[-1].split()[-3:-1] == ["-", "-"]


class Rig:
    """One host with the real vLLM on a real GPU."""

    def __init__(self) -> None:
        self.count = 0
        self.case = ""
        LOGS.mkdir(exist_ok=True)

    def deploy(self, name: str, *data: str, dry: bool = False) -> Done:
        """A runbook against the host; its output is kept, one file each."""
        words = [str(Path(sys.executable).parent / "pyinfra"), INVENTORY, f"deploys/{name}.py"]
        words += ["--dry", "--diff"] if dry else ["-y"]
        for one in data:
            words += ["--data", one]
        return self.run(words, name)

    def run(self, words: list[str], name: str) -> Done:
        """A command of the operator's, in the project's root."""
        began = time.monotonic()
        done = subprocess.run(
            words, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=DEPLOY_S, check=False,
        )  # fmt: skip
        took = time.monotonic() - began
        said = f"(rc {done.returncode}, {took:.2f} s)"
        self.note(name, f"$ {' '.join(words[1:])}\n{done.stdout}\n{said}\n")
        return Done(done.returncode, done.stdout, took)

    def note(self, name: str, text: str) -> None:
        """Keep a text with the logs of the case."""
        self.count += 1
        (LOGS / f"{self.count:03}-{self.case}-{name}.log").write_text(text)

    def on(self, command: str, check: bool = True) -> str:
        """Standard output of a shell command that root runs at the host's console."""
        return gpu.run_inside(["sh", "-c", command], check=check).strip()

    def smi(self, query: str) -> list[list[str]]:
        """The cells of an nvidia-smi query, a list for each line."""
        text = self.on(f"nvidia-smi {query} --format=csv,noheader,nounits")
        return [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]

    def used(self) -> int:
        """MiB in use on the fullest GPU."""
        return max(int(row[0]) for row in self.smi("--query-gpu=memory.used"))

    def total(self) -> int:
        """MiB of the first GPU."""
        return int(self.smi("--query-gpu=memory.total")[0][0])

    def free(self) -> int:
        """MiB free on the first GPU."""
        return int(self.smi("--query-gpu=memory.free")[0][0])

    def computing(self, title: str = "") -> list[int]:
        """Pids that compute on a GPU and whose title holds this."""
        rows = self.smi("--query-compute-apps=pid,process_name")
        return [int(pid) for pid, name, *_ in rows if title in name]

    def values(self, *names: str) -> list[str]:
        """Values of properties of the engine's unit."""
        text = self.on(f"systemctl show -p {','.join(names)} {UNIT}")
        values = dict(line.partition("=")[::2] for line in text.splitlines())
        return [values[name] for name in names]

    def answers(self, port: int = PORT) -> bool:
        """Whether a real completion comes."""
        return ask(Endpoint(f"http://{gpu.HOST}:{port}", "gpu"), 10).ok

    def wait(self, what: str, budget_s: float, true: Callable[[], object]) -> float:
        """Polls until it holds; seconds. AssertionError naming `what` after the budget."""
        began = time.monotonic()
        while not true():
            assert time.monotonic() - began < budget_s, f"{what}: not within {budget_s:.0f} s"
            time.sleep(0.5)
        return time.monotonic() - began

    def came_back(self, budget_s: float = 150) -> float:
        """Seconds until a real completion comes after something was ended."""
        self.wait("the engine is gone", 30, lambda: not self.answers())
        return self.wait("a real completion", budget_s, self.answers)

    def serving(self) -> None:
        """An engine that answers, whatever the case before left."""
        if not self.answers():
            done = self.deploy("serve")
            assert done.rc == 0, tail(done)
            if not self.answers():
                done = self.deploy("restart")
                assert done.rc == 0, tail(done)

    def stopped(self) -> None:
        """No engine of ours, and no memory of the GPU in use."""
        if self.values("ActiveState") != ["inactive"]:
            done = self.deploy("stop")
            assert done.rc == 0, tail(done)
        self.wait("the memory is free", 30, lambda: self.used() < IDLE_MIB)

    def newest(self) -> dict[str, Any]:
        """The newest change of the host's journal."""
        found: dict[str, Any] = json.loads(self.on("echo '{}' | rignode journal"))["changes"][0]
        return found

    def start(self, command: str, log: str) -> None:
        """Start a command in a login on the host, which it outlives; its output goes to a file."""
        self.ssh(f"setsid nohup {command} > {log} 2>&1 < /dev/null &")

    def ssh(self, command: str) -> str:
        """Standard output of a shell command of the login user, over ssh."""
        with paramiko.SSHClient() as client:
            client.load_host_keys(str(gpu.BASE / "keys" / "known_hosts"))
            client.connect(
                gpu.HOST, username=SSH_USER, key_filename=str(gpu.BASE / "keys" / "login"),
                allow_agent=False, look_for_keys=False,
            )  # fmt: skip
            _, out, _ = client.exec_command(command, timeout=30)
            return str(out.read().decode())


def tail(done: Done, lines: int = 12) -> str:
    """The end of what a run printed, in one line of a report."""
    kept = [line.strip() for line in done.text.splitlines() if line.strip()]
    wanted = [line for line in kept if "error" in line.lower() or "block " in line]
    return f"rc {done.rc}: " + " | ".join([*wanted[:4], *kept[-lines:]])[:900]


def machine() -> str:
    """Card, driver, memory, kernel, date, in one line."""
    query = "--query-gpu=name,driver_version,memory.total"
    cards = gpu.run_inside(["nvidia-smi", query, "--format=csv,noheader"]).splitlines()
    return f"{len(cards)} x {cards[0]}; Linux {os.uname().release}; {time.strftime('%Y-%m-%d')}"
