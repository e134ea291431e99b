"""An image between a node and this machine, by docker save and docker load over ssh.

docker load gets it under no name; the tag is set after the content was looked at.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from pyinfra.api import Host

from operations.change.node_call import StepFailed, call
from operations.change.run import Run
from operations.transfer import docker_archive
from operations.transfer.docker_archive import Archive
from operations.transfer.ssh_command import Command

_SAY_EVERY_S = 5.0
Same = Callable[[Archive], bool]


def from_archive(run: Run, target: str, reference: str, archive: Archive) -> None:
    """Loads an archive of this machine on a node and tags it, as a step of the change. Raises
    StepFailed, BadArchive, OSError."""
    loaded = _load(run.host(target), archive.chunks())
    run.touch(target)
    want = {"id": loaded, "layers": list(archive.diff_ids)}
    request = {"change": run.change(), "image": reference, "want": want}
    call(run.state, run.host(target), "image tag", request)


def keep(run: Run, source: str, reference: str, path: Path, same: Same) -> Archive:
    """Brings docker save of a node's image into a file here, checked; what it holds.

    A file that is there and whole stays. `same`: whether an archive is the node's image. Raises
    StepFailed; no half file is left then.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        if path.exists():
            found = docker_archive.read(path)
            found.check()
            if same(found):
                return found
            raise StepFailed(f"{path} holds another image: move it away")
        path.parent.mkdir(parents=True, exist_ok=True)
        save = f"docker save {shlex.quote(reference)}"
        with closing(Command(run.host(source), save)) as giver, part.open("wb") as file:
            for chunk in giver.chunks():
                file.write(chunk)
            giver.finish()
            file.flush()
            os.fsync(file.fileno())
        found = docker_archive.read(part)
        found.check()
        if not same(found):
            raise StepFailed(
                f"docker save on {source} gave another image than {reference} is there"
            )
        part.rename(path)
    except (OSError, docker_archive.BadArchive) as error:
        raise StepFailed(f"{path}: {error}") from None
    finally:
        part.unlink(missing_ok=True)
    return replace(found, path=path)


def _load(host: Host, chunks: Iterator[bytes]) -> str:
    """Feeds docker load on a host; the id of what it says it loaded."""
    done, told = 0, time.monotonic()
    with closing(Command(host, "docker load --quiet")) as loader:
        for chunk in chunks:
            loader.write(chunk)
            done += len(chunk)
            if time.monotonic() - told > _SAY_EVERY_S:
                host.log(f"{done / 1e9:.2f} GB through this machine")
                told = time.monotonic()
        said = loader.finish()
    # `Loaded image ID: sha256:…`, the last word of docker's last line
    last = said.strip().splitlines()[-1:] or [""]
    if not last[0].startswith("Loaded image ID: sha256:"):
        raise StepFailed(f"{host.name}: docker load answered: {last[0][:200] or 'nothing'}")
    return last[0].split()[-1]
