"""The fallback `method=ssh`: docker save on one node, docker load on another, through this machine.

For stores that node cannot read (neither overlay2 nor containerd). The whole image travels, under
no name; the tag is set after the content was looked at.
"""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyinfra.api import Host

from facts.local.secret_values import SecretMissing, value_of
from operations.change.node_call import StepFailed, call
from operations.change.run import Run
from operations.transfer import docker_archive
from operations.transfer.docker_archive import Archive
from operations.transfer.ssh_command import Command, last_words
from schema.desired.rig import Node
from schema.render.engine_spec import on_node
from schema.render.image_build import LABEL, Context

_SAY_EVERY_S = 5.0
Same = Callable[[Archive], bool]


def between(run: Run, source: str, target: str, reference: str, want: dict[str, Any]) -> None:
    """Brings the image `want` from node to node and tags it. Raises StepFailed."""
    # By id, so that docker load sets no tag.
    save = f"docker save {shlex.quote(str(want['id']))}"
    try:
        with closing(Command(run.host(source), save)) as giver:
            loaded = _load(run.host(target), giver.chunks())
            giver.finish()
    except StepFailed as error:
        raise StepFailed(f"{error}; {target}'s tag was not touched: run it again") from None
    tag(run, target, reference, {**want, "id": loaded})


def from_archive(
    run: Run, target: str, reference: str, layers: list[str], chunks: Iterator[bytes]
) -> None:
    """Loads an archive of this machine on a node and tags it. Raises StepFailed."""
    loaded = _load(run.host(target), chunks)
    tag(run, target, reference, {"id": loaded, "layers": layers})


def keep(run: Run, source: str, reference: str, path: Path, same: Same) -> Archive:
    """Brings docker save of a node's image into a file here, checked; what it holds.

    A file that is there and whole stays. `same`: whether an archive is the node's image. Raises
    StepFailed; no half file is left then.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        if path.exists():
            found = docker_archive.read(path)
            found.check()
            if same(found):
                return found
            raise StepFailed(f"{path} holds another image: move it away")
        path.parent.mkdir(parents=True, exist_ok=True)
        save = f"docker save {shlex.quote(reference)}"
        with closing(Command(run.host(source), save)) as giver, part.open("wb") as file:
            for chunk in giver.chunks():
                file.write(chunk)
            giver.finish()
            file.flush()
            os.fsync(file.fileno())
        found = docker_archive.read(part)
        found.check()
        if not same(found):
            raise StepFailed(
                f"docker save on {source} gave another image than {reference} is there"
            )
        part.rename(path)
    except (OSError, docker_archive.BadArchive) as error:
        raise StepFailed(f"{path}: {error}") from None
    finally:
        part.unlink(missing_ok=True)
    return replace(found, path=path)


def build(run: Run, target: str, context: Context) -> str:
    """Has docker on a node build a context; what it made, as docker's id. Raises StepFailed.

    No tag is set. docker build without a tag prints the id in a way of its own for each builder:
    the id file is the same for both. The build ends with the session that started it.
    """
    raw = context.tar()
    host, node = run.host(target), run.plan.rig.node(target)
    try:
        script, sent = build_script(context, node, len(raw))
    except SecretMissing as error:
        raise StepFailed(f"{error}; {error.remedy}") from None
    with closing(Command(host, script, "docker build")) as builder:
        builder.write(sent + raw)
        said = builder.finish(lambda step: host.log(step) if _is_step(step) else None, _reason)
    if not said.strip().startswith("sha256:"):
        raise StepFailed(f"{target}: docker build answered: {said.strip()[:200] or 'nothing'}")
    return said.strip()


def build_script(context: Context, node: Node, size: int) -> tuple[str, bytes]:
    """The script that builds a context of `size` bytes, and what stands before them in its stdin:
    a line for each secret that this machine has. Raises SecretMissing.
    """
    words = ["docker", "build", "--label", f"{LABEL}={context.inputs}", "--force-rm"]
    for name, value in sorted(context.args.items()):
        words += ["--build-arg", f"{name}={value}"]
    sent, reads = b"", ""
    for name, source in sorted(context.build.secrets.items()):
        secret = value_of(name, source)
        if secret is None:
            path = on_node(str(source.node_file), node)
        else:
            path = f"{_SECRETS}/{name}"
            sent += secret.reveal().encode() + b"\n"
            reads += f'IFS= read -r v && printf %s "$v" >{path} || exit 1\n'
        words += ["--secret", f"id={name},src={path}"]
    # The classic builder has no secrets.
    words = ["env", "DOCKER_BUILDKIT=1", *words] if context.build.secrets else words
    return _BUILD % (reads, size, shlex.join(words)), sent


# In memory; what a kill leaves there the next build removes.
_SECRETS = "/run/rigbook-build.secrets"
# One build a host, by a lock that ends with its processes. The name given by --add-host stands on
# the containers of the steps and not in the image: docker forgets them when it is restarted.
# Behind the context nothing comes: what ends the read is a session that is gone, and docker build
# would not notice that before its next word, which may take half an hour.
_BUILD = """mkdir -p -m 700 /var/lib/rigbook && exec 9>/var/lib/rigbook/build.lock || exit 1
flock -n 9 || { echo "rigbook: another build runs on this host" >&2; exit 1; }
sweep() {
  docker ps -aq -f status=created -f status=exited -f status=dead |
    xargs -r docker inspect -f "{{.Id}} {{.HostConfig.ExtraHosts}}" |
    sed -n "s/ .*rigbook-build:.*//p" | xargs -r docker rm
} >/dev/null 2>&1
sweep
s=/run/rigbook-build.secrets
rm -rf $s; mkdir -m 700 $s || exit 1
%sd=$(mktemp -d) && head -c %d >$d/context || exit 1
exec 3<&0
%s --add-host rigbook-build:127.0.0.1 --iidfile $d/id - <$d/context >&2 & build=$!
(read -r nothing <&3; kill $build) 2>/dev/null & watch=$!
wait $build; r=$?
kill $watch
[ $r = 0 ] && cat $d/id || sweep
rm -rf $d $s; exit $r"""
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def _reason(lines: list[str]) -> str:
    """Why docker build failed: the line of a step of ours with the one before it, else its last.

    docker's own last line repeats the step's command, a newer builder its part of the Dockerfile.
    """
    clean = [_COLOUR.sub("", line) for line in lines]
    ours = [n for n, line in enumerate(clean) if "rigbook: " in line]
    if not ours:
        return last_words(clean)
    before = clean[ours[0] - 1] if ours[0] else ""
    told = "" if _is_step(before) or before.startswith((" --->", "Removing")) else before.strip()
    return clean[ours[0]].partition("rigbook: ")[2][:600] + (f"; {told[-200:]}" if told else "")


def _is_step(line: str) -> bool:
    """Whether a line of docker build names a step: `Step 2/4 : RUN …`, or `#7 [2/4] RUN …`."""
    return line.startswith("Step ") or (line.startswith("#") and " [" in line)


def tag(run: Run, node: str, reference: str, want: dict[str, Any]) -> None:
    """Sets the tag on an image that is whole on a node, as a step of the change."""
    run.touch(node)
    request = {"change": run.change(), "image": reference, "want": want}
    call(run.state, run.host(node), "image tag", request)


def _load(host: Host, chunks: Iterator[bytes]) -> str:
    """Feeds docker load on a host; the id of what it says it loaded."""
    done, told = 0, time.monotonic()
    with closing(Command(host, "docker load --quiet")) as loader:
        for chunk in chunks:
            loader.write(chunk)
            done += len(chunk)
            if time.monotonic() - told > _SAY_EVERY_S:
                host.log(f"{done / 1e9:.2f} GB through this machine")
                told = time.monotonic()
        said = loader.finish()
    # `Loaded image ID: sha256:…`, the last word of docker's last line
    last = said.strip().splitlines()[-1:] or [""]
    if not last[0].startswith("Loaded image ID: sha256:"):
        raise StepFailed(f"{host.name}: docker load answered: {last[0][:200] or 'nothing'}")
    return last[0].split()[-1]
