"""Checks for text that ends up in a command line, a unit file or a path.

Each takes a value and gives it back; ValueError says what is wrong and what is allowed.
"""

from __future__ import annotations

import keyword
import re

from node.rules.patterns import DEVICE, HCA, IMAGE
from node.rules.secret import has_credentials
from node.rules.urls import is_http_url
from schema.core.errors import HiddenValueError

# systemd and docker's --env-file stop reading a line far later; no honest value is longer.
MAX_LINE = 8192
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@+-]{0,127}\Z")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}\Z")
# vLLM's `--config.key value` sets one key of a JSON argument, `--config.key+` adds to its list.
_FLAG_NAME = re.compile(r"[a-z][a-z0-9_]*((\.[A-Za-z0-9_-]+)+\+?)?\Z")
_SHM_SIZE = re.compile(r"[1-9][0-9]*[kmg]\Z")
# C0, DEL, C1 and the two Unicode line separators.
_HOST = re.compile(r"(@[a-z]+|(@[a-z]+/)?[A-Za-z0-9_][A-Za-z0-9._-]{0,127})\Z")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def single_line(value: str) -> str:
    """The value, when it holds no control character (newline, NUL, escape …)."""
    if _CONTROL.search(value):
        raise ValueError("holds a newline or another control character; allowed: one line of text")
    if len(value) > MAX_LINE:
        raise ValueError(f"is {len(value)} characters long; allowed: {MAX_LINE} or fewer")
    return value


def public(value: str) -> str:
    """A value that many may read (a command line, an image): no URL with a user or a password."""
    if has_credentials(value):
        raise HiddenValueError(
            "holds a URL with a user name or password; allowed: one without; what the engine reads "
            "from its environment may stand under secrets"
        )
    return value


def argument(value: str) -> str:
    """A value that may stand as one argument: one line, not empty, no leading `-`."""
    single_line(value)
    if not value or value.startswith("-"):
        raise ValueError("is empty or starts with `-`; allowed: a value that cannot read as a flag")
    return value


def plain_name(value: str) -> str:
    """A name of a host, user, device, unit or container: letters, digits and `. _ @ + -`."""
    if not _NAME.match(value):
        raise ValueError(
            "is not a plain name; allowed: letters, digits and . _ @ + -, no leading -"
        )
    return value


def group_name(value: str) -> str:
    """A name of an inventory's group: pyinfra reads it as a variable of Python."""
    if not _FLAG_NAME.match(value) or keyword.iskeyword(value):
        raise ValueError(
            "is not a group's name; allowed: lower-case letters, digits and _, no digit first"
        )
    return value


def mac_address(value: str) -> str:
    """One machine's MAC address, in small letters with colons: no multicast, not all zero."""
    text = value.lower().replace("-", ":")
    if not _MAC.match(text) or int(text[:2], 16) & 1 or text == "00:00:00:00:00:00":
        raise ValueError("is not one machine's MAC address; allowed: such as 00:1a:2b:3c:4d:5e")
    return text


def device_name(value: str) -> str:
    """The name of a network device: at most 15 characters (IFNAMSIZ)."""
    if not DEVICE.match(value):
        raise ValueError(
            "is not a network device's name; allowed: 15 characters or fewer, letters, "
            "digits and . _ : @ + -, no leading -"
        )
    return value


def hca_name(value: str) -> str:
    """The name of an RDMA device, and its port where one is meant: rocep1s0f0, mlx5_0:1."""
    device, colon, port = value.partition(":")
    if not HCA.match(device) or (colon and not (port.isdecimal() and 0 < int(port) < 256)):
        raise ValueError(
            "is not an RDMA device's name; allowed: one of `ls /sys/class/infiniband`, with "
            ":PORT where it has several"
        )
    return value


def absolute_path(value: str) -> str:
    """An absolute path without `..`, of one line."""
    single_line(value)
    if not value.startswith("/") or ".." in value.split("/"):
        raise ValueError("is not an absolute path; allowed: /a/path, without `..`")
    return value


def mount_path(value: str) -> str:
    """An absolute path that `docker run -v` can take: without `:`."""
    if ":" in value:
        raise ValueError("holds a `:`, which `docker run -v` cannot take; allowed: /a/path")
    return absolute_path(value)


def home_path(value: str) -> str:
    """A path on a node: absolute, or below the login user's home (`~`); without `:` and `..`."""
    if value != "~" and not value.startswith(("~/", "/")):
        raise ValueError("is not a path on a node; allowed: /a/path or ~/a/path")
    mount_path("/home" + value.removeprefix("~") if value.startswith("~") else value)
    return value


def env_name(value: str) -> str:
    """The name of an environment variable."""
    if not _ENV_NAME.match(value):
        raise ValueError("is not a variable's name; allowed: letters, digits and _, no digit first")
    return value


def flag_name(value: str) -> str:
    """A key of vllm_serve: the flag's name with `_` for `-`, dots for a key of its JSON."""
    if not _FLAG_NAME.match(value):
        raise ValueError(
            "is not a flag's name; allowed: lower-case letters, digits and _, such as "
            "max_model_len, or compilation_config.cudagraph_mode for one key of a map"
        )
    return value


def image_reference(value: str) -> str:
    """A container image: repository, with a tag or a digest."""
    if not IMAGE.match(value):
        raise ValueError(
            "is not an image reference; allowed: such as host/name:tag or name@sha256:…"
        )
    return value


def memory_size(value: str) -> str:
    """A size for `docker run --shm-size`: a whole number with k, m or g (binary units)."""
    if not _SHM_SIZE.match(value):
        raise ValueError("is not a size; allowed: a whole number with k, m or g, such as 16g")
    return value


def host_name(value: str) -> str:
    """A host as pyinfra names it: a plain name, `@local`, or `@connector/name`."""
    if not _HOST.match(value):
        raise ValueError(
            "is not a host name; allowed: letters, digits and . _ -, or @connector/name"
        )
    return value


def http_url(value: str) -> str:
    """An http or https URL of printable ASCII without blanks and without a user's name.

    A webhook's URL is its password: a refusal does not quote it.
    """
    if not is_http_url(value):
        raise HiddenValueError(
            "is not a URL; allowed: http:// or https://, no blanks, no user name or password "
            "before @"
        )
    return value
