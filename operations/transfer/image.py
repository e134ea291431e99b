"""A container image of the rig: on one node first, then on the others, blessed when all agree."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Generator, Mapping
from pathlib import Path
from typing import Any

from pyinfra import host
from pyinfra.api import FunctionCommand, operation

from node.rules.image_names import DOCKER_SOCKET
from node.rules.patterns import printable
from operations.change.node_call import StepFailed, run_as_root
from operations.change.run import Run
from operations.transfer import image_ssh
from operations.transfer.docker_archive import Archive, BadArchive
from operations.transfer.transfer import DEADLINE_S, Transfer, came
from schema.observed.docker import Image

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
            image_ssh.from_archive(run, node, reference, archive)
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
    run: Run, reference: str, source: str | None, path: Callable[[], tuple[Path, image_ssh.Same]]
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
        kept = image_ssh.keep(run, node, reference, file, same)
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
