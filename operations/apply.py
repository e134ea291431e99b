"""The one operation that makes journalled steps on the nodes of a rig, and shows them before.

The steps are node's: each is journalled there, and all of them are undone together.
"""

from __future__ import annotations

import base64
import difflib
import re
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from pyinfra import host
from pyinfra.api import FunctionCommand, Host, State, operation
from pyinfra.api.output import format_text

from operations.run import Run, StepFailed
from schema.snapshot import FileState

# How a change looks to the operator before it is made: a unified diff, secrets masked.

# As node/rules/secret.py masks them, so that both sides of a diff look alike.
_SECRET = re.compile(r"^(\s*\w*(?:TOKEN|KEY|SECRET|PASSWORD|AUTH)\w*=).+", re.I)
_SECRET_FLAG = re.compile(r"^(\s*--(?:[\w-]+-)?(?:api-key|token|secret|password)[ =]).+")
_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


def diff_lines(path: str, before: str | None, after: str | None) -> Iterator[str]:
    """Unified diff lines of a file; None stands for a file that is not there."""
    old = [_masked(line) for line in (before or "").splitlines()]
    new = [_masked(line) for line in (after or "").splitlines()]
    from_name = path if before is not None else "/dev/null"
    to_name = path if after is not None else "/dev/null"
    yield from difflib.unified_diff(old, new, from_name, to_name, lineterm="", n=2)
    if old == new and before != after:
        yield f"{to_name}: only values of secrets, or ends of lines, differ"


def _masked(line: str) -> str:
    return _SECRET_FLAG.sub(r"\1***", _SECRET.sub(r"\1***", line))


def show_diff(host: Host, path: str, before: str | None, after: str | None) -> None:
    """Logs the diff of one file on its host."""
    for line in diff_lines(path, before, after):
        host.log(format_text(line, _COLOURS.get(line[:1], "white")))


Steps = list[dict[str, object]]
Step = Mapping[str, Any]

# The longest that node may take for the steps of one call, in seconds, by the slowest of them.
USUAL_S = 120
# grub: update-grub looks at each kernel and asks every filesystem; big machines take a minute.
# unit: a stop (TERM, KILL, the container's end) and the begin of a start. kube: two reads, a dry
# run and the patch, each with its own limit.
# container, former_engine: TERM (30 s), KILL.
_LIMITS_S = {
    "grub": 420,
    "unit": 300,
    "kube": 180,
    "container": 180,
    "former_engine": 180,
    # packages: apt, and DKMS for each kernel.
    "packages": 2700,
}
# A library of some MB, over a slow line.
BINARY_S = 300


def limit_s(steps: Steps) -> int:
    """How long node may take for these steps, in seconds."""
    return max(map(_step_limit_s, steps), default=USUAL_S)


def _step_limit_s(step: Step) -> int:
    return BINARY_S if "content_base64" in step else _LIMITS_S.get(step["op"], USUAL_S)


def _unit(step: Step) -> str:
    active, enabled = step.get("active"), step.get("enabled")
    if enabled is not None:
        words = ["enable" if enabled else "disable", *([active] if active else [])]
        return f"{' and '.join(words)} {step['unit']}"
    if not step.get("daemon_reload"):
        return f"{active} {step['unit']}"
    return "have systemd read its units again" + (f", then {active} {step['unit']}" * bool(active))


def _grub(step: Step) -> str:
    if step.get("next"):
        return f"GRUB boots {step['next']} once"
    made = "update-grub; " if step.get("regenerate") else ""
    return f"{made}GRUB's saved default is {step['saved']}"


def _link(step: Step) -> str:
    if step["target"] == "/dev/null":
        return f"mask {step['path'].rpartition('/')[2]}"
    return f"{step['path']}: {step.get('expect', 'absent')} -> {step['target']}"


def _directory(step: Step) -> str:
    owner = f" (owner {step['owner']})" if "owner" in step else ""
    return f"make the folder {step['path']}{owner}"


def _packages(step: Step) -> str:
    kernels = ", ".join(step["kernels"])
    driver = f"{step['module']} {step['version']}"
    return f"exchange {len(step['rows'])} packages; {driver} must be there for {kernels}"


def _former_engine(step: Step) -> str:
    where = f"runs in container {step['container']}" if "container" in step else ""
    return f"end the engine that {where or 'is pid ' + str(step['pid'])}"


def _crontab(step: Step) -> str:
    return f"{step['path']}: comment out line " + ", ".join(str(r["line"]) for r in step["lines"])


def _no_pods(step: Step) -> str:
    return f"scale Deployment {step['namespace']}/{step['deployment']} to 0 pods"


_WORDS: Mapping[str, Callable[[Step], str]] = {
    "file": lambda s: f"write {s['path']} (mode {s['mode']}, owner {s.get('owner', 'root')})",
    "directory": _directory,
    "absent": lambda s: f"remove {s['path']}",
    "link": _link,
    "unit": _unit,
    "hold": lambda s: f"apt holds: {', '.join(s['packages'])}",
    "packages": _packages,
    "grub": _grub,
    "wol": lambda s: f"{s['nic']} wakes by a magic packet from now on (ethtool wol {s['letters']})",
    "sysctl": lambda s: ", ".join(f"{name} = {value}" for name, value in s["values"].items()),
    "reread": lambda s: f"{'PID 1' if s['what'] == 'manager' else 'journald'} reads its files",
    "restart_policy": lambda s: f"restart policy of container {s['container']}: {s['policy']}",
    "container": lambda s: f"stop container {s['container']}",
    "former_engine": _former_engine,
    "crontab": _crontab,
    # What a patch changes is known by the server's rehearsal alone: the words tell it.
    "kube": lambda s: _no_pods(s) if s.get("replicas") == 0 else "",
}


def describe(step: Step) -> str:
    """A step in words, without a file's content: it may hold what nobody is to see."""
    return _WORDS[str(step["op"])](step)


def texts_of(files: Mapping[str, FileState]) -> dict[str, str | None]:
    """The text of each file by its path; None where there is no file."""
    return {path: state.content for path, state in files.items()}


@operation()
def apply(
    run: Run,
    label: str,
    steps: Steps,
    members: Collection[str],
    idle: str,
    before: Mapping[str, str | None] | None = None,
    words: Sequence[str] = (),
    notes: Mapping[str, str] | None = None,
) -> Generator[FunctionCommand, None, None]:
    """
    Make journalled steps on this node.

    + run: the change
    + label: what this part of the change is called, the same on all nodes
    + steps: what to do here, in order
    + members: the nodes on which something is to do
    + idle: why nothing is to do here
    + before: the text of files now, by path, for the diff; None: no diff is shown
    + words: what changes, for a person, a line each
    + notes: by path, what to say behind the step's own words
    """
    if not steps:
        host.noop(idle)
        return
    for line in words:
        run.show_once(host, line, partial(host.log, line))
    for step in steps:
        line = ": ".join(filter(None, (describe(step), (notes or {}).get(str(step.get("path"))))))
        run.show_once(host, line, partial(_show, run, step, line, before))
    node, seconds = host.name, limit_s(steps)
    yield run.step(label, members, lambda: run.apply(node, steps, seconds))


def _show(run: Run, step: Step, line: str, before: Mapping[str, str | None] | None) -> None:
    if line:
        host.log(line)
    if step["op"] not in ("file", "absent") or before is None or not run.state.config.DIFF:
        return
    if "secrets" in step:
        return  # the line has said which of them change
    show_diff(host, step["path"], before.get(step["path"]), text_after(step))


def text_after(step: Step) -> str | None:
    """The text that a step gives a file; None where it takes the file away."""
    if step["op"] == "absent":
        return None
    if "content" in step:
        return str(step["content"])
    return base64.b64decode(step["content_base64"]).decode("utf-8", "replace")


# Steps as node takes them, for those that many runbooks make alike.


def unit_step(
    unit: str, active: str | None = None, enabled: bool | None = None, reload: bool = True
) -> dict[str, object]:
    """A unit brought to a state: `active` is start, restart or stop; None leaves it as it is.

    `reload`: systemd reads its units anew before, where something changed.
    """
    return {
        "op": "unit",
        "unit": unit,
        "enabled": enabled,
        "active": active,
        "daemon_reload": reload,
    }


def folder_steps(
    paths: Iterable[str], files: Mapping[str, FileState], mode: str = "0755", owner: str = "root"
) -> Steps:
    """The steps that make those of the folders that were looked at and are absent."""
    return [
        {"op": "directory", "path": path, "mode": mode, "owner": owner, "group": owner}
        for path in dict.fromkeys(paths)
        if path in files and files[path].kind == "absent"
    ]


# What one host does by itself, beside a rig's change: a command that says what came of it.


def told(
    work: Callable[[State, Host], str], causes: Callable[[Host], Sequence[str]] = lambda _: ()
) -> FunctionCommand:
    """The command that does `work` and says its line; a StepFailed fails the host with its lines,
    and with what `causes` says to look at.
    """

    def execute(state: State, host: Host) -> bool:
        try:
            host.log_styled(work(state, host), fg="green")
        except StepFailed as error:
            lines = str(error).splitlines()
            state.__dict__.setdefault("rigbook_last_words", []).append(lines[0] if lines else "")
            for line in lines:
                host.log_styled(line, fg="red")
            for line in causes(host):
                host.log_styled(line, fg="yellow")
            return False
        return True

    return FunctionCommand(execute, (), {})


def told_together(
    run: Run,
    label: str,
    members: Collection[str],
    work: Callable[[State, Host], str],
    wait_s: float,
) -> FunctionCommand:
    """The same as a step that `members` do at the same time: one that fails ends the run on all."""
    me = run.host(host.name)
    return run.step(label, members, lambda: me.log_styled(work(run.state, me), fg="green"), wait_s)
