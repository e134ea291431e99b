"""The door of a narrow sudo: what a login may run as root, and no shell.

sudo starts it in place of `sh`: `rigbook-door -c COMMAND` (operations/door installs it). COMMAND is
what an operator's rigbook sends. The program in it is compared with the one that root installed,
which then runs; a few lines of systemd and docker are run as they are; all else is refused.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
import sys
import zipimport
import zlib
from collections.abc import Callable
from typing import Any, NoReturn

from node.rules.source_text import bare

_UNIT = r"[A-Za-z0-9_@.:][A-Za-z0-9_@.:-]{0,254}"
_IMAGE = r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,499}"
_ID = r"[0-9a-f]{1,64}"
_BACKUP = r"/var/lib/rigbook/backups/[0-9]{8}T[0-9]{6}Z-[0-9A-Za-z._-]{1,40}-[0-9a-f]{4}"
_FILE = r"[a-z][a-z0-9.-]{0,80}"
# facts/boot_id.py and unit_state.py, operations/{rollback,host,transfer}, the kernel's trial
LINES = tuple(map(re.compile, (
    r"cat /proc/sys/kernel/random/boot_id",
    rf"systemctl show --property=[A-Za-z,]+ -- ({_UNIT}) && echo LastLine=\$\(journalctl -u \1 -n 1"
    r" -o cat --no-pager 2>/dev/null \| tr -d '\\000' \| cut -c1-200\)",
    rf"journalctl -u {_UNIT} -n \d+ -o cat --no-pager",
    rf"journalctl _SYSTEMD_INVOCATION_ID={_ID} \+ INVOCATION_ID={_ID} -n \d+ -o cat --no-pager",
    # NCCL's lines of a start's log
    rf"journalctl -o cat --no-pager _SYSTEMD_INVOCATION_ID=\$\(systemctl show --value"
    rf" --property=InvocationID -- {_UNIT}\) \| LC_ALL=C grep -aoE '[^'\n-][^'\n]*' \| sort"
    r" \| uniq -c \| head -n 60; true",
    r"systemctl stop rigbook-engine\.service",
    r"nohup sh -c 'sleep 1; systemctl reboot' >/dev/null 2>&1 &",
    r"systemctl is-enabled -q rigbook-engine\.service 2>/dev/null && timeout 60 systemctl start"
    r" --no-block rigbook-engine\.service \|\| true",
    r"cat /var/lib/rigbook/spool/[a-z]+\.progress 2>/dev/null \|\| true",
    rf"docker pull --quiet {_IMAGE}",
    rf"docker image inspect --format '\{{\{{(?:json )?\.[A-Za-z.]+\}}\}}' {_IMAGE}",
    rf"docker save {_IMAGE}",
    r"docker load --quiet",
    # a backup that leaves the rig, and one that comes back (operations/sealed)
    rf"tail -c \+\d{{1,15}} {_BACKUP}/{_FILE} \| head -c \d{{1,10}}",
    rf"dd of={_BACKUP}\.partial/{_FILE} bs=1M seek=\d{{1,15}} oflag=seek_bytes"
    r" conv=notrunc,fsync iflag=fullblock status=none",
)))  # fmt: skip
_TIMED = re.compile(r"timeout -k 5 ([0-9]{1,6}) sh -c (.*)", re.DOTALL)
_READS = ["python3", "-I", "-S", "-B", "-c"]
_CHANGES = ["python3", "-I", "-B", "-c"]


class Refused(Exception):
    """What is not run; `str()` is one line."""


class OtherVersion(Exception):
    """The operator's program is not the one that root installed here."""


def split(command: str) -> tuple[list[str], str]:
    """Gives the time limit's words (none without one) and the command that they bound."""
    timed = _TIMED.fullmatch(command)
    if timed is None:
        return [], command
    try:
        (inner,) = shlex.split(timed[2])
    except ValueError:
        raise Refused("the command is not quoted as one word") from None
    return ["timeout", "-k", "5", timed[1]], inner


def is_line(command: str) -> bool:
    """Gives True for one of the lines that a shell may run."""
    return any(line.fullmatch(command) for line in LINES)


def asked(inner: str, stdin: Callable[[], str], program: str) -> tuple[list[str], str] | None:
    """Gives the verb's words and its request, of a command that brings the program; None for
    another command. Raises OtherVersion, Refused.
    """
    try:
        words = shlex.split(inner)
    except ValueError:
        return None
    try:
        if words[:2] == ["printf", "%s"] and words[3:-1] == ["|", *_READS]:
            return _carried(words[2], program)
        if words[:-1] == _READS:
            return _carried(stdin().strip(), program)
        if words[:-1] == _CHANGES:
            return _installed(stdin().strip(), program)
    except (ValueError, KeyError, TypeError, zlib.error):
        raise Refused("the request is not one of rigbook's") from None
    return None


def _word(text: str) -> Any:
    return json.loads(zlib.decompress(base64.b64decode(text, validate=True)))


def _carried(packed: str, program: str) -> tuple[list[str], str]:
    """Gives what is asked of a program that travels with its request (facts/rignode/pack.py)."""
    first, second = packed.split(".")
    words, modules = _word(first), _word(second)
    own = zipimport.zipimporter(program)
    for name, (is_package, source) in modules.items():
        path = name.replace(".", "/") + ("/__init__.py" if is_package else ".py")
        try:
            same = bare(own.get_data(f"{program}/{path}").decode()) == source
        except OSError:
            same = False
        if not same:
            raise OtherVersion
    *verb, request = words
    return [str(word) for word in verb], str(request)


def _installed(packed: str, program: str) -> tuple[list[str], str]:
    """Gives what is asked of a program that is installed first: here it is already, or refused."""
    first, _ = packed.split(":")
    words, request, _, _, name, _ = _word(first)
    if name != os.path.basename(program):
        raise OtherVersion
    return [str(word) for word in words], str(request)


def _refused(said: str) -> int:
    print(f"rigbook-door: {said}", file=sys.stderr)
    return 126


def _other_version(program: str) -> int:
    """Tells the operator's program, as the verb would have answered."""
    host = os.uname().nodename
    answer = {
        "ok": False,
        "code": "door",
        "error": f"the program that root installed on {host} ({os.path.basename(program)}) is not "
        "this checkout's",
        "remedy": f"make sudoers LOGIN=NAME; then as root on {host}: python3 rigbook-door.py",
    }
    print(json.dumps(answer))
    return 1


def _become(words: list[str]) -> NoReturn:
    os.execvp(words[0], words)


def main(argv: list[str], program: str) -> int:
    """Become what is asked for, with the installed `program`; gives the exit status of a refusal:
    126, or 1 where the versions differ. Without `-c` the words are a verb, as a person types it.
    """
    python = [sys.executable, "-I", "-B", program]
    if argv[:1] != ["-c"]:
        _become([*python, *argv])
    if len(argv) != 2:
        return _refused("usage: rigbook-door -c COMMAND, or rigbook-door VERB")
    try:
        limit, inner = split(argv[1])
        if is_line(inner):
            _become([*limit, "sh", "-c", inner])
        found = asked(inner, sys.stdin.read, program)
    except OtherVersion:
        return _other_version(program)
    except Refused as error:
        return _refused(str(error))
    if found is None:
        said = " ".join(argv[1].split())[:80]
        return _refused(f"not a command of rigbook's, so it is not run as root: {said}")
    verb, request = found
    fd = os.memfd_create("request", 0)
    with os.fdopen(fd, "w", closefd=False) as file:
        file.write(request)
    os.lseek(fd, 0, os.SEEK_SET)
    os.dup2(fd, 0)
    _become([*limit, *python, *verb])
