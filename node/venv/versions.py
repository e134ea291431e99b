"""Where the versions of a venv's engine lie, and what there is of a version: files are read, only.

A venv that rigbook made lies at FOLDER/venvs/VERSION, beside the link FOLDER/NAME that leads to it.
A venv holds its own absolute path (shebangs, pyvenv.cfg), so it cannot be built under another name
and renamed. What is being built is told by the file VERSION.partial beside it: a folder with such a
file is no installation, whatever lies in it.
"""

from __future__ import annotations

import glob
import json
import os
import re
import shlex
import tempfile
import time
from typing import Any

from node.core import validate
from node.core.errors import Json, NodeError
from node.core.owner import Owner
from node.core.run import Done
from node.host_files import shebang
from node.rules.text import PACKAGE, VERSION, same_version

# What pip would do in a venv, asked with --dry-run: nothing is installed.
#
# pip runs as the venv's owner, so that the owner's pip configuration counts and no file of root's
# comes into the owner's cache.

PIP_TIMEOUT_S = 600
MAX_REPORT = 64 << 20
_VERSION = re.compile(r"^[A-Za-z0-9][A-Za-z0-9.!+_-]{0,100}$")
# Where wheels come from and which are taken; nothing that moves an install elsewhere.
_ARG = re.compile(
    r"^(--pre|--no-index|--no-deps|--prefer-binary"
    r"|--(index-url|extra-index-url|find-links|constraint|only-binary|trusted-host)=\S+)$"
)
_LOGIN = re.compile(r"(://)[^/@\s]+@")
_PIP_PLAN_ENV = {
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
    timeout = body.get("timeout_s", PIP_TIMEOUT_S)
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
            return self.owner.run(argv, self.timeout_s, _PIP_PLAN_ENV)
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


def installed_rows(venv: str, names: list[str] | None) -> list[Json]:
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
    there = installed_rows(body["venv"], names)
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


PARTIAL = ".partial"
FOLDER = "venvs"


def version_text(value: object, where: str = "version") -> str:
    """Gives a version that can be a folder's name. Raises NodeError otherwise."""
    text = validate.text(value, where, 100)
    if not VERSION.match(text) or ".." in text:
        raise validate.bad(f"{where}: {text[:60]!r} is not a version")
    return text


def package(value: object, where: str = "package") -> str:
    """Gives a distribution's name. Raises NodeError otherwise."""
    text = validate.text(value, where, 100)
    if not PACKAGE.match(text):
        raise validate.bad(f"{where}: {text[:60]!r} is not a package's name")
    return text


def installed_versions(venv: str, name: str) -> tuple[str, ...]:
    """Gives the versions of a distribution that a venv's dist-info folders name."""
    return tuple(sorted(row["version"] for row in installed_rows(venv, [name])))


def folder_of(path: str) -> str:
    """Gives the folder in which the versions of a venv lie."""
    return os.path.join(os.path.dirname(path), FOLDER)


def is_partial(folder: str) -> bool:
    """Gives True for a folder that is being made, or that a kill left so."""
    return os.path.lexists(folder + PARTIAL)


def partials(path: str) -> list[str]:
    """Gives the folders that were begun and never finished."""
    try:
        names = sorted(os.listdir(folder_of(path)))
    except OSError:
        return []
    return [
        os.path.join(folder_of(path), name[: -len(PARTIAL)])
        for name in names
        if name.endswith(PARTIAL) and VERSION.match(name[: -len(PARTIAL)])
    ]


def find(path: str, name: str, version: str) -> str | None:
    """Gives the whole folder beside a venv that holds this version, or None."""
    places = [os.path.realpath(path)]
    try:
        listed = sorted(os.listdir(folder_of(path)))
    except OSError:
        listed = []
    places += [os.path.join(folder_of(path), entry) for entry in listed if VERSION.match(entry)]
    for place in places:
        if not os.path.isdir(place) or os.path.islink(place) or is_partial(place):
            continue
        found = installed_versions(place, name)
        if len(found) == 1 and same_version(version, found[0]):
            return place
    return None


def free_name(path: str, name: str, version: str) -> str:
    """Gives the folder for a new installation of a version: its public part, else all of it."""
    for text in (version.partition("+")[0], version):
        place = os.path.join(folder_of(path), text)
        if is_partial(place) or not os.path.lexists(place):
            return place
    raise NodeError(
        f"{place} is there and does not hold {name} {version}",
        "not_free",
        f"look at it; what nobody needs can go: sudo rm -r {shlex.quote(place)}",
    )


def inspect_versions(request: Json) -> Json:
    """`venv look`: where a version would lie, whether it is there, and how much room there is."""
    keys = ("venv", "package", "version")
    body = validate.keys(request, "request", keys, keys)
    path = validate.path(body["venv"], "venv")
    name, version = package(body["package"]), version_text(body["version"])
    real = os.path.realpath(path)
    if not os.path.isdir(real):
        raise NodeError(f"{path} is not there, or no folder", "no_venv", "name the venv's folder")
    found = find(path, name, version)
    above = folder_of(path)
    seen = os.statvfs(above if os.path.isdir(above) else os.path.dirname(path))
    return {
        "venv": path,
        "real": real,
        "link": os.readlink(path) if os.path.islink(path) else None,
        "installed": list(installed_versions(real, name)),
        "found": found,
        "folder": found or free_name(path, name, version),
        "partial": partials(path),
        "free_bytes": seen.f_bavail * seen.f_frsize,
        "working": working(path),
    }


def working(path: str) -> list[str]:
    """Gives a line for each installation under way: how much it has written, and since when.

    What the file system lost since the beginning stands for the size: nothing has to be walked.
    """
    lines: list[str] = []
    for folder in partials(path):
        try:
            with open(folder + PARTIAL, encoding="utf-8") as file:
                begun = json.load(file)
            seen = os.statvfs(folder)
            wrote = max(0, int(begun["free_bytes"]) - seen.f_bavail * seen.f_frsize)
            need, since = int(begun["room_bytes"]), time.time() - float(begun["since_unix_s"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
        # others write there, too: a share above all of it says nothing
        told = f"{wrote >> 20} of about {need >> 20} MiB, " if need and wrote <= need else ""
        lines.append(f"{begun['what']}: {told}{since:.0f} s")
    return lines


# Does an engine's venv run? Its program is executed and its package imported, as its owner.
#
# An upgrade looks before it switches, a rollback before it starts: a `bin/vllm` that is not there,
# or
# whose interpreter is gone, ends the unit with 127 (B3).

CHECK_TIMEOUT_S = 180
# nothing is written: the next backup of the tree would differ
_CHECK_ENV = {"PYTHONDONTWRITEBYTECODE": "1", "VLLM_NO_USAGE_STATS": "1"}


def check_venv(request: Json) -> Json:
    """`venv check`: what the program says of itself. Raises NodeError (`venv_broken`).

    `venv` is a folder or a link to one; `imports` False leaves the import out. `quick`: the program
    is looked at, not run (it loads the whole engine), and its interpreter is run.
    """
    allowed = ("venv", "package", "timeout_s", "imports", "quick")
    body = validate.keys(request, "request", allowed, ("venv", "package"))
    path, name = validate.path(body["venv"], "venv"), package(body["package"])
    timeout_s = validate.number(body.get("timeout_s", CHECK_TIMEOUT_S), "timeout_s", 1, 1800)
    imports = validate.boolean(body.get("imports", True), "imports")
    real = os.path.realpath(path)
    if not os.path.isdir(real):
        raise _broken(f"{path} is not there, or leads nowhere")
    found = installed_versions(real, name)
    if len(found) != 1:
        raise _broken(f"{real} holds {name} {', '.join(found) or 'of no version'}")
    owner = Owner(real)
    if validate.boolean(body.get("quick", False), "quick"):
        _ran(owner, [_interpreter(os.path.join(real, "bin", name)), "-c", ""], timeout_s)
        return {"venv": real, "version": found[0], "said": ""}
    module = name.replace("-", "_")
    if imports:
        python = os.path.join(real, "bin", "python")
        _ran(owner, [python, "-c", f"import {module}"], timeout_s)
    done = _ran(owner, [os.path.join(real, "bin", name), "--version"], timeout_s)
    said = [line.strip() for line in done.out.splitlines() if line.strip()]
    return {"venv": real, "version": found[0], "said": said[-1][:200] if said else ""}


def _interpreter(program: str) -> str:
    """Gives what a program's first line names. Raises NodeError when it cannot be executed."""
    if not os.access(program, os.X_OK):
        raise _broken(f"{program} is not there, or cannot be executed")
    return shebang(program) or program


def _ran(owner: Owner, argv: list[str], timeout_s: float) -> Done:
    """Gives a program's output. Raises NodeError when it does not run to its end."""
    what = " ".join(argv)
    try:
        done = owner.run(argv, timeout_s, _CHECK_ENV)
    except NodeError as error:
        raise _broken(f"{what}: {error}") from None
    if done.rc != 0:
        raise _broken(f"{what} ended with {done.rc}: {masked(done.last_line())[:300]}")
    return done


def _broken(line: str) -> NodeError:
    return NodeError(
        line, "venv_broken", "bring it back from a backup: sudo rignode tree list, tree restore"
    )
