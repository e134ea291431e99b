"""Images and containers, and what lies in an image.

Sections of the snapshot (schema/observed/snapshot.py, which says what its units are).
"""

from __future__ import annotations

from schema.core.base import Frozen


class Image(Frozen):
    """A container image. `layers` are the RootFS diff ids; `.Id` alone is not comparable."""

    id: str
    tags: tuple[str, ...]
    digests: tuple[str, ...]
    layers: tuple[str, ...]
    config_sha256: str
    arch: str
    size: int
    # who a container of it runs as: a name or a number, perhaps with a group; empty: root
    user: str = ""


class Mount(Frozen):
    """A bind mount or volume of a container."""

    source: str
    target: str
    read_only: bool


class Container(Frozen):
    """A container with what decides how it runs.

    `held_by` are the units in which a docker client names it now (`docker exec`, `docker run`).
    """

    id: str
    name: str
    image: str
    image_id: str
    state: str
    exit_code: int
    pid: int | None
    argv: tuple[str, ...]
    environ: dict[str, str]
    restart_policy: str
    network_mode: str
    ipc_mode: str
    privileged: bool
    init: bool
    mounts: tuple[Mount, ...]
    restarts: int
    labels: dict[str, str]
    held_by: tuple[str, ...] = ()


class Docker(Frozen):
    """The engine and, of its images, those that the request named; all containers.

    `cdi_devices` are those that it knows, such as nvidia.com/gpu=all. `gpu_hooks` are the programs
    of NVIDIA's container toolkit on dockerd's PATH, which it runs for `--gpus`.
    """

    version: str
    storage_driver: str
    root: str
    images: tuple[Image, ...]
    containers: tuple[Container, ...]
    # the containerd image store's folder; None where docker keeps images by itself, below `root`
    containerd: str | None = None
    runtimes: tuple[str, ...] = ()
    default_runtime: str = ""
    cdi_devices: tuple[str, ...] = ()
    gpu_hooks: tuple[str, ...] = ()

    @property
    def store(self) -> str:
        """The image store in words: the graph driver, or containerd with its snapshotter."""
        driver = self.storage_driver
        return driver if self.containerd is None else f"containerd/{driver}"

    @property
    def store_root(self) -> str:
        """The folder whose disk takes images and layers."""
        return self.root if self.containerd is None else self.containerd


class ImageFileProbe(Frozen):
    """A question about files inside an image: how often is a text in them? `path` is a glob.

    `image` may be a venv's folder; `path` counts from there.
    """

    image: str
    path: str
    contains: str


class ImageFileMatch(Frozen):
    """A file that a probe found: its path inside the image, and how often it has the text."""

    path: str
    sha256: str
    count: int


class ImageFile(ImageFileProbe):
    """A probe's answer; no matches: the image has no such file."""

    matches: tuple[ImageFileMatch, ...]
