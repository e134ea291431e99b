"""A drop-in checked before systemd gets it."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from node import units
from node.core import proc, validate
from node.core.errors import CannotRead, Json, NodeError
from node.core.files import private_folder
from node.core.run import TimedOut, run
from node.core.systemctl import systemctl
from node.docker import store
from node.units import STEPS, Part

# What the commands of a unit would start: is it there, on the host and inside a container?

# options of `docker run` that take no value; all others take one (docker run --help)
_ALONE = {
    "--detach", "--disable-content-trust", "--help", "--init", "--interactive",
    "--no-healthcheck", "--oom-kill-disable", "--privileged", "--publish-all", "--quiet",
    "--read-only", "--rm", "--sig-proxy", "--tty", "--use-api-socket",
}  # fmt: skip
_ALONE_SHORT = set("ditPq")


class DockerRun(NamedTuple):
    """A `docker run`: image, command, the files that it mounts (target, source), entrypoint."""

    image: str
    words: tuple[str, ...]
    mounts: tuple[tuple[str, str], ...]
    entry: str | None


def _mount(option: str, value: str) -> tuple[str, str] | None:
    """Gives (target, source) of -v and --mount where a path of the host is mounted."""
    if option in ("-v", "--volume"):
        source, _, rest = value.partition(":")
        target = rest.partition(":")[0]
    elif option == "--mount":
        keys = dict(part.partition("=")[::2] for part in value.split(","))
        source = keys.get("source") or keys.get("src") or ""
        target = keys.get("target") or keys.get("destination") or keys.get("dst") or ""
    else:
        return None
    ours = source.startswith("/") and target.startswith("/")
    return (target.rstrip("/"), source.rstrip("/")) if ours else None


def docker_run(words: Sequence[str]) -> DockerRun | None:
    """Gives what a `docker run` command line runs, or None for anything else."""
    if len(words) < 3 or os.path.basename(words[0]) != "docker" or words[1] != "run":
        return None
    rest, mounts, entry = list(words[2:]), [], None
    while rest and rest[0].startswith("-") and rest[0] != "-":
        option, equals, value = rest.pop(0).partition("=")
        if not option.startswith("--"):
            letters = option[1:]
            while letters and letters[0] in _ALONE_SHORT:
                letters = letters[1:]
            if not letters:
                continue
            option, value = "-" + letters[0], letters[1:] + equals + value
            value = value or (rest.pop(0) if rest else "")
        elif option in _ALONE:
            continue
        elif not equals:
            value = rest.pop(0) if rest else ""
        found = _mount(option, value)
        mounts += [found] if found else []
        entry = value if option == "--entrypoint" else entry
    return DockerRun(rest[0], tuple(rest[1:]), tuple(mounts), entry) if rest else None


def _started(words: Sequence[str]) -> str | None:
    """Gives the name of the container that a `docker start` starts, or None."""
    if len(words) < 3 or os.path.basename(words[0]) != "docker" or words[1] != "start":
        return None
    names = [word for word in words[2:] if not word.startswith("-")]
    return names[-1] if names else None


def _in_tree(tree: store.Tree, words: Sequence[str]) -> Iterable[tuple[str, str]]:
    """Gives (path, what is wrong) of a command line that runs inside a container or an image."""
    if not words:
        return
    wrong = store.program_problem(tree, words[0])
    if wrong:
        yield words[0], wrong
    script = units.script_of(words)
    if script and store.stat_mode(tree, script) is None:
        yield script, f"which is not in {tree.what}"


def _on_host(words: Sequence[str]) -> Iterable[tuple[str, str]]:
    """Gives (path, what is wrong) of a command line's program and script on this host."""
    if words[0].startswith("/"):
        if not os.path.exists(words[0]):
            yield words[0], "which does not exist"
        elif not os.path.isfile(words[0]) or not os.access(words[0], os.X_OK):
            yield words[0], "which is no executable file"
    script = units.script_of(words)
    if script and not os.path.exists(script):
        yield script, "which does not exist"


def _in_docker(words: Sequence[str]) -> Iterable[tuple[str, str]]:
    """Gives (path, what is wrong) behind docker exec, docker run and docker start."""
    executed, ran, started = units.inner_command(words), docker_run(words), _started(words)
    if executed:
        yield from _in_tree(store.container_tree(executed[0]), executed[1])
    elif ran:
        tree = store.image_tree(ran.image, list(ran.mounts))
        entry = tree.entry if ran.entry is None else (ran.entry,) if ran.entry else ()
        default = tree.default if ran.entry is None else ()
        yield from _in_tree(tree, [*entry, *(ran.words or default)])
    elif started:
        store.container_tree(started)


def missing_programs(commands: Sequence[units.Command]) -> list[str]:
    """Gives a line for each file that these commands start and that is not there, or not known.

    What cannot be told (docker is silent) counts as wrong: unknown is not fine.
    """
    lines: list[str] = []
    for command in commands:
        if command.may_fail:
            continue
        lines += [f"{command.step} starts {path}, {why}" for path, why in _on_host(command.words)]
        try:
            lines += [f"{command.step} starts {path}, {why}"
                      for path, why in _in_docker(command.words)]  # fmt: skip
        except (CannotRead, NodeError, OSError) as error:
            what = " ".join(command.words[:3])
            lines.append(f"{command.step} {what} …: cannot tell whether it can start: {error}")
    return lines


# A unit as it would be with other drop-ins: checked before one of them is written or removed.
#
# systemd reads a copy of the unit in a folder of its own (`systemd-analyze verify`); what its
# commands start is looked for on the host and inside containers and images.

VERIFY_S = 20.0
PREFIX = "rigbook-verify-"
_NOT_EXECUTABLE = re.compile(r"Command (.+) is not executable: ")
Proposed = dict[str, bytes | None]


class UnitInfo(NamedTuple):
    """What systemd knows of a unit: load state, unit file, and where units are read from."""

    name: str
    load: str
    fragment: Part
    search: list[str]


def _known(name: str) -> UnitInfo:
    """Gives the unit as systemd knows it. Raises NodeError for one that cannot be extended."""
    out = systemctl("show", "-p", "Id,LoadState,FragmentPath", "--", name)
    seen = {key: value for key, _, value in (line.partition("=") for line in out.splitlines())}
    load, fragment = seen.get("LoadState", ""), seen.get("FragmentPath", "")
    search = units.search_path()
    for folder in search if not fragment else ():
        # systemd does not always say it of a unit that it cannot load
        if os.path.isfile(f"{folder}/{name}"):
            fragment = f"{folder}/{name}"
            break
    if load == "masked":
        raise NodeError(
            f"{name} is masked", "not_valid", f"sudo systemctl unmask {shlex.quote(name)}"
        )
    if load == "not-found" or not fragment:
        raise NodeError(f"this host has no unit {name}", "not_valid", "systemctl list-unit-files")
    if seen.get("Id", name) != name:
        raise NodeError(f"{name} is another name of {seen['Id']}: name that one", "not_valid")
    return UnitInfo(name, load, Part(fragment, proc.read_text(fragment)), search)


def _verified(known: UnitInfo, parts: Sequence[Part], gone: Sequence[str]) -> list[str]:
    """Gives what `systemd-analyze verify` says of the unit with these drop-ins, a line each.

    Lines about other units (what this one wants or needs) are left out. Raises NodeError when it
    cannot be asked.
    """
    with private_folder(PREFIX) as folder:
        real = {f"{folder}/{known.name}.d/{os.path.basename(p.path)}": p.path for p in parts}
        real[f"{folder}/{known.name}"] = known.fragment.path
        os.mkdir(f"{folder}/{known.name}.d")
        _write(f"{folder}/{known.name}", known.fragment.text)
        for part in parts:
            _write(f"{folder}/{known.name}.d/{os.path.basename(part.path)}", part.text)
        for path in gone:
            link = f"{folder}/{known.name}.d/{os.path.basename(path)}"
            if not os.path.lexists(link):
                # a link to /dev/null hides the file of that name in the other folders
                os.symlink("/dev/null", link)
        argv = ["env", f"SYSTEMD_UNIT_PATH={':'.join([folder, *known.search])}",
                "systemd-analyze", "verify", "--man=no", f"{folder}/{known.name}"]  # fmt: skip
        try:
            done = run(argv, VERIFY_S)
        except (TimedOut, OSError) as error:
            raise NodeError(f"{known.name} cannot be checked: {error}", "not_valid") from None
    if done.rc == 127:
        raise NodeError(f"{known.name} cannot be checked: no systemd-analyze here", "not_valid")
    lines = []
    for line in (done.err + done.out).splitlines():
        if folder in line or known.name in line:
            for copy, path in real.items():
                line = line.replace(copy, path)
            lines.append(line.strip())
    if done.rc != 0 and not lines:
        lines.append(f"systemd-analyze verify: {done.last_line()}")
    return lines


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8", errors="replace") as file:
        file.write(text)


class UnitProblems(NamedTuple):
    """What would be wrong with a unit: `broken` as systemd reads it, `ghosts` that it starts."""

    broken: list[str]
    ghosts: list[str]


def unit_problems(name: str, proposed: Proposed) -> UnitProblems:
    """Gives what would be wrong with the unit if these of its drop-ins were so, a line each.

    What was wrong before and is not made worse is left out, but for an ExecStart= that starts
    nothing: no drop-in is written for such a unit. Raises NodeError when it cannot be told.
    """
    known = _known(name)
    now = units.drop_ins(name, known.search, {})
    then = units.drop_ins(name, known.search, proposed)
    wrong = _overridden(known, then, proposed)
    said = _verified(known, then, list(proposed))
    if said:
        before = _verified(known, now, [])
        wrong += [line for line in said if line not in before or _names(line, proposed)]
    ghosts: list[str] = []
    for step in STEPS:
        after = missing_programs(units.file_commands([known.fragment, *then], step))
        if after and (step != "ExecStart" or all(raw is None for raw in proposed.values())):
            before = missing_programs(units.file_commands([known.fragment, *now], step))
            after = [line for line in after if line not in before]
        ghosts += after
    # systemd names a missing program, too
    broken = [line for line in wrong if not _same_ghost(line, ghosts)]
    return UnitProblems(list(dict.fromkeys(broken)), list(dict.fromkeys(ghosts)))


def _same_ghost(line: str, others: Sequence[str]) -> bool:
    found = _NOT_EXECUTABLE.search(line)
    return found is not None and any(f"starts {found.group(1)}, " in other for other in others)


def _names(line: str, proposed: Proposed) -> bool:
    return any(path in line for path, raw in proposed.items() if raw is not None)


def _overridden(known: UnitInfo, then: Sequence[Part], proposed: Proposed) -> list[str]:
    """Gives a line where a proposed ExecStart= would not be what the unit starts."""
    effective = {line.path for line in units.exec_lines([known.fragment, *then], "ExecStart")}
    lines = []
    for path, raw in proposed.items():
        if raw is None:
            continue
        own = units.exec_lines([Part(path, raw.decode("utf-8", "replace"))], "ExecStart")
        if own and path not in effective:
            others = ", ".join(sorted(effective)) or "another drop-in"
            lines.append(f"{path} would not count: ExecStart= comes from {others}")
    return lines


def require_sound(steps: Sequence[Json]) -> None:
    """Raise NodeError (`not_valid`) when the drop-ins of an apply would leave a unit broken."""
    for name in dict.fromkeys(step["for_unit"] for step in steps if step.get("for_unit")):
        proposed: Proposed = {
            step["path"]: step.get("raw") for step in steps if step.get("for_unit") == name
        }
        _in_place(name, proposed)
        found = unit_problems(name, proposed)
        accepted = all(step.get("accept_ghosts") for step in steps if step.get("for_unit") == name)
        wrong = found.broken + ([] if accepted else found.ghosts)
        if wrong:
            raise NodeError(
                f"{name} would be broken: {'; '.join(wrong)[:1500]}; nothing was changed",
                "not_valid",
                f"systemctl cat {shlex.quote(name)}",
            )


def _in_place(name: str, proposed: Proposed) -> None:
    """Raise NodeError for a path that systemd does not read as a drop-in of the unit."""
    folders = [f"{folder}/{name}.d" for folder in units.search_path()]
    for path in proposed:
        if os.path.dirname(path) not in folders or not path.endswith(".conf"):
            raise validate.bad(f"{path} is no drop-in of {name}: systemd would not read it")


def check_drop_in(request: Any) -> Json:
    """`dropin`: would the unit be sound with this drop-in (`content` null: without it)?

    Gives `problems`, a line each (one for a unit that cannot be extended), `ghosts`, a line for
    each file that it would start and that is not there, and `exec_start`, the words of what it
    would start. Changes nothing.
    """
    body = validate.keys(
        request, "request", ("unit", "path", "content"), ("unit", "path", "content")
    )
    name = validate.unit(body["unit"], "unit")
    path = validate.path(body["path"], "path")
    raw = (
        None if body["content"] is None else validate.content({"content": body["content"]}, "file")
    )
    proposed: Proposed = {path: raw}
    _in_place(name, proposed)
    try:
        known = _known(name)
        parts = [known.fragment, *units.drop_ins(name, known.search, proposed)]
        found = units.file_commands(parts, "ExecStart")
        wrong = unit_problems(name, proposed)
    except NodeError as error:
        remedy = f" ({error.remedy})" if error.remedy else ""
        return {"unit": name, "problems": [f"{error}{remedy}"], "ghosts": [], "exec_start": []}
    return {
        "unit": name,
        "problems": wrong.broken,
        "ghosts": wrong.ghosts,
        "exec_start": list(found[-1].words) if found else [],
    }
