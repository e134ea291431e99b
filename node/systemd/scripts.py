"""What a command line of a unit or a crontab starts in the end: scripts are read one level deep.

A unit that runs `bash /home/me/start.sh` names neither vLLM nor docker; the script does.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable

from node.core import masking
from node.rules.secret import masked_text

# a line that starts an engine, or a container that may hold one
_STARTS = re.compile(
    r"vllm|\bdocker(?:-compose)?\s+(?:\S+\s+)*?(?:exec|run|start|restart|up)\b", re.IGNORECASE
)
MAX_BYTES = 64 * 1024
MAX_WORDS = 60
_PATH = re.compile(r"(?:^|(?<=[\s\"'=;&|@:+!(-]))(/[^\s\"';|&<>()]+)")
_NAME = re.compile(r"^[A-Za-z0-9_/][A-Za-z0-9_./-]*$")
# programs of the distribution: no script of somebody's lies there
_SYSTEM = ("/bin/", "/sbin/", "/lib/", "/lib64/", "/usr/bin/", "/usr/sbin/", "/usr/lib/",
           "/usr/libexec/", "/dev/", "/proc/", "/sys/", "/run/")  # fmt: skip


def _text(path: str) -> str:
    """Gives the text of a script; "" for a program, a model's file, a folder, one not there."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return ""
        with open(path, "rb") as file:
            raw = file.read(MAX_BYTES)
    except OSError:
        return ""
    return "" if b"\0" in raw else raw.decode("utf-8", "replace").replace("\\\n", " ")


def starting(line: str) -> list[str]:
    """Gives the lines that start an engine or a container: the command line itself, and those of
    the scripts that it names by an absolute path.
    """
    paths = [p for p in dict.fromkeys(_PATH.findall(line)) if not p.startswith(_SYSTEM)]
    lines = [line, *(row.strip() for path in paths for row in _text(path).splitlines())]
    return [row for row in lines if not row.startswith("#") and _STARTS.search(row)]


def words(lines: Iterable[str]) -> list[str]:
    """Gives the plain words of such lines (names and paths), each once.

    Options, assignments and the values of secrets are not among them.
    """
    found: dict[str, None] = {}
    for line in lines:
        told = masking.masked_argv(re.split(r"[\s\"';|&()]+", masked_text(line)))
        found.update(dict.fromkeys(word for word in told if _NAME.match(word)))
    return list(found)[:MAX_WORDS]
