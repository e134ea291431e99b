"""Read a generated grub.cfg: its menu by ids and nesting, and the default that it would choose.

Titles are translated, ids are not (/etc/grub.d/10_linux). Pure: text in, plain data out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from node.core.errors import Json

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


def parse(text: str) -> list[Statement]:
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
        statements = parse(text)
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
                self._run(parse(text))
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


def flat(entries: list[Json], above: str = "") -> Iterator[tuple[str, Json]]:
    """Gives (id path, entry) of every entry that boots something, submenus opened."""
    for entry in entries:
        path = above + entry["id"].replace(">", ">>")
        if entry["submenu"]:
            yield from flat(entry["entries"], path + ">")
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


def choose(entries: list[Json], default: str) -> tuple[Json | None, str, list[str]]:
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
    rows = [(path, entry) for path, entry in flat(entries) if entry["kernel"] == kernel]
    own = f"gnulinux-{kernel}-advanced-"
    exact = [row for row in rows if str(row[1]["id"]).startswith(own)]
    if exact:
        return exact
    others = ("osprober-", "gnulinux-simple-", f"gnulinux-{kernel}-recovery-")
    return [row for row in rows if not str(row[1]["id"]).startswith(others)
            and not str(row[1]["id"]).startswith(f"gnulinux-{kernel}-init-")]  # fmt: skip
