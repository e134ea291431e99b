"""A command of root's on a host whose streams this end reads and writes as they pass."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator

from pyinfra.api import Host

from facts.rignode.call import bounded
from facts.rignode.context import LATE_S, as_root, own_clock
from node.rules.image_names import DOCKER_SOCKET
from operations.change.node_call import StepFailed

TIMEOUT_S = 4 * 3600
_CHUNK = 1 << 20


class Command:
    """A command on a host over pyinfra's own ssh connection, with its streams open."""

    def __init__(self, host: Host, command: str) -> None:
        client = getattr(host.connector, "client", None)
        self._host, self._name = host, " ".join(command.split()[:2])
        if client is None:
            raise StepFailed(f"{host.name}: {self._name} needs an ssh connection to it")
        shell = as_root(host)["_shell_executable"]
        bound = f"export DOCKER_HOST=unix://{DOCKER_SOCKET}; {bounded(command, TIMEOUT_S)}"
        line = f"sudo -n {shell} -c {shlex.quote(bound)}"
        try:
            with own_clock(LATE_S):
                streams = client.exec_command(line, timeout=TIMEOUT_S)
        except TimeoutError as error:
            raise StepFailed(f"{host.name}: {self._name}: {error}") from None
        self._stdin, self._stdout, self._stderr = streams
        self._channel = self._stdout.channel

    def chunks(self) -> Iterator[bytes]:
        """What the command writes, as it comes."""
        read: Callable[[int], bytes] = self._channel.recv
        return iter(lambda: read(_CHUNK), b"")

    def write(self, chunk: bytes) -> None:
        """Feeds the command. Raises StepFailed when it ended."""
        try:
            self._channel.sendall(chunk)
        except TimeoutError:
            raise StepFailed(f"{self._host.name}: {self._name} takes nothing more") from None
        except OSError:
            self.finish()
            raise StepFailed(f"{self._host.name}: {self._name} ended early") from None

    def finish(self) -> str:
        """Waits for its end; what else it wrote. Raises StepFailed for its exit status."""
        self._channel.shutdown_write()
        try:
            with own_clock(TIMEOUT_S + LATE_S):
                errors = [line.rstrip() for line in self._stderr]
                said = self._stdout.read().decode("utf-8", "replace")
                status = self._channel.recv_exit_status()
        except TimeoutError as error:
            raise StepFailed(f"{self._host.name}: {self._name}: {error}") from None
        if status != 0:
            why = " ".join(line for line in errors[-4:] if line)[-300:]
            raise StepFailed(f"{self._host.name}: {self._name}: {why}")
        return str(said)

    def close(self) -> None:
        """Closes the channel; the command ends by its broken pipe."""
        self._channel.close()
