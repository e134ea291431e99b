"""The `packages` step of a change: packages exchanged from kept files, and the way back to the old.

apt installs the rehearsed set and no more. The undo is dpkg's own and needs no solver: apt refuses
to begin while dpkg is interrupted, which is when an undo is needed. A module that runs stays until
the next boot, there and back.
"""

from __future__ import annotations

import os
import platform
import time

from node.change.journal import DONE, UNDONE, UNKNOWN
from node.change.kinds import POST, PRE, Kind, Seen, Steps
from node.core import proc, validate
from node.core.errors import CannotRead, Json, NodeError
from node.core.run import Done, TimedOut, run
from node.kernel import driver, driver_report

INSTALL_S = 1500.0
DPKG_S = 1200.0
TOLD_S = 30.0
LOCK_S = 600.0
POLL_S = 5.0
# no question, no restart of services by needrestart, no other language
QUIET = {"LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive", "NEEDRESTART_SUSPEND": "1"}
# a conffile that somebody edited is kept: dpkg would ask, and nobody is there to answer
_KEEP = ("confdef", "confold")
_BACK = ("downgrade", "overwrite", "depends", "breaks", "conflicts", "remove-reinstreq",
         *_KEEP)  # fmt: skip
# "dpkg frontend lock was locked by another process with pid N" (1.21), "is locked by" (before)
_LOCKED = "locked by another process"


def states(names: list[str]) -> dict[str, tuple[str, str]]:
    """Gives name → (version, dpkg's state) of packages that dpkg knows."""
    fields = "-f=${binary:Package} ${Package}:${Architecture} ${Version} ${db:Status-Status}\\n"
    try:
        done = run(["dpkg-query", "-W", fields, *names], TOLD_S)
    except (FileNotFoundError, TimedOut) as error:
        raise NodeError(f"dpkg-query: {error}", "packages_unread") from None
    found: dict[str, tuple[str, str]] = {}
    for line in done.out.splitlines():
        cells = line.split(" ")
        if len(cells) == 4 and cells[3] not in ("not-installed", "config-files"):
            for name in (cells[0], cells[1], cells[0].partition(":")[0]):
                found.setdefault(name, (cells[2], cells[3]))
    return {name: found[name] for name in names if name in found}


def _automatic(names: list[str]) -> list[str]:
    """Gives the packages that apt has for their dependants alone."""
    done = run(["apt-mark", "showauto", *names], TOLD_S)
    return sorted(set(done.out.split()) & set(names))


def _mark(automatic: list[str], names: list[str]) -> None:
    """Put apt's marks back; a mark is no reason to fail."""
    there = states(names)
    for verb, wanted in (("auto", True), ("manual", False)):
        rows = [name for name in there if (name in automatic) == wanted]
        if rows:
            run(["apt-mark", verb, *rows], TOLD_S)


def _dpkg(*words: str) -> Done:
    """Run dpkg, and wait while another program has its lock. Raises NodeError."""
    began = time.monotonic()
    while True:
        try:
            done = run(["dpkg", *(f"--force-{each}" for each in _BACK), *words], DPKG_S, QUIET)
        except (FileNotFoundError, TimedOut) as error:
            raise NodeError(f"dpkg {words[0]}: {error}", "dpkg_failed") from None
        if done.rc == 0 or _LOCKED not in done.err or time.monotonic() - began > LOCK_S:
            return done
        time.sleep(POLL_S)


def _lines(rows: list[Json], key: str) -> list[str]:
    """Gives in what the packages are not as the rows' `old` or `new` says."""
    now = states([row["name"] for row in rows])
    lines = []
    for row in rows:
        version, state = now.get(row["name"], (None, "absent"))
        if version != row[key]:
            lines.append(f"{row['name']} is {version or 'absent'}, not {row[key] or 'absent'}")
        elif version is not None and state not in ("installed", "triggers-pending",
                                                   "triggers-awaited"):  # fmt: skip
            lines.append(f"{row['name']} {version} is {state}")
    return lines


def _modules(entry: Json, side: str) -> list[str]:
    """Gives in what the modules on the disk are not as recorded; other kernels are not asked."""
    found = (
        (
            release,
            wanted if side == PRE else entry["version"],
            driver_report.module_version(release, entry["module"]),
        )
        for release, wanted in entry["kernels"].items()
    )
    return [f"the {entry['module']} module for {release} is {now or 'none'}, not {wanted}"
            for release, wanted, now in found if wanted is not None and now != wanted]  # fmt: skip


def _unbooted(entry: Json) -> list[str]:
    """Gives a line where one boot has yet to load the former module, or what the disk has of it."""
    name, now = entry["module"], driver.loaded_version(entry["module"])
    on_disk = driver_report.module_version(platform.release(), name)
    if now == entry["loaded"] or (now is not None and now == on_disk):
        return []
    return [f"the loaded {name} module is {now or 'none'}: the former one comes with the next boot"]


class PackagesKind(Kind):
    """The driver's packages, and its module built for each named kernel."""

    keys = ("rows", "module", "version", "kernels")
    required = ("rows", "module", "version", "kernels")

    def parse(self, step: Json, where: str) -> Json:
        """Gives a step with every value checked."""
        kernels = validate.array(step["kernels"], f"{where}.kernels", 8)
        rows = driver_report.parse_rows(step["rows"], f"{where}.rows")
        if not rows:
            raise validate.bad(f"{where}.rows is empty")
        return {
            "op": self.op,
            "rows": rows,
            "module": validate.name(step["module"], f"{where}.module"),
            "version": driver.checked_packages(step["version"], f"{where}.version"),
            "kernels": [validate.release(row, f"{where}.kernels[{n}]")
                        for n, row in enumerate(kernels)],
        }  # fmt: skip

    def describe(self, entry: Json) -> str:
        """Names the driver and its version."""
        return f"{self.about(entry)} {entry.get('version')}"

    def about(self, entry: Json) -> str:
        """Gives the driver's name."""
        return f"packages of {entry.get('module')}"

    def plan(self, step: Json, seen: Seen) -> tuple[bool, str]:
        """Gives whether a package is another one; reads only."""
        return bool(_lines(step["rows"], "new")), f"{len(step['rows'])} packages"

    def do(self, step: Json, steps: Steps) -> tuple[bool, str]:
        """Install from the kept files what was rehearsed, and see each kernel's module."""
        rows = step["rows"]
        if not _lines(rows, "new"):
            return False, "as wanted"
        _require_files(rows)
        if lines := _lines(rows, "old"):
            raise NodeError(f"not as planned: {'; '.join(lines)[:300]}", "moved",
                            "run this again: it looks anew")  # fmt: skip
        names = [row["name"] for row in rows]
        wanted = [str(driver_report.new_of(row) or f"{row['name']}-") for row in rows]
        _require_rehearsed(rows, wanted)
        before = {
            release: driver_report.module_version(release, step["module"])
            for release in step["kernels"]
        }
        automatic = _automatic(names)
        entry = self.record(steps, rows=rows, module=step["module"], version=step["version"],
                            kernels=before, automatic=automatic,
                            loaded=driver.loaded_version(step["module"]))  # fmt: skip
        _install(wanted)
        new = [row["name"] for row in rows if row["old"] is None]
        _mark([*automatic, *new], names)
        if lines := _lines(rows, "new"):
            raise NodeError("; ".join(lines)[:400], "apt_failed")
        told = driver_report.ensure_module(step["kernels"], step["module"], step["version"])
        steps.finish(entry)
        return True, "; ".join([f"{len(rows)} packages", *told])

    def recover(self, entry: Json, rows: list[Json]) -> str:
        """All are new, all are old, or (unknown) a kill came in the middle."""
        if not _lines(entry["rows"], "new") and not _modules(entry, POST):
            return DONE
        return UNKNOWN if self.verify(entry, PRE) else UNDONE

    def conflicts(self, entry: Json, seen: Seen) -> bool:
        """Raises NodeError where a package is neither old nor new by now, or an old file gone."""
        now = states([row["name"] for row in entry["rows"]])
        later = [
            f"{row['name']} is {now[row['name']][0]}"
            for row in entry["rows"]
            if row["name"] in now and now[row["name"]][0] not in (row["old"], row["new"])
        ]
        if later:
            raise NodeError(f"packages were changed since: {', '.join(later)}; nothing was undone",
                            "later_edit", "keep it: rignode close, as docs/runbooks/rollback.md "
                            "says")  # fmt: skip
        _require_files(entry["rows"], old_only=True)
        return False

    def revert(self, entry: Json, overwrite: bool) -> str:
        """Put the old packages and their module back, whatever state dpkg is in. Raises NodeError,
        and also with `boot` noted in the entry where one boot loads the former module.
        """
        rows, said = entry["rows"], []
        if _lines(rows, "old"):
            now = states([row["name"] for row in rows])
            gone = [row["name"] for row in rows if row["old"] is None and row["name"] in now]
            back = [path for row in rows if (path := driver_report.old_of(row))
                    and now.get(row["name"]) != (row["old"], "installed")]  # fmt: skip
            tried = [_dpkg("--purge", *gone)] if gone else []
            tried += [_dpkg("--install", *back)] if back else []
            tried += [_dpkg("--configure", "--pending")]
            if lines := _lines(rows, "old"):
                why = "; ".join(driver.apt_reason(done.out + "\n" + done.err)
                                for done in tried if done.rc != 0)  # fmt: skip
                raise NodeError(f"{'; '.join(lines)[:300]}: {why}", "dpkg_failed",
                                "sudo dpkg --audit; then: rignode undo")  # fmt: skip
            _mark(entry["automatic"], [row["name"] for row in rows])
            said.append(f"{len(back)} old packages are back, {len(gone)} new ones are gone")
        for release, version in entry["kernels"].items():
            if (
                version is not None
                and driver_report.module_version(release, entry["module"]) != version
            ):
                said += driver_report.ensure_module([release], entry["module"], version)
        if lines := _unbooted(entry):
            entry.setdefault("boot", proc.boot_id())
            raise NodeError("; ".join(lines), "boot_needed", "boot once, then: rignode undo")
        return "; ".join(said) or "was as before"

    def verify(self, entry: Json, side: str) -> list[str]:
        """Gives in what packages and modules, and (PRE) the loaded one, are not as recorded."""
        lines = _lines(entry["rows"], "old" if side == PRE else "new") + _modules(entry, side)
        return lines + (_unbooted(entry) if side == PRE else [])


def _require_files(rows: list[Json], old_only: bool = False) -> None:
    """Raise NodeError (`not_fetched`) unless every file lies ready."""
    for row in rows:
        for path in (driver_report.old_of(row), None if old_only else driver_report.new_of(row)):
            if path is not None and not os.path.isfile(path):
                raise NodeError(f"{path} is not there; nothing was done", "not_fetched",
                                "run deploys/driver.py again: it fetches first")  # fmt: skip


def _require_rehearsed(rows: list[Json], wanted: list[str]) -> None:
    """Raise NodeError (`other_plan`) unless apt would do with the files what was planned."""
    try:
        found, why = driver.simulate_apt(wanted, files=True)
    except CannotRead as error:
        raise NodeError(str(error), "apt_failed") from None
    if why is not None:
        raise NodeError(f"apt will not: {why}", "apt_failed", "sudo apt-get check")
    planned = {(row["name"], row["old"], row["new"]) for row in rows}
    would = {(row["name"], row["old"], row["new"]) for row in found}
    if planned != would:
        other = ", ".join(f"{name} {old} -> {new}" for name, old, new in sorted(
            planned ^ would, key=str))  # fmt: skip
        raise NodeError(f"apt would do something else than was planned: {other[:300]}",
                        "other_plan", "run this again: it looks anew")  # fmt: skip


def _install(wanted: list[str]) -> None:
    """Have apt install the files and remove the names. Raises NodeError with its reason."""
    options = [f"Dpkg::Options::=--force-{each}" for each in _KEEP]
    options += ["DPkg::Lock::Timeout=120", "APT::Get::AutomaticRemove=false"]
    argv = ["apt-get", "-y", "-q", "--allow-downgrades",
            *driver.FILES_ALONE,
            "--allow-change-held-packages", "--no-install-recommends",
            *(word for each in options for word in ("-o", each)), "install", *wanted]  # fmt: skip
    try:
        done = run(argv, INSTALL_S, QUIET)
    except (FileNotFoundError, TimedOut) as error:
        raise NodeError(f"apt-get install: {error}", "apt_failed") from None
    if done.rc != 0:
        raise NodeError(f"apt-get install: {driver.apt_reason(done.out + chr(10) + done.err)}",
                        "apt_failed")  # fmt: skip
