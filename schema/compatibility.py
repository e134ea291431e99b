"""What is known about engines, kernels and drivers: catalog/compatibility.yaml as typed entries.

An entry says: this range of versions, under these conditions, works or is broken; who says so, and
when. Conditions that an entry leaves out hold for every rig. Versions and bounds are PEP 440
specifiers (`==0.20.*`, `>=580,<590`), read by `packaging`.
"""

from __future__ import annotations

import datetime
import re
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator, Field, ValidationError, model_validator

from node.rules.text import SHA256
from schema.artifact import Module, relative_path
from schema.core import (
    Frozen,
    Name,
    SpecError,
    absolute_path,
    argument,
    build_parse,
    env_name,
    misfit,
    read_map,
    single_line,
)

TABLE = "catalog/compatibility.yaml"
_ARCH = re.compile(r"(cpu|sm_[0-9]{2,3}a?)\Z")
Verdict = Literal["works", "broken", "unknown"]
# What an entry may be about besides an engine.
KERNEL, DRIVER = "linux", "nvidia"


def specifier(value: str) -> str:
    """The value, when it is a non-empty set of PEP 440 specifiers; ValueError otherwise."""
    try:
        if value.strip() and SpecifierSet(value) is not None:
            return value
    except InvalidSpecifier:
        pass
    raise ValueError("is not a range of versions; allowed: such as ==0.20.* or >=0.20,<0.21")


def version(value: str) -> str:
    """The value, when it is a version as PEP 440 writes them; ValueError otherwise."""
    try:
        Version(value)
    except InvalidVersion:
        raise ValueError("is not a version; allowed: such as 0.20.2 or 0.19.2rc1") from None
    return value


def within(bound: str | None, value: str | None) -> bool | None:
    """Whether a version lies in a range, pre-releases too; None: there is none to compare.

    Without a range everything does.
    """
    if bound is None:
        return True
    try:
        parsed = Version(value) if value is not None else None
    except InvalidVersion:
        return None
    if parsed is None:
        return None
    return all(
        spec.contains(parsed, prereleases=True)
        or (spec.operator == "==" and satisfies(str(parsed), spec.version))
        for spec in SpecifierSet(bound)
    )


def satisfies(installed: str, wanted: str) -> bool:
    """Whether an installed version is the wanted one by PEP 440: 0.32.0 is any build of it.

    A release candidate that no index ever had is a nightly on the way to it: 0.19.2rc1.dev134+g…
    is 0.19.2rc1 as well, unless another `.dev` or a local part is asked for.
    """
    try:
        found, named = Version(installed), Version(wanted)
    except InvalidVersion:
        return installed == wanted
    if found == named or (named.local is None and Version(found.public) == named):
        return True
    nightly = found.dev is not None and named.is_prerelease and named.dev is None
    return nightly and named.local is None and Version(found.public.partition(".dev")[0]) == named


def architecture(value: str) -> str:
    """A GPU architecture as `sm_120`, or `cpu` for a rig without one; ValueError otherwise."""
    if not _ARCH.match(value):
        raise ValueError("is not an architecture; allowed: sm_ and digits such as sm_120, or cpu")
    return value


Line = Annotated[str, AfterValidator(single_line), Field(min_length=1)]
Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.=,:+-]{1,60}$")]
Range = Annotated[str, AfterValidator(specifier)]
Arch = Annotated[str, AfterValidator(architecture)]


class Entry(Frozen):
    """One thing that is known. `engine` is vllm, or KERNEL or DRIVER for what lies below it. `gpu`
    empty: every architecture. `source` names who said it (a post, an issue, a run of ours), `date`
    when. It does not hold with a word of `unless_cmdline` on the kernel's command line, nor with a
    variable of `unless_env` in the engine's environment.
    """

    id: Name
    engine: Name
    versions: Range
    gpu: tuple[Arch, ...] = ()
    tensor_parallel: Range | None = None
    nodes: Range | None = None
    driver: Range | None = None
    kernel: Range | None = None
    unless_cmdline: tuple[Word, ...] = ()
    unless_env: dict[str, str] = Field(default_factory=dict)
    verdict: Verdict
    reason: Line
    source: Line
    date: datetime.date

    @property
    def specificity(self) -> int:
        """How many conditions it has; a version pinned by `==X` or `===X` is one more."""
        conditions = (self.gpu, self.tensor_parallel, self.nodes, self.driver, self.kernel)
        pinned = any(
            s.operator in ("==", "===") and not s.version.endswith("*")
            for s in SpecifierSet(self.versions)
        )
        return sum(bool(c) for c in conditions) + pinned

    @property
    def rank(self) -> tuple[int, datetime.date]:
        """What decides between two that both hold: the more specific one, then the later one."""
        return self.specificity, self.date

    def text(self) -> str:
        """The entry in a line, with its conditions, its source and its date."""
        parts = [f"{self.engine} {self.versions}", *self.gpu]
        named = {"TP": self.tensor_parallel, "nodes": self.nodes, "driver": self.driver,
                 "kernel": self.kernel}  # fmt: skip
        parts += [f"{name} {bound}" for name, bound in named.items() if bound]
        without = [*self.unless_cmdline, *(f"{k}={v}" for k, v in self.unless_env.items())]
        parts += [f"without {word}" for word in without]
        return f"{', '.join(parts)}: {self.verdict}, {self.reason} ({self.source}, {self.date})"


class CompatibilityTable(Frozen):
    """All entries. Two that may both hold, rank alike and say different things are an error."""

    entries: tuple[Entry, ...]

    @model_validator(mode="after")
    def _no_contradiction(self) -> CompatibilityTable:
        seen: set[str] = set()
        for number, one in enumerate(self.entries):
            if one.id in seen:
                raise ValueError(f"entries: id {one.id!r} stands twice; allowed: each id once")
            seen.add(one.id)
            for other in self.entries[:number]:
                if one.verdict != other.verdict and one.rank == other.rank and meet(one, other):
                    raise ValueError(
                        f"entries: {other.id} says {other.verdict} and {one.id} says {one.verdict} "
                        f"for the same case ({one.text()}); allowed: a later date, or one more "
                        "condition, for the one that holds"
                    )
        return self


def load_table(root: Path) -> CompatibilityTable:
    """The catalog's table; `root` is the project's. SpecError has a line for each problem."""
    file = root / TABLE
    if not file.is_file():
        raise SpecError(f"{TABLE}: is not there; allowed: a map with the key entries")
    return build_parse(CompatibilityTable, read_map(file, TABLE), lambda key: TABLE)


def meet(one: Entry, other: Entry) -> bool:
    """Whether a rig and a version can exist for which both entries hold."""
    if one.engine != other.engine or (one.gpu and other.gpu and not set(one.gpu) & set(other.gpu)):
        return False
    pairs = (
        (one.versions, other.versions),
        (one.tensor_parallel, other.tensor_parallel),
        (one.nodes, other.nodes),
        (one.driver, other.driver),
        (one.kernel, other.kernel),
    )
    return all(_overlap(a, b) for a, b in pairs if a is not None and b is not None)


def _overlap(one: str, other: str) -> bool:
    """Whether a version is in both: where two ranges meet, a bound is in them or beside them."""
    both = SpecifierSet(f"{one},{other}")
    return any(within(str(both), str(v)) for s in both for v in _around(s.version))


def _around(bound: str) -> list[Version]:
    """A bound, and versions right below and right above it."""
    at = Version(bound.removesuffix(".*"))
    release = list(at.release)
    above = ".".join(map(str, [*release, 0, 0, 1]))
    while len(release) > 1 and release[-1] == 0:
        release.pop()
    below = ".".join(map(str, [*release[:-1], max(release[-1] - 1, 0), 999999]))
    following = ".".join(map(str, [*release[:-1], release[-1] + 1]))
    return [at, Version(above), Version(below), Version(following)]


# For which builds of the engine something of a recipe is meant: a patch, a module.


class Unless(Frozen):
    """A text in a file of the build, whose folders may be `*`, that shows that it needs no mend."""

    path: Annotated[str, AfterValidator(relative_path)]
    contains: Annotated[str, AfterValidator(single_line), Field(min_length=1)]


class Needed(Frozen):
    """What only some builds need: those of `versions` of the engine (None: all), and among them
    not those in which `unless` is found. A build that does not tell its version needs it.
    """

    versions: Range | None = None
    unless: Unless | None = None


class NeededModule(Module, Needed):
    """A module that the engine imports only when it runs."""


# Patches of an installed engine's files, and tools that patch it: a recipe's `file_patches` and
# `patch_tools`. (`patches` is about images, which are never patched in place.)

_HUNK = re.compile(r"@@ -\d+(?:,\d+)? \+\d+(?:,\d+)? @@")
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f]")
MAX_DIFF = 128 * 1024


def sha256(value: str) -> str:
    """A sha256 in hex; ValueError otherwise."""
    if not SHA256.match(value):
        raise ValueError("is not a sha256; allowed: 64 lower-case hex digits")
    return value


def target(value: str) -> str:
    """An absolute path, or one below the venv's site-packages; both may hold `*`."""
    return absolute_path(value) if value.startswith("/") else relative_path(value)


def unified_diff(value: str) -> str:
    """A unified diff of one text file; ValueError otherwise. Its headers' names do not matter."""
    if len(value) > MAX_DIFF or _CONTROL.search(value):
        raise ValueError("is too large or holds control characters; allowed: a diff of one file")
    lines = value.splitlines()
    if (
        sum(line.startswith("--- ") and nxt.startswith("+++ ") for line, nxt in pairwise(lines))
        != 1
    ):
        raise ValueError("is not a unified diff of one file; allowed: one --- and one +++ line")
    if not any(_HUNK.match(line) for line in lines):
        raise ValueError("has no hunk; allowed: a unified diff with @@ lines")
    return value


def tool_word(value: str) -> str:
    """A word of a tool's command line; a leading `-` is its author's wish."""
    return single_line(value)


Sha256 = Annotated[str, AfterValidator(sha256)]
Target = Annotated[str, AfterValidator(target)]


class FilePatch(Frozen):
    """A patch of one file of an installed engine.

    `path`: the file, absolute or below the venv's site-packages; it must match one file. `diff`
    makes the patched file of the unpatched one. `before` and `after` are the sha256 of the file
    without and with it, a list for several builds; where they are given, only those are known.
    Without them git decides: `git apply --check`, and `--reverse --check`. `contains` stands
    `count` times in the patched file; more often means that it was applied twice. `upstreamed`:
    versions of the engine that have it by themselves.
    """

    id: Name
    path: Target
    reason: Line
    required: bool = True
    diff: Annotated[str, AfterValidator(unified_diff)] | None = None
    before: tuple[Sha256, ...] = ()
    after: tuple[Sha256, ...] = ()
    contains: Line | None = None
    count: Annotated[int, Field(ge=1)] | None = None
    upstreamed: Range | None = None

    @model_validator(mode="after")
    def _can_be_checked(self) -> FilePatch:
        if self.diff is None and not (self.before and self.after):
            raise ValueError(f"{self.id}: cannot be checked; allowed: diff, or before and after")
        if (self.contains is None) != (self.count is None):
            raise ValueError(f"{self.id}: contains and count go together; allowed: both or none")
        if set(self.before) & set(self.after):
            raise ValueError(f"{self.id}: a hash stands in before and in after; allowed: in one")
        return self


class PatchTool(Frozen):
    """A program that patches the engine by itself and ends with `N applied, M skipped, K failed`.

    `{venv}` in `argv` is the venv's folder. `tree`: the folder, absolute or below site-packages,
    whose files it may change: their content is kept before, so that the change can be undone.
    """

    id: Name
    argv: Annotated[
        tuple[Annotated[str, AfterValidator(tool_word)], ...], Field(min_length=1, max_length=50)
    ]
    tree: Target = "vllm"
    env: dict[Annotated[str, AfterValidator(env_name)], Line] = Field(default_factory=dict)
    timeout_s: Annotated[int, Field(ge=1, le=3600)] = 600
    reason: Line

    @model_validator(mode="after")
    def _a_program(self) -> PatchTool:
        program = self.argv[0]
        argument(program)
        if not program.startswith(("/", "{venv}/")):
            raise ValueError(
                f"argv[0]: is {program!r}; allowed: /a/program or {{venv}}/bin/program"
            )
        if "*" in self.tree:
            raise ValueError("tree: holds a `*`; allowed: one folder")
        return self


# catalog/xids.yaml: each Xid that NVIDIA documents, and what is done about it first.

XIDS = "catalog/xids.yaml"
Action = Literal[
    "none", "restart_engine", "reset_gpu", "reboot", "nvlink", "power_cable", "update", "support",
    "follow", "not_given",
]  # fmt: skip


class Xid(Frozen):
    """A code of the NVIDIA driver; `what` None: current drivers do not use it."""

    code: int = Field(ge=1)
    name: str
    what: str | None = None
    action: Action


class XidTable(Frozen):
    """All codes, where they were read and when."""

    source: str
    date: str = Field(pattern=r"^\d{4}-\d\d-\d\d$")
    xids: tuple[Xid, ...]

    def find(self, code: int) -> Xid:
        """The entry of a code; one without an action for a code that nobody documented."""
        unknown = Xid(code=code, name="undocumented", action="not_given")
        return next((xid for xid in self.xids if xid.code == code), unknown)


def load_xids(root: Path) -> XidTable:
    """The table below `root`. SpecError says what is wrong in it."""
    try:
        return XidTable.model_validate(read_map(root / XIDS, XIDS))
    except ValidationError as error:
        raise SpecError(f"{XIDS}: {misfit(error)}") from None
