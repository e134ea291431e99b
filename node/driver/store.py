"""The package files of a driver change: the new ones, and the old ones for the way back.

They lie in /var/lib/rigbook/debs under apt's own names. Archives delete a release once the next is
there, so the old files are kept before anything is changed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterable

from node.change import journal
from node.core import validate
from node.core.errors import CannotRead, Json, NodeError
from node.core.run import TimedOut, run, which
from node.driver import apt_plan
from node.files import state_dir
from node.files.host_lock import Lock

CACHE = "/var/cache/apt/archives"
DOWNLOAD_S = 1500.0
REPACK_S = 300.0
TOLD_S = 15.0
# beside the files: apt's own temporary ones, and what dpkg unpacks
ROOM = 512 << 20
GONE = "none"


def folder() -> str:
    """Gives the folder of the kept files."""
    return os.path.join(state_dir.root(), "debs")


def file_of(name: str, version: str, arch: str) -> str:
    """Gives a package's file name, as apt makes it."""
    return f"{name.partition(':')[0]}_{version.replace(':', '%3a')}_{arch}.deb"


def path_of(name: str, version: str, arch: str) -> str:
    """Gives where a package's file is kept."""
    return os.path.join(folder(), file_of(name, version, arch))


def is_package(path: str, name: str, version: str) -> bool:
    """Gives True for a whole .deb file of that name and version."""
    if not os.path.isfile(path):
        return False
    try:
        done = run(["dpkg-deb", "-f", path, "Package", "Version"], TOLD_S)
    except (FileNotFoundError, TimedOut):
        return False
    fields = dict(line.split(": ", 1) for line in done.out.splitlines() if ": " in line)
    wanted = {"Package": name.partition(":")[0], "Version": version}
    return done.rc == 0 and fields == wanted


def parse_rows(value: object, where: str) -> list[Json]:
    """Gives the checked rows of a request: {name, old, new, arch, old_arch}."""
    out = []
    names = ("name", "old", "new", "arch", "old_arch")
    for n, row in enumerate(validate.array(value, where, 200)):
        body = validate.keys(row, f"{where}[{n}]", names, names)
        for key in names:
            if key != "name" and body[key] is not None:
                apt_plan.checked(body[key], f"{where}[{n}].{key}")
        if not apt_plan.PACKAGE.match(validate.text(body["name"], f"{where}[{n}].name", 140)):
            raise validate.bad(f"{where}[{n}].name: {body['name'][:60]!r} is no package")
        if (body["new"] is None) != (body["arch"] is None) or (
            (body["old"] is None) != (body["old_arch"] is None)
        ):
            raise validate.bad(f"{where}[{n}]: a version and its arch belong together")
        out.append(body)
    return out


def new_of(row: Json) -> str | None:
    """Gives the path of a row's new package, None where the row takes it away."""
    return path_of(row["name"], row["new"], row["arch"]) if row["new"] else None


def old_of(row: Json) -> str | None:
    """Gives the path of a row's old package, None where there is none."""
    return path_of(row["name"], row["old"], row["old_arch"]) if row["old"] else None


def source_of(row: Json, known: dict[str, list[str]]) -> str | None:
    """Gives where an old package's file would come from: kept, cache, repository, repack or none;
    None where nothing is to be kept.
    """
    path = old_of(row)
    if path is None:
        return None
    name, version = row["name"], row["old"]
    if is_package(path, name, version):
        return "kept"
    if is_package(os.path.join(CACHE, os.path.basename(path)), name, version):
        return "cache"
    if version in known.get(name.partition(":")[0], ()):
        return "repository"
    return "repack" if which("dpkg-repack") else GONE


def sizes(wanted: Iterable[str]) -> int | None:
    """Gives the bytes of these packages (`name=version`) as the lists tell; None: they do not."""
    names = list(wanted)
    try:
        done = run(["apt-get", "download", "-q", "--print-uris", *names], TOLD_S)
    except (FileNotFoundError, TimedOut):
        return None
    # 'URI' file bytes hash
    found = [line.rsplit("' ", 1)[-1].split() for line in done.out.splitlines() if "' " in line]
    if done.rc != 0 or len(found) < len(names):
        return None
    return sum(int(cells[1]) for cells in found if len(cells) > 1 and cells[1].isdigit())


def is_listed(path: str, name: str, version: str) -> bool:
    """Gives False where apt's lists have another file of that name and version: the repository made
    it anew. True where they have none, as when the repository has dropped it.
    """
    try:
        done = run(["apt-cache", "show", f"{name}={version}"], TOLD_S)
    except (FileNotFoundError, TimedOut):
        return True
    known = {row.split()[1] for row in done.out.splitlines() if row.startswith("SHA256: ")}
    if not known:
        return True
    made = hashlib.sha256()
    with open(path, "rb") as file:
        while part := file.read(1 << 20):
            made.update(part)
    return made.hexdigest() in known


def _in_folder(argv: list[str], limit_s: float, what: str, where: str | None = None) -> None:
    """Run a program that writes into its working folder: `where`, or that of the kept files.
    Raises NodeError (`not_fetched`).
    """
    try:
        done = run(["env", "-C", where or folder(), *argv], limit_s)
    except (FileNotFoundError, TimedOut) as error:
        raise NodeError(f"{what}: {error}; nothing was changed", "not_fetched") from None
    if done.rc != 0:
        said = apt_plan.reason(done.out + "\n" + done.err)
        raise NodeError(f"{what}: {said}; nothing was changed", "not_fetched",
                        "look at the network, and at the lists: sudo apt-get update")  # fmt: skip


def _download(rows: list[tuple[str, str, str]]) -> None:
    """Bring (name, version, path) from the repository, where the file that is here is not the
    repository's; that one stays until the other is whole. Raises NodeError.
    """
    missing = [row for row in rows if not (is_package(row[2], *row[:2])
                                           and is_listed(row[2], *row[:2]))]  # fmt: skip
    if not missing:
        return
    part = os.path.join(folder(), "part")
    shutil.rmtree(part, ignore_errors=True)
    os.mkdir(part, 0o755)
    argv = ["apt-get", "download", "-q", *(f"{name}={version}" for name, version, _ in missing)]
    try:
        _in_folder(argv, DOWNLOAD_S, "the packages cannot be downloaded", part)
        for name, version, path in missing:
            new = os.path.join(part, os.path.basename(path))
            if not is_package(new, name, version):
                raise NodeError(f"{new} is not {name} {version}; nothing was changed",
                                "not_fetched")  # fmt: skip
            os.replace(new, path)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _keep_old(row: Json, known: dict[str, list[str]]) -> str | None:
    """See that a row's old package is kept; gives where it came from. Raises NodeError."""
    source, path = source_of(row, known), old_of(row)
    if source in (None, "kept") or path is None:
        return source
    name, version = row["name"], row["old"]
    if source == "cache":
        shutil.copyfile(os.path.join(CACHE, os.path.basename(path)), path + ".part")
        os.rename(path + ".part", path)
    elif source == "repository":
        _download([(name, version, path)])
    elif source == "repack":
        _in_folder(["dpkg-repack", name], REPACK_S, f"dpkg-repack {name}")
    if not is_package(path, name, version):
        raise NodeError(f"the old driver is not to be had any more: {name} {version}; nothing was"
                        " changed", "old_gone",
                        "sudo apt-get install dpkg-repack, then run this again")  # fmt: skip
    return source


def _sweep(keep: set[str]) -> None:
    """Remove files that neither this request nor a change of the journal names."""
    for change in journal.read_all()[0]:
        for entry in change["steps"]:
            if entry.get("op") == "packages":
                keep |= {path for row in entry["rows"] for path in (new_of(row), old_of(row))
                         if path}  # fmt: skip
                # the built modules that a change of 0.2.0 kept, for its own program
                keep |= {entry["kept"]["path"]} if "kept" in entry else set()
    for name in os.listdir(folder()):
        path = os.path.join(folder(), name)
        if path not in keep and os.path.isfile(path):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


def fetch(request: Json) -> Json:
    """driver fetch: have every file of a change here, new and old; gives where each old one came
    from. Changes nothing but its folder. Raises NodeError.
    """
    body = validate.keys(request, "request", ("rows",), ("rows",))
    rows = parse_rows(body["rows"], "rows")
    with Lock("driver fetch"):
        state_dir.ensure()
        os.makedirs(folder(), mode=0o755, exist_ok=True)
        _sweep({path for row in rows for path in (new_of(row), old_of(row)) if path})
        free = os.statvfs(folder())
        news = [(row["name"], row["new"], path) for row in rows if (path := new_of(row))]
        need = (sizes(f"{name}={version}" for name, version, _ in news) or 0) + ROOM
        if free.f_bavail * free.f_frsize < need:
            raise NodeError(f"no room in {folder()}: {need >> 20} MiB are needed; nothing was"
                            " changed", "no_room", "sudo apt-get clean")  # fmt: skip
        try:
            known = apt_plan.versions(sorted({row["name"].partition(":")[0] for row in rows}))
        except CannotRead as error:
            raise NodeError(str(error), "not_fetched") from None
        kept = {row["name"]: _keep_old(row, known) for row in rows if row["old"]}
        _download(news)
        for path in [path for row in rows for path in (new_of(row), old_of(row)) if path]:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            os.fsync(fd)
            os.close(fd)
        state_dir.sync_folder(folder())
    return {"changed": True, "kept": kept, "new": len(news)}
