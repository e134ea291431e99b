"""driver: what this host's driver is, and what apt would do for another version; read-only.

Type: schema/observed/hardware.py. A reading verb of its own: only deploys/driver.py asks for it.
"""

from __future__ import annotations

import glob
import os
import platform
import time

from node.core import validate
from node.core.errors import CannotRead, Json
from node.core.run import TimedOut, run
from node.driver import apt_plan, build, loaded, store
from node.health import driver as health_driver
from node.kernel import apt, installed

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
    others = apt_plan.branch_of(family)
    names = list(dict.fromkeys(
        [*family, *(apt_plan.in_branch(name, branch) for name in family)]))  # fmt: skip
    own = [name for name in found if name.startswith("linux-modules-nvidia-")]
    running, more = platform.release(), body["kernel"]
    extra = [apt_plan.in_branch(name, branch) for name in own]
    if more is not None:
        extra += [name.replace(running, more) for name in extra]
        extra += [f"linux-image-{more}", f"linux-headers-{more}"]
    known = apt_plan.versions([*names, *extra])
    there = sorted({apt_plan.upstream(row) for name in names for row in known.get(name, ())
                    if branch is None or apt_plan.branch_of([name]) in (branch, None)})  # fmt: skip
    version = body["version"]
    if version is None:
        heads = [known[name][0] for name in (apt_plan.in_branch(each, branch) for each in family)
                 if known.get(name)]  # fmt: skip
        tops = [apt_plan.upstream(row) for row in heads]
        version = max(set(tops), key=tops.count) if tops else None
    asked = apt_plan.wanted(family, known, version, branch) if version else []
    out: Json = {"wanted": None, "available": there, "branch": others, "rows": [], "problem": None,
                 "download": None}  # fmt: skip
    if not asked:
        return out
    exact = [row.partition("=")[2] for row in asked]
    out["wanted"] = apt_plan.upstream(max(set(exact), key=exact.count))
    asked += apt_plan.of_kernels(found, branch, running, more, known)
    rows, out["problem"] = apt_plan.simulated(asked)
    names = [row["name"] for row in rows if row["old"]]
    arches = _arches(names)
    out["rows"] = [
        {**row, "old_arch": arches.get(row["name"]) if row["old"] else None} for row in rows
    ]
    every = sorted({row["name"].partition(":")[0] for row in rows})
    kept = apt_plan.versions(every)
    for row in out["rows"]:
        row["kept"] = store.source_of(row, kept)
    out["download"] = store.sizes(f"{row['name']}={row['new']}" for row in rows if row["new"])
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
    found = apt.packages(module)
    family = apt.driver_family(found, versions)
    return {
        "family": {name: found[name]["version"] for name in family},
        "holds": sorted({*(name for name, row in found.items() if row["hold"]), *apt_plan.held()}),
        **_plan(body, found, family),
    }


def look(request: Json) -> Json:
    """Gives the document of schema/observed/hardware.py."""
    began = time.monotonic()
    body = validate.keys(request, "request", _KEYS, ("module",))
    module = validate.name(body["module"], "module")
    asked: Json = {"module": module}
    for key in ("version", "branch"):
        value = body.get(key)
        asked[key] = None if value is None else apt_plan.checked(value, key)
    kernel = body.get("kernel")
    asked["kernel"] = None if kernel is None else validate.release(kernel, "kernel")
    validate.boolean(body.get("latest", False), "latest")
    versions = installed.user_driver(module)
    try:
        plan: Json = _apt(asked, versions)
    except (CannotRead, TimedOut) as error:
        plan = {"unreadable": str(error)}
    free = os.statvfs(os.path.dirname(os.path.dirname(store.folder())))
    return {
        "format": 1,
        "module": module,
        "versions": versions,
        "loaded": loaded.version(module),
        "users": loaded.users(module),
        "apt": plan,
        "dpkg": dpkg_problem(),
        "lock": lock_holder(),
        "free": free.f_bavail * free.f_frsize,
        "headers": {release: build.headers(release) for release in installed.releases()},
        "signed_only": build.signed_only(),
        "key": build.key(),
        "cdi": health_driver.read()["cdi"],
        "took_s": round(time.monotonic() - began, 3),
    }
