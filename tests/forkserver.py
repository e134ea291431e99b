"""Runs a Python program again and again without its start: each run is a fork of a warm process.

The start of Python and the imports are most of what a short run costs. A fork has them behind it,
and is a process of its own in all else: its environment, folder, streams and exit status.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any


class Forkserver:
    """A warm process, and runs of its forks.

    `preload` is Python that imports what the program needs; `run` is Python that runs it, with
    `sys.argv` as the call says. `python` is the command that starts Python, with its flags.
    """

    def __init__(
        self, python: Sequence[str], preload: str, run: str, env: Mapping[str, str] | None = None
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="rigbook-fork-")
        self._address = f"{self._folder.name}/socket"
        self._process = subprocess.Popen(
            [*python, __file__, self._address, preload, run],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=env,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n", "the warm process did not start"
        atexit.register(self.close)

    def close(self) -> None:
        """Ends the warm process."""
        self._process.communicate()
        self._folder.cleanup()

    def run(
        self,
        argv: Sequence[str],
        stdin: str = "",
        env: Mapping[str, str] | None = None,
        cwd: Path | str | None = None,
        timeout: float = 60,
    ) -> subprocess.CompletedProcess[str]:
        """As subprocess.run with the output captured. Raises TimeoutExpired, and has it ended."""
        with (
            tempfile.TemporaryFile() as given,
            tempfile.TemporaryFile() as out,
            tempfile.TemporaryFile() as err,
            socket.socket(socket.AF_UNIX) as line,
        ):
            given.write(stdin.encode())
            given.seek(0)
            line.settimeout(timeout)
            line.connect(self._address)
            told = {
                "argv": list(argv),
                "env": dict(os.environ if env is None else env),
                "cwd": str(cwd or Path.cwd()),
            }
            streams = [given.fileno(), out.fileno(), err.fileno()]
            socket.send_fds(line, [b"fds"], streams)
            line.sendall(json.dumps(told).encode())
            line.shutdown(socket.SHUT_WR)
            answer = line.makefile()
            pid = int(answer.readline())
            try:
                status = int(answer.readline())
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(list(argv), timeout) from None
            out.seek(0)
            err.seek(0)
            said = out.read().decode(), err.read().decode()
            return subprocess.CompletedProcess(list(argv), status, *said)


_LOCK = threading.Lock()
_SERVERS: dict[str, Forkserver] = {}


def shared(name: str, make: Callable[[], Forkserver]) -> Forkserver:
    """The warm process of this name, one for all tests of this pytest process."""
    with _LOCK:
        if name not in _SERVERS:
            _SERVERS[name] = make()
        return _SERVERS[name]


def _serve(address: str, preload: str, program: str) -> None:
    """The warm process: imports once, then forks at each call, until its stdin ends."""
    # The program's imports may replace these (gevent does).
    wait, fork, waitpid = select.select, os.fork, os.waitpid
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    recv_fds = socket.recv_fds
    exec(preload, {"__name__": "preload"})
    print("ready", flush=True)
    running = 0
    while True:
        readable, _, _ = wait([listener.fileno(), 0], [], [])
        if 0 in readable:  # stdin has ended
            break
        line, _ = listener.accept()
        if fork() == 0:
            _handle(line, recv_fds, waitpid, program)
        line.close()
        running += 1
        while running and waitpid(-1, os.WNOHANG)[0]:
            running -= 1
    for _ in range(running):
        waitpid(-1, 0)


def _handle(line: socket.socket, recv_fds: Any, waitpid: Any, program: str) -> None:
    """One call, in a process of its own: forks the run, waits for it, tells its status."""
    _, streams, _, _ = recv_fds(line, 3, 3)
    raw = b""
    while more := line.recv(65536):
        raw += more
    told = json.loads(raw)
    pid = os.fork()  # gevent's where it is loaded: it makes the loop anew
    if pid == 0:
        _become(told, streams, program)
    try:
        line.sendall(f"{pid}\n".encode())
        status = os.waitstatus_to_exitcode(waitpid(pid, 0)[1])
        line.sendall(f"{status}\n".encode())
    finally:
        os._exit(0)


def _close_others() -> None:
    """Closes all but the standard streams and what gevent's loop waits with.

    libev makes that anew at its first wait, under the same numbers: a pipe that was opened
    meanwhile would be replaced by it, and who reads the pipe would wait for ever.
    """
    for link in list(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(OSError):
            if int(link.name) > 2 and not str(link.readlink()).startswith("anon_inode:"):
                os.close(int(link.name))


def _become(told: dict[str, Any], streams: list[int], program: str) -> None:
    """The run itself. Never comes back."""
    status = 1
    try:
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        _close_others()
        os.environ.clear()
        os.environ.update(told["env"])
        os.chdir(told["cwd"])
        sys.argv[:] = told["argv"]
        try:
            exec(program, {"__name__": "__main__"})
            status = 0
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
            if isinstance(end.code, str):
                print(end.code, file=sys.stderr)
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        status = 1
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)


if __name__ == "__main__":
    _serve(*sys.argv[1:4])
