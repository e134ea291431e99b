"""What pip would do in a venv, asked with --dry-run: nothing is installed.

pip runs as the venv's owner, so that the owner's pip configuration counts and no file of root's
comes into the owner's cache.
"""

from __future__ import annotations

import glob
import json
import os
import re
import shlex
import tempfile
from typing import Any

from node.core import validate
from node.core.errors import Json, NodeError
from node.core.run import Done
from node.core.run_as_owner import Owner
from node.rules.versions import PACKAGE

DEFAULT_TIMEOUT_S = 600
MAX_REPORT = 64 << 20
_VERSION = re.compile(r"^[A-Za-z0-9][A-Za-z0-9.!+_-]{0,100}$")
# Where wheels come from and which are taken; nothing that moves an install elsewhere.
_ARG = re.compile(
    r"^(--pre|--no-index|--no-deps|--prefer-binary"
    r"|--(index-url|extra-index-url|find-links|constraint|only-binary|trusted-host)=\S+)$"
)
_LOGIN = re.compile(r"(://)[^/@\s]+@")
_ENV = {
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_NO_INPUT": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}


def masked(text: str) -> str:
    """Gives a text without the user names and passwords of its URLs."""
    return _LOGIN.sub(r"\1***@", text)


def _parse_request(request: Json) -> Json:
    """Gives a request with every value checked."""
    allowed = ("venv", "package", "wanted", "packages", "pip_args", "timeout_s")
    body = validate.keys(request, "request", allowed, ("venv", "package", "wanted"))
    timeout = body.get("timeout_s", DEFAULT_TIMEOUT_S)
    return {
        "venv": validate.path(body["venv"], "venv"),
        "package": _word(body["package"], "package", PACKAGE),
        "wanted": _word(body["wanted"], "wanted", _VERSION),
        "packages": [
            _word(row, f"packages[{n}]", PACKAGE)
            for n, row in enumerate(validate.array(body.get("packages", []), "packages", 100))
        ],
        "pip_args": parse_pip_args(body.get("pip_args", [])),
        "timeout_s": validate.number(timeout, "timeout_s", 1, 3600),
    }


def parse_pip_args(value: object) -> list[str]:
    """Gives pip's arguments that say where wheels come from. Raises NodeError for any other."""
    rows = validate.array(value, "pip_args", 50)
    return [_word(row, f"pip_args[{n}]", _ARG) for n, row in enumerate(rows)]


def _word(value: object, where: str, pattern: Any) -> str:
    """Gives a name or version that pip cannot read as an option or a path."""
    found = validate.text(value, where)
    if not pattern.match(found):
        raise validate.bad(f"{where}: {found[:80]!r} is not allowed")
    return found


class _Pip:
    """pip of one venv, run as its owner, all calls within one time limit."""

    def __init__(self, venv: str, timeout_s: float) -> None:
        self.python = os.path.join(venv, "bin", "python")
        self.timeout_s = timeout_s
        if not os.access(self.python, os.X_OK):
            raise NodeError(f"{self.python} is not there", "no_venv", "name the venv's folder")
        self.owner = Owner(venv)

    def run(self, args: list[str]) -> Done:
        """Gives pip's exit status and output. Raises NodeError when it does not end in time."""
        argv = [self.python, "-m", "pip", *args]
        try:
            return self.owner.run(argv, self.timeout_s, _ENV)
        except NodeError as error:
            if error.code == "timeout":
                error.remedy = "look at the network, and at pip's configuration: pip config list"
            raise

    def report(self, args: list[str]) -> tuple[str | None, str | None]:
        """Gives pip's report, slim, and None; or None and pip's own line why there is none."""
        with tempfile.TemporaryDirectory(prefix="rigbook-pip-") as folder:
            os.chown(folder, self.owner.uid, self.owner.gid)
            path = os.path.join(folder, "report.json")
            done = self.run(["install", "--dry-run", "--quiet", "--report", path, *args])
            if done.rc != 0:
                return None, reason_of(done)
            try:
                with open(path, "rb") as file:
                    raw = file.read(MAX_REPORT)
                return json.dumps(_slim(json.loads(raw.decode("utf-8")))), None
            except (OSError, ValueError) as error:
                return None, f"pip wrote no report that can be read: {error}"


def reason_of(done: Done) -> str:
    """Gives the line of pip's output that says why: the last ERROR, else the last one."""
    errors = [line for line in done.err.splitlines() if line.startswith("ERROR:")]
    line = errors[-1] if errors else done.last_line()
    return masked(" ".join(line.split()))[:600]


def _slim(report: Json) -> Json:
    """Gives a report without descriptions and file lists: megabytes that nobody reads."""
    items = []
    for row in report.get("install") or []:
        meta, download = row.get("metadata") or {}, row.get("download_info") or {}
        items.append(
            {
                "metadata": {
                    "name": str(meta.get("name")),
                    "version": str(meta.get("version")),
                    "requires_dist": [str(line) for line in meta.get("requires_dist") or []]
                    if str(meta.get("name")).lower() == "torch"
                    else [],
                },
                "download_info": {"url": masked(str(download.get("url", "")))},
                "requested": bool(row.get("requested")),
            }
        )
    environment_ = report.get("environment") or {}
    return {
        "version": str(report.get("version")),
        "pip_version": str(report.get("pip_version")),
        "environment": {str(key): str(value) for key, value in environment_.items()},
        "install": items,
    }


def site_packages(venv: str) -> list[str]:
    """Gives the folders of a venv in which packages lie."""
    return sorted(glob.glob(os.path.join(glob.escape(venv), "lib", "python3*", "site-packages")))


def canonical(name: str) -> str:
    """Gives a distribution's name as pip compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed(venv: str, names: list[str] | None) -> list[Json]:
    """Gives the named distributions (None: all) of the venv, read from their METADATA."""
    wanted = None if names is None else {canonical(name) for name in names}
    found: list[Json] = []
    for folder in site_packages(venv):
        for path in sorted(glob.glob(os.path.join(glob.escape(folder), "*.dist-info", "METADATA"))):
            fields: dict[str, str] = {}
            with open(path, encoding="utf-8", errors="replace") as file:
                for line in file:
                    if not line.strip():
                        break
                    key, _, value = line.partition(":")
                    fields.setdefault(key.strip().lower(), value.strip())
            if "name" in fields and (wanted is None or canonical(fields["name"]) in wanted):
                found.append(
                    {
                        "name": fields["name"],
                        "version": fields.get("version", ""),
                        "path": os.path.dirname(path),
                    }
                )
    return found


def _torch_cuda(venv: str) -> str | None:
    """Gives the CUDA version in torch/version.py, "" where it says None, None without the line."""
    for folder in site_packages(venv):
        try:
            with open(os.path.join(folder, "torch", "version.py"), encoding="utf-8") as file:
                text = file.read(1 << 16)
        except (OSError, UnicodeDecodeError):
            continue
        found = re.search(r"^cuda\b[^=\n]*=\s*(?:'([0-9.]*)'|\"([0-9.]*)\"|None)", text, re.M)
        if found:
            return found[1] or found[2] or ""
    return None


def inspect_wheels(request: Json) -> Json:
    """Gives what is installed, and pip's reports on the wanted and on the installed version.

    The wanted one goes into a new venv beside. The installed one is asked for without dependencies,
    as if nothing were there: can it be had?
    """
    body = _parse_request(request)
    pip = _Pip(body["venv"], body["timeout_s"])
    version = pip.run(["--version"])
    found = re.match(r"pip (\S+)", version.out)
    if version.rc != 0 or not found:
        raise NodeError(
            f"{pip.python} has no pip: {reason_of(version)}",
            "no_pip",
            f"{shlex.quote(pip.python)} -m ensurepip",
        )
    where = body["pip_args"]
    names = [body["package"], "torch", *body["packages"]]
    there = installed(body["venv"], names)
    # of a new venv nothing is there yet: pip resolves torch anew as well
    new = [*where, "--ignore-installed", f"{body['package']}=={body['wanted']}"]
    wanted, wanted_error = pip.report(new)
    old: str | None = None
    old_error: str | None = None
    now = [r["version"] for r in there if canonical(r["name"]) == canonical(body["package"])]
    if now:
        again = ["--no-deps", "--ignore-installed", f"{body['package']}=={now[0]}"]
        old, old_error = pip.report([*where, *again])
    return {
        "python": pip.python,
        "pip": found[1],
        "args": [masked(word) for word in where],
        "installed": there,
        "torch_cuda": _torch_cuda(body["venv"]),
        "wanted": wanted,
        "wanted_error": wanted_error,
        "old": old,
        "old_error": old_error,
    }
