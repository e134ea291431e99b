"""A backup to the operator's machine or an sftp server, encrypted here, and back to its node."""

from __future__ import annotations

import base64
import shlex
import socket
import time
from collections.abc import Collection, Generator
from contextlib import closing
from dataclasses import dataclass

from pyinfra import host
from pyinfra.api import FunctionCommand, Host, State, operation

from operations.change.command import told, told_together
from operations.change.node_call import StepFailed, call
from operations.change.progress import REPORT_S
from operations.change.run import Run
from operations.sealed import copy, places
from operations.transfer.ssh_command import Command
from operations.transfer.transfer import DEADLINE_S
from schema.observed.backup import BackupRow

# every byte is read on the node: 30 GB at 20 MB/s
READ_S = 1800
MIB = 1 << 20


@operation()
def send(place: str, recipient: str, row: BackupRow) -> Generator[FunctionCommand, None, None]:
    """
    Copy a backup out of the rig, sealed, and read it back there; read back alone where it is.

    + place: operator:FOLDER or sftp://…
    + recipient: whose identity opens it
    + row: the backup
    """
    host.log(f"copy {row.id} to {place}, encrypted for {recipient}, or read the copy back there")

    def work(state: State, host: Host) -> str:
        began = time.monotonic()
        asked = {"backup": row.id, "size": copy.PIECE}
        listed = call(state, host, "tree pieces", asked, READ_S)
        with closing(places.opened(place)) as there:
            sent = copy.send(there, listed, _Node(host).read, recipient, _Told(host, listed).add)
        folder = copy.folder_of(listed["host"], row.id)
        where = f"{place}/{folder}"
        here = f" on {socket.gethostname()}" if place.startswith(places.OPERATOR) else ""
        call(state, host, "tree note", {"backup": row.id, "place": where + here})
        what = "encrypted, and read back" if sent.made else "was there; it was read back"
        again = f", of which {sent.kept / MIB:.0f} MiB of an earlier run" if sent.kept else ""
        took = time.monotonic() - began
        return f"{row.id} {what} in {where}: {sent.bytes / MIB:.0f} MiB{again}, {took:.1f} s"

    yield told(work)


@dataclass(frozen=True)
class Back:
    """A sealed copy that comes back to its node: its folder below the place, and the file here that
    opens it.
    """

    place: str
    identity: str
    backup: str
    folder: str


@operation()
def bring(
    back: Back | None, run: Run | None = None, members: Collection[str] = ()
) -> Generator[FunctionCommand, None, None]:
    """
    Bring a backup that is gone from the host back from its sealed copy, and verify it.

    + back: the copy; None where nothing is to come to this host
    + run: the run that ends on all nodes where it fails on one; None: each host by itself
    + members: the nodes of that run to which one comes
    """
    if back is None:
        host.noop("it is on the host, or no backup of it")
        return
    place, folder, identity = back.place, back.folder, back.identity
    host.log(f"bring {back.backup} back from {place}/{folder}")

    def work(state: State, host: Host) -> str:
        began = time.monotonic()
        with closing(places.opened(place)) as there:
            document = copy.document_of(there, folder, identity)
            if document is None:
                raise StepFailed(f"{place}/{folder} is not whole: its manifest is missing")
            asked = {"backup": back.backup, "manifest": document["manifest"]}
            there_now = call(state, host, "tree expect", asked)
            node, report = _Node(host, there_now["folder"]), _Told(host, document)
            pack = copy.bring(there, folder, document, identity, there_now["have"], node.write,
                              report.add)  # fmt: skip
        packed = base64.b64encode(pack).decode()
        answer = call(state, host, "tree arrived", {**asked, "pack": packed}, READ_S)
        size = f"{answer['members']} members, {time.monotonic() - began:.1f} s"
        return f"{back.backup} is back from {place}, and whole: {size}"

    yield told_together(run, "bring", members, work, DEADLINE_S) if run else told(work)


def read_line(path: str, at: int, size: int) -> str:
    """The command that writes a part of a backup's file to its output."""
    return f"tail -c +{at + 1} {shlex.quote(path)} | head -c {size}"


def write_line(path: str, at: int) -> str:
    """The command that writes its input into a file of a backup that comes back."""
    return (
        f"dd of={shlex.quote(path)} bs=1M seek={at} oflag=seek_bytes conv=notrunc,fsync "
        "iflag=fullblock status=none"
    )


class _Node:
    """The files of a backup on its node; StepFailed where a command there fails."""

    def __init__(self, host: Host, folder: str = "") -> None:
        self._host, self._folder = host, folder

    def read(self, path: str, at: int, size: int) -> bytes:
        with closing(Command(self._host, read_line(path, at, size), "reading")) as command:
            raw = b"".join(command.chunks())
            command.finish()
        return raw

    def write(self, name: str, at: int, raw: bytes) -> None:
        line = write_line(f"{self._folder}/{name}", at)
        with closing(Command(self._host, line, "writing")) as command:
            command.write(raw)
            command.finish()


class _Told:
    """How far it is, a line every REPORT_S."""

    def __init__(self, host: Host, listed: copy.Json) -> None:
        self._host, self._done = host, 0
        self._total = sum(row["bytes"] for row in listed["files"])
        self._said = time.monotonic()

    def add(self, count: int) -> None:
        self._done += count
        if time.monotonic() - self._said > REPORT_S:
            self._said = time.monotonic()
            self._host.log(f"{self._done / MIB:.0f} of {self._total / MIB:.0f} MiB")
