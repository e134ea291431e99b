"""The main job, shown: two rehearsal hosts serve a model with the real vLLM over both nodes.

`python -m lab.demo` (as root, from the project's root): makes the lab with the engine's image on
one host, brings it to the other with deploys/image.py, converges both with deploys/serve.py,
prints a real chat completion, converges again (no change), and says how long each phase took. The
lab stays up; `make lab-down` takes it away.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from facts.endpoint import Endpoint, ask
from lab import core

ROOT = Path(__file__).resolve().parent.parent
SERVE = ("inventory/lab.py", "deploys/serve.py", "-y")
IMAGE = ("inventory/lab.py", "deploys/image.py", "-y")
WEIGHTS = ("inventory/lab.py", "deploys/weights.py", "-y")


def _run(*command: str) -> None:
    """Runs a command with its output shown; ends the demo with its exit status when it fails."""
    done = subprocess.run(command, cwd=ROOT, check=False)
    if done.returncode != 0:
        print(f"demo: failed: {' '.join(command)}", file=sys.stderr)
        sys.exit(done.returncode)


def _pyinfra(*arguments: str) -> None:
    _run(str(Path(sys.executable).parent / "pyinfra"), *arguments)


def main() -> None:
    """Runs the demo; exits non-zero when any phase fails."""
    if os.geteuid() != 0:
        sys.exit("demo: needs root (rehearsal hosts are booted containers): sudo make demo")
    phases: list[tuple[str, float]] = []

    def phase(name: str, *command: str, pyinfra: bool = False) -> None:
        print(f"\n== {name}", flush=True)
        started = time.monotonic()
        (_pyinfra if pyinfra else _run)(*command)
        phases.append((name, time.monotonic() - started))

    up = (sys.executable, "-m", "lab", "up", "--image-on-one")
    phase("lab: two hosts, their links, the engine's image on the first", *up)
    phase("image: from the first host to the second, over the fabric", *IMAGE, pyinfra=True)
    phase("weights: the same on both hosts", *WEIGHTS, pyinfra=True)
    phase("serve: converge and prove", *SERVE, pyinfra=True)
    print("\n== a chat completion", flush=True)
    head = core.load_settings().hosts()[0]
    answer = ask(Endpoint(f"http://{head.address}:8000", "tiny"))
    if not answer.ok:
        sys.exit(f"demo: no completion: {answer.detail}")
    print(f"{answer.model} says {answer.text!r} ({answer.detail})")
    print("(the tiny model has random weights: its words mean nothing, that they come does)")
    phase("serve again: no change", *SERVE, pyinfra=True)
    print("\n== how long it took")
    for name, seconds in phases:
        print(f"{seconds:7.1f} s  {name}")
    print("\nlook around: make lab-status, make lab-ssh; take it away: make lab-down")


if __name__ == "__main__":
    main()
