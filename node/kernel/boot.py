"""Which kernel boots next, read from GRUB."""

from __future__ import annotations

import glob
import os
import platform
import re
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from node.core import proc, validate
from node.core.errors import CannotRead, Json, NodeError, io_reason
from node.core.run import TimedOut
from node.kernel import installed
from node.rules import secret

# Read a generated grub.cfg: its menu by ids and nesting, and the default that it would choose.
#
# Titles are translated, ids are not (/etc/grub.d/10_linux). Pure: text in, plain data out.

_ID_OPTIONS = ("$menuentry_id_option", "${menuentry_id_option}", "--id")
_RELEASE = re.compile(r"^(?:vmlinuz|vmlinux|kernel|Image)-(.+)$")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}|\$([A-Za-z_][A-Za-z0-9_]*)")
_BREAKS = ("\n", ";")


class Malformed(ValueError):
    """The text is no grub.cfg in whole; the message names the line."""


class Word(NamedTuple):
    """A word of the script: its text, its line, and whether it came with quotes."""

    text: str
    line: int
    quoted: bool


class Statement(NamedTuple):
    """A command with its words, and the block behind it where it opens one."""

    words: list[Word]
    block: list[Statement] | None


def words_of(text: str) -> Iterator[Word]:
    """Gives the script's words; line ends, `;`, `{` and `}` come as words of their own."""
    at, line, size = 0, 1, len(text)
    while at < size:
        char = text[at]
        if char == "\n" or char == ";":
            yield Word(char, line, False)
            line += char == "\n"
            at += 1
        elif char in " \t\r":
            at += 1
        elif char == "#":
            end = text.find("\n", at)
            at = size if end < 0 else end
        else:
            begun = line
            found, quoted, at, line = _word(text, at, line)
            yield Word(found, begun, quoted)


def _word(text: str, at: int, line: int) -> tuple[str, bool, int, int]:
    """Gives one word from `at`: its text, whether it was quoted, the place behind it, the line."""
    out: list[str] = []
    quoted, begun = False, line
    while at < len(text) and text[at] not in " \t\r\n;":
        char = text[at]
        if char in "'\"":
            quoted = True
            at += 1
            while at < len(text) and text[at] != char:
                if char == '"' and text[at] == "\\" and at + 1 < len(text):
                    at += 1
                line += text[at] == "\n"
                out.append(text[at])
                at += 1
            if at >= len(text):
                raise Malformed(f"line {begun}: a quote that never ends")
            at += 1
        elif char == "\\" and at + 1 < len(text):
            quoted = True
            if text[at + 1] != "\n":
                out.append(text[at + 1])
            line += text[at + 1] == "\n"
            at += 2
        else:
            out.append(char)
            at += 1
    return "".join(out), quoted, at, line


def parse_cfg(text: str) -> list[Statement]:
    """Gives the script's statements. Raises Malformed where blocks or quotes do not close."""
    stack: list[list[Statement]] = [[]]
    opened: list[int] = []
    now: list[Word] = []

    def end() -> None:
        if now:
            stack[-1].append(Statement(list(now), None))
            now.clear()

    for word in words_of(text):
        if not word.quoted and word.text in _BREAKS:
            end()
        elif not word.quoted and word.text == "{":
            block: list[Statement] = []
            stack[-1].append(Statement(list(now), block))
            now.clear()
            stack.append(block)
            opened.append(word.line)
        elif not word.quoted and word.text == "}":
            end()
            if not opened:
                raise Malformed(f"line {word.line}: a block is closed that was never opened")
            opened.pop()
            stack.pop()
        else:
            now.append(word)
    end()
    if opened:
        raise Malformed(f"line {opened[-1]}: a block that never ends")
    return stack[0]


def _expand(text: str, env: dict[str, str]) -> str:
    """Gives the text with GRUB's variables put in; unset ones are empty."""
    return _VARIABLE.sub(lambda m: env.get(m[1] or m[2], ""), text)


class Menu:
    """A grub.cfg as GRUB runs it with a given environment block.

    `entries` are the menu: {id, title, submenu, kernel, linux, options, initrd, root, entries}.
    `default` is the value of GRUB's variable, None where only GRUB itself can know it; then
    `unknown` says why. `once` is true when the default comes from next_entry. `saves` tells
    whether the file sets its default from saved_entry.
    """

    def __init__(self, text: str, env: dict[str, str] | None, custom: str = "") -> None:
        self.entries: list[Json] = []
        self.default: str | None = ""
        self.unknown = ""
        self.once = False
        self.saves = False
        self._block = env
        self._custom = custom
        self._env: dict[str, str] = {"feature_menuentry_id": "y", "feature_default_font_path": "y"}
        statements = parse_cfg(text)
        if not any(s.words and s.words[0].text in ("menuentry", "submenu") for s in statements):
            raise Malformed("it holds no menu entry")
        self._run(statements)

    def _run(self, statements: list[Statement]) -> None:
        """Run the top of the file: conditions, `set`, `load_env`, the menu."""
        # one item an open `if`: [has this branch the word, has an earlier one had it]
        ifs: list[list[bool | None]] = []
        for words, block in statements:
            row = list(words)
            while row and not row[0].quoted and row[0].text in ("then", "else", "do"):
                if row[0].text == "else" and ifs:
                    taken = ifs[-1][1]
                    ifs[-1][0] = None if taken is None else not taken
                row = row[1:]
            if not row:
                continue
            name = row[0].text
            if name == "if":
                value = self._test(row[1:])
                ifs.append([value, value])
            elif name == "elif" and ifs:
                taken, value = ifs[-1][1], self._test(row[1:])
                ifs[-1][0] = False if taken else (None if taken is None else value)
                ifs[-1][1] = True if taken or value else (None if None in (taken, value) else False)
            elif name == "fi":
                if not ifs:
                    raise Malformed(f"line {row[0].line}: `fi` without `if`")
                ifs.pop()
            else:
                live: bool | None = True
                for branch in ifs:
                    if branch[0] is False:
                        live = False
                        break
                    if branch[0] is None:
                        live = None
                self._do(row, block, live)
        if ifs:
            raise Malformed("an `if` that never ends")

    def _do(self, row: list[Word], block: list[Statement] | None, live: bool | None) -> None:
        """Do one command; `live` None: only GRUB knows whether it runs."""
        name = row[0].text
        if name in ("menuentry", "submenu"):
            if block is None:
                raise Malformed(f"line {row[0].line}: {name} without a block")
            if live is not False:
                self.entries.append(_entry(row, block))
        elif name == "set" and len(row) == 2:
            key, _, value = row[1].text.partition("=")
            if key == "default" and "saved_entry" in value:
                self.saves = True
            if live is False:
                return
            if live is None and key == "default":
                self.default = None
                self.unknown = f"line {row[0].line} sets the default under a condition that only"
                self.unknown += " GRUB can test"
                return
            if key == "default":
                self.once = "next_entry" in value
                self.default = _expand(value, self._env)
                self.unknown = ""
            elif live:
                self._env[key] = _expand(value, self._env)
        elif name == "load_env" and live is not False and self._block:
            self._env.update(self._block)
        elif name in ("source", ".", "configfile") and live is not False:
            if self._custom and "custom.cfg" in row[-1].text:
                text, self._custom = self._custom, ""
                self._run(parse_cfg(text))
        elif name == "blscfg" and live is not False:
            raise Malformed("it takes its menu from boot loader entries (blscfg)")

    def _test(self, row: list[Word]) -> bool | None:
        """Gives what `[ … ]` says; None where only GRUB knows."""
        words = [_expand(word.text, self._env) for word in row]
        if not words or words[0] != "[" or words[-1] != "]":
            return None
        raw, inner = [word.text for word in row[1:-1]], words[1:-1]
        if len(inner) == 1:
            return bool(inner[0])
        if len(inner) == 2 and inner[0] in ("-s", "-f"):
            if raw[1].endswith("/grubenv"):
                return self._block is not None
            if raw[1].endswith("/custom.cfg"):
                return bool(self._custom)
            return None
        if len(inner) == 3 and inner[1] in ("=", "==", "!="):
            # only variables whose value is known here: the block's, and those set above
            named = [m[1] or m[2] for m in _VARIABLE.finditer(raw[0] + " " + raw[2])]
            if any(n.startswith(("grub_", "feature_")) and n not in self._env for n in named):
                return None
            return (inner[0] == inner[2]) == (inner[1] != "!=")
        return None


def _entry(row: list[Word], block: list[Statement]) -> Json:
    """Gives one menu entry, with those of a submenu inside it."""
    found: Json = {
        "id": None,
        "title": row[1].text if len(row) > 1 else "",
        "submenu": row[0].text == "submenu",
        "kernel": None,
        "linux": None,
        "options": None,
        "initrd": None,
        "root": None,
        "entries": [],
    }
    for n, word in enumerate(row[:-1]):
        if word.text in _ID_OPTIONS and not word.quoted:
            found["id"] = row[n + 1].text
    if found["id"] is None:
        found["id"] = found["title"]
    for words, inner in block:
        name = words[0].text if words else ""
        if name in ("menuentry", "submenu"):
            if inner is None:
                raise Malformed(f"line {words[0].line}: {name} without a block")
            found["entries"].append(_entry(words, inner))
        elif name in ("linux", "linuxefi", "linux16") and len(words) > 1:
            found["linux"] = words[1].text
            found["options"] = " ".join(word.text for word in words[2:])
            match = _RELEASE.match(os.path.basename(words[1].text))
            found["kernel"] = match[1] if match else None
            roots = [w.text[5:] for w in words[2:] if w.text.startswith("root=")]
            found["root"] = roots[-1] if roots else None
        elif name in ("initrd", "initrdefi", "initrd16") and len(words) > 1:
            found["initrd"] = words[-1].text
    return found


def flat_entries(entries: list[Json], above: str = "") -> Iterator[tuple[str, Json]]:
    """Gives (id path, entry) of every entry that boots something, submenus opened."""
    for entry in entries:
        path = above + entry["id"].replace(">", ">>")
        if entry["submenu"]:
            yield from flat_entries(entry["entries"], path + ">")
        else:
            yield path, entry


def _first_part(spec: str) -> tuple[str, str]:
    """Gives (the part before the first single `>`, the rest); `>>` stands for `>`."""
    out: list[str] = []
    at = 0
    while at < len(spec):
        if spec[at] == ">":
            if spec[at + 1 : at + 2] != ">":
                return "".join(out), spec[at + 1 :]
            at += 1
        out.append(spec[at])
        at += 1
    return "".join(out), ""


def choose_entry(entries: list[Json], default: str) -> tuple[Json | None, str, list[str]]:
    """Gives (entry, its id path, what was not found) as GRUB picks it, None for an empty menu.

    A part that names nothing means the first entry of its menu (grub-core/normal/menu.c).
    """
    path, missing, rest = "", [], default
    while entries:
        part, rest = _first_part(rest)
        index = None
        if re.match(r"^\d+$", part):
            index = int(part)
        else:
            for n, entry in enumerate(entries):
                if part and part in (entry["title"], entry["id"]):
                    index = n
                    break
        if index is None or index >= len(entries):
            if part:
                missing.append(part)
            index = 0
        entry = entries[index]
        path += entry["id"].replace(">", ">>")
        if not entry["submenu"]:
            return entry, path, missing
        path += ">"
        entries = entry["entries"]
    return None, "", missing


def entries_of(entries: list[Json], kernel: str) -> list[tuple[str, Json]]:
    """Gives the entries that boot exactly this kernel, no recovery and no other system's.

    The entry `gnulinux-simple-…` is left out: it follows the newest kernel. Where a menu has no
    such ids (other distributions), any entry of the kernel counts.
    """
    rows = [(path, entry) for path, entry in flat_entries(entries) if entry["kernel"] == kernel]
    own = f"gnulinux-{kernel}-advanced-"
    exact = [row for row in rows if str(row[1]["id"]).startswith(own)]
    if exact:
        return exact
    others = ("osprober-", "gnulinux-simple-", f"gnulinux-{kernel}-recovery-")
    return [row for row in rows if not str(row[1]["id"]).startswith(others)
            and not str(row[1]["id"]).startswith(f"gnulinux-{kernel}-init-")]  # fmt: skip


# GRUB's environment block: 1024 bytes of `name=value` lines, filled up with `#`. Pure.

SIZE = 1024
HEAD = "# GRUB Environment Block\n"


class CorruptEnv(ValueError):
    """The bytes are no environment block; GRUB then knows no saved entry."""


def parse_env(raw: bytes) -> dict[str, str]:
    """Gives the block's variables in order. Raises Corrupt."""
    if len(raw) < SIZE:
        raise CorruptEnv(f"it has {len(raw)} bytes, a block has {SIZE}")
    text = raw.decode("utf-8", "surrogateescape")
    if not text.startswith(HEAD):
        raise CorruptEnv("it does not begin with `# GRUB Environment Block`")
    found: dict[str, str] = {}
    for line in text[len(HEAD) :].replace("\\\n", "\0").split("\n"):
        name, equals, value = line.replace("\0", "\\\n").partition("=")
        if equals and not name.startswith("#"):
            found[name] = value.replace("\\\\", "\\")
    return found


def render_env(values: dict[str, str]) -> bytes:
    """Gives the block of these variables. Raises Corrupt when they do not fit."""
    lines = [f"{name}={value}\n".replace("\\", "\\\\") for name, value in values.items()]
    raw = (HEAD + "".join(lines)).encode("utf-8", "surrogateescape")
    if len(raw) > SIZE:
        raise CorruptEnv(f"its variables need {len(raw)} bytes, a block has {SIZE}")
    return raw + b"#" * (SIZE - len(raw))


def changed_env(values: dict[str, str], saved: str | None, following: str | None) -> dict[str, str]:
    """Gives the variables with this saved_entry and next_entry; None leaves one out.

    prev_saved_entry goes: with it GRUB would put an older saved_entry back (00_header).
    """
    out = {k: v for k, v in values.items()
           if k not in ("saved_entry", "next_entry", "prev_saved_entry")}  # fmt: skip
    if saved is not None:
        out["saved_entry"] = saved
    if following is not None:
        out["next_entry"] = following
    return out


# The boot loader's side: which loader, where /boot lies, the configured and the real default.

FOLDERS = ("/boot/grub", "/boot/grub2")
DEFAULTS = "/etc/default/grub"
OUR_DEFAULT = "/etc/default/grub.d/zz-rigbook.cfg"
_SETTING = re.compile(r"^\s*(?:export\s+)?GRUB_DEFAULT=(.*?)\s*$")


def boot_folder(root: str = "") -> str | None:
    """Gives GRUB's folder (the one that holds grub.cfg), or None."""
    for path in FOLDERS:
        if os.path.isfile(f"{root}{path}/grub.cfg"):
            return f"{root}{path}"
    return None


def loader(root: str = "") -> tuple[str, str]:
    """Gives (grub, systemd-boot, container or none; how we know)."""
    if not root and os.path.exists("/run/systemd/container"):
        return "container", f"/run/systemd/container: {proc.read_text('/run/systemd/container')}"
    for path in glob.glob(f"{root}/sys/firmware/efi/efivars/LoaderInfo-*"):
        said = (proc.read_bytes(path) or b"")[4:].decode("utf-16-le", "replace").strip("\0")
        if "systemd-boot" in said:
            return "systemd-boot", f"the firmware was left to {said}"
    found = boot_folder(root)
    if found:
        return "grub", f"{found[len(root) :]}/grub.cfg"
    for path in ("boot", "efi", "boot/efi"):
        if os.path.isfile(f"{root}/{path}/loader/loader.conf"):
            return "systemd-boot", f"/{path}/loader/loader.conf"
    return "none", "no /boot/grub/grub.cfg and no loader.conf"


def configured(root: str = "") -> Json:
    """Gives GRUB_DEFAULT as update-grub will read it: value, file, and how it names its entry."""
    files = [f"{root}{DEFAULTS}", *sorted(glob.glob(f"{root}{DEFAULTS}.d/*.cfg"))]
    value, source = "0", "unset"
    for path in files:
        for line in proc.read_text(path).splitlines():
            match = _SETTING.match(line)
            if match:
                value, source = match[1].strip("\"'"), path[len(root) :]
    if value == "saved":
        mode = "saved"
    elif re.match(r"^\d+(>\d+)*$", value):
        mode = "index"
    elif value.startswith("gnulinux") or ">gnulinux" in value:
        mode = "id"
    else:
        mode = "title"
    return {"value": value, "file": source, "mode": mode}


def _decoded(text: str) -> str:
    """Gives a field of mountinfo with its octal escapes put back."""
    return re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), text)


def mount_of(path: str, mountinfo: str) -> tuple[str, str, str, str]:
    """Gives (mount point, major:minor, filesystem, source) of the mount that holds a path."""
    best = ("", "", "", "")
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, tail = left.split(), right.split()
        if len(fields) < 5 or len(tail) < 2:
            continue
        point = _decoded(fields[4])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best[0]):
            best = (point, fields[2], tail[0], _decoded(tail[1]))
    return best


def device_kind(number: str, filesystem: str, source: str, sys: str = "/sys") -> str:
    """Gives plain, lvm, raid, crypt, btrfs, zfs or unknown: what GRUB can write through."""
    if filesystem in ("btrfs", "zfs"):
        return filesystem
    if number.startswith("0:"):
        # an anonymous device number (overlay, nfs): GRUB cannot have booted from it
        return "unknown"
    here = os.path.join(sys, "dev/block", number)
    uuid = proc.read_text(os.path.join(here, "dm/uuid"))
    if uuid:
        return {"LVM": "lvm", "CRYPT": "crypt"}.get(uuid.partition("-")[0], "unknown")
    name = os.path.basename(os.path.realpath(here)) if os.path.exists(here) else ""
    parent = os.path.basename(os.path.dirname(os.path.realpath(here))) if name else ""
    if name.startswith("md") or parent.startswith("md") or source.startswith("/dev/md"):
        return "raid"
    return "plain" if name else "unknown"


def place_of_env(path: str) -> Json:
    """Gives where GRUB's folder lies: mount, kind of device, room; raises OSError."""
    point, number, filesystem, source = mount_of(path, proc.read_text("/proc/self/mountinfo"))
    info = os.statvfs(path)
    boot = os.statvfs("/boot")
    kind = device_kind(number, filesystem, source)
    return {
        "mount": point,
        "source": source,
        "filesystem": filesystem,
        "kind": kind,
        # GRUB writes a block list of a plain device only (grub-core/commands/loadenv.c)
        "sticky": kind != "plain",
        "total": boot.f_blocks * boot.f_frsize,
        "free": boot.f_bavail * boot.f_frsize,
        "read_only": bool(info.f_flag & os.ST_RDONLY),
    }


def environment(path: str) -> tuple[str, dict[str, str] | None]:
    """Gives ("ok", variables), or (what is wrong, None): missing, or corrupt and how."""
    raw = proc.read_bytes(os.path.join(path, "grubenv"))
    if raw is None:
        return "missing", None
    try:
        return "ok", parse_env(raw)
    except CorruptEnv as error:
        return f"corrupt: {error}", None


def menu_of_text(text: str, env: dict[str, str] | None, path: str) -> Menu:
    """Gives the menu of a grub.cfg's text, custom.cfg beside it included. Raises Malformed."""
    custom = proc.read_bytes(os.path.join(path, "custom.cfg")) or b""
    return Menu(text, env, custom.decode("utf-8", "replace"))


def following_boot(menu: Menu, env: dict[str, str] | None, state: str) -> Json:
    """Gives what GRUB boots next: {kernel, entry, title, why, how, missing}; kernel may be None.

    `how`: next_entry, saved, menu (the default of grub.cfg itself), first (what was named is not
    there), or unknown.
    """
    if menu.default is None:
        return {"kernel": None, "entry": None, "title": None, "how": "unknown",
                "why": menu.unknown, "missing": []}  # fmt: skip
    entry, path, missing = choose_entry(menu.entries, menu.default)
    named = menu.default
    if menu.once:
        how, why = "next_entry", f"next_entry names it for one boot ({named})"
    elif menu.saves:
        how, why = "saved", f"saved_entry names it ({named})"
        if not named:
            how = "first"
            why = f"the default is the saved one and none is saved (grubenv is {state})"
            why += ": GRUB takes the first entry"
    elif not named:
        how, why = "first", "no default is set: GRUB takes the first entry"
    else:
        how, why = "menu", f"grub.cfg's default is {named}"
    if missing:
        which = "next_entry" if menu.once else "saved_entry" if menu.saves else "the default"
        how = "first"
        why = f"{which} names {named}, and {missing[0]} is not in the menu"
        why += ": GRUB takes the first entry in its place"
    if entry is None:
        return {"kernel": None, "entry": None, "title": None, "how": "unknown",
                "why": f"{why}; that menu is empty", "missing": missing}  # fmt: skip
    return {
        "kernel": entry["kernel"],
        "entry": path,
        "title": entry["title"],
        "how": how,
        "why": why,
        "missing": missing,
    }


def lasting_boot(menu: Menu, env: dict[str, str] | None, state: str, text: str, path: str) -> Json:
    """Gives what GRUB boots once next_entry is used up: `following` without it."""
    if not env or "next_entry" not in env or not env["next_entry"]:
        return following_boot(menu, env, state)
    rest = {key: value for key, value in env.items() if key != "next_entry"}
    return following_boot(menu_of_text(text, rest, path), rest, state)


def entry_rows(menu: Menu) -> list[Json]:
    """Gives the menu as flat rows {path, title, kernel} for people and gates."""
    return [
        {"path": path, "title": entry["title"], "kernel": entry["kernel"],
         "linux": entry["linux"], "initrd": entry["initrd"],
         "options": secret.masked_cmdline(entry["options"] or "")}
        for path, entry in flat_entries(menu.entries)
    ]  # fmt: skip


# What GRUB boots with a grub.cfg and an environment block, and whether that is another boot.


def menu_of(raw: bytes, env: dict[str, str] | None, folder: str) -> Menu:
    """Gives the menu of these bytes. Raises NodeError for a malformed one."""
    try:
        return menu_of_text(raw.decode("utf-8", "replace"), env, folder)
    except Malformed as error:
        raise NodeError(f"{folder}/grub.cfg is malformed: {error}", "grub_malformed",
                        "sudo update-grub") from None  # fmt: skip


def boots_next(raw: bytes | None, raw_env: bytes | None, folder: str) -> Json:
    """Gives what GRUB does with these two files: the next boot, and the default."""
    try:
        state, env = "ok", parse_env(raw_env or b"")
    except CorruptEnv as error:
        state, env = str(error), None
    menu = menu_of(raw or b"", env, folder)
    text = (raw or b"").decode("utf-8", "replace")
    return {"next": following_boot(menu, env, state),
            "default": lasting_boot(menu, env, state, text, folder)}  # fmt: skip


def same_boot(now: Json, before: Json) -> bool:
    """Gives whether two boots run the same kernel, or the same entry where that runs none of ours;
    what is not known is not the same.
    """
    key = "kernel" if now["kernel"] or before["kernel"] else "entry"
    return now[key] is not None and now[key] == before[key]


def other_boot(what: str, now: Json, wanted: object) -> str:
    """Gives the line of a boot that is another one."""
    is_now = now["kernel"] or now["entry"] or "one that is not known"
    return f"the {what} boot would be {is_now}, not {wanted}: {now['why']}"


# kernel: what this host would boot, and whether its driver would be there; read-only.
#
# Type: schema/host.py. A reading verb of its own: only the deploys that care ask for
# it.

_MODULE_KEYS = ("module",)


def module_name(value: Any) -> str | None:
    """Gives the checked name of a kernel module, or None."""
    return None if value is None else validate.name(value, "module")


def _section(read: Callable[[], Any]) -> Any:
    """Gives what a reader gives, or {"unreadable": why}."""
    try:
        return read()
    except (CannotRead, TimedOut) as error:
        return {"unreadable": str(error)}
    except Malformed as error:
        return {"unreadable": f"grub.cfg is malformed: {error}; sudo update-grub makes it anew"}
    except OSError as error:
        return {"unreadable": io_reason(error)}


def secure_boot() -> bool | None:
    """Gives whether Secure Boot is on; None where the firmware is not UEFI or does not say."""
    for path in glob.glob("/sys/firmware/efi/efivars/SecureBoot-*"):
        raw = proc.read_bytes(path)
        if raw and len(raw) >= 5:
            return raw[4] == 1
    return None


def grub() -> Json:
    """Gives the GRUB section. Raises CannotRead, Malformed and OSError."""
    path = boot_folder()
    if path is None:
        raise CannotRead("no grub.cfg")
    raw = proc.read_bytes(os.path.join(path, "grub.cfg"))
    if raw is None:
        raise CannotRead(f"{path}/grub.cfg cannot be read")
    text = raw.decode("utf-8", "replace")
    state, env = environment(path)
    menu = menu_of_text(text, env, path)
    values = env or {}
    return {
        "folder": path,
        "configured": configured(),
        "grubenv": state,
        "saved_entry": values.get("saved_entry") or None,
        "next_entry": values.get("next_entry") or None,
        "saves": menu.saves,
        "entries": entry_rows(menu),
        "next": following_boot(menu, env, state),
        "default": lasting_boot(menu, env, state, text, path),
        "updater": os.access("/usr/sbin/grub-mkconfig", os.X_OK)
        or os.access("/usr/bin/grub-mkconfig", os.X_OK),
        "ours": os.path.exists(OUR_DEFAULT),
    }


def _apt(module: str | None, drivers: list[str]) -> Json:
    """Gives packages, holds and what would remove or replace a kernel, or its driver."""
    found = installed.kernel_packages(module)
    family = installed.driver_family(found, drivers)
    return {
        "holds": sorted(name for name, row in found.items() if row["hold"]),
        "pinning": {
            release: [*installed.pinning(found, release), *family]
            for release in installed.releases()
        },
        "pending": installed.pending_packages(),
        **installed.apt_config(),
    }


def collect_kernel(request: Json) -> Json:
    """Gives the document of schema/host.py."""
    began = time.monotonic()
    body = validate.keys(request, "request", _MODULE_KEYS)
    module = module_name(body.get("module"))
    kind, how = loader()
    folder = boot_folder()
    none = {"unreadable": f"no GRUB here: {kind} ({how})"}
    drivers = installed.user_driver(module) if module else []
    return {
        "format": 1,
        "arch": platform.machine(),
        "running": platform.release(),
        "boot_id": proc.boot_id(),
        "loader": kind,
        "loader_evidence": how,
        "module": module,
        "kernels": _section(lambda: installed.installed(module)),
        "user_driver": drivers,
        "loaded": installed.loaded(module) if module else None,
        "grub": _section(grub) if kind == "grub" else none,
        "boot": _section(lambda: place_of_env(folder)) if folder else none,
        "apt": _section(lambda: _apt(module, drivers)),
        "secure_boot": secure_boot(),
        "took_s": round(time.monotonic() - began, 3),
    }
