"""What a node's build of the engine is, by its files: its version, and what it needs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from packaging.version import InvalidVersion, Version

from gates.artifact.image import image_name, image_of
from gates.artifact.venv import own_venv
from gates.core.check import require
from schema.desired.plan import Plan
from schema.desired.rig import Node
from schema.observed.artifact import VLLM_INFO
from schema.observed.docker import ImageFile
from schema.observed.snapshot import NodeSnapshot, Unreadable
from schema.recipe.builds import Needed
from schema.recipe.compatibility import within

_FOLDER = re.compile(r"/vllm-([^/]+)\.dist-info/")


def is_there(plan: Plan, node: Node, snapshot: NodeSnapshot) -> bool:
    """Whether there is a build to look into; without docker's word that is asked all the same."""
    if plan.recipe.container is None:
        venv = own_venv(plan, node, snapshot)
        return venv is not None and venv.target is not None
    docker = snapshot.docker
    return isinstance(docker, Unreadable) or image_of(docker, image_name(plan) or "") is not None


def version_of(plan: Plan, node: Node, snapshot: NodeSnapshot) -> str | None:
    """The version of the build's vLLM; None where it cannot be told.

    An image's is read from its files: the folder of pip's metadata names it. Labels do not, they
    are the base's; tags do not either, `nightly` moves. A build of a clone without tags calls
    itself 0.1.devN, whatever it is of (vllm PR#41834, a build of 2026-05-24).
    """
    if plan.recipe.container is None:
        venv = own_venv(plan, node, snapshot)
        names = set(venv.versions.get("vllm", ())) if venv else set()
    else:
        paths = (match.path for answer in _answers(snapshot, VLLM_INFO) for match in answer.matches)
        names = {found[1] for path in paths if (found := _FOLDER.search(path))}
    return told(names.pop()) if len(names) == 1 else None


def told(version: str) -> str | None:
    """The version, None for one that tells nothing."""
    try:
        parsed = Version(version)
    except InvalidVersion:
        return None
    return None if parsed.release == (0, 1) and parsed.is_devrelease else version


def is_needed(what: Needed, plan: Plan, node: Node, snapshot: NodeSnapshot) -> bool:
    """Whether the node's build needs it; UnknownSection where nobody could look into it."""
    require(snapshot.image_files, "image_files")
    if within(what.versions, version_of(plan, node, snapshot)) is False:
        return False
    unless = what.unless
    return unless is None or not any(
        match.count
        for answer in _answers(snapshot, unless.path)
        if answer.contains == unless.contains
        for match in answer.matches
    )


def _answers(snapshot: NodeSnapshot, path: str) -> Iterator[ImageFile]:
    """The answers about a path below the libraries."""
    if not isinstance(snapshot.image_files, Unreadable):
        yield from (a for a in snapshot.image_files if a.path.endswith(f"/{path}"))
