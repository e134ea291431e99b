"""The verb driver: what is installed and built, packages fetched."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import platform
import re
import shutil
import time
from collections.abc import Iterable

from node import gpus
from node.change import journal
from node.core import files, proc, validate
from node.core.errors import CannotRead, Json, NodeError
from node.core.files import Lock
from node.core.run import TimedOut, run, which
from node.kernel import boot, driver, installed

# The driver's module on the disk: there for each kernel, of the right version, signed, built.

BUILD_S = 1200.0
TIMEOUT_S = 15.0
ENFORCED = "/sys/module/module/parameters/sig_enforce"
# Ubuntu's shim-signed, then dkms's own (dkms(8), SIGNING)
KEYS = ("/var/lib/shim-signed/mok/MOK.der", "/var/lib/dkms/mok.pub")
LOGS = "/var/lib/dkms/*/{}/build/make.log"
_ERROR = re.compile(r"\b(?:error|fatal error|ERROR|Error)\b[: ]")


def signed_only() -> bool:
    """Gives True where the kernel loads signed modules alone: Secure Boot, or its own parameter."""
    return bool(boot.secure_boot()) or proc.read_text(ENFORCED).strip() in ("Y", "1")


def signing_key() -> Json:
    """Gives the key that dkms signs with, and whether the firmware knows it (None: not known)."""
    path = next((each for each in KEYS if os.path.isfile(each)), None)
    if path is None:
        return {"path": None, "enrolled": None}
    try:
        done = run(["mokutil", "--test-key", path], TIMEOUT_S)
    except (FileNotFoundError, TimedOut):
        return {"path": path, "enrolled": None}
    said = (done.out + done.err).lower()
    # mokutil(1): "is already enrolled", "is already in the enrollment request", "is not enrolled"
    known = True if "already enrolled" in said else False if "enroll" in said else None
    return {"path": path, "enrolled": known}


def kernel_headers(release: str) -> bool:
    """Gives True where a module can be built for the kernel."""
    return os.path.exists(f"/lib/modules/{release}/build/Makefile")


def module_version(release: str, name: str) -> str | None:
    """Gives the version of the module that a kernel would load, None where it has none."""
    found = installed.module_of(release, name)
    return None if found is None else found["version"]


def build_problem(release: str, name: str, wanted: str | None) -> str | None:
    """Gives why a kernel would not get the module of this version, None where it would."""
    found = installed.module_of(release, name)
    if found is None:
        return f"there is no {name} module for {release}"
    if wanted is not None and found["version"] != wanted:
        return f"the {name} module for {release} is {found['version']}, not {wanted}"
    if found["vermagic"].split(" ", 1)[0] != release:
        return f"{found['path']} was built for {found['vermagic'].split(' ', 1)[0]}"
    if signed_only() and found["signer"] is None:
        return f"{found['path']} is not signed, and this kernel loads signed modules alone"
    return None


def _log_says(version: str | None) -> str:
    """Gives the first error of the last build, "" where no log tells one."""
    logs = sorted(glob.glob(LOGS.format(version or "*")), key=os.path.getmtime)
    for line in proc.read_text(logs[-1]).splitlines() if logs else ():
        if _ERROR.search(line):
            return f": {' '.join(line.split())[:200]} ({logs[-1]})"
    return ""


def ensure_module(releases: Iterable[str], name: str, wanted: str | None) -> list[str]:
    """Build the module by DKMS for each of these kernels that lacks it; gives what is there then.

    Raises NodeError (`no_module`) with the first error of the build.
    """
    told = []
    for release in releases:
        if build_problem(release, name, wanted) is not None and os.path.isdir("/var/lib/dkms"):
            try:
                run(["dkms", "autoinstall", "-k", release], BUILD_S)
            except (FileNotFoundError, TimedOut) as error:
                raise NodeError(f"dkms for {release}: {error}", "no_module") from None
        if (why := build_problem(release, name, wanted)) is not None:
            raise NodeError(f"{why}{_log_says(wanted)}", "no_module",
                            f"sudo dkms autoinstall -k {release}")  # fmt: skip
        told.append(f"{name} {wanted} for {release}")
    return told


# The package files of a driver change: the new ones, and the old ones for the way back.
#
# They lie in /var/lib/rigbook/debs under apt's own names. Archives delete a release once the next
# is
# there, so the old files are kept before anything is changed.

CACHE = "/var/cache/apt/archives"
DOWNLOAD_S = 1500.0
REPACK_S = 300.0
TOLD_S = 15.0
# beside the files: apt's own temporary ones, and what dpkg unpacks
ROOM = 512 << 20
GONE = "none"


def packages_folder() -> str:
    """Gives the folder of the kept files."""
    return os.path.join(files.state_root(), "debs")


def file_of(name: str, version: str, arch: str) -> str:
    """Gives a package's file name, as apt makes it."""
    return f"{name.partition(':')[0]}_{version.replace(':', '%3a')}_{arch}.deb"


def path_of(name: str, version: str, arch: str) -> str:
    """Gives where a package's file is kept."""
    return os.path.join(packages_folder(), file_of(name, version, arch))


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
                driver.checked_packages(body[key], f"{where}[{n}].{key}")
        if not driver.DRIVER_PACKAGE.match(validate.text(body["name"], f"{where}[{n}].name", 140)):
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


def package_sizes(wanted: Iterable[str]) -> int | None:
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
        done = run(["env", "-C", where or packages_folder(), *argv], limit_s)
    except (FileNotFoundError, TimedOut) as error:
        raise NodeError(f"{what}: {error}; nothing was changed", "not_fetched") from None
    if done.rc != 0:
        said = driver.apt_reason(done.out + "\n" + done.err)
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
    part = os.path.join(packages_folder(), "part")
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
    for name in os.listdir(packages_folder()):
        path = os.path.join(packages_folder(), name)
        if path not in keep and os.path.isfile(path):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


def fetch_packages(request: Json) -> Json:
    """driver fetch: have every file of a change here, new and old; gives where each old one came
    from. Changes nothing but its folder. Raises NodeError.
    """
    body = validate.keys(request, "request", ("rows",), ("rows",))
    rows = parse_rows(body["rows"], "rows")
    with Lock("driver fetch"):
        files.ensure_state()
        os.makedirs(packages_folder(), mode=0o755, exist_ok=True)
        _sweep({path for row in rows for path in (new_of(row), old_of(row)) if path})
        free = os.statvfs(packages_folder())
        news = [(row["name"], row["new"], path) for row in rows if (path := new_of(row))]
        need = (package_sizes(f"{name}={version}" for name, version, _ in news) or 0) + ROOM
        if free.f_bavail * free.f_frsize < need:
            raise NodeError(
                f"no room in {packages_folder()}: {need >> 20} MiB are needed; nothing was changed",
                "no_room",
                "sudo apt-get clean",
            )
        try:
            known = driver.package_versions(sorted({row["name"].partition(":")[0] for row in rows}))
        except CannotRead as error:
            raise NodeError(str(error), "not_fetched") from None
        kept = {row["name"]: _keep_old(row, known) for row in rows if row["old"]}
        _download(news)
        for path in [path for row in rows for path in (new_of(row), old_of(row)) if path]:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            os.fsync(fd)
            os.close(fd)
        files.sync_folder(packages_folder())
    return {"changed": True, "kept": kept, "new": len(news)}


# driver: what this host's driver is, and what apt would do for another version; read-only.
#
# Type: schema/hardware.py. A reading verb of its own: only deploys/driver.py asks for it.

_KEYS = ("module", "version", "latest", "branch", "kernel")
_LOCKS = ("/var/lib/dpkg/lock-frontend", "/var/lib/apt/lists/lock")
AUDIT_S = 20.0


def dpkg_problem() -> str | None:
    """Gives why dpkg is not in order, None where it is."""
    if glob.glob("/var/lib/dpkg/updates/[0-9]*"):
        return "dpkg was interrupted"
    try:
        done = run(["dpkg", "--audit"], AUDIT_S)
    except (FileNotFoundError, TimedOut) as error:
        return f"dpkg --audit: {error}"
    named = [line.strip() for line in done.out.splitlines() if line.startswith(" ")]
    return f"half done: {'; '.join(named)[:300]}" if named else None


def lock_holder() -> str | None:
    """Gives who has apt's or dpkg's lock now (/proc/locks), None where nobody does."""
    inodes: dict[int, str] = {}
    for each in _LOCKS:
        try:
            inodes[os.stat(each).st_ino] = each
        except OSError:
            continue
    with open("/proc/locks", encoding="ascii") as stream:
        for line in stream:
            cells = line.split()
            # 1: POSIX ADVISORY WRITE PID MAJOR:MINOR:INODE …
            if len(cells) > 5 and cells[1] == "POSIX" and cells[5].rpartition(":")[2].isdigit():
                path = inodes.get(int(cells[5].rpartition(":")[2]))
                if path is not None:
                    comm = _comm(cells[4])
                    return f"{comm} (pid {cells[4]}) holds {path}"
    return None


def _comm(pid: str) -> str:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as stream:
            return stream.read().strip()
    except OSError:
        return "a process"


def _plan(body: Json, found: dict[str, Json], family: list[str]) -> Json:
    """Gives the wanted version, what apt would do for it, and what the lists have."""
    branch = body["branch"]
    others = driver.branch_of(family)
    names = list(dict.fromkeys(
        [*family, *(driver.in_branch(name, branch) for name in family)]))  # fmt: skip
    own = [name for name in found if name.startswith("linux-modules-nvidia-")]
    running, more = platform.release(), body["kernel"]
    extra = [driver.in_branch(name, branch) for name in own]
    if more is not None:
        extra += [name.replace(running, more) for name in extra]
        extra += [f"linux-image-{more}", f"linux-headers-{more}"]
    known = driver.package_versions([*names, *extra])
    there = sorted({driver.upstream_version(row) for name in names for row in known.get(name, ())
                    if branch is None or driver.branch_of([name]) in (branch, None)})  # fmt: skip
    version = body["version"]
    if version is None:
        heads = [known[name][0] for name in (driver.in_branch(each, branch) for each in family)
                 if known.get(name)]  # fmt: skip
        tops = [driver.upstream_version(row) for row in heads]
        version = max(set(tops), key=tops.count) if tops else None
    asked = driver.wanted_packages(family, known, version, branch) if version else []
    out: Json = {"wanted": None, "available": there, "branch": others, "rows": [], "problem": None,
                 "download": None}  # fmt: skip
    if not asked:
        return out
    exact = [row.partition("=")[2] for row in asked]
    out["wanted"] = driver.upstream_version(max(set(exact), key=exact.count))
    asked += driver.of_kernels(found, branch, running, more, known)
    rows, out["problem"] = driver.simulate_apt(asked)
    names = [row["name"] for row in rows if row["old"]]
    arches = _arches(names)
    out["rows"] = [
        {**row, "old_arch": arches.get(row["name"]) if row["old"] else None} for row in rows
    ]
    every = sorted({row["name"].partition(":")[0] for row in rows})
    kept = driver.package_versions(every)
    for row in out["rows"]:
        row["kept"] = source_of(row, kept)
    out["download"] = package_sizes(f"{row['name']}={row['new']}" for row in rows if row["new"])
    return out


def _arches(names: list[str]) -> dict[str, str]:
    """Gives the architecture of installed packages."""
    if not names:
        return {}
    done = run(["dpkg-query", "-W", "-f=${Package}\\t${binary:Package}\\t${Architecture}\\n",
                *names], AUDIT_S)  # fmt: skip
    found: dict[str, str] = {}
    for line in done.out.splitlines():
        cells = line.split("\t")
        if len(cells) == 3:
            # the plain name is the native one, or the only one
            short = cells[0] if cells[1].partition(":")[2] != "i386" else cells[1]
            found.setdefault(short, cells[2])
            found.setdefault(cells[1], cells[2])
    return found


def _apt(body: Json, versions: list[str]) -> Json:
    """Gives the family and apt's plan. Raises CannotRead, TimedOut."""
    module = body["module"]
    found = installed.kernel_packages(module)
    family = installed.driver_family(found, versions)
    return {
        "family": {name: found[name]["version"] for name in family},
        "holds": sorted(
            {*(name for name, row in found.items() if row["hold"]), *driver.held_packages()}
        ),
        **_plan(body, found, family),
    }


def look_at_driver(request: Json) -> Json:
    """Gives the document of schema/hardware.py."""
    began = time.monotonic()
    body = validate.keys(request, "request", _KEYS, ("module",))
    module = validate.name(body["module"], "module")
    asked: Json = {"module": module}
    for key in ("version", "branch"):
        value = body.get(key)
        asked[key] = None if value is None else driver.checked_packages(value, key)
    kernel = body.get("kernel")
    asked["kernel"] = None if kernel is None else validate.release(kernel, "kernel")
    validate.boolean(body.get("latest", False), "latest")
    versions = installed.user_driver(module)
    try:
        plan: Json = _apt(asked, versions)
    except (CannotRead, TimedOut) as error:
        plan = {"unreadable": str(error)}
    free = os.statvfs(os.path.dirname(os.path.dirname(packages_folder())))
    return {
        "format": 1,
        "module": module,
        "versions": versions,
        "loaded": driver.loaded_version(module),
        "users": driver.driver_users(module),
        "apt": plan,
        "dpkg": dpkg_problem(),
        "lock": lock_holder(),
        "free": free.f_bavail * free.f_frsize,
        "headers": {release: kernel_headers(release) for release in installed.releases()},
        "signed_only": signed_only(),
        "key": signing_key(),
        "cdi": gpus.read_driver()["cdi"],
        "took_s": round(time.monotonic() - began, 3),
    }
