"""Check every value of a request; each refusal is one clear line that names the key."""

from __future__ import annotations

import base64
import binascii
import ipaddress
import os
import re
from collections.abc import Iterable
from typing import Any

from node.core.errors import Json, NodeError
from node.rules.text import DEVICE, DIGEST, HCA, IMAGE, SHA256

ID = re.compile(r"^[0-9A-Za-z][0-9A-Za-z._-]{5,80}$")
_UNIT = re.compile(
    r"^[A-Za-z0-9_][A-Za-z0-9:_.\\@-]{0,200}\.(service|socket|timer|target|mount|path|slice)$"
)
_SYSCTL = re.compile(r"^[a-z0-9_]+([./][A-Za-z0-9_:-]+)+$")
_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_.-]{0,31}$")
_RELEASE = re.compile(r"^[0-9][A-Za-z0-9.+~_-]{0,100}$")
_MODE = re.compile(r"^[0-7]{3,4}$")
MAX_CONTENT = 32 << 20


def bad(message: str) -> NodeError:
    """Gives the error for a value that is not allowed."""
    return NodeError(message, "bad_request", "see docs/reference/node.md for what is allowed")


def keys(obj: Any, where: str, allowed: Iterable[str], required: Iterable[str] = ()) -> Json:
    """Gives `obj` when it is an object with no unknown and no missing key."""
    if not isinstance(obj, dict):
        raise bad(f"{where} is not an object")
    names = sorted(allowed)
    for key in obj:
        if key not in names:
            raise bad(f"{where}: unknown key {str(key)[:60]!r}; allowed: {', '.join(names)}")
    for key in required:
        if key not in obj:
            raise bad(f"{where}: {key!r} is missing")
    return obj


def text(value: Any, where: str, limit: int = 4096) -> str:
    """Gives a one-line text: no newline, no other control character."""
    if not isinstance(value, str):
        raise bad(f"{where} is not text")
    if len(value) > limit:
        raise bad(f"{where} is longer than {limit} characters")
    if any(ord(char) < 32 or ord(char) == 127 for char in value):
        raise bad(f"{where} holds a newline or another control character: {value[:60]!r}")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise bad(f"{where} is not valid UTF-8") from None
    return value


def _matching(value: Any, where: str, pattern: Any, what: str) -> str:
    """Gives a text that matches the pattern in whole."""
    found = text(value, where)
    if not pattern.fullmatch(found):
        raise bad(f"{where}: {found[:80]!r} is not {what}")
    return found


def change_id(value: Any, where: str = "change") -> str:
    """Gives a change's id, which is also its file name."""
    return _matching(value, where, ID, "a change id (6 to 81 of letters, digits, '.', '_', '-')")


def path(value: Any, where: str) -> str:
    """Gives an absolute, normalised path that is not the root folder."""
    found = text(value, where)
    # normpath keeps two leading slashes
    if found == "/" or found[:1] != "/" or found[:2] == "//" or os.path.normpath(found) != found:
        raise bad(f"{where}: {found[:80]!r} is not an absolute, normalised path")
    return found


def unit(value: Any, where: str) -> str:
    """Gives a systemd unit name with its suffix."""
    return _matching(value, where, _UNIT, "a unit name with its suffix")


def image(value: Any, where: str) -> str:
    """Gives an image reference."""
    return _matching(value, where, IMAGE, "an image reference")


def sysctl(value: Any, where: str) -> str:
    """Gives a sysctl name."""
    return _matching(value, where, _SYSCTL, "a sysctl name")


def device(value: Any, where: str) -> str:
    """Gives a network device name (at most 15 characters, like the kernel's)."""
    return _matching(value, where, DEVICE, "a network device name")


def hca(value: Any, where: str) -> str:
    """Gives an RDMA device's name, of /sys/class/infiniband."""
    return _matching(value, where, HCA, "the name of an RDMA device")


def name(value: Any, where: str) -> str:
    """Gives a user or group name."""
    return _matching(value, where, _NAME, "a user or group name")


def release(value: Any, where: str) -> str:
    """Gives a kernel's release, as uname -r says it."""
    return _matching(value, where, _RELEASE, "a kernel's release such as 6.17.0-22-generic")


def address(value: Any, where: str) -> str:
    """Gives an IP address."""
    try:
        return str(ipaddress.ip_address(text(value, where)))
    except ValueError:
        raise bad(f"{where}: {str(value)[:60]!r} is not an IP address") from None


def boolean(value: Any, where: str) -> bool:
    """Gives true or false."""
    if not isinstance(value, bool):
        raise bad(f"{where} is neither true nor false")
    return value


def choice(value: Any, where: str, allowed: Iterable[Any]) -> Any:
    """Gives a value that is one of those allowed."""
    options = list(allowed)
    if not any(value is option or (value == option and type(value) is type(option))
               for option in options):  # fmt: skip
        raise bad(f"{where}: {str(value)[:60]!r} is not one of {', '.join(map(str, options))}")
    return value


def number(value: Any, where: str, low: float, high: float) -> float:
    """Gives a number in a range."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise bad(f"{where} is not a number from {low:g} to {high:g}")
    return value


def mode(value: Any, where: str) -> int:
    """Gives the permission bits of an octal text; setuid and setgid are refused."""
    bits = int(_matching(value, where, _MODE, "an octal mode such as '0644'"), 8)
    if bits & 0o6000:
        raise bad(f"{where}: setuid and setgid are refused")
    return bits


def key(value: Any, where: str) -> str:
    """Gives a one-time key of 64 hex digits; a refusal does not quote it."""
    if not isinstance(value, str) or not SHA256.match(value):
        raise bad(f"{where} is not a key of 64 hex digits")
    return value


def digest(value: Any, where: str) -> str:
    """Gives a digest as docker writes it, `sha256:` and 64 hex digits."""
    return _matching(value, where, DIGEST, "a digest such as sha256:…")


def expected_sha256(value: Any, where: str) -> str | None:
    """Gives None (not checked), "absent" or a sha256."""
    if value is None or value == "absent":
        return None if value is None else "absent"
    return _matching(value, where, SHA256, 'null, "absent" or a sha256 in hex')


def sha256(value: Any, where: str) -> str:
    """Gives a sha256 in hex."""
    return _matching(value, where, SHA256, "a sha256 in hex")


def array(value: Any, where: str, limit: int = 1000) -> list[Any]:
    """Gives a list of at most `limit` items."""
    if not isinstance(value, (list, tuple)):
        raise bad(f"{where} is not a list")
    if len(value) > limit:
        raise bad(f"{where} has more than {limit} items")
    return list(value)


def argv(value: Any, where: str) -> list[str]:
    """Gives a command as a list of texts; the first is an absolute path or a plain name."""
    words = [text(word, f"{where}[{n}]") for n, word in enumerate(array(value, where))]
    if not words or not words[0] or words[0].startswith("-"):
        raise bad(f"{where} is not a command")
    return words


def content(step: Json, where: str) -> bytes:
    """Gives the bytes of `content` or `content_base64`; exactly one of them is allowed."""
    if ("content" in step) == ("content_base64" in step):
        raise bad(f"{where}: give 'content' or 'content_base64', one of them")
    key = "content" if "content" in step else "content_base64"
    value = step[key]
    if not isinstance(value, str):
        raise bad(f"{where}.{key} is not text")
    try:
        raw = (
            value.encode("utf-8")
            if key == "content"
            else base64.b64decode(value.encode("ascii"), validate=True)
        )
    except (UnicodeEncodeError, binascii.Error):
        raise bad(f"{where}.{key} cannot be decoded") from None
    if len(raw) > MAX_CONTENT:
        raise bad(f"{where}.{key} is larger than {MAX_CONTENT >> 20} MiB")
    return raw
