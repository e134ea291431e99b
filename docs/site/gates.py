"""A page for each code: what is fixed about it from the code, the words from docs/gates.md."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from gates.core import CODES, Code, Layer
from gates.doctor import CAUSES

DOES = {"block": "blocks", "warn": "warns"}
# Where the pages of the codes lie, from the root of the site.
FOLDER = "docs/gates"
_SECTION = re.compile(r"^## (\S+)\n", re.MULTILINE)
_PART = re.compile(r"^(Symptom|Why|Mend): ", re.MULTILINE)


def sections(text: str) -> tuple[str, dict[str, str]]:
    """The introduction of docs/gates.md, and the text of each code's section.

    ValueError where the page and the code name different codes.
    """
    intro, *rest = _SECTION.split(text)
    found = dict(zip(rest[::2], rest[1::2], strict=True))
    if list(found) != list(CODES):
        odd = ", ".join(sorted(found.keys() ^ CODES.keys())) or "the order"
        raise ValueError(f"docs/gates.md and gates/core.py differ in: {odd}")
    return intro, found


def fixed(code: Code) -> str:
    """What the code says: layer, what it does, whether it can be waived."""
    waived = "waivable" if code.waivable else "not waivable"
    return f"{code.layer.name.lower()} · {DOES[code.severity]} · {waived}"


def index(intro: str, found: Mapping[str, str]) -> str:
    """The page of all gates: a table for each layer, lowest first."""
    told = intro.replace("Each section: layer", "Each page: layer")
    return told + "\n".join(_of_layer(layer, found) for layer in Layer)


def _of_layer(layer: Layer, found: Mapping[str, str]) -> str:
    rows = [
        f"| [{name}](gates/{name}.md) | {DOES[code.severity]} | {'yes' if code.waivable else 'no'}"
        f" | {_first(found[name])} |\n"
        for name, code in CODES.items()
        if code.layer is layer
    ]
    head = "| code | | waivable | symptom |\n|---|---|---|---|\n"
    return f"## {layer.name.capitalize()}\n\n{head}{''.join(rows)}"


def _first(text: str) -> str:
    """The first sentence of the symptom, fit for a cell."""
    symptom = " ".join(dict(_parts(text))["Symptom"].split())
    cell = re.split(r"(?<=[.;]) ", symptom, maxsplit=1)[0].rstrip(".;")
    return cell.replace("|", "\\|")


def _parts(text: str) -> Iterator[tuple[str, str]]:
    _, *rest = _PART.split(text)
    for name, words in zip(rest[::2], rest[1::2], strict=True):
        yield name, words.strip()


def page(name: str, text: str) -> str:
    """The page of a code, for the folder docs/gates/ of the site. Its way up is its first line:
    one more entry a code beside every page would hide the others.
    """
    code, cause = CODES[name], CAUSES[name]
    layer, *rest = fixed(code).split(" · ")
    up = f"[Gates](../gates.md) · [{layer}](../gates.md#{layer})"
    told = [f"---\norphan: true\n---\n\n# {name}", " · ".join((up, *rest))]
    told += [f"**{part}:** {_from_here(words)}" for part, words in _parts(text)]
    told.append(f"**Likely cause:** {cause.text}.")
    if cause.here:
        told.append(f"**Explains on the same node:** {_links(cause.here)}.")
    if cause.anywhere:
        told.append(f"**Explains on any node:** {_links(cause.anywhere)}.")
    return "\n\n".join(told) + "\n"


def _from_here(words: str) -> str:
    """The links of a section, which is a page in the folder beside its page now."""
    words = re.sub(r"\]\(#([\w.-]+)\)", r"](\1.md)", words)
    return re.sub(r"\]\((?=[a-z]+/)", "](../", words)


def _links(names: tuple[str, ...]) -> str:
    return ", ".join(f"[{name}]({name}.md)" for name in dict.fromkeys(names))
