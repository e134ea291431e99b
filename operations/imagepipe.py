"""The fallback `method=ssh`: docker save on one node, docker load on another, through this machine.

For stores whose layers node cannot read by themselves. The whole image travels, under no name;
the tag is set after the content was looked at.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

from pyinfra.api import Host

from facts.rig import bounded
from operations.node import StepFailed, call
from operations.run import Run
from schema.imagebuild import LABEL, Context

TIMEOUT_S = 4 * 3600
_CHUNK = 1 << 20
_SAY_EVERY_S = 5.0


def between(run: Run, source: str, target: str, reference: str, want: dict[str, Any]) -> None:
    """Brings the image `want` from node to node and tags it. Raises StepFailed."""
    # By id, so that docker load sets no tag.
    save = f"docker save {shlex.quote(str(want['id']))}"
    try:
        with closing(_Command(run.host(source), save)) as giver:
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


def build(run: Run, target: str, context: Context) -> str:
    """Has docker on a node build a context; what it made, as docker's id. Raises StepFailed.

    No tag is set. docker build without a tag prints the id in a way of its own for each builder:
    the id file is the same for both.
    """
    words = ["docker", "build", "--label", f"{LABEL}={context.inputs}", "--force-rm"]
    for name, value in sorted(context.args.items()):
        words += ["--build-arg", f"{name}={value}"]
    line = shlex.join(words)
    script = f"f=$(mktemp -d); {line} --iidfile $f/id - >&2 && cat $f/id; r=$?; rm -rf $f; exit $r"
    host = run.host(target)
    with closing(_Command(host, script, "build")) as builder:
        builder.write(context.tar())
        said = builder.finish(lambda step: host.log(step) if _is_step(step) else None)
    if not said.strip().startswith("sha256:"):
        raise StepFailed(f"{target}: docker build answered: {said.strip()[:200] or 'nothing'}")
    return said.strip()


def _is_step(line: str) -> bool:
    """Whether a line of docker build names a step: `Step 2/4 : RUN …`, or `#7 [2/4] RUN …`."""
    return line.startswith("Step ") or (line.startswith("#") and " [" in line)


def tag(run: Run, node: str, reference: str, want: dict[str, Any]) -> None:
    """Sets the tag on an image that is whole on a node, as a step of the change."""
    run.touched.add(node)
    request = {"change": run.change(), "image": reference, "want": want}
    call(run.state, run.host(node), "image tag", request)


def _load(host: Host, chunks: Iterator[bytes]) -> str:
    """Feeds docker load on a host; the id of what it says it loaded."""
    done, told = 0, time.monotonic()
    with closing(_Command(host, "docker load --quiet")) as loader:
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


class _Command:
    """A command on a host over pyinfra's own ssh connection, with its streams open."""

    def __init__(self, host: Host, command: str, name: str = "") -> None:
        client = getattr(host.connector, "client", None)
        if client is None:
            raise StepFailed(f"{host.name}: method=ssh needs an ssh connection to it")
        self._host, self._name = host, name or command.split()[1]
        line = f"sudo -n {bounded(command, TIMEOUT_S)}"
        self._stdin, self._stdout, self._stderr = client.exec_command(line, timeout=TIMEOUT_S)
        self._channel = self._stdout.channel

    def chunks(self) -> Iterator[bytes]:
        """What the command writes, as it comes."""
        read: Callable[[int], bytes] = self._channel.recv
        return iter(lambda: read(_CHUNK), b"")

    def write(self, chunk: bytes) -> None:
        """Feeds the command. Raises StepFailed when it ended."""
        try:
            self._channel.sendall(chunk)
        except OSError:
            self.finish()
            raise StepFailed(f"{self._host.name}: docker {self._name} ended early") from None

    def finish(self, told: Callable[[str], None] = lambda line: None) -> str:
        """Ends its input and waits; what else it wrote. Raises StepFailed for its exit status.

        `told` gets the lines of its standard error as they come.
        """
        self._channel.shutdown_write()
        errors = []
        for line in self._stderr:
            errors.append(line.rstrip())
            told(errors[-1])
        said = self._stdout.read().decode("utf-8", "replace")
        if self._channel.recv_exit_status() != 0:
            last = " ".join(line for line in errors[-4:] if line)
            raise StepFailed(f"{self._host.name}: docker {self._name}: {last[-300:]}")
        return str(said)

    def close(self) -> None:
        """Closes the channel; the command ends by its broken pipe."""
        self._channel.close()
