"""Runs the test tiers that this machine can run, and says which it left out and why.

`python -m tests.tiers lint fast lab engine`. In CI (the variable CI is set) a tier that was left
out is a failure: a green run there means that everything ran. A few tests that failed are run once
more by themselves, since booted hosts keep their own time: one that passes then is named as FLAKY
in the summary, for somebody to mend; one that fails again fails the tier.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS_FAILED = 1  # pytest's exit status
# More failures than this are no accident of time.
MOST_FLAKES = 4


def _nothing_missing() -> str | None:
    return None


def _needs_lab() -> str | None:
    """Why this machine cannot make rehearsal hosts, or None."""
    if os.geteuid() != 0:
        return "needs root (rehearsal hosts are booted containers)"
    for tool in ("systemd-nspawn", "mmdebstrap", "ip", "ssh"):
        if shutil.which(tool) is None:
            return f"needs {tool}, which is not installed"
    return None


@dataclass(frozen=True)
class Tier:
    """A named set of checks: its command lines, and why it may not run here."""

    commands: tuple[tuple[str, ...], ...]
    hindrance: Callable[[], str | None]
    what: str


def _needs_vm() -> str | None:
    """Why this machine cannot run test VMs, or None."""
    if os.geteuid() != 0:
        return "needs root (the VM's root tree is made with its owners)"
    for tool in ("qemu-system-x86_64", "qemu-img", "mmdebstrap", "sfdisk", "ssh"):
        if shutil.which(tool) is None:
            return f"needs {tool}, which is not installed"
    return None


def _needs_browser() -> str | None:
    """Why this machine cannot open a page, or None."""
    if shutil.which("chromium") is None:
        return "needs chromium, which is not installed"
    for module in (
        "vl_convert",
        "playwright",
        "axe_playwright_python",
        "sphinx",
        "myst_parser",
        "furo",
    ):
        if importlib.util.find_spec(module) is None:
            return "needs the packages of requirements/browser.txt and requirements/docs.txt"
    return None


def _needs_molecule() -> str | None:
    """Why this machine cannot run the scenario, or None."""
    if importlib.util.find_spec("molecule.app") is None:
        return "needs the packages of requirements/molecule.txt"
    return _needs_lab()


# molecule starts pytest and ansible-playbook, and its playbooks python and pyinfra, by name
_FIRST = f"PATH={Path(sys.executable).parent}:{os.environ.get('PATH', '')}"


def _pytest(*paths: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "pytest", "-q", *paths)


def _everywhere(*paths: str) -> tuple[str, ...]:
    """On all cores, a file's tests on one of them: what a module's fixture made is made once."""
    return (*_pytest(*paths), "-n", "auto", "--dist", "loadfile")


# every step of a backup, an upgrade and a rollback with each fault: minutes, on this machine alone
FAULTS = (
    "tests/unit/node/backup/test_killed_anywhere.py",
    "tests/unit/node/venv/test_upgrade_faults.py",
    "tests/unit/node/crash",
)

TIERS = {
    "lint": Tier(
        (
            (sys.executable, "-m", "ruff", "check", "."),
            (sys.executable, "-m", "ruff", "format", "--check", "."),
            (sys.executable, "-m", "mypy"),
        ),
        _nothing_missing,
        "ruff and mypy",
    ),
    "fast": Tier(
        (
            _everywhere(
                "tests/unit",
                "tests/plans",
                *(f"--ignore={path}" for path in FAULTS),
            ),
        ),
        _nothing_missing,
        "pure parts, node on this machine, plans with @fake",
    ),
    "faults": Tier(
        (_everywhere(*FAULTS),), _nothing_missing, "kill, error and hang at every step of a change"
    ),
    "lab": Tier((_pytest("tests/system/lab"),), _needs_lab, "two booted hosts, without the engine"),
    "moving": Tier(
        (_pytest("tests/system/transfer"),), _needs_lab, "two booted hosts: transfers that break"
    ),
    "k8s": Tier(
        (_pytest("tests/system/kubernetes"),),
        _needs_lab,
        "a lab host with a real Kubernetes API (built once)",
    ),
    "engine": Tier(
        (_pytest("tests/system/engine"),), _needs_lab, "two booted hosts with the real vLLM"
    ),
    "alive": Tier(
        (_pytest("tests/system/alive"),),
        _needs_lab,
        "two booted hosts with the real vLLM that is killed, falls silent, or runs out of memory",
    ),
    "incidents": Tier(
        (_pytest("tests/system/incidents"),),
        _needs_lab,
        "two booted hosts with the real vLLM: incidents, a former setup, secrets",
    ),
    "measure": Tier(
        (_pytest("tests/system/measure"),), _needs_lab, "bench and soak of the real vLLM"
    ),
    "page": Tier(
        (_pytest("tests/system/page"),),
        _needs_browser,
        "a report's pages and the site in a real browser",
    ),
    "tower": Tier(
        (_pytest("tests/system/venv"),), _needs_lab, "one booted host with the real vLLM in a venv"
    ),
    "nodes": Tier(
        (_pytest("tests/system/nodes"),),
        _needs_lab,
        "four booted hosts on one switch, with the real vLLM",
    ),
    "rehearse": Tier(
        (_pytest("tests/system/rehearse"),),
        _needs_lab,
        "a twin of two Spark with the real vLLM, and incidents dealt and mended in a row",
    ),
    "adopt": Tier(
        (_pytest("tests/system/adopt"),),
        _needs_lab,
        "two booted hosts that serve by other means, taken over and given back",
    ),
    "containerd": Tier(
        (_pytest("tests/system/containerd"),),
        _needs_lab,
        "three booted hosts, two of whose dockers keep images in containerd",
    ),
    "molecule": Tier(
        (
            _pytest("tests/system/molecule"),
            ("env", _FIRST, "molecule", "test"),
        ),
        _needs_molecule,
        "two booted hosts with the real vLLM, made, changed, judged and removed by molecule",
    ),
    "chaos": Tier(
        (_pytest("tests/system/sweep"),),
        lambda: _needs_lab() or _needs_vm(),
        "deploys interrupted at random moments, then one more run of the same command",
    ),
    "lease": Tier(
        (_pytest("tests/system/lease"),),
        lambda: _needs_lab() or _needs_vm(),
        "72 changes under a lease, each with a loss in its middle",
    ),
    "vm": Tier(
        (_pytest("tests/system/vm"),), _needs_vm, "real GRUB, kernels and reboots, emulated"
    ),
}


def last_failed() -> set[str]:
    """The tests that pytest's cache has as failed (node ids)."""
    try:
        found = json.loads((ROOT / ".pytest_cache/v/cache/lastfailed").read_text())
    except (OSError, ValueError):
        return set()
    return {str(name) for name in found}


def attempt(command: tuple[str, ...]) -> tuple[int, list[str]]:
    """Runs one command line; its exit status, and the tests that passed only when run again."""
    tests = "pytest" in command
    if tests:
        shutil.rmtree(ROOT / ".pytest_cache/v", ignore_errors=True)
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    failed = sorted(last_failed()) if tests and code == TESTS_FAILED else []
    if not failed or len(failed) > MOST_FLAKES:
        return code, []
    print(f"== {len(failed)} failed; once more by themselves: {', '.join(failed)}", flush=True)
    code = subprocess.run((*command, "--last-failed"), cwd=ROOT, check=False).returncode
    return code, [] if code else failed


def run(names: list[str]) -> int:
    """Runs the tiers by name; the exit status: 0 when all that ran passed (and, in CI, all ran)."""
    unknown = [name for name in names if name not in TIERS]
    if unknown or not names:
        print(
            f"tiers: unknown {', '.join(unknown) or '(none named)'}; there are: {', '.join(TIERS)}"
        )
        return 2
    rows = []
    for name in names:
        tier = TIERS[name]
        hindrance = tier.hindrance()
        if hindrance is not None:
            rows.append((name, "LEFT OUT", hindrance))
            continue
        print(f"== tier {name}: {tier.what}", flush=True)
        started = time.monotonic()
        codes, flaky = [], []
        for command in tier.commands:
            code, again = attempt(command)
            codes.append(code)
            flaky += again
        took = f"{time.monotonic() - started:.0f} s"
        if flaky:
            took += f"; FLAKY, passed only the second time: {', '.join(flaky)}"
        rows.append((name, "FAILED" if any(codes) else "passed", took))
    print("== tiers")
    for name, outcome, detail in rows:
        print(f"{name:10} {outcome:9} {detail}")
    failed = any(outcome == "FAILED" for _, outcome, _ in rows)
    left_out = any(outcome == "LEFT OUT" for _, outcome, _ in rows)
    if left_out and os.environ.get("CI"):
        print("tiers: in CI a tier that was left out is a failure")
    return 1 if failed or (left_out and bool(os.environ.get("CI"))) else 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
