"""The `grub` step of a change: grub.cfg and the environment block, old or new in whole.

grub-mkconfig and grub-set-default write in place: a power cut in the middle leaves an empty file
and the first entry. Here both are written beside and renamed; update-grub's program makes the text.
Undo ends with a look: the next boot and the default are what the step found, or it fails.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import re
import select
import shutil
import time
from typing import Any

from node.change.journal import DONE, UNDONE, UNKNOWN
from node.change.kinds import Kind, Seen, Steps, differing
from node.core import errors, files, proc, validate
from node.core.errors import Json, NodeError
from node.core.files import Lock, private_folder
from node.core.run import TimedOut, run
from node.kernel import boot, installed
from node.kernel.boot import menu_of

# Bring what was written below /boot to where GRUB sees it: GRUB replays no journal.
#
# A rename that stands only in the filesystem's journal is invisible to GRUB after a power cut, or
# half visible. Freezing and thawing the filesystem writes the journal out (as OSTree does).

_FREEZE = 0xC0045877
_THAW = 0xC0045878
# a frozen root filesystem stops the whole machine: nobody may keep it for longer
_LIMIT_S = 10.0


def flush_boot(folder: str) -> bool:
    """Flush the filesystem of a folder; gives whether its journal was written out, too."""
    os.sync()
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return _frozen_once(fd)
    finally:
        os.close(fd)


def _frozen_once(fd: int) -> bool:
    """Freeze and thaw; a second process thaws when this one dies in between."""
    read, write = os.pipe()
    guard = os.fork()
    if guard == 0:
        try:
            os.close(write)
            select.select([read], [], [], _LIMIT_S)
            with contextlib.suppress(OSError):
                fcntl.ioctl(fd, _THAW, 0)
        finally:
            os._exit(0)
    os.close(read)
    done = False
    try:
        # another filesystem than ext4, XFS and their like, or no right to: sync was all there is
        with contextlib.suppress(OSError):
            fcntl.ioctl(fd, _FREEZE, 0)
            done = True
            fcntl.ioctl(fd, _THAW, 0)
    finally:
        os.close(write)
        os.waitpid(guard, 0)
    return done


# The grub.cfg that the host's own update-grub would write now; nothing is installed.
#
# Titles are translated, and /etc/default/grub may name one: it runs in the host's locale, not in
# that
# of whoever asks.

MKCONFIG_S = 300.0
PREFIX = "rigbook-grub-"
# Debian's and Ubuntu's, then systemd's
LOCALE_FILES = ("/etc/default/locale", "/etc/locale.conf")
_LOCALE = re.compile(r"^\s*(?:export\s+)?(LANG|LANGUAGE|LC_[A-Z]+)=[\"']?([\w.@:-]*)[\"']?\s*$")
# what depends on the language: titles, and the lines that echo, translate or compare them
_TITLE = re.compile(r"^(\s*(?:menuentry|submenu) )(?:'[^']*'|\\')+")
_SPOKEN = re.compile(
    r"^\s*(?:echo\s|set (?:lang|locale_dir)=|insmod gettext$|if \[ \"x\$default\" = ')"
)


def locale() -> dict[str, str]:
    """Gives the locale of this host's services: of its files, else of systemd itself; {} for C."""
    texts = [proc.read_text(path) for path in LOCALE_FILES]
    with contextlib.suppress(FileNotFoundError, TimedOut):
        texts.append(run(["systemctl", "show-environment"], 10).out)
    for text in texts:
        found = {m[1]: m[2] for m in map(_LOCALE.match, text.splitlines()) if m and m[2]}
        if found:
            return found
    return {}


def generated_cfg() -> bytes:
    """Gives the grub.cfg that update-grub would write; nothing below /boot is touched.

    Raises NodeError (`update_grub_failed`).
    """
    program = shutil.which("grub-mkconfig", path="/usr/sbin:/usr/bin:/sbin:/bin")
    if program is None:
        raise NodeError("there is no grub-mkconfig", "update_grub_failed",
                        "apt-get install --reinstall grub-common")  # fmt: skip
    with private_folder(PREFIX) as folder:
        target = os.path.join(folder, "grub.cfg")
        try:
            done = run([program, "-o", target], MKCONFIG_S, locale())
        except TimedOut as error:
            raise NodeError(f"update-grub: {error}", "update_grub_failed") from None
        raw = proc.read_bytes(target)
    if done.rc != 0 or not raw:
        raise NodeError(f"update-grub failed: {done.last_line()}", "update_grub_failed",
                        "sudo update-grub, and mend what it says")  # fmt: skip
    return raw


def without_language(raw: bytes) -> str:
    """Gives a grub.cfg without what depends on the language in which it was made."""
    lines = raw.decode("utf-8", "replace").splitlines()
    return "\n".join(_TITLE.sub(r"\1", line) for line in lines if not _SPOKEN.match(line))


_ENV_KEYS = ("saved_entry", "next_entry", "prev_saved_entry")
# what the environment block, an extra blank and the other temp files need beside grub.cfg
_ROOM = 64 << 10


def _folder() -> str:
    """Gives GRUB's folder. Raises NodeError where there is none."""
    kind, how = boot.loader()
    found = boot.boot_folder()
    if kind != "grub" or found is None:
        raise NodeError(f"this host does not boot by GRUB: {kind} ({how})", "no_grub")
    return found


def _digest(raw: bytes | None) -> str | None:
    return None if raw is None else hashlib.sha256(raw).hexdigest()


def _require_room(folder: str, raw: bytes) -> None:
    """Raise NodeError (`boot_full`) where a second grub.cfg has no room beside the first."""
    free = os.statvfs(folder)
    if free.f_bavail * free.f_frsize < 2 * len(raw) + _ROOM:
        raise NodeError(f"no room in {folder} for another grub.cfg", "boot_full",
                        "remove an old kernel: apt-get autoremove --purge")  # fmt: skip


def entry_of(menu: boot.Menu, kernel: str) -> str:
    """Gives the id path of a kernel's one entry, its kernel and initrd proven to be there."""
    rows = boot.entries_of(menu.entries, kernel)
    known = sorted({str(e["kernel"]) for _, e in boot.flat_entries(menu.entries) if e["kernel"]})
    if not rows:
        raise NodeError(
            f"GRUB's menu has no entry for {kernel}; it has: {', '.join(known) or 'none'}",
            "no_entry",
            "sudo update-grub, or name an installed kernel",
        )
    if len(rows) > 1:
        paths = ", ".join(path for path, _ in rows)
        raise NodeError(f"GRUB's menu has {len(rows)} entries for {kernel}: {paths}", "two_entries",
                        "leave one of them in /etc/grub.d, then sudo update-grub")  # fmt: skip
    found = [row for row in installed.installed(None) if row["release"] == kernel]
    if not found or not found[0]["vmlinuz"]:
        raise NodeError(f"/boot/vmlinuz-{kernel} is not there", "no_kernel",
                        f"sudo apt-get install --reinstall linux-image-{kernel}")  # fmt: skip
    if rows[0][1]["initrd"] and not found[0]["initrd"]:
        raise NodeError(f"/boot/initrd.img-{kernel} is not there or empty", "no_initrd",
                        f"sudo update-initramfs -c -k {kernel}")  # fmt: skip
    return rows[0][0]


def _wanted(step: Json, folder: str) -> tuple[bytes, bytes, bytes, bytes | None]:
    """Gives (grub.cfg now, as wanted; grubenv as wanted, now or None). Raises NodeError."""
    # before update-grub, which makes a missing block by itself
    state, values = boot.environment(folder)
    if values is None:
        raise NodeError(
            f"{folder}/grubenv is {state}",
            "grubenv_bad",
            f"sudo grub-editenv {folder}/grubenv create",
        )
    raw_env = proc.read_bytes(f"{folder}/grubenv")
    now = proc.read_bytes(f"{folder}/grub.cfg") or b""
    _require_room(folder, now)
    wanted = generated_cfg() if step["regenerate"] else now
    env = dict(values)
    menu = menu_of(wanted, env, folder)
    saved = env.get("saved_entry") or None
    if step["saved"] is not None:
        saved = entry_of(menu, step["saved"])
    following = entry_of(menu, step["next"]) if step["next"] is not None else None
    if following is not None and boot.place_of_env(folder)["sticky"]:
        kind = boot.place_of_env(folder)["kind"]
        raise NodeError(
            f"/boot lies on {kind}: GRUB cannot take next_entry back, it would boot"
            f" {step['next']} at each start",
            "sticky",
            "pin it for good instead",
        )
    try:
        new_env = boot.render_env(boot.changed_env(env, saved, following))
    except boot.CorruptEnv as error:
        raise NodeError(f"{folder}/grubenv: {error}", "grubenv_full") from None
    _proven(step, wanted, boot.parse_env(new_env), folder)
    return now, wanted, new_env, raw_env


def _proven(step: Json, raw: bytes, env: dict[str, str], folder: str) -> None:
    """Raise NodeError unless GRUB would do with these bytes what the step says."""
    menu = menu_of(raw, env, folder)
    first = boot.following_boot(menu, env, "ok")
    text = raw.decode("utf-8", "replace")
    then = boot.lasting_boot(menu, env, "ok", text, folder)
    for what, kernel, found in (("next", step["next"] or step["saved"], first),
                                ("default", step["saved"], then)):  # fmt: skip
        # the right kernel by chance (it is the first one) is no pin
        by_chance = what == "default" and not menu.saves
        if kernel is not None and (found["kernel"] != kernel or by_chance):
            source = boot.configured()
            would = f"{found['kernel']}, not {kernel}"
            if found["kernel"] == kernel:
                would = f"{kernel}, but not because it is saved"
            raise NodeError(
                f"with this the {what} boot would be {would}:"
                f" {found['why']}; GRUB_DEFAULT={source['value']} in {source['file']}",
                "not_effective",
                "look for a later GRUB_DEFAULT in /etc/default/grub.d, or a default in /etc/grub.d",
            )


def _put(folder: str, name: str, raw: bytes, mode: int) -> None:
    """Replace a file of GRUB's folder; its owner and mode stay where it is there."""
    with files.Folder(f"{folder}/{name}") as parent:
        info = parent.lstat()
        owner = files.Owner(mode, 0, 0)
        if info is not None:
            owner = files.Owner(info.st_mode & 0o7777, info.st_uid, info.st_gid)
        files.replace(parent, raw, owner, files.temp_name(name))


def _values(raw: bytes | None) -> Json:
    """Gives the entries of a block that name kernels; {} for a missing or corrupt one."""
    try:
        values = boot.parse_env(raw or b"")
    except boot.CorruptEnv:
        return {}
    return {key: values[key] for key in _ENV_KEYS if key in values}


def _sweep(folder: str) -> None:
    """Remove temp files that a kill left in GRUB's folder."""
    for name in os.listdir(folder):
        if name.startswith(files.TEMP_PREFIX) and name.endswith(("grub.cfg", "grubenv", ".new")):
            os.unlink(os.path.join(folder, name))


def _now(folder: str) -> dict[str, str | None]:
    """Gives the digests of the two files as they are now."""
    return {"cfg": _digest(proc.read_bytes(f"{folder}/grub.cfg")),
            "env": _digest(proc.read_bytes(f"{folder}/grubenv"))}  # fmt: skip


class GrubKind(Kind):
    """The kernel of the next boot or of every boot, and a menu made anew."""

    keys = ("saved", "next", "regenerate")

    def parse(self, step: Json, where: str) -> Json:
        """Gives a step with every value checked."""
        out: Json = {"op": self.op}
        for key in ("saved", "next"):
            value = step.get(key)
            out[key] = None if value is None else validate.release(value, f"{where}.{key}")
        out["regenerate"] = validate.boolean(step.get("regenerate", False), f"{where}.regenerate")
        if out["saved"] is None and out["next"] is None and not out["regenerate"]:
            raise validate.bad(f"{where}: names neither saved nor next and regenerates nothing")
        return out

    def describe(self, entry: Json) -> str:
        """Names the kernel that is to boot."""
        if entry.get("next"):
            return f"grub next boot {entry['next']}"
        return f"grub default {entry['saved']}" if entry.get("saved") else "grub.cfg"

    def plan(self, step: Json, seen: Seen) -> tuple[bool, str]:
        """Gives whether the step would change something; makes grub.cfg beside and removes it."""
        now, wanted, new_env, raw_env = _wanted(step, _folder())
        return now != wanted or new_env != raw_env, "would change"

    def do(self, step: Json, steps: Steps) -> tuple[bool, str]:
        """Do the step; says what GRUB boots now."""
        folder = _folder()
        _sweep(folder)
        now, wanted, new_env, raw_env = _wanted(step, folder)
        words = f"next {step['next']}" if step["next"] else f"default {step['saved']}"
        if now == wanted and new_env == raw_env:
            return False, f"{words}, as wanted"
        pre = {"cfg": files.save_blob(now), "env": _digest(raw_env), "values": _values(raw_env)}
        post = {"cfg": _digest(wanted), "env": _digest(new_env)}
        if raw_env is not None:
            files.save_blob(raw_env)
        entry = self.record(steps, folder=folder, saved=step["saved"], next=step["next"],
                            pre=pre, post=post)  # fmt: skip
        # the block first: it is inert until grub.cfg asks for it
        if new_env != raw_env:
            _put(folder, "grubenv", new_env, 0o644)
        if now != wanted:
            _put(folder, "grub.cfg", wanted, 0o444)
        flush_boot(folder)
        _proven(step, proc.read_bytes(f"{folder}/grub.cfg") or b"",
                boot.environment(folder)[1] or {}, folder)  # fmt: skip
        steps.finish(entry)
        return True, words

    def recover(self, entry: Json, rows: list[Json]) -> str:
        """Both files are old, both are new, or (unknown) a kill came between the two."""
        with contextlib.suppress(OSError):  # it may be read-only by now
            _sweep(entry["folder"])
        now = _now(entry["folder"])
        if now == entry["post"]:
            return DONE
        return UNDONE if now == {key: entry["pre"][key] for key in now} else UNKNOWN

    def conflicts(self, entry: Json, seen: Seen) -> bool:
        """Gives whether grub.cfg was edited by hand: neither as the step found or left it, nor what
        update-grub makes in any language, as apt does with each kernel.
        """
        folder = entry["folder"]
        # what rignode undo --overwrite names
        entry["path"] = f"{folder}/grub.cfg"
        raw = proc.read_bytes(entry["path"])
        if raw is None or _digest(raw) in (entry["pre"]["cfg"], entry["post"]["cfg"]):
            return False
        made = generated_cfg()
        return without_language(raw) != without_language(made)

    def revert(self, entry: Json, overwrite: bool) -> str:
        """Put back what the step found, and look.

        Byte for byte where nobody wrote since. Else the step's own part: GRUB itself clears
        next_entry, and apt writes grub.cfg anew for each kernel. Raises NodeError (`other_boot`)
        when GRUB would then boot another kernel than before the step.
        """
        folder = entry["folder"]
        _sweep(folder)
        said = [*_menu_back(entry, overwrite), *_block_back(entry)]
        if said:
            flush_boot(folder)
        lines = self.verify(entry, "pre")
        if lines:
            raise NodeError("; ".join(lines), "other_boot",
                            "make it boot what was, then: rignode undo")  # fmt: skip
        return ", ".join(said) or "was as before"

    def verify(self, entry: Json, side: str) -> list[str]:
        """Gives which boot is not as recorded; files that are so to the byte boot the same."""
        folder, wanted = entry["folder"], entry[side]
        now = _now(folder)
        if now == {key: wanted[key] for key in now}:
            return []
        found = boot.boots_next(
            proc.read_bytes(f"{folder}/grub.cfg"), proc.read_bytes(f"{folder}/grubenv"), folder
        )
        if side == "post":
            asked = {"next": entry["next"] or entry["saved"], "default": entry["saved"]}
            return [boot.other_boot(what, found[what], kernel) for what, kernel in asked.items()
                    if kernel and found[what]["kernel"] != kernel]  # fmt: skip
        env = None if wanted["env"] is None else files.load_blob(wanted["env"])
        before = boot.boots_next(files.load_blob(wanted["cfg"]), env, folder)
        return [boot.other_boot(what, found[what], before[what]["kernel"] or before[what]["entry"])
                for what in ("next", "default")
                if not boot.same_boot(found[what], before[what])]  # fmt: skip


def _menu_back(entry: Json, overwrite: bool) -> list[str]:
    """Put grub.cfg back, or make it anew where it was written since; gives what was done."""
    folder, pre, path = entry["folder"], entry["pre"], f"{entry['folder']}/grub.cfg"
    raw = proc.read_bytes(path)
    if _digest(raw) == pre["cfg"]:
        return []
    if _digest(raw) == entry["post"]["cfg"]:
        _put(folder, "grub.cfg", files.load_blob(pre["cfg"]), 0o444)
        return ["grub.cfg restored"]
    made = generated_cfg()
    if made == raw:
        return []
    if raw is not None and overwrite:
        entry["overwrote"] = files.save_blob(raw)
    _require_room(folder, made)
    _put(folder, "grub.cfg", made, 0o444)
    return ["grub.cfg made anew: it was written after the change"]


def _block_back(entry: Json) -> list[str]:
    """Put the environment block back, or its own entries where others wrote since."""
    folder, pre = entry["folder"], entry["pre"]
    raw = proc.read_bytes(f"{folder}/grubenv")
    if _digest(raw) == entry["post"]["env"] and pre["env"] != entry["post"]["env"]:
        if pre["env"] is None:
            with files.Folder(f"{folder}/grubenv") as parent:
                parent.unlink("grubenv")
        else:
            _put(folder, "grubenv", files.load_blob(pre["env"]), 0o644)
        return ["grubenv restored"]
    if _digest(raw) == pre["env"]:
        return []
    _, values = boot.environment(folder)
    kept = {k: v for k, v in (values or {}).items() if k not in _ENV_KEYS}
    wanted = boot.render_env({**kept, **pre["values"]})
    if wanted == raw:
        return []
    _put(folder, "grubenv", wanted, 0o644)
    return ["saved and next entry restored"]


# candidate: on a kernel that is tried once, wait until it is blessed, else fail: systemd reboots.
#
# The unit's FailureAction does the reboot, so a fault of this program ends at the pinned kernel,
# too.

PATH = "/etc/rigbook/candidate.json"
POLL_S = 2.0
# a deploy that blesses at this moment holds the lock
LOCK_S = 120.0
PROGRESS_S = 60.0


def _read() -> Any:
    """Gives the candidate's facts; None once it was blessed (the file is gone)."""
    raw = proc.read_bytes(os.environ.get("RIGBOOK_CANDIDATE") or PATH)
    if raw is None:
        return None
    try:
        found = json.loads(raw)
    except ValueError:
        raise NodeError(f"{PATH} is damaged", "bad_request") from None
    names = ("format", "candidate", "pinned", "budget_s", "change")
    validate.keys(found, PATH, names, names)
    for key in ("candidate", "pinned"):
        validate.release(found[key], f"{PATH}: {key}")
    validate.number(found["budget_s"], f"{PATH}: budget_s", 1, 86400)
    return found


def under_trial() -> str | None:
    """Gives the candidate that runs now and is not blessed yet, or None. Raises NodeError."""
    facts = _read()
    running = platform.release()
    return running if facts is not None and facts["candidate"] == running else None


def _uptime() -> float:
    """Gives the seconds since the kernel's start: the budget counts from there."""
    return float(proc.read_text("/proc/uptime").split()[0])


def run_candidate() -> None:
    """Wait for the blessing. Raises NodeError when it does not come within the budget."""
    facts = _read()
    if facts is None:
        errors.log("candidate: nothing to wait for")
        return
    running = platform.release()
    if running != facts["candidate"]:
        errors.log(
            f"candidate: {facts['candidate']} was not blessed; {running} runs again;"
            f" undo with: rignode undo {facts['change']}"
        )
        return
    _wait(facts)


def _wait(facts: Json) -> None:
    """Wait until the file is gone, up to the budget."""
    told = -PROGRESS_S
    while _read() is not None:
        left = facts["budget_s"] - _uptime()
        if left <= 0:
            # under the lock: a blessing that is under way goes first
            with Lock("candidate falls back", LOCK_S):
                if _read() is None:
                    break
                raise NodeError(
                    f"{facts['candidate']} was not blessed within {facts['budget_s']} s:"
                    f" back to {facts['pinned']}",
                    "not_blessed",
                )
        if time.monotonic() - told >= PROGRESS_S:
            told = time.monotonic()
            errors.log(f"candidate: {facts['candidate']} has {left:.0f} s to be blessed")
        time.sleep(POLL_S)
    errors.log(f"candidate: {facts['candidate']} is blessed")


# The `hold` step of a change: apt holds of packages, and the way back.

TIMEOUT_S = 60.0


def _selections(names: list[str]) -> dict[str, str]:
    """Gives name → what dpkg wants of it (hold, install …), for packages that are there."""
    if not names:
        return {}
    fields = "-f=${Package} ${db:Status-Want} ${db:Status-Status}\\n"
    try:
        done = run(["dpkg-query", "-W", fields, *names], TIMEOUT_S)
    except (FileNotFoundError, TimedOut) as error:
        raise NodeError(f"dpkg-query: {error}", "hold_failed") from None
    rows = [line.split() for line in done.out.splitlines()]
    return {row[0]: row[1] for row in rows if len(row) == 3 and row[2] != "not-installed"}


def _mark(names: list[str], held: bool) -> None:
    """Hold or unhold packages. Raises NodeError with apt-mark's last line."""
    verb = "hold" if held else "unhold"
    try:
        done = run(["apt-mark", verb, *names], TIMEOUT_S)
    except (FileNotFoundError, TimedOut) as error:
        raise NodeError(f"apt-mark {verb}: {error}", "hold_failed") from None
    now = _selections(names)
    wrong = [name for name in names if (now.get(name) == "hold") != held]
    if done.rc != 0 or wrong:
        raise NodeError(f"apt-mark {verb} {' '.join(wrong or names)}: {done.last_line()}"[:400],
                        "hold_failed", "wait until apt is done, then run again")  # fmt: skip


def _to_change(step: Json) -> list[str]:
    """Gives the packages whose hold is not as wanted. Raises NodeError for an absent one."""
    now = _selections(step["packages"])
    gone = [name for name in step["packages"] if name not in now]
    if gone and step["held"]:
        raise NodeError(f"not installed: {', '.join(gone)}", "no_package")
    return [name for name in now if (now[name] == "hold") != step["held"]]


def _words(held: bool, names: list[str]) -> str:
    return f"{'hold' if held else 'unhold'} {' '.join(names)}"


class AptHoldKind(Kind):
    """Packages that apt is to leave alone, or no longer."""

    keys = ("packages", "held")

    def parse(self, step: Json, where: str) -> Json:
        """Gives a step with every value checked."""
        names = validate.array(step.get("packages"), f"{where}.packages", 100)
        for n, name in enumerate(names):
            if not installed.KERNEL_PACKAGE.match(
                validate.text(name, f"{where}.packages[{n}]", 121)
            ):
                raise validate.bad(f"{where}.packages[{n}]: {name[:60]!r} is not a package's name")
        held = validate.boolean(step.get("held", True), f"{where}.held")
        return {"op": self.op, "packages": sorted(set(names)), "held": held}

    def describe(self, entry: Json) -> str:
        """Names the packages."""
        return _words(entry["held"], entry["packages"])

    def plan(self, step: Json, seen: Seen) -> tuple[bool, str]:
        """Gives whether the step would change something; reads only."""
        return bool(_to_change(step)), "would change"

    def do(self, step: Json, steps: Steps) -> tuple[bool, str]:
        """Hold or unhold the packages that are not so yet."""
        names = _to_change(step)
        if not names:
            return False, "as wanted"
        entry = self.record(steps, packages=names, held=step["held"])
        _mark(names, step["held"])
        steps.finish(entry)
        return True, _words(step["held"], names)

    def recover(self, entry: Json, rows: list[Json]) -> str:
        """All of them are held, none is, or (unknown) some are."""
        now = _selections(entry["packages"])
        states = {(state == "hold") == entry["held"] for state in now.values()}
        if states == {True}:
            return DONE
        return UNDONE if states in ({False}, set()) else UNKNOWN

    def revert(self, entry: Json, overwrite: bool) -> str:
        """Put the holds back to what the step found."""
        now = _selections(entry["packages"])
        names = [name for name in now if (now[name] == "hold") == entry["held"]]
        if not names:
            return "was as before"
        _mark(names, not entry["held"])
        return _words(not entry["held"], names)

    def about(self, entry: Json) -> str:
        """Gives the packages."""
        return f"hold {' '.join(entry['packages'])}"

    def verify(self, entry: Json, side: str) -> list[str]:
        """Gives the packages whose hold is not as recorded; a removed one has none."""
        wanted = entry["held"] == (side == "post")
        now = _selections(entry["packages"])
        return [line for name in now
                for line in differing(f"{name} held", now[name] == "hold", wanted)]  # fmt: skip
