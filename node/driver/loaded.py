"""The driver's module as the kernel has it: loaded with what depends on it, held, blocked."""

from __future__ import annotations

import glob
import os

from node.core import proc, systemctl
from node.core.errors import Json, NodeError
from node.core.run import Done, TimedOut, run
from node.files import atomic

SYS = "/sys/module"
BLOCK = "/etc/modprobe.d/zz-rigbook-driver.conf"
# they hold the module or follow it, and start again with it
DAEMONS = (
    "nvidia-persistenced.service",
    "nvidia-fabricmanager.service",
    "nvidia-dcgm.service",
    "dcgm.service",
    "nvidia-cdi-refresh.service",
)
# NVIDIA's own, those that others load first at the end; other modules follow by their holders
_FAMILY = ("{}", "{}_modeset", "{}_drm", "{}_uvm", "{}_peermem", "{}_fs")
TIMEOUT_S = 90.0
_TEXT = """\
# Made by rigbook while the driver is changed: no boot loads half of one. It goes with the change:
# `rignode undo` takes it away.
{lines}
"""


def _folder(name: str) -> str:
    return os.path.join(SYS, name)


def is_loaded(name: str) -> bool:
    """Gives True while the kernel has the module, coming and going included."""
    return os.path.isdir(_folder(name)) and os.path.exists(os.path.join(_folder(name), "refcnt"))


def version(name: str) -> str | None:
    """Gives the version of the loaded module, None when it is not loaded."""
    if not is_loaded(name):
        return None
    return proc.read_text(os.path.join(_folder(name), "version")).strip() or None


def holders(name: str) -> list[str]:
    """Gives the loaded modules that use this one."""
    try:
        return sorted(os.listdir(os.path.join(_folder(name), "holders")))
    except OSError:
        return []


def parts(name: str) -> list[Json]:
    """Gives the loaded modules of the driver, in the order of a load: {name, refs, holders}."""
    found: list[str] = []

    def take(one: str) -> None:
        if one in found:
            found.remove(one)
        found.append(one)
        for user in holders(one):
            take(user)

    for pattern in _FAMILY:
        one = pattern.format(name)
        if is_loaded(one) and one not in found:
            take(one)
    rows = []
    for one in found:
        refs = proc.read_text(os.path.join(_folder(one), "refcnt")).strip()
        rows.append({"name": one, "refs": int(refs) if refs.lstrip("-").isdigit() else 0,
                     "holders": holders(one)})  # fmt: skip
    return rows


def users(name: str) -> list[Json]:
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


def is_blocked() -> bool:
    """Gives True while no load of the module passes, and no boot loads it."""
    return os.path.exists(BLOCK)


def block(name: str) -> None:
    """Refuse every load of the driver's modules, also at the next boots. Raises OSError."""
    names = dict.fromkeys([pattern.format(name) for pattern in _FAMILY])
    lines = "\n".join(f"install {one} /bin/false" for one in names)
    with atomic.Folder(BLOCK) as folder:
        raw = _TEXT.format(lines=lines).encode("ascii")
        atomic.replace(folder, raw, atomic.Owner(0o644, 0, 0), atomic.temp_name(folder.name))


def unblock() -> None:
    """Let the module be loaded again. Raises OSError."""
    with atomic.Folder(BLOCK) as folder:
        if os.path.lexists(BLOCK):
            folder.unlink(folder.name)


def _try(*words: str) -> Done:
    try:
        return run(words, TIMEOUT_S)
    except (FileNotFoundError, TimedOut) as error:
        raise NodeError(f"{words[0]}: {error}", "module_failed") from None


def running_daemons() -> list[str]:
    """Gives those of the driver's own services that run now."""
    if not os.path.isdir(systemctl.BOOTED):
        return []
    rows = ((unit, systemctl.inspect_unit(unit)) for unit in DAEMONS)
    return [unit for unit, seen in rows if seen["load"] == "loaded" and systemctl.is_running(seen)]


def unload(name: str) -> None:
    """Take the driver's modules out of the kernel, its own services first.

    Raises NodeError (`module_busy`) with who holds which.
    """
    for unit in running_daemons():
        systemctl.end(unit)
    for row in reversed(parts(name)):
        done = _try("rmmod", row["name"])
        if done.rc != 0 and is_loaded(row["name"]):
            who = ", ".join(f"{one['comm']} (pid {one['pid']})" for one in users(name)[:5])
            raise NodeError(f"{row['name']} cannot be unloaded: {done.last_line()}; held by "
                            f"{who or 'the kernel itself, such as its console'}",
                            "module_busy", "end what holds the GPU, or boot once")  # fmt: skip


def load(name: str, wanted: str | None, more: list[str], daemons: list[str]) -> str:
    """Load the driver's modules, the first one and `more`; gives what was done in words.

    Raises NodeError (`module_failed`, `module_version`) where it does not load, or as another
    version than `wanted`.
    """
    unblock()
    for one in dict.fromkeys([name, *more]):
        done = _try("modprobe", one)
        if done.rc != 0 and one == name:
            raise NodeError(f"modprobe {one}: {done.last_line()}{_kernel_said(name)}",
                            "module_failed", "sudo dmesg | tail")  # fmt: skip
    found = version(name)
    if not is_loaded(name) or (wanted is not None and found != wanted):
        raise NodeError(f"the loaded {name} module is {found or 'none'}, not {wanted}",
                        "module_version", f"modinfo -F version {name}")  # fmt: skip
    failed = [unit for unit in daemons if not _restarted(unit)]
    told = f"; did not start: {', '.join(failed)}" if failed else ""
    return f"{name} {found or ''} is loaded{told}"


def _restarted(unit: str) -> bool:
    try:
        systemctl.begin("restart", unit)
    except NodeError:
        return False
    return True


def _kernel_said(name: str) -> str:
    """Gives the kernel's last line about the module, with what leads to it; "" for none."""
    try:
        lines = run(["dmesg", "-t"], TIMEOUT_S).out.splitlines()
    except (FileNotFoundError, TimedOut):
        return ""
    found = [line for line in lines if name in line.lower() or "module verification" in line]
    return f"; the kernel says: {found[-1][:200]}" if found else ""
