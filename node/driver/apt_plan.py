"""What apt would do for a driver of one version: asked by simulation, read, changed nowhere."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from node.core import validate
from node.core.errors import CannotRead, Json
from node.core.run import TimedOut, run

TIMEOUT_S = 60.0
# as dpkg's unpack of a foreign architecture names it: libnvidia-gl-580:i386
PACKAGE = re.compile(r"^[a-z0-9][a-z0-9+.-]{1,120}(:[a-z0-9]{2,12})?$")
VERSION = re.compile(r"^[A-Za-z0-9][A-Za-z0-9.+:~-]{0,120}$")
# apt-get(8), --simulate: [old], (new, where it comes from, [arch]), then what is broken meanwhile
_ROW = re.compile(
    r"^(?P<action>Inst|Remv|Purg) (?P<name>\S+)(?: \[(?P<old>[^\]\s]+)\])?"
    r"(?: \((?P<new>\S+)[^)]*?(?:\[(?P<arch>[a-z0-9]+)\])?\))?"
)
_UNMET = re.compile(r"^ (\S+ : .*|\s+(?:Depends|PreDepends|Breaks|Conflicts): .*)$")
# what only says that another line says why
_FOLLOWS = ("E: Sub-process", "E: Unable to correct problems", "E: Error, pkgProblemResolver")
# from the named files alone: a version that the lists have too would be taken from there
FILES_ALONE = tuple(word for option in (
    "Dir::Etc::sourcelist=/dev/null", "Dir::Etc::sourceparts=/dev/null", "Dir::Cache::pkgcache=",
    "Dir::Cache::srcpkgcache=") for word in ("-o", option))  # fmt: skip
_BRANCH = re.compile(r"^(?P<before>(?:lib)?[a-z0-9-]*?-)(?P<branch>\d{3})(?=-|$)")


def checked(value: object, where: str) -> str:
    """Gives a version, a branch or an architecture of a request. Raises NodeError."""
    found = validate.text(value, where, 121)
    if not VERSION.match(found):
        raise validate.bad(f"{where}: {found[:60]!r} is none")
    return found


def upstream(version: str) -> str:
    """Gives the driver's version in a package's: 580.142 of 580.142-0ubuntu0.24.04.1."""
    return version.rpartition(":")[2].partition("-")[0]


def rows(text: str) -> list[Json]:
    """Gives what `apt-get -s` says it would do: {name, old, new, arch}; old None: it is not there,
    new None: it goes.
    """
    found = []
    for line in text.splitlines():
        match = _ROW.match(line)
        if match:
            gone = match["action"] != "Inst"
            found.append({"name": match["name"], "old": match["old"],
                          "new": None if gone else match["new"],
                          "arch": None if gone else match["arch"]})  # fmt: skip
    return found


def reason(text: str) -> str:
    """Gives apt's and dpkg's own reason for a failure, in one line of at most 400 characters."""
    lines = [line.rstrip() for line in text.splitlines()]
    told: list[str] = []
    errors: list[str] = []
    for n, line in enumerate(lines):
        if _UNMET.match(line) or line.startswith(("Error! ", "mkinitramfs", "update-initramfs: f")):
            told.append(line)
        elif line.startswith("dpkg: error processing"):
            # the reason stands in the next line
            why = lines[n + 1] if lines[n + 1 : n + 2] and lines[n + 1].startswith(" ") else ""
            told += [] if "dependency problems" in why else [f"{line.partition(': ')[2]}{why}"]
        elif line.startswith(("E: ", "dpkg: error")):
            errors.append(line)
    own = [line for line in errors if not line.startswith(_FOLLOWS)]
    said = [*told, *own] or errors or [line for line in lines if line.strip()][-1:]
    return "; ".join(" ".join(line.split()) for line in dict.fromkeys(said))[:400]


def _asked(argv: Sequence[str], what: str) -> tuple[int, str, str]:
    try:
        done = run(argv, TIMEOUT_S)
    except FileNotFoundError:
        raise CannotRead(f"no {argv[0]} on this host; drivers are changed by apt alone") from None
    except TimedOut as error:
        raise CannotRead(f"{what}: {error}") from None
    return done.rc, done.out, done.err


def simulated(wanted: Iterable[str], files: bool = False) -> tuple[list[Json], str | None]:
    """Gives what apt would do for `name=version`, `name-` and paths of .deb files, and its reason
    where it would not. `files`: as if there were nothing but files. Raises CannotRead.
    """
    more = FILES_ALONE if files else ()
    argv = ["apt-get", "-s", "-y", "-q", "--allow-downgrades", "--allow-change-held-packages",
            "--no-install-recommends", *more, "install", *wanted]  # fmt: skip
    rc, out, err = _asked(argv, "apt-get -s")
    return (rows(out), None) if rc == 0 else ([], reason(out + "\n" + err))


def versions(names: Sequence[str]) -> dict[str, list[str]]:
    """Gives the versions that the package lists have, newest first (apt-cache madison)."""
    found: dict[str, list[str]] = {name: [] for name in names}
    if not names:
        return found
    for line in _asked(["apt-cache", "madison", *names], "apt-cache")[1].splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == 3 and cells[1] not in found.setdefault(cells[0], []):
            found[cells[0]].append(cells[1])
    return found


def held() -> list[str]:
    """Gives what apt is to leave alone, whatever it is: it may keep a driver from moving. Raises
    CannotRead. Those of a foreign architecture (libx:i386) are left out.
    """
    found = _asked(["apt-mark", "showhold"], "apt-mark")[1].split()
    return [name for name in found if ":" not in name]


def branch_of(names: Iterable[str]) -> str | None:
    """Gives the branch that the names of a family carry (580), None where they carry none."""
    found = [match["branch"] for match in map(_BRANCH.match, names) if match]
    return max(set(found), key=found.count) if found else None


def in_branch(name: str, branch: str | None) -> str:
    """Gives the name of the same package in another branch; None: the name itself."""
    return _BRANCH.sub(rf"\g<before>{branch}", name) if branch else name


def _of(version: str, known: Sequence[str]) -> str | None:
    """Gives the newest package version of this driver: 580.126 means 580.126.09, too, and 580.15
    is 580.150 where there is no other (as a number on a command line loses its zeros).
    """
    found = [(row, upstream(row)) for row in known]
    exact = [row for row, here in found if here == version]
    longer = [row for row, here in found if here.startswith(f"{version}.")]
    zeros = [
        row
        for row, here in found
        if "." in version and here.count(".") == 1 and here.rstrip("0") == version
    ]
    return next(iter([*exact, *longer, *zeros]), None)


def wanted(
    family: Sequence[str], known: dict[str, list[str]], version: str, branch: str | None
) -> list[str]:
    """Gives what apt is to be asked for: each package of the family that has that version.

    Others of the family (a firmware package is named by its version) are apt's to exchange.
    """
    found = ((name, _of(version, known.get(name, ()))) for name in
             (in_branch(name, branch) for name in family))  # fmt: skip
    return [f"{name}={exact}" for name, exact in dict.fromkeys(found) if exact]


def of_kernels(found: dict[str, Json], branch: str | None, running: str, more: str | None,
               known: dict[str, list[str]]) -> list[str]:  # fmt: skip
    """Gives the packages that belong to a kernel alone: modules that the distribution has built,
    for the kernels that have them now and for `more`; its image, and the headers that DKMS needs.
    """
    built = [name for name in found if name.startswith("linux-modules-nvidia-")
             and name.endswith(f"-{running}")]  # fmt: skip
    names = [in_branch(name, branch) for name in built]
    if more is not None:
        names += [name.replace(running, more) for name in names]
        names.append(f"linux-image-{more}")
        if any("dkms" in name for name in found):
            names.append(f"linux-headers-{more}")
    return [name for name in names if known.get(name)]
