"""The driver's packages planned, loaded modules, proof."""

from __future__ import annotations

import glob
import os
import re
import sys
from collections.abc import Iterable, Sequence

from node.core import proc, validate
from node.core.errors import CannotRead, Json, NodeError
from node.core.run import Done, TimedOut, run, which
from node.kernel import installed

# What apt would do for a driver of one version: asked by simulation, read, changed nowhere.

APT_TIMEOUT_S = 60.0
# as dpkg's unpack of a foreign architecture names it: libnvidia-gl-580:i386
DRIVER_PACKAGE = re.compile(r"^[a-z0-9][a-z0-9+.-]{1,120}(:[a-z0-9]{2,12})?$")
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


def checked_packages(value: object, where: str) -> str:
    """Gives a version, a branch or an architecture of a request. Raises NodeError."""
    found = validate.text(value, where, 121)
    if not VERSION.match(found):
        raise validate.bad(f"{where}: {found[:60]!r} is none")
    return found


def upstream_version(version: str) -> str:
    """Gives the driver's version in a package's: 580.142 of 580.142-0ubuntu0.24.04.1."""
    return version.rpartition(":")[2].partition("-")[0]


def package_rows(text: str) -> list[Json]:
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


def apt_reason(text: str) -> str:
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
        done = run(argv, APT_TIMEOUT_S)
    except FileNotFoundError:
        raise CannotRead(f"no {argv[0]} on this host; drivers are changed by apt alone") from None
    except TimedOut as error:
        raise CannotRead(f"{what}: {error}") from None
    return done.rc, done.out, done.err


def simulate_apt(wanted: Iterable[str], files: bool = False) -> tuple[list[Json], str | None]:
    """Gives what apt would do for `name=version`, `name-` and paths of .deb files, and its reason
    where it would not. `files`: as if there were nothing but files. Raises CannotRead.
    """
    more = FILES_ALONE if files else ()
    argv = ["apt-get", "-s", "-y", "-q", "--allow-downgrades", "--allow-change-held-packages",
            "--no-install-recommends", *more, "install", *wanted]  # fmt: skip
    rc, out, err = _asked(argv, "apt-get -s")
    return (package_rows(out), None) if rc == 0 else ([], apt_reason(out + "\n" + err))


def package_versions(names: Sequence[str]) -> dict[str, list[str]]:
    """Gives the versions that the package lists have, newest first (apt-cache madison)."""
    found: dict[str, list[str]] = {name: [] for name in names}
    if not names:
        return found
    for line in _asked(["apt-cache", "madison", *names], "apt-cache")[1].splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == 3 and cells[1] not in found.setdefault(cells[0], []):
            found[cells[0]].append(cells[1])
    return found


def held_packages() -> list[str]:
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
    found = [(row, upstream_version(row)) for row in known]
    exact = [row for row, here in found if here == version]
    longer = [row for row, here in found if here.startswith(f"{version}.")]
    zeros = [
        row
        for row, here in found
        if "." in version and here.count(".") == 1 and here.rstrip("0") == version
    ]
    return next(iter([*exact, *longer, *zeros]), None)


def wanted_packages(
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


# The driver's module as the kernel has it: its version, and who has the GPU open.

SYS = "/sys/module"


def loaded_version(name: str) -> str | None:
    """Gives the version of the loaded module, None when it is not loaded."""
    return proc.read_text(f"{SYS}/{name}/version").strip() or None


def driver_users(name: str) -> list[Json]:
    """Gives who has a device file of the driver open: {pid, comm, unit, container}."""
    found = []
    for pid in proc.pids():
        if any(os.path.realpath(path).startswith(f"/dev/{name}") for path in _open(pid)):
            group = proc.cgroup(pid)
            comm = proc.read_text(f"/proc/{pid}/comm").strip()
            found.append({"pid": pid, "comm": comm, "unit": proc.unit_of(group),
                          "container": proc.container_of(group)})  # fmt: skip
    return found


def _open(pid: int) -> list[str]:
    paths = []
    for link in glob.glob(f"/proc/{pid}/fd/*"):
        try:
            paths.append(os.readlink(link))
        except OSError:
            continue
    return [path for path in paths if path.startswith("/dev/")]


# driver prove, driver cdi: the driver works for programs, and in a container by its CDI spec.

SMI_S = 60.0
CUDA_S = 120.0
BOX_S = 180.0
CDI_S = 60.0
DEVICE = re.compile(r"^[a-z0-9.-]+/[a-z0-9-]+=[A-Za-z0-9:._-]+$")
# a context on the first GPU, by the driver's own API (cuda.h); 0 is CUDA_SUCCESS
_CUDA = """\
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
context, device = ctypes.c_void_p(), ctypes.c_int()
for what, said in (
    ("cuInit", cuda.cuInit(0)),
    ("cuDeviceGet", cuda.cuDeviceGet(ctypes.byref(device), 0)),
    ("cuDevicePrimaryCtxRetain", cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)),
    ("cuDevicePrimaryCtxRelease", cuda.cuDevicePrimaryCtxRelease(device)),
):
    if said:
        raise SystemExit(f"{what} gave {said}")
"""


def _ran(what: str, argv: list[str], limit_s: float) -> Done:
    """Gives a command that worked. Raises NodeError (`not_proven`) with its own line."""
    try:
        done = run(argv, limit_s)
    except (FileNotFoundError, TimedOut) as error:
        raise NodeError(f"{what}: {error}", "not_proven") from None
    if done.rc != 0:
        raise NodeError(f"{what}: {_said(done)[:400]}", "not_proven")
    return done


def _said(done: Done) -> str:
    """Gives what a program said in one line. nvidia-smi names the library's version behind its
    reason, docker its own help; of a traceback the last line tells.
    """
    for text in (done.err, done.out):
        lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
        if lines:
            told = [line for line in lines if "--help" not in line]
            return lines[-1] if lines[0].startswith("Traceback") else "; ".join(told)
    return done.last_line()


def prove(request: Json) -> Json:
    """Gives the lines of the proof: module and library, nvidia-smi, a CUDA context, a container.

    `image` and `devices`: a container of that image with these CDI devices runs nvidia-smi.
    Raises NodeError (`not_proven`). Reads and starts programs that end; changes nothing.
    """
    names = ("module", "version", "cuda", "image", "devices")
    body = validate.keys(request, "request", names, names[:3])
    module = validate.name(body["module"], "module")
    version = checked_packages(body["version"], "version")
    here = loaded_version(module)
    if here != version:
        raise NodeError(f"the loaded {module} module is {here or 'none'}, not {version}",
                        "not_proven")  # fmt: skip
    libraries = installed.user_driver(module)
    if libraries != [version]:
        raise NodeError(f"programs load {', '.join(libraries) or 'no library'}, the module is "
                        f"{version}", "not_proven")  # fmt: skip
    lines = [f"module and library are {version}"]
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    said = set(_ran("nvidia-smi", query, SMI_S).out.split())
    if said != {version}:
        raise NodeError(f"nvidia-smi tells {', '.join(sorted(said)) or 'no GPU'}, not {version}",
                        "not_proven")  # fmt: skip
    lines.append("nvidia-smi agrees")
    if validate.boolean(body["cuda"], "cuda"):
        _ran("a CUDA context", [sys.executable, "-c", _CUDA], CUDA_S)
        lines.append("a CUDA context was made")
    devices = validate.array(body.get("devices") or [], "devices", 16)
    if body.get("image") and devices:
        for n, device in enumerate(devices):
            if not DEVICE.match(validate.text(device, f"devices[{n}]", 120)):
                raise validate.bad(f"devices[{n}]: {device[:60]!r} is no CDI device")
        image = validate.image(body["image"], "image")
        asked = [word for device in devices for word in ("--device", device)]
        argv = ["docker", "run", "--rm", "--network", "none", *asked, "--entrypoint", query[0],
                image, *query[1:]]  # fmt: skip
        said = set(_ran("a container with the GPU", argv, BOX_S).out.split())
        if said != {version}:
            raise NodeError(f"in a container nvidia-smi tells {', '.join(sorted(said))}, not "
                            f"{version}", "not_proven")  # fmt: skip
        lines.append("a container has the GPU")
    return {"lines": lines}


def cdi(request: Json) -> Json:
    """Gives a CDI spec for the driver that is loaded now; None without the toolkit.

    Raises NodeError (`no_cdi`).
    """
    validate.keys(request, "request", ())
    if which("nvidia-ctk") is None:
        return {"text": None}
    try:
        done = run(["nvidia-ctk", "cdi", "generate"], CDI_S)
    except TimedOut as error:
        raise NodeError(f"nvidia-ctk: {error}", "no_cdi") from None
    if done.rc != 0 or "devices:" not in done.out:
        raise NodeError(f"nvidia-ctk cdi generate: {done.last_line()[:300]}", "no_cdi")
    return {"text": done.out}
