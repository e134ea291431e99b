"""A machine's own settings: Wake-on-LAN, sleep, attestations. The steps are node's, journalled."""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence

from pyinfra import host
from pyinfra.api import FunctionCommand, operation

from operations.change import diff
from operations.change.run import Run
from operations.engine.engine import Steps, file_steps
from schema.desired.plan import Document
from schema.observed.hardware import Nic
from schema.observed.snapshot import FileState
from schema.render.wake_on_lan_files import Persistence

MACHINE_TIMEOUT_S = 120
_SLEEP_DIR = "/etc/systemd/system"


def folder_steps(documents: Sequence[Document], files: Mapping[str, FileState], mode: str) -> Steps:
    """The steps that make the documents' folders where they are absent."""
    folders = dict.fromkeys(document.path.rpartition("/")[0] for document in documents)
    return [
        {"op": "directory", "path": path, "mode": mode, "owner": "root", "group": "root"}
        for path in folders
        if path in files and files[path].kind == "absent"
    ]


def wol_steps(
    nic: Nic, how: Persistence, files: Mapping[str, FileState], enabled: Collection[str]
) -> Steps:
    """The steps that arm a card at every boot and now; none where it is.

    `enabled` are the units that are enabled already.
    """
    written = file_steps(how.documents, files)
    steps = [*folder_steps(how.documents, files, "0755"), *written] if written else []
    if how.unit is not None and (written or how.unit not in enabled):
        steps.append(_unit(how.unit, enabled=True))
    if not getattr(nic.wol, "armed", False):
        steps.append({"op": "wol", "nic": nic.name, "letters": "g"})
    return steps


def sleep_steps(targets: Mapping[str, str]) -> Steps:
    """The steps that mask what would put the machine to sleep; none where all is masked."""
    awake = sorted(name for name, state in targets.items() if state != "masked")
    links: Steps = [
        {"op": "link", "path": f"{_SLEEP_DIR}/{name}", "target": "/dev/null"} for name in awake
    ]
    return [*links, _unit(awake[0])] if links else []


def _unit(name: str, enabled: bool | None = None) -> dict[str, object]:
    return {"op": "unit", "unit": name, "enabled": enabled, "active": None, "daemon_reload": True}


def describe(step: Mapping[str, object]) -> str:
    """A step in words."""
    op, path = step["op"], step.get("path")
    if op == "file":
        return f"write {path} (mode {step['mode']}, owner root)"
    if op == "directory":
        return f"make {path}"
    if op == "link":
        return f"mask {str(path).rpartition('/')[2]}"
    if op == "wol":
        return f"{step['nic']} wakes by a magic packet from now on (ethtool wol {step['letters']})"
    return f"{'enable' if step['enabled'] else 'reload systemd for'} {step['unit']}"


@operation()
def change(
    run: Run,
    steps: Steps,
    members: Collection[str],
    files: Mapping[str, FileState],
) -> Generator[FunctionCommand, None, None]:
    """
    Make a machine's steps on this node, when it is one of `members`.

    + run: the change
    + steps: what to do, in order
    + members: the nodes on which something is to do
    + files: what the files are now, by path, for the diff
    """
    if host.name not in members or not steps:
        host.noop("what can be set here is set")
        return
    for step in steps:
        run.show_once(host, describe(step), lambda step=step: _show(run, step, files))
    node = host.name
    yield run.step("machine", members, lambda: run.apply(node, steps, MACHINE_TIMEOUT_S))


def _show(run: Run, step: Mapping[str, object], files: Mapping[str, FileState]) -> None:
    host.log(describe(step))
    if step["op"] == "file" and run.state.config.DIFF:
        path = str(step["path"])
        now = files.get(path)
        diff.show(host, path, now.content if now else None, str(step["content"]))
