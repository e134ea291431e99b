"""The tiers of the tests: what each is and needs. Runs those that this machine can run.

`python -m tests.tiers` lists them, `python -m tests.tiers lint fast lab` runs three, and says which
it left out and why. In CI (the variable CI is set) a tier that was left out is a failure: a green
run there means that everything ran. A few tests that failed are run once more by themselves, since
booted hosts keep their own time: one that passes then is named as FLAKY in the summary, for
somebody to mend; one that fails again fails the tier.

Standard library only: `make help` and `make test` ask it before anything is installed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS_FAILED = 1  # pytest's exit status
# More failures than this are no accident of time.
MOST_FLAKES = 4


@dataclass(frozen=True)
class Need:
    """What a tier needs: root, a word of lab/install-tools with the programs that it brings, files
    of requirements/ with the modules that they bring.
    """

    text: str
    root: bool = False
    tools: str = ""
    programs: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()

    def missing(self) -> str | None:
        """What of it this machine has not, or None."""
        if self.root and os.geteuid() != 0:
            return "needs root (it boots hosts)"
        for tool in self.programs:
            if shutil.which(tool) is None:
                return f"needs {tool}, which is not installed"
        for module in self.modules:
            if importlib.util.find_spec(module) is None:
                files = " and ".join(f"requirements/{name}.txt" for name in self.packages)
                return f"needs the packages of {files}"
        return None


LAB = Need("", True, "lab", ("systemd-nspawn", "mmdebstrap", "ip", "ssh"))
ENGINE = Need("the engine's image, built once")
TOWER = Need("the tower's layer, built once")
VM = Need("QEMU", True, "vm", ("qemu-system-x86_64", "qemu-img", "mmdebstrap", "sfdisk", "ssh"))
MEMORY = Need("16 GB of memory")
BROWSER = Need(
    "chromium, Python 3.11",
    tools="page",
    programs=("chromium",),
    packages=("browser", "docs"),
    modules=("vl_convert", "playwright", "axe_playwright_python", "sphinx", "myst_parser", "furo"),
)
MOLECULE = Need("molecule", packages=("molecule",), modules=("molecule.app",))


@dataclass(frozen=True)
class Tier:
    """A named set of checks: its command lines, about how long, and what it needs.

    `minutes` None: nobody has measured it by itself. `more`: the variables that it reads.
    """

    what: str
    minutes: int | None
    needs: tuple[Need, ...]
    commands: tuple[tuple[str, ...], ...]
    more: str = ""

    def hindrance(self) -> str | None:
        """Why it may not run here, or None."""
        return next((text for need in self.needs if (text := need.missing())), None)


def _python(*words: str) -> tuple[str, ...]:
    return (sys.executable, "-m", *words)


def _everywhere(*paths: str) -> tuple[str, ...]:
    """On all cores, a file's tests on one of them: what a module's fixture made is made once."""
    return _python("pytest", "-q", *paths, "-n", "auto", "--dist", "loadfile")


def _system(*folders: str) -> tuple[tuple[str, ...], ...]:
    return tuple(_python("pytest", "-q", f"tests/system/{folder}") for folder in folders)


# every step of a backup, an upgrade and a rollback with each fault: minutes, on this machine alone
FAULTS = (
    "tests/unit/node/backup/test_verify.py",
    "tests/unit/node/venv/test_upgrade_faults.py",
    "tests/unit/node/crash",
)
_FAST = ("tests/unit", "tests/plans", *(f"--ignore={path}" for path in FAULTS))
_LINT = (("ruff", "check", "."), ("ruff", "format", "--check", "."), ("mypy",))
# molecule starts pytest and ansible-playbook, and its playbooks python and pyinfra, by name
_FIRST = f"PATH={Path(sys.executable).parent}:{os.environ.get('PATH', '')}"
_MOLECULE = ("env", _FIRST, "molecule", "test")

TIERS = {
    "lint": Tier(
        "ruff; mypy, strict, on what `pyproject.toml` lists",
        2, (), tuple(_python(*words) for words in _LINT)),
    "fast": Tier(
        "pure functions, node on this machine, whole plans on stand-in hosts",
        16, (), (_everywhere(*_FAST),)),
    "lab": Tier("two booted hosts, without the engine", 17, (LAB,), _system("lab")),
    "faults": Tier(
        "kill, error and hang at the steps of a backup, an upgrade, a rollback",
        5, (), (_everywhere(*FAULTS),)),
    "engine": Tier("two booted hosts with the real vLLM", 15, (LAB, ENGINE), _system("engine")),
    "moving": Tier(
        "transfers that break half-way",
        None, (LAB,), _system("transfer")),
    "tower": Tier(
        "one booted host with the real vLLM in a venv, without docker",
        None, (LAB, TOWER), _system("venv")),
    "alive": Tier(
        "vLLM killed, silent, or out of memory, hosts that reboot, and what acts then",
        40, (LAB, ENGINE), _system("alive"), "`RIGBOOK_QUEUE_S=3600`: an hour at a full queue"),
    "incidents": Tier(
        "a crash loop and other incidents, a former setup beside it, secrets",
        15, (LAB, ENGINE), _system("incidents")),
    "measure": Tier(
        "bench and soak of the real vLLM, in several profiles",
        30, (LAB, ENGINE), _system("measure")),
    "adopt": Tier(
        "hosts on which others serve (`docker exec`, compose, a script), taken over, given back",
        25, (LAB, ENGINE), _system("adopt")),
    "containerd": Tier(
        "three hosts, two with the containerd image store; a GPU by CDI, of stand-ins",
        10, (LAB,), _system("containerd")),
    "nodes": Tier(
        "four booted hosts on one switch with the real vLLM",
        None, (LAB, ENGINE, MEMORY), _system("nodes")),
    "rehearse": Tier(
        "twins of two Spark, a tower, four Spark; incidents dealt, mended, judged in a row",
        90, (LAB, ENGINE, TOWER, MEMORY), _system("rehearse"),
        "`RIGBOOK_INCIDENTS=C13,D5`: some of them; `RIGBOOK_TRANSCRIPT=FILE` keeps the seconds for "
        "the page; `RIGBOOK_LAB=twin` takes the twin that is up"),
    "k8s": Tier(
        "a booted host with a real Kubernetes API; the first run builds it",
        20, (LAB,), _system("kubernetes")),
    "molecule": Tier(
        "the life of a rig as a molecule scenario, and that one that always changes fails",
        10, (LAB, ENGINE, MOLECULE), (*_system("molecule"), _MOLECULE)),
    "page": Tier(
        "a report's pages and the site in a real browser, on a phone and on a screen",
        5, (BROWSER,), _system("page"), "`RIGBOOK_PAGES=DIR` keeps pages and screenshots"),
    "vm": Tier(
        "an emulated machine with real GRUB, kernels, power cuts; never green as one run",
        60, (VM,), _system("vm"), "`RIGBOOK_DRIVER=all`: 33 cells of a driver's change"),
    "chaos": Tier(
        "deploys interrupted at random moments; each is run once more",
        240, (LAB, ENGINE, TOWER, VM), _system("sweep"), "`N=60 SEED=7 ONLY=serve,upgrade:3`"),
    "lease": Tier(
        "72 changes under a lease: 12 losses in the middle of 6 deploys",
        1440, (LAB, ENGINE, TOWER, VM), _system("lease"),
        "`RIGBOOK_LEASE=serve:cable,kernel` selects cells"),
}  # fmt: skip
# Several at once, and a former name.
GROUPS = {"full": ("faults", "engine"), "cluster": ("k8s",)}


def table() -> str:
    """The tiers as CONTRIBUTING.md has them."""
    rows = ["| tier | minutes, about | what | where | needs |\n|---|---|---|---|---|\n"]
    for name, tier in TIERS.items():
        words = (word for command in tier.commands for word in command)
        where = ", ".join(f"`{word}`" for word in words if word.startswith("tests/"))
        root = ["root"] if any(need.root for need in tier.needs) else []
        needs = ", ".join([*root, *(need.text for need in tier.needs if need.text)])
        what = f"{tier.what}. {tier.more}" if tier.more else tier.what
        rows.append(f"| {name} | {tier.minutes or '?'} | {what} | {where} | {needs} |\n")
    return "".join(rows)


def goals(names: list[str]) -> list[str]:
    """What make has to bring before these tiers run: tools, and packages in the venv."""
    needs = [need for name in names for need in TIERS[name].needs]
    tools = [f"tools-{need.tools}" for need in needs if need.tools]
    packages = [f"packages-{file}" for need in needs for file in need.packages]
    return [*dict.fromkeys(("packages-test", *tools, *packages))]


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


def main(words: list[str]) -> int:
    """Lists, runs, or says what make has to bring (`--goals`); the exit status."""
    names = [one for word in words if word != "--goals" for one in GROUPS.get(word, (word,))]
    unknown = [name for name in names if name not in TIERS]
    if unknown:
        print(f"tiers: unknown {', '.join(unknown)}; there are: "
              f"{', '.join([*TIERS, *GROUPS])}", file=sys.stderr)  # fmt: skip
        return 2
    if not names:
        for name, tier in TIERS.items():
            print(f"  {name:11}{tier.minutes or '?':>5} min  {tier.what}")
        return 0
    if "--goals" in words:
        print(*goals(names))
        return 0
    return run(names)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
