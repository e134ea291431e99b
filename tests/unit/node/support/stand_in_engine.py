"""rigbook stand-in for a vLLM engine process: listens, maps a segment, and can ignore SIGTERM.

Its title is its argv[0], which the launcher chooses. Python 3.10+, standard library only.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import os
import signal
import socket
import time
from pathlib import Path

PR_SET_NAME = 15


def main() -> None:
    """Take what is asked for, tell it by the ready file, then wait."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ready", required=True)
    parser.add_argument("--port", type=int)
    parser.add_argument("--segment")
    parser.add_argument("--comm")
    parser.add_argument("--ignore-term", action="store_true")
    wanted = parser.parse_args()
    if wanted.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if wanted.comm:
        ctypes.CDLL(None).prctl(PR_SET_NAME, wanted.comm.encode(), 0, 0, 0)
    listener = socket.socket()
    if wanted.port:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("0.0.0.0", wanted.port))
        listener.listen()
    kept = None
    if wanted.segment:
        fd = os.open(f"/dev/shm/{wanted.segment}", os.O_RDWR | os.O_CREAT, 0o600)
        os.truncate(fd, 4096)
        kept = mmap.mmap(fd, 4096)
        os.close(fd)
    new = Path(wanted.ready + ".new")
    new.write_text(str(os.getpid()))
    new.rename(wanted.ready)
    while kept is None or kept:
        time.sleep(60)


main()
