"""What image has to do on a rig, decided once from one observation; the same for all hosts."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pyinfra import logger
from pyinfra.api.exceptions import DeployError

from deploys.plans.fabric import Want, planned_route, route_wanted
from deploys.plans.rig import Procedure, once_a_run
from facts.node import observe
from gates.artifact import KERNEL_ARCH, identity_of, image_name, image_of, same_content
from gates.core import deploy_command
from gates.transfer import TransferRequest, images, is_read, source_of, targets_of
from operations import image as operations_image
from operations.image import Same
from operations.run import Run, StepFailed, call
from operations.transfer import Transfer
from schema.keys import ImageData
from schema.plan import Plan
from schema.snapshot import Docker, Image, NodeSnapshot


@dataclass(frozen=True)
class ImageWork:
    """The steps of one image run; everything empty when nothing is to do."""

    reference: str
    seeds: frozenset[str]
    archive: operations_image.Archive | None
    transfer: Transfer | None
    image: Callable[[], Image]
    keeper: str | None
    keep: Callable[[], tuple[Path, Same]]

    @property
    def needed(self) -> bool:
        """Whether anything is to do; a change that a cut-off run left open is to be closed."""
        return bool(self.seeds or self.transfer)


def image_of_recipe(plan: Plan) -> str:
    """The image that the recipe names; DeployError where its engine runs in a venv."""
    reference = image_name(plan)
    if reference is None:
        raise DeployError(f"the recipe {plan.recipe.name} runs in a venv: it has no image to move")
    return reference


def parse_request(rig: Procedure) -> Want:
    """What --data asks for; DeployError where the recipe's engine runs in a venv."""
    image_of_recipe(rig.plan)
    data = rig.data(ImageData)
    asked = TransferRequest(
        source=data.source,
        port=data.port,
        waive=data.waive,
        is_made=data.archive is not None,
    )
    return route_wanted(rig, lambda _: asked)


@once_a_run
def plan(rig: Procedure) -> ImageWork:
    """The work of this run, planned once and told once; DeployError when it cannot be done."""
    data, snapshots = rig.data(ImageData), rig.snapshots
    reference = image_of_recipe(rig.plan)
    found = images(rig.plan, snapshots)
    archive = _archive(rig.plan, snapshots, data) if data.archive is not None else None
    if archive is not None:
        found = {n: i if i and _matches(archive, i) else None for n, i in found.items()}
        have = ", ".join(n for n, i in found.items() if i) or "no node"
        logger.info(f"    {archive.path} ({archive.image_id[:19]}): {have} has it")
    source = source_of(found, data.source if archive is None else None)
    lacking = targets_of(found, source)
    for name, image in found.items():
        said = identity_of(image) if image else "absent"
        logger.info(f"    {name} ({_store(snapshots[name])}): {said}")
    if source is not None and not lacking:
        logger.info(f"    {reference} is the same on all {len(found)} nodes")
    seeds: frozenset[str] = frozenset()
    if "@" in reference:
        source, seeds, lacking = _by_digest(snapshots, source, lacking)
        unfit = [n for n in seeds if n != source] if archive is not None else []
        if unfit:
            raise DeployError(
                f"nothing was changed: {', '.join(unfit)}: {reference} is a name by digest, which "
                "docker's own store takes from its registry alone: leave archive= out, or name the "
                "image by a tag in the recipe"
            )
    elif source is None:
        source = data.source or rig.plan.rig.head.name
        seeds, lacking = frozenset({source}), tuple(n for n in lacking if n != source)
    kept = data.save is None or _is_kept(rig, source, found, data.save)
    transfer = None
    if lacking and source is not None:
        _require_read(snapshots, (source, *lacking))
        transfer = Transfer(rig.run, "image", source, lacking, planned_route(rig))
    return ImageWork(
        reference=reference,
        seeds=seeds,
        archive=archive,
        transfer=transfer,
        image=lambda: _image_now(rig, transfer.source if transfer else None, found),
        keeper=None if kept else source,
        keep=lambda: _copy(rig, source, found, data.save or ""),
    )


def _copy(
    rig: Procedure, node: str | None, found: Mapping[str, Image | None], folder: str
) -> tuple[Path, Same]:
    """The file that keeps a node's image, and whether an archive is that image."""
    image = _image_now(rig, node, found)
    name = f"{image_of_recipe(rig.plan).partition('@')[0]}-{image.id[7:19]}.tar"
    path = Path(folder) / re.sub(r"[^A-Za-z0-9._-]+", "_", name)
    return path, lambda archive: _matches(archive, image)


def _is_kept(
    rig: Procedure, node: str | None, found: Mapping[str, Image | None], folder: str
) -> bool:
    """Whether the copy of what a node has is there already and whole: all of it is read."""
    if node is None or found.get(node) is None:
        return False
    path, same = _copy(rig, node, found, folder)
    try:
        kept = operations_image.read_archive(path)
        kept.check()
    except operations_image.BadArchive:
        return False  # the run says what is wrong with it, or makes it
    if same(kept):
        logger.info(f"    {path} is whole: {kept.digest or kept.image_id}")
    return same(kept)


def _by_digest(
    snapshots: Mapping[str, NodeSnapshot], source: str | None, lacking: tuple[str, ...]
) -> tuple[str | None, frozenset[str], tuple[str, ...]]:
    """Who gives an image that is named by digest, who pulls it, and who gets it.

    The containerd store keeps the digest of what another node gives. docker's own store neither
    keeps the manifest that makes it nor lets anything but a pull from the registry set it.
    """
    able = [n for n, s in snapshots.items()
            if isinstance(s.docker, Docker) and s.docker.containerd is not None]  # fmt: skip
    # one that has it already, if any
    rows = sorted(able, key=lambda n: (n != source, n in lacking))
    giver = rows[0] if rows else None
    gets = tuple(n for n in lacking if n in able and n != giver)
    return giver or source, frozenset(lacking).difference(gets), gets


def _store(snapshot: NodeSnapshot) -> str:
    return snapshot.docker.store if isinstance(snapshot.docker, Docker) else "unknown"


def _archive(
    plan: Plan, snapshots: Mapping[str, NodeSnapshot], data: ImageData
) -> operations_image.Archive:
    """The operator's archive; DeployError where it is none, or cannot become this rig's image."""
    path, reference = data.archive or "", image_of_recipe(plan)
    target = data.source or plan.rig.head.name
    if target not in snapshots:
        raise DeployError(f"nothing was changed: from={target}: the rig has {', '.join(snapshots)}")
    try:
        found = operations_image.read_archive(Path(path))
    except operations_image.BadArchive as error:
        raise DeployError(f"nothing was changed: {error}") from None
    if "@" in reference and not reference.endswith(f"@{found.digest}"):
        raise DeployError(
            f"nothing was changed: {path} holds {found.digest or 'an image without its digest'}, "
            f"the recipe names {reference}"
        )
    if KERNEL_ARCH.get(found.arch, found.arch) != snapshots[target].identity.arch:
        raise DeployError(
            f"nothing was changed: {path} is for {found.arch or 'an unknown processor'}, the node "
            f"is {snapshots[target].identity.arch}"
        )
    return found


def _matches(archive: operations_image.Archive, image: Image) -> bool:
    """Whether an archive is this image: its layers, and its config by id or by what it does."""
    return archive.diff_ids == image.layers and (
        image.id in (archive.image_id, archive.digest)
        or archive.config_sha256 == image.config_sha256
    )


def _require_read(snapshots: Mapping[str, NodeSnapshot], names: tuple[str, ...]) -> None:
    """DeployError where a node's store is of a kind whose layers node cannot read."""
    dockers = {name: snapshots[name].docker for name in names}
    other = [f"{name} has {_store(snapshots[name])}" for name, docker in dockers.items()
             if not isinstance(docker, Docker) or not is_read(docker)]  # fmt: skip
    if other:
        raise DeployError(
            f"nothing was changed: {', '.join(other)}; an image goes between docker's overlay2 and "
            "the containerd store; there: docker pull it, or docker save on the one and docker "
            "load on the other"
        )


def _image_now(rig: Procedure, source: str | None, found: Mapping[str, Image | None]) -> Image:
    """What the source has: as it was seen, or looked at again where it came in this run."""
    if source is None:
        raise StepFailed("no node gives the image")
    image = found.get(source)
    if image is None:
        seen = observe(rig.run.state, rig.plan, fresh=True)[source]
        docker = seen.docker if isinstance(seen, NodeSnapshot) else None
        if isinstance(docker, Docker):
            image = image_of(docker, image_of_recipe(rig.plan))
    if image is None:
        raise StepFailed(f"{source} does not have {image_of_recipe(rig.plan)}")
    return image


def verify(rig: Procedure) -> str:
    """A line about the image being the same on all nodes; StepFailed says where it is not."""
    plan = rig.plan
    seen = observe(rig.run.state, plan, fresh=True)
    found = images(plan, seen)
    missing = [node.name for node in plan.rig.nodes if found.get(node.name) is None]
    reference = image_of_recipe(plan)
    if missing:
        raise StepFailed(f"{reference} is not on {', '.join(missing)}")
    there = [(name, image) for name, image in found.items() if image is not None]
    for name, image in there[1:]:
        if not same_content(there[0][1], image):
            raise StepFailed(f"{reference} is still another build on {name} than on {there[0][0]}")
    return f"{reference} is the same on {len(there)} nodes: {identity_of(there[0][1])}"


def revert(run: Run) -> str:
    """After a failure: a tag that was set stands on a whole image, so those changes are blessed."""
    kept, unknown = [], []
    for node in sorted(run.touched):
        request = {"change": run.id, "status": "COMMITTED", "reason": f"whole here; {run.failure}"}
        request["run"] = run.owner.token
        request["reason"] = " ".join(request["reason"].split())[:1900]
        try:
            call(run.state, run.host(node), "close", request)
            kept.append(node)
        except StepFailed as error:
            if error.code == "":
                unknown.append(node)
            elif error.code != "no_change":
                raise
    where = f"complete on {', '.join(kept)}" if kept else "no node's tag was touched"
    if unknown:
        run.stays_open = True
        who = ", ".join(unknown)
        where = (f"complete on {', '.join(kept)}; " if kept else "") + (
            f"{who} did not answer: whether its tag was set is not known. The next run finds out; "
            f"to undo it: {deploy_command(run.plan, 'rollback', f'change={run.id}')}"
        )
    return f"{where}; run it again: what has come is kept and not fetched twice"
