"""What the commands of a unit would start: is it there, on the host and inside a container?"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from node.core.errors import CannotRead, NodeError
from node.docker import filesystem
from node.systemd import exec_lines

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


def _in_tree(tree: filesystem.Tree, words: Sequence[str]) -> Iterable[tuple[str, str]]:
    """Gives (path, what is wrong) of a command line that runs inside a container or an image."""
    if not words:
        return
    wrong = filesystem.program_problem(tree, words[0])
    if wrong:
        yield words[0], wrong
    script = exec_lines.script(words)
    if script and filesystem.stat_mode(tree, script) is None:
        yield script, f"which is not in {tree.what}"


def _on_host(words: Sequence[str]) -> Iterable[tuple[str, str]]:
    """Gives (path, what is wrong) of a command line's program and script on this host."""
    if words[0].startswith("/"):
        if not os.path.exists(words[0]):
            yield words[0], "which does not exist"
        elif not os.path.isfile(words[0]) or not os.access(words[0], os.X_OK):
            yield words[0], "which is no executable file"
    script = exec_lines.script(words)
    if script and not os.path.exists(script):
        yield script, "which does not exist"


def _in_docker(words: Sequence[str]) -> Iterable[tuple[str, str]]:
    """Gives (path, what is wrong) behind docker exec, docker run and docker start."""
    executed, ran, started = exec_lines.inner(words), docker_run(words), _started(words)
    if executed:
        yield from _in_tree(filesystem.container(executed[0]), executed[1])
    elif ran:
        tree = filesystem.image(ran.image, list(ran.mounts))
        entry = tree.entry if ran.entry is None else (ran.entry,) if ran.entry else ()
        default = tree.default if ran.entry is None else ()
        yield from _in_tree(tree, [*entry, *(ran.words or default)])
    elif started:
        filesystem.container(started)


def missing_programs(commands: Sequence[exec_lines.Command]) -> list[str]:
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
