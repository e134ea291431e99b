"""How an image is made from a folder of templates/image: its inputs, their hash, the build context.

The same inputs give the same hash, whoever asks and whenever: it is a label of the image that came
of them, so a second build has nothing to do.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from dataclasses import dataclass
from pathlib import Path

from schema.core.errors import SpecError
from schema.recipe.recipe import ImageBuild
from schema.render.engine_files import TEMPLATES

FOLDER = TEMPLATES / "image"
LABEL = "rigbook.inputs"
SCRATCH = "scratch"
METADATA = "build-metadata.yaml"
# A context is text and patches; what is large belongs into a base image or is fetched by the build.
MAX_BYTES = 64 << 20


@dataclass(frozen=True)
class Context:
    """The inputs of one build, read once."""

    reference: str
    build: ImageBuild
    files: tuple[tuple[str, bool, bytes], ...]  # name, executable, content

    @property
    def inputs(self) -> str:
        """The sha256 of all that decides what the image becomes."""
        listed = [[n, x, hashlib.sha256(raw).hexdigest()] for n, x, raw in self.files]
        said = [1, self.build.base, sorted(self.build.args.items()), listed]
        return hashlib.sha256(json.dumps(said).encode()).hexdigest()

    @property
    def args(self) -> dict[str, str]:
        """The build's arguments; BASE among them."""
        return {"BASE": self.build.base, **self.build.args}

    def metadata(self) -> bytes:
        """What the image says of itself; no date, so that the same inputs stay the same."""
        rows = [
            f"image: {json.dumps(self.reference)}",
            "built_by: rigbook",
            f"template: {self.build.template}",
            f"inputs: {self.inputs}",
            "build_args:",
            *(f"  {name}: {json.dumps(value)}" for name, value in sorted(self.args.items())),
            "files:",
            *(f"  {json.dumps(name)}: {hashlib.sha256(raw).hexdigest()}"
              for name, _, raw in self.files),
        ]  # fmt: skip
        return ("\n".join(rows) + "\n").encode()

    def tar(self) -> bytes:
        """The context as `docker build -` takes it: the folder's files and build-metadata.yaml."""
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
            for name, executable, raw in (*self.files, (METADATA, False, self.metadata())):
                info = tarfile.TarInfo(name)
                info.size, info.mode = len(raw), 0o755 if executable else 0o644
                tar.addfile(info, io.BytesIO(raw))
        return out.getvalue()


def context(reference: str, build: ImageBuild, folder: Path = FOLDER) -> Context:
    """The inputs as they are now. SpecError: no such folder, no Dockerfile, a link, too large."""
    root = folder / build.template
    known = ", ".join(sorted(p.parent.name for p in folder.glob("*/Dockerfile"))) or "none"
    if not (root / "Dockerfile").is_file():
        raise SpecError(f"container.build.template: no {root.name}/Dockerfile in templates/image; "
                        f"allowed: {known}")  # fmt: skip
    files = []
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_symlink():
            raise SpecError(f"templates/image/{root.name}/{name} is a link; allowed: plain files")
        if path.is_file():
            files.append((name, bool(path.stat().st_mode & 0o100), path.read_bytes()))
    if METADATA in {name for name, _, _ in files}:
        raise SpecError(f"templates/image/{root.name}/{METADATA} is made by each build: remove it")
    if sum(len(raw) for _, _, raw in files) > MAX_BYTES:
        raise SpecError(f"templates/image/{root.name} is larger than {MAX_BYTES >> 20} MiB")
    if f"COPY {METADATA} " not in (root / "Dockerfile").read_text():
        raise SpecError(f"templates/image/{root.name}/Dockerfile has no `COPY {METADATA} /…` line: "
                        "the image could not say what it holds")  # fmt: skip
    return Context(reference, build, tuple(files))
