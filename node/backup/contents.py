"""What a tree is, read from its files alone: nothing of it is run."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
import socket
from typing import Any

from node.core import proc
from node.core.errors import Json

_CUDA = re.compile(r"^cuda\b[^=\n]*=\s*['\"]([0-9.]+)['\"]", re.M)
_DRIVER = re.compile(r"Kernel Module(?: for \w+)?\s+([0-9.]+)")
_USERINFO = re.compile(r"//[^/@\s]*@")
# packages whose names differ between builds of one program
_VLLM = re.compile(r"^vllm(-cpu)?$")


def _plain(name: str) -> str:
    """Gives a package's name in its normal form."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _head(path: str) -> dict[str, str]:
    """Gives the `Key: value` lines of METADATA up to the first empty line."""
    found: dict[str, str] = {}
    for line in proc.read_text(path).splitlines():
        if not line.strip():
            break
        key, colon, value = line.partition(":")
        if colon and key not in found:
            found[key] = value.strip()
    return found


def packages(root: str) -> list[tuple[str, str, str]]:
    """Gives name, version and origin (a URL without its user, or "") of what is installed."""
    rows: list[tuple[str, str, str]] = []
    pattern = os.path.join(glob.escape(root), "lib*", "python3*", "site-packages", "*.dist-info")
    for folder in sorted({os.path.realpath(path) for path in glob.glob(pattern)}):
        head = _head(os.path.join(folder, "METADATA"))
        name, version = head.get("Name"), head.get("Version")
        if not name or not version:
            continue
        origin = ""
        text = proc.read_text(os.path.join(folder, "direct_url.json"))
        with contextlib.suppress(ValueError, KeyError, TypeError):
            origin = str(json.loads(text)["url"])
        rows.append((name, version, _USERINFO.sub("//", origin)))
    return sorted(rows, key=lambda row: _plain(row[0]))


def freeze(rows: list[tuple[str, str, str]]) -> list[str]:
    """Gives the packages as pip freeze prints them."""
    return [f"{name} @ {url}" if url else f"{name}=={version}" for name, version, url in rows]


def _settings(root: str) -> dict[str, str]:
    """Gives pyvenv.cfg as a map, empty where the tree is no venv."""
    lines = proc.read_text(os.path.join(root, "pyvenv.cfg")).splitlines()
    pairs = (line.partition("=") for line in lines)
    return {key.strip().lower(): value.strip() for key, equals, value in pairs if equals}


def interpreter(root: str) -> Json | None:
    """Gives the venv's interpreter: its link, where that ends, and whether inside the tree.

    None where the tree has no bin/python. `base` is what the host has to have, `version` what
    pyvenv.cfg says, e.g. 3.12.4.
    """
    link = os.path.join(root, "bin", "python")
    if not os.path.lexists(link):
        return None
    settings = _settings(root)
    real = os.path.realpath(link)
    base = link
    # the first of the links that leaves the tree: what the host has to have
    while base.startswith(root + "/") and os.path.islink(base):
        base = os.path.normpath(os.path.join(os.path.dirname(base), os.readlink(base)))
    version = settings.get("version") or settings.get("version_info") or ""
    found = re.match(r"[0-9]+(\.[0-9]+)*", version)
    return {
        "link": os.readlink(link) if os.path.islink(link) else None,
        "base": base,
        "real": real,
        "inside": real.startswith(os.path.realpath(root) + "/"),
        "there": os.path.isfile(real) and os.access(real, os.X_OK),
        "home": settings.get("home"),
        "version": found[0] if found else None,
    }


def _torch(root: str, version: str | None) -> Json:
    """Gives torch's version and the CUDA variant that it was built for ("cpu" for none)."""
    if version is None:
        return {"torch": None, "cuda": None}
    pattern = os.path.join(glob.escape(root), "lib*", "python3*", "site-packages", "torch",
                           "version.py")  # fmt: skip
    texts = [proc.read_text(path) for path in sorted(glob.glob(pattern))]
    cuda = next((found[1] for found in map(_CUDA.search, texts) if found), None)
    local = version.partition("+")[2]
    return {"torch": version, "cuda": cuda or local or None}


def _driver() -> str | None:
    """Gives the running NVIDIA kernel module's version, or None."""
    text = proc.read_text("/sys/module/nvidia/version")
    if text:
        return text
    found = _DRIVER.search(proc.read_text("/proc/driver/nvidia/version"))
    return found[1] if found else None


def host() -> Json:
    """Gives what tells one host from another, and its kernel and driver."""
    name = os.uname()
    return {
        "hostname": socket.gethostname(),
        "machine_id": proc.read_text("/etc/machine-id") or None,
        "boot_id": proc.boot_id(),
        "arch": name.machine,
        "kernel": name.release,
        "driver": _driver(),
    }


def collect(root: str) -> Json:
    """Gives the facts of a tree and its host."""
    rows = packages(root)
    versions: dict[str, Any] = {_plain(name): version for name, version, _ in rows}
    vllm = next((version for name, version in versions.items() if _VLLM.match(name)), None)
    return {
        "host": host(),
        "interpreter": interpreter(root),
        "versions": {"vllm": vllm, **_torch(root, versions.get("torch"))},
        "freeze": freeze(rows),
    }
