"""The `grub` step of a change: grub.cfg and the environment block, old or new in whole.

grub-mkconfig and grub-set-default write in place: a power cut in the middle leaves an empty file
and the first entry. Here both are written beside and renamed; update-grub's program makes the text.
Undo ends with a look: the next boot and the default are what the step found, or it fails.
"""

from __future__ import annotations

import contextlib
import hashlib
import os

from node.core import proc, validate
from node.core.errors import Json, NodeError
from node.core.step_kind import Kind, Seen, Steps
from node.core.step_state import DONE, UNDONE, UNKNOWN
from node.files import atomic
from node.kernel import boot_flush, bootloader, grubcfg, grubenv, next_boot, update_grub
from node.kernel import installed as kernel_installed
from node.kernel.next_boot import menu_of

_ENV_KEYS = ("saved_entry", "next_entry", "prev_saved_entry")
# what the environment block, an extra blank and the other temp files need beside grub.cfg
_ROOM = 64 << 10


def _folder() -> str:
    """Gives GRUB's folder. Raises NodeError where there is none."""
    kind, how = bootloader.loader()
    found = bootloader.folder()
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


def entry_of(menu: grubcfg.Menu, kernel: str) -> str:
    """Gives the id path of a kernel's one entry, its kernel and initrd proven to be there."""
    rows = grubcfg.entries_of(menu.entries, kernel)
    known = sorted({str(e["kernel"]) for _, e in grubcfg.flat(menu.entries) if e["kernel"]})
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
    found = [row for row in kernel_installed.installed(None) if row["release"] == kernel]
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
    state, values = bootloader.environment(folder)
    if values is None:
        raise NodeError(
            f"{folder}/grubenv is {state}",
            "grubenv_bad",
            f"sudo grub-editenv {folder}/grubenv create",
        )
    raw_env = proc.read_bytes(f"{folder}/grubenv")
    now = proc.read_bytes(f"{folder}/grub.cfg") or b""
    _require_room(folder, now)
    wanted = update_grub.generated() if step["regenerate"] else now
    env = dict(values)
    menu = menu_of(wanted, env, folder)
    saved = env.get("saved_entry") or None
    if step["saved"] is not None:
        saved = entry_of(menu, step["saved"])
    following = entry_of(menu, step["next"]) if step["next"] is not None else None
    if following is not None and bootloader.place(folder)["sticky"]:
        kind = bootloader.place(folder)["kind"]
        raise NodeError(
            f"/boot lies on {kind}: GRUB cannot take next_entry back, it would boot"
            f" {step['next']} at each start",
            "sticky",
            "pin it for good instead",
        )
    try:
        new_env = grubenv.render(grubenv.changed(env, saved, following))
    except grubenv.Corrupt as error:
        raise NodeError(f"{folder}/grubenv: {error}", "grubenv_full") from None
    _proven(step, wanted, grubenv.parse(new_env), folder)
    return now, wanted, new_env, raw_env


def _proven(step: Json, raw: bytes, env: dict[str, str], folder: str) -> None:
    """Raise NodeError unless GRUB would do with these bytes what the step says."""
    menu = menu_of(raw, env, folder)
    first = bootloader.following(menu, env, "ok")
    text = raw.decode("utf-8", "replace")
    then = bootloader.lasting(menu, env, "ok", text, folder)
    for what, kernel, found in (("next", step["next"] or step["saved"], first),
                                ("default", step["saved"], then)):  # fmt: skip
        # the right kernel by chance (it is the first one) is no pin
        by_chance = what == "default" and not menu.saves
        if kernel is not None and (found["kernel"] != kernel or by_chance):
            source = bootloader.configured()
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
    with atomic.Folder(f"{folder}/{name}") as parent:
        info = parent.lstat()
        owner = atomic.Owner(mode, 0, 0)
        if info is not None:
            owner = atomic.Owner(info.st_mode & 0o7777, info.st_uid, info.st_gid)
        atomic.replace(parent, raw, owner, atomic.temp_name(name))


def _values(raw: bytes | None) -> Json:
    """Gives the entries of a block that name kernels; {} for a missing or corrupt one."""
    try:
        values = grubenv.parse(raw or b"")
    except grubenv.Corrupt:
        return {}
    return {key: values[key] for key in _ENV_KEYS if key in values}


def _sweep(folder: str) -> None:
    """Remove temp files that a kill left in GRUB's folder."""
    for name in os.listdir(folder):
        if name.startswith(atomic.TEMP_PREFIX) and name.endswith(("grub.cfg", "grubenv", ".new")):
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
        pre = {"cfg": atomic.save_blob(now), "env": _digest(raw_env), "values": _values(raw_env)}
        post = {"cfg": _digest(wanted), "env": _digest(new_env)}
        if raw_env is not None:
            atomic.save_blob(raw_env)
        entry = self.record(steps, folder=folder, saved=step["saved"], next=step["next"],
                            pre=pre, post=post)  # fmt: skip
        # the block first: it is inert until grub.cfg asks for it
        if new_env != raw_env:
            _put(folder, "grubenv", new_env, 0o644)
        if now != wanted:
            _put(folder, "grub.cfg", wanted, 0o444)
        boot_flush.flush(folder)
        _proven(step, proc.read_bytes(f"{folder}/grub.cfg") or b"",
                bootloader.environment(folder)[1] or {}, folder)  # fmt: skip
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
        made = update_grub.generated()
        return update_grub.without_language(raw) != update_grub.without_language(made)

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
            boot_flush.flush(folder)
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
        found = next_boot.boots(
            proc.read_bytes(f"{folder}/grub.cfg"), proc.read_bytes(f"{folder}/grubenv"), folder
        )
        if side == "post":
            asked = {"next": entry["next"] or entry["saved"], "default": entry["saved"]}
            return [next_boot.other(what, found[what], kernel) for what, kernel in asked.items()
                    if kernel and found[what]["kernel"] != kernel]  # fmt: skip
        env = None if wanted["env"] is None else atomic.load_blob(wanted["env"])
        before = next_boot.boots(atomic.load_blob(wanted["cfg"]), env, folder)
        return [next_boot.other(what, found[what], before[what]["kernel"] or before[what]["entry"])
                for what in ("next", "default")
                if not next_boot.same(found[what], before[what])]  # fmt: skip


def _menu_back(entry: Json, overwrite: bool) -> list[str]:
    """Put grub.cfg back, or make it anew where it was written since; gives what was done."""
    folder, pre, path = entry["folder"], entry["pre"], f"{entry['folder']}/grub.cfg"
    raw = proc.read_bytes(path)
    if _digest(raw) == pre["cfg"]:
        return []
    if _digest(raw) == entry["post"]["cfg"]:
        _put(folder, "grub.cfg", atomic.load_blob(pre["cfg"]), 0o444)
        return ["grub.cfg restored"]
    made = update_grub.generated()
    if made == raw:
        return []
    if raw is not None and overwrite:
        entry["overwrote"] = atomic.save_blob(raw)
    _require_room(folder, made)
    _put(folder, "grub.cfg", made, 0o444)
    return ["grub.cfg made anew: it was written after the change"]


def _block_back(entry: Json) -> list[str]:
    """Put the environment block back, or its own entries where others wrote since."""
    folder, pre = entry["folder"], entry["pre"]
    raw = proc.read_bytes(f"{folder}/grubenv")
    if _digest(raw) == entry["post"]["env"] and pre["env"] != entry["post"]["env"]:
        if pre["env"] is None:
            with atomic.Folder(f"{folder}/grubenv") as parent:
                parent.unlink("grubenv")
        else:
            _put(folder, "grubenv", atomic.load_blob(pre["env"]), 0o644)
        return ["grubenv restored"]
    if _digest(raw) == pre["env"]:
        return []
    _, values = bootloader.environment(folder)
    kept = {k: v for k, v in (values or {}).items() if k not in _ENV_KEYS}
    wanted = grubenv.render({**kept, **pre["values"]})
    if wanted == raw:
        return []
    _put(folder, "grubenv", wanted, 0o644)
    return ["saved and next entry restored"]
