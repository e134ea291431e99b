"""How names, versions, URLs, environment files, file headers and a log's root cause are read."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

# Patterns of names and digests; each side says in its own words what is wrong.

# an RDMA device, of /sys/class/infiniband
HCA = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}\Z")
# IFNAMSIZ: 15 characters; a colon for an alias, `@` for a VLAN's parent
DEVICE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@+-]{0,14}\Z")
IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,255}\Z")
SHA256 = re.compile(r"[0-9a-f]{64}\Z")
# a pod's processes: kubepods.slice/… of systemd's driver, kubepods/… of cgroupfs
# (kubernetes, pkg/kubelet/cm/cgroup_manager_linux.go)
POD_CGROUP = re.compile(r"(?:^|/)kubepods[./-]")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}\Z")
# Units that hold a login's processes, or what a line of a crontab started: they supervise nothing,
# whatever they outlive is an orphan.
LOGIN_UNIT = re.compile(r"(sshd?(@.*)?|user@\d+|getty@.*|crond?|anacron|atd)\.service\Z")
# the module that serves as `vllm serve` does: a word behind -m, or the file
API_SERVER = re.compile(r"^vllm\.entrypoints\.(?:openai\.)?api_server$|/api_server\.py$")


def printable(text: str) -> str:
    """Gives the text as one line that a terminal only shows: what a host says may hold escapes."""
    return "".join(char if char.isprintable() else "?" for char in text)


# Names of images as recipes and docker write them, and the docker that has them.

DOCKER_SOCKET = "/var/run/docker.sock"


def repository(reference: str) -> str:
    """Gives a reference without its tag and its digest."""
    folder, slash, name = reference.partition("@")[0].rpartition("/")
    return f"{folder}{slash}{name.partition(':')[0]}"


# What may stand as a URL.

MAX_URL = 4096


def is_http_url(value: str) -> bool:
    """Gives True for an http or https URL of printable ASCII without blanks and a user's name."""
    if len(value) > MAX_URL or any(not 32 < ord(char) < 127 for char in value):
        return False
    try:
        parts = urlsplit(value)
        _ = parts.port
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc


# Versions and names of Python packages.

# a version that can be a folder's name
VERSION = re.compile(r"[0-9][0-9A-Za-z]*([._+-][0-9A-Za-z]+)*\Z")
# a distribution's name as PEP 508 writes it
PACKAGE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,100}[A-Za-z0-9])?\Z")


def same_version(wanted: str, installed: str) -> bool:
    """Gives True when the installed version is the wanted one; 0.32.0 is any build (PEP 440)."""
    return wanted == installed or ("+" not in wanted and wanted == installed.partition("+")[0])


# A value as systemd's EnvironmentFile= reads it back (systemd.exec(5)), and back again.

# Everything else gets double quotes.
_PLAIN = re.compile(r"[A-Za-z0-9_@+=:,./~-]+\Z")


def environment_value(value: str) -> str:
    """A value as systemd's EnvironmentFile= reads it back.

    Within double quotes a backslash takes the meaning from `"`, `\\`, `$` and a backtick.
    """
    return value if _PLAIN.match(value) else '"' + re.sub(r'(["\\$`])', r"\\\1", value) + '"'


def environment_text(written: str) -> str:
    """The value that `environment_value` wrote."""
    if len(written) < 2 or not (written.startswith('"') and written.endswith('"')):
        return written
    return re.sub(r'\\(["\\$`])', r"\1", written[1:-1])


# The text of a module as it travels to a host.

# a docstring; another text in three quotes, which stays; a line of comment
_UNREAD = re.compile(r'^( *)"""(?:[^"]|"(?!""))*"""$|"""(?:[^"]|"(?!""))*"""|^ *#.*$', re.MULTILINE)


def bare(source: str) -> str:
    """Gives a module's source without its docstrings and comments; each line keeps its number."""

    def left(found: re.Match[str]) -> str:
        if found[1] is not None:
            return found[1] + '""' + "\n" * found[0].count("\n")
        return found[0] if found[0].startswith('"""') else ""

    return _UNREAD.sub(left, source)


# What kind of file a model's first bytes tell.

# the loader of safetensors refuses a longer header
MAX_JSON = 100_000_000
POINTER = "a git-lfs pointer, not the file itself"


def format_of(head: bytes) -> str:
    """Gives the format that a file's first 16 bytes tell: `gguf`, `safetensors`, or what it is.

    safetensors: 8 bytes little-endian length of a JSON header, then `{`. A clone without git-lfs
    leaves text pointers of 130 bytes. A PyTorch checkpoint is a zip.
    """
    if head.startswith(b"GGUF"):
        return "gguf"
    if head.startswith(b"version https://"):
        return POINTER
    if head.startswith(b"PK\x03\x04"):
        return "a PyTorch zip"
    if len(head) > 8 and head[8:9] == b"{" and 2 <= int.from_bytes(head[:8], "little") <= MAX_JSON:
        return "safetensors"
    if not head.strip(b"\0"):
        return "empty or zeroes, as an unfinished download leaves it"
    return f"unknown (starts with {head[:8].hex()})"


# The members that make an archive an OCI layout: docker load then keeps the image's digest.

BLOBS = "blobs/sha256/"


def digest_of(raw: bytes) -> str:
    """Gives the digest of bytes, as images name it."""
    return "sha256:" + hashlib.sha256(raw).hexdigest()


def blob(name: str) -> str:
    """Gives the member that holds what a digest names."""
    return BLOBS + name[7:]


def layout(documents: Sequence[bytes]) -> dict[str, bytes]:
    """Gives the members by name: the image by its digest, under no name, and what leads to it.

    `documents`: the one that the image's digest names first; none gives no member.
    """
    if not documents:
        return {}
    said = json.loads(documents[0])
    shape = "index" if "manifests" in said else "manifest"
    kind = said.get("mediaType") or f"application/vnd.oci.image.{shape}.v1+json"
    row = {"mediaType": kind, "digest": digest_of(documents[0]), "size": len(documents[0])}
    return {
        "oci-layout": b'{"imageLayoutVersion": "1.0.0"}',
        "index.json": json.dumps({"schemaVersion": 2, "manifests": [row]}).encode(),
        **{blob(digest_of(raw)): raw for raw in documents},
    }


# The root cause in a log of vLLM: the first exception of a start, not the ones that follow it.
#
# Each process of vLLM prints its own traceback, the worker first and the API server last; the last
# one says only that the others failed.

# (EngineCore pid=2150) ERROR 06-29 11:22:29 [core.py:1231] …, with parts that versions leave out
_PREFIX = re.compile(
    r"^(?:\((?P<process>[^()]+?(?: pid=|, ip=|=)[^()]*)\) ?)*"
    r"(?:\[rank\d+\]: ?)?(?:(?P<level>ERROR|CRITICAL|WARNING|INFO) \d\d-\d\d \d\d:\d\d:\d\d "
    r"(?:\[[\w./-]+:\d+\]|[\w.]+:\d+\]) ?)?(?:\[rank\d+\]: ?)?"
)
_FRAME = re.compile(r'^ *File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>.+)')
_RAISED = re.compile(
    r"^(?:\w+\.)*(?:[A-Z]\w*)?(?:Error|Exception|Exit|Interrupt|Warning)\w*(?::|$)"
)
# what only says that another process, or the same one earlier, has failed
_FOLLOWS = re.compile(
    r"Engine core initialization failed|EngineDeadError|Worker(?:Proc)? (?:failed|initialization "
    r"failed)|See (?:root cause|stack trace) above|Executor failed|WorkerProc hit an exception"
    r"|cancelled|KeyboardInterrupt|SystemExit"
)
MOST = 300
# how a snapshot marks the line among a unit's errors
ROOT_CAUSE = "root cause: "


class RootCause(NamedTuple):
    """What was raised, and the last frame of vLLM's own code on the way to it (None: none)."""

    text: str
    place: str | None

    def line(self) -> str:
        """Gives one line: what, and where."""
        where = f" ({self.place})" if self.place else ""
        return f"{ROOT_CAUSE}{self.text}{where}"


class _Trace:
    """A traceback that is being read; each process has one of its own."""

    def __init__(self) -> None:
        self.frames: list[str] = []
        self.own: list[str] = []

    def add(self, file: str, line: str, name: str) -> None:
        """Takes a frame; `vllm/v1/core.py` stands for the path of any installation."""
        at = file.rfind("/vllm/")
        shown = file[at + 1 :] if at >= 0 else file
        (self.own if at >= 0 else self.frames).append(f"{shown}:{line} in {name.strip()}")

    def place(self) -> str | None:
        """Gives vLLM's last frame, else the last of all."""
        rows = self.own or self.frames
        return rows[-1] if rows else None


def find_root_cause(lines: Iterable[str]) -> RootCause | None:
    """Gives the first exception that does not follow from another one; None where none stands."""
    open_traces: dict[str, _Trace] = {}
    later: RootCause | None = None
    for raw in lines:
        found = _PREFIX.match(raw)
        end = found.end() if found else 0
        process = (found["process"] if found else None) or ""
        text = raw[end:].rstrip()
        if found and found["level"] in ("WARNING", "INFO"):
            continue  # an exception that was caught, such as a module that may be absent
        if "Traceback (most recent call last)" in text:
            open_traces[process] = _Trace()
            continue
        trace = open_traces.get(process)
        if trace is None:
            continue
        frame = _FRAME.match(text)
        if frame:
            trace.add(frame["file"], frame["line"], frame["name"])
            continue
        raised = _RAISED.match(text)
        if raised:
            del open_traces[process]
            cause = RootCause(text.strip()[:MOST], trace.place())
            if not _FOLLOWS.search(text):
                return cause
            later = later or cause
    return later
