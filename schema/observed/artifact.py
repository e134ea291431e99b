"""What lies in an installed engine: the typed answer of `rignode artifact`, and where to look.

An artefact is an image, or a venv below its folder. Its files say what it is made of: the builder's
build-metadata.yaml, vLLM's own version file, pip's direct_url.json, torch's version file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, Field

from schema.core.base import Frozen
from schema.core.strings import single_line
from schema.core.types import Name
from schema.core.yaml_file import TextLoader, one_line

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
