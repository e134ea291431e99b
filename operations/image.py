"""A container image of the rig: on one node first, then on the others, blessed when all agree."""

from __future__ import annotations

import hashlib
import io
import json
import os
import posixpath
import shlex
import tarfile
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from pyinfra import host
from pyinfra.api import FunctionCommand, Host, operation

from facts import pack
from facts.node import LATE_S, as_root, bounded, own_clock
from node.rules.text import DIGEST, DOCKER_SOCKET, blob, digest_of, layout, printable
from operations.run import Run, StepFailed, call, run_as_root
from operations.transfer import DEADLINE_S, Transfer, came
from schema.snapshot import Image

# A docker archive on this machine, read before any of it goes to a node.
#
# What goes on is made anew: the config and the layers that the manifest names, plain files under
# plain names, and no tag. Where the archive has the documents of a registry's image (docker save
# of a
# containerd store), they go on with it, so that its digest stays. Whatever else it holds stays
# here.

_CHUNK = 1 << 20
_MAX_CONFIG = 8 << 20
# an index may name an index; no image is deeper
_DEEPEST = 4


class BadArchive(Exception):
    """The file is no archive of one image; the text is the reason, for the operator."""


@dataclass(frozen=True)
class Archive:
    """What an archive holds: the image's config, its diff ids, and where its layers lie."""

    path: Path
    config: bytes
    diff_ids: tuple[str, ...]
    arch: str
    layers: tuple[tuple[int, int], ...]  # offset and length in the file
    # the document that the image's digest names, down to its manifest; none in the older form
    documents: tuple[bytes, ...] = ()

    @property
    def digest(self) -> str | None:
        """The digest by which a registry's name may name it; None in the older form."""
        return digest_of(self.documents[0]) if self.documents else None

    def check(self) -> None:
        """Reads every layer. BadArchive where one is not what its digest says."""
        blobs = _blobs(self.documents[-1]) if self.documents else self.diff_ids
        with self.path.open("rb") as file:
            for wanted, (offset, length) in zip(blobs, self.layers, strict=True):
                found = hashlib.sha256()
                for chunk in _docker_archive_part(file, self.path, offset, length):
                    found.update(chunk)
                if f"sha256:{found.hexdigest()}" != wanted:
                    raise BadArchive(f"{self.path}: layer {wanted[:19]} is damaged")

    @property
    def image_id(self) -> str:
        """The sha256 of the config."""
        return digest_of(self.config)

    @property
    def config_sha256(self) -> str:
        """The hash of what decides how the image runs, as a node's snapshot has it."""
        return pack.config_sha256(json.loads(self.config))

    def chunks(self) -> Iterator[bytes]:
        """The archive as docker load gets it."""
        names = [f"{diff[7:]}/layer.tar" for diff in self.diff_ids]
        config = f"{self.image_id[7:]}.json"
        if self.documents:
            names = [blob(each) for each in _blobs(self.documents[-1])]
            config = blob(self.image_id)
            for name, raw in layout(self.documents).items():
                yield _member(name, raw)
        manifest = [{"Config": config, "RepoTags": None, "Layers": names}]
        yield _member(config, self.config)
        yield _member("manifest.json", json.dumps(manifest).encode())
        with self.path.open("rb") as file:
            for name, (offset, length) in dict(zip(names, self.layers, strict=True)).items():
                yield _head(name, length)
                yield from _docker_archive_part(file, self.path, offset, length)
                yield bytes(-length % tarfile.BLOCKSIZE)
        yield bytes(2 * tarfile.BLOCKSIZE)


def _docker_archive_part(file: BinaryIO, path: Path, offset: int, left: int) -> Iterator[bytes]:
    file.seek(offset)
    while left:
        chunk = file.read(min(left, _CHUNK))
        if not chunk:
            raise BadArchive(f"{path} became shorter while it was read")
        left -= len(chunk)
        yield chunk


def _blobs(manifest: bytes) -> tuple[str, ...]:
    return tuple(str(row["digest"]) for row in json.loads(manifest)["layers"])


def _head(name: str, length: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.mode = length, 0o644
    return info.tobuf(tarfile.GNU_FORMAT)


def _member(name: str, raw: bytes) -> bytes:
    return _head(name, len(raw)) + raw + bytes(-len(raw) % tarfile.BLOCKSIZE)


def read_archive(path: Path) -> Archive:
    """The archive at `path`. BadArchive: cut, more than one image, a missing or odd member."""
    try:
        with tarfile.open(path, "r:") as tar:
            members = {_plain(info.name): info for info in tar}
            return _archive(path, tar, members)
    except (tarfile.TarError, OSError, EOFError) as error:
        raise BadArchive(f"{path} cannot be read as a docker archive: {error}") from None
    # RecursionError: json that is nested some hundred thousand deep
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadArchive(f"{path} is no docker archive: {type(error).__name__} {error}") from None


def _plain(name: str) -> str:
    if name.startswith("/") or ".." in name.split("/"):
        raise BadArchive(f"the archive has a member that leads out of it: {name[:80]!r}")
    return posixpath.normpath(name)


def _archive(path: Path, tar: tarfile.TarFile, members: dict[str, tarfile.TarInfo]) -> Archive:
    images: Any = json.loads(_small(tar, members, "manifest.json"))
    if not isinstance(images, list) or len(images) != 1:
        raise BadArchive(f"{path} holds {len(images)} images; allowed: one")
    config = _small(tar, members, str(images[0]["Config"]))
    said = json.loads(config)
    diff_ids = tuple(str(diff) for diff in said["rootfs"]["diff_ids"])
    for diff in diff_ids:
        # Paths are made of it, and docker unpacks them as root.
        if not DIGEST.fullmatch(diff):
            raise BadArchive(f"{path} has a layer {diff[:80]!r}, which is no digest")
    names = [str(name) for name in images[0]["Layers"]]
    arch = str(said.get("architecture", ""))
    documents: tuple[bytes, ...] = ()
    if "index.json" in members:
        rows = json.loads(_small(tar, members, "index.json"))["manifests"]
        documents = _documents(tar, members, rows, digest_of(config), 0)
    if documents:
        names = [blob(each) for each in _blobs(documents[-1])]
    if len(names) != len(diff_ids):
        raise BadArchive(f"{path} names {len(names)} layers, its config {len(diff_ids)}")
    places = tuple(_place(members, name) for name in names)
    return Archive(path, config, diff_ids, arch, places, documents)


def _documents(
    tar: tarfile.TarFile, members: dict[str, tarfile.TarInfo], rows: Any, config: str, depth: int
) -> tuple[bytes, ...]:
    """What leads to the image of this config; nothing where no row does."""
    for row in rows if depth < _DEEPEST else ():
        name = blob(str(row["digest"]))
        if not DIGEST.fullmatch(str(row["digest"])) or _plain(name) not in members:
            continue  # of another processor's image the archive has no content
        raw = _small(tar, members, name)
        if digest_of(raw) != row["digest"]:
            raise BadArchive(f"{name} is not what its name says")
        said = json.loads(raw)
        if "layers" in said and said["config"]["digest"] == config:
            # paths are made of them
            if not all(map(DIGEST.fullmatch, _blobs(raw))):
                raise BadArchive(f"{name} names a layer by no digest")
            return (raw,)
        below = _documents(tar, members, said.get("manifests") or [], config, depth + 1)
        if below:
            return (raw, *below)
    return ()


def _found(members: dict[str, tarfile.TarInfo], name: str) -> tarfile.TarInfo:
    info = members.get(_plain(name))
    # docker save writes a layer that stands twice as a link to its first place
    if info is not None and info.issym():
        info = members.get(_plain(posixpath.normpath(posixpath.join(
            posixpath.dirname(name), info.linkname))))  # fmt: skip
    if info is None or not info.isreg():
        raise BadArchive(f"the archive lacks {name[:80]!r}, or it is no plain file")
    return info


def _small(tar: tarfile.TarFile, members: dict[str, tarfile.TarInfo], name: str) -> bytes:
    info = _found(members, name)
    file = tar.extractfile(info)
    if file is None or info.size > _MAX_CONFIG:
        raise BadArchive(f"{name[:80]!r} is larger than {_MAX_CONFIG >> 20} MiB")
    return io.BytesIO(file.read()).getvalue()


def _place(members: dict[str, tarfile.TarInfo], name: str) -> tuple[int, int]:
    info = _found(members, name)
    return info.offset_data, info.size


# A command of root's on a host whose streams this end reads and writes as they pass.

TIMEOUT_S = 4 * 3600


class Command:
    """A command on a host over pyinfra's own ssh connection, with its streams open."""

    def __init__(self, host: Host, command: str) -> None:
        client = getattr(host.connector, "client", None)
        self._host, self._name = host, " ".join(command.split()[:2])
        if client is None:
            raise StepFailed(f"{host.name}: {self._name} needs an ssh connection to it")
        shell = as_root(host)["_shell_executable"]
        bound = f"export DOCKER_HOST=unix://{DOCKER_SOCKET}; {bounded(command, TIMEOUT_S)}"
        line = f"sudo -n {shell} -c {shlex.quote(bound)}"
        try:
            with own_clock(LATE_S):
                streams = client.exec_command(line, timeout=TIMEOUT_S)
        except TimeoutError as error:
            raise StepFailed(f"{host.name}: {self._name}: {error}") from None
        self._stdin, self._stdout, self._stderr = streams
        self._channel = self._stdout.channel

    def chunks(self) -> Iterator[bytes]:
        """What the command writes, as it comes."""
        read: Callable[[int], bytes] = self._channel.recv
        return iter(lambda: read(_CHUNK), b"")

    def write(self, chunk: bytes) -> None:
        """Feeds the command. Raises StepFailed when it ended."""
        try:
            self._channel.sendall(chunk)
        except TimeoutError:
            raise StepFailed(f"{self._host.name}: {self._name} takes nothing more") from None
        except OSError:
            self.finish()
            raise StepFailed(f"{self._host.name}: {self._name} ended early") from None

    def finish(self) -> str:
        """Waits for its end; what else it wrote. Raises StepFailed for its exit status."""
        self._channel.shutdown_write()
        try:
            with own_clock(TIMEOUT_S + LATE_S):
                errors = [line.rstrip() for line in self._stderr]
                said = self._stdout.read().decode("utf-8", "replace")
                status = self._channel.recv_exit_status()
        except TimeoutError as error:
            raise StepFailed(f"{self._host.name}: {self._name}: {error}") from None
        if status != 0:
            why = " ".join(line for line in errors[-4:] if line)[-300:]
            raise StepFailed(f"{self._host.name}: {self._name}: {why}")
        return str(said)

    def close(self) -> None:
        """Closes the channel; the command ends by its broken pipe."""
        self._channel.close()


# An image between a node and this machine, by docker save and docker load over ssh.
#
# docker load gets it under no name; the tag is set after the content was looked at.

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


def keep_over_ssh(run: Run, source: str, reference: str, path: Path, same: Same) -> Archive:
    """Brings docker save of a node's image into a file here, checked; what it holds.

    A file that is there and whole stays. `same`: whether an archive is the node's image. Raises
    StepFailed; no half file is left then.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        if path.exists():
            found = read_archive(path)
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
        found = read_archive(part)
        found.check()
        if not same(found):
            raise StepFailed(
                f"docker save on {source} gave another image than {reference} is there"
            )
        part.rename(path)
    except (OSError, BadArchive) as error:
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


PULL_TIMEOUT_S = 4 * 3600
# the docker that node looks at, whatever context the command is set to
DOCKER = f"DOCKER_HOST=unix://{DOCKER_SOCKET} docker"


@operation()
def seed(
    run: Run, reference: str, nodes: Collection[str], archive: Archive | None
) -> Generator[FunctionCommand, None, None]:
    """
    Bring an image that no node has to the rig: from its registry, or an archive here.

    + run: the change
    + reference: the image
    + nodes: the nodes that get it (several only where each has to pull by digest)
    + archive: the operator's archive; None pulls
    """
    if host.name not in nodes:
        host.noop("no pull here")
        return
    line = f"docker pull {reference}" if archive is None else f"docker load of {archive.path}"
    run.show_once(host, "seed", lambda: host.log(line))
    node = host.name
    yield run.step("seed", nodes, lambda: _seed(run, node, reference, archive), PULL_TIMEOUT_S)


def _seed(run: Run, node: str, reference: str, archive: Archive | None) -> None:
    if archive is not None:
        try:
            from_archive(run, node, reference, archive)
        except (BadArchive, OSError) as error:
            raise StepFailed(str(error)) from None
        return
    command = f"{DOCKER} pull --quiet {shlex.quote(reference)}"
    done, output = run_as_root(run.state, run.host(node), command, PULL_TIMEOUT_S)
    if not done:
        raise StepFailed(
            f"{node}: docker pull {reference}: {printable(output.stderr.strip()[-300:])}"
        )


@operation()
def move(
    run: Run, reference: str, transfer: Transfer | None, image: Callable[[], Image]
) -> Generator[FunctionCommand, None, None]:
    """
    Bring the image from the node that has it to those that lack it: missing layers, tag last.

    + run: the change
    + reference: the image's name
    + transfer: who gives, who takes, and by which way; None when no node lacks it
    + image: what the giving node has, asked when the transfer begins
    """
    members = (transfer.source, *transfer.targets) if transfer else ()
    if transfer is None or host.name not in members:
        host.noop("the image is here as it should be")
        return
    run.show_once(host, "move", lambda: host.log(_line(transfer, host.name, reference)))
    reporter = host
    yield run.step(
        "move", members, lambda: _part(reporter, transfer, reference, image()), DEADLINE_S
    )


@operation()
def keep(
    run: Run, reference: str, source: str | None, path: Callable[[], tuple[Path, Same]]
) -> Generator[FunctionCommand, None, None]:
    """
    Keep the image as an archive on this machine, from which `archive=` brings it back.

    + run: the change
    + reference: the image's name
    + source: the node whose image it is; None when nothing is to be kept
    + path: the file and what its content must be, asked when the image is there
    """
    if host.name != source:
        host.noop("nothing to keep from here")
        return
    run.show_once(host, "keep", lambda: host.log(f"docker save of {reference} to this machine"))
    node, reporter = host.name, host

    def work() -> None:
        file, same = path()
        kept = keep_over_ssh(run, node, reference, file, same)
        reporter.log_styled(
            f"{file}: {file.stat().st_size / 1e9:.2f} GB, {kept.digest or kept.image_id}",
            fg="green",
        )

    yield run.step("keep", (node,), work, DEADLINE_S)


def _line(transfer: Transfer, name: str, reference: str) -> str:
    how = f"what it lacks, {transfer.route.words}"
    if name == transfer.source:
        return f"give {reference} to {', '.join(transfer.targets)}: {how}"
    return f"get {reference} from {transfer.source}: {how}; the tag last"


def _part(reporter: Any, transfer: Transfer, reference: str, image: Image) -> None:
    want = {"id": image.id, "layers": list(image.layers)}
    if reporter.name == transfer.source:
        transfer.offer({"want": want})
        return
    answer = transfer.receive(reporter.name, {"image": reference, "want": want})
    reporter.log_styled(arrived(answer), fg="green")


def arrived(answer: Mapping[str, Any]) -> str:
    """A line about what a target got, from node's answer."""
    if not answer.get("layers"):
        return f"all layers were here; {answer['took_s']:.1f} s"
    size, damaged = came(answer)
    return (
        f"{answer['layers']} layers, {size}; "
        f"{answer['wire_bytes'] / 1e6:.1f} MB on the wire in {answer['wire_s']:.1f} s; "
        f"with docker's part {answer['load_s']:.1f} s, in all {answer['took_s']:.1f} s{damaged}"
    )
