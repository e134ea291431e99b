"""What the tests of image and weights share: a slow fabric, an operator that dies, images."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.system.rehearsal import PYINFRA, ROOT, Lab

RECIPE = ("--data", "recipe=small-image", "--data", "recipes_dir=tests/system/lab/recipes")
IMAGE = "rigbook/small:1"
PORT = 29680
# An image without a program in it: what it holds is random bytes, so that nothing is shared.
MAKE = """set -e
rm -rf /tmp/small && mkdir -p /tmp/small/dir && cd /tmp/small
head -c {size} /dev/urandom > dir/blob && ln dir/blob dir/hard && ln -s blob dir/soft
echo words > 'dir/ünicode name' && mkdir empty
tar -c . | sudo docker import - {image} >/dev/null
rm -rf /tmp/small
"""
LAYER = """set -e
id=$(sudo docker create {image} none)
head -c {size} /dev/urandom > /tmp/layer && sudo docker cp /tmp/layer $id:/layer-$RANDOM >/dev/null
sudo docker commit $id {image} >/dev/null && sudo docker rm $id >/dev/null && rm /tmp/layer
"""
# The same file with the same times again: two layers of one content, as NGC's images have them.
TWICE = """set -e
echo same > /tmp/same && touch -d @1000000000 /tmp/same
for _ in 1 2; do
    id=$(sudo docker create {image} none)
    sudo docker cp /tmp/same $id:/same >/dev/null && sudo docker commit $id {image} >/dev/null
    sudo docker rm $id >/dev/null
done
sudo docker image inspect {image} | jq -r '.[0].RootFS.Layers[]'
"""


def make_image(lab: Lab, host: str, size: int, image: str = IMAGE) -> None:
    """An image of one layer on a host."""
    lab.ssh(host, "bash -s", stdin=MAKE.format(size=size, image=image))


def add_layer(lab: Lab, host: str, size: int, image: str = IMAGE) -> None:
    """A layer of random bytes on top of an image."""
    lab.ssh(host, "bash -s", stdin=LAYER.format(size=size, image=image))


def repeat_layer(lab: Lab, host: str, image: str = IMAGE) -> None:
    """Two layers more on top of an image that have the same content, so the same diff id."""
    layers = lab.ssh(host, "bash -s", stdin=TWICE.format(image=image)).split()
    assert layers[-1] == layers[-2], layers


def image_id(lab: Lab, host: str, image: str = IMAGE) -> str:
    """The id of an image on a host, empty where it is not there."""
    return lab.ssh(
        host, f"sudo docker image inspect --format '{{{{.Id}}}}' {image} 2>/dev/null || true"
    )


def open_changes(lab: Lab) -> list[str]:
    """The changes that are OPEN on the hosts, as `test2 ID`."""
    return [f"{host} {change['id']}" for host in lab.hosts for change in lab.changes(host)
            if change["status"] == "OPEN"]  # fmt: skip


CLEAR = """
sudo tc qdisc del dev bond0 root 2>/dev/null
for name in rigbook/small rigbook-kept; do
    sudo docker images -q $name | sort -u | xargs -r sudo docker rmi -f >/dev/null 2>&1
done
sudo docker images -q --filter label=rigbook.part | xargs -r sudo docker rmi -f >/dev/null 2>&1
sudo rm -rf /var/lib/rigbook/spool
sudo rignode undo </dev/null >/dev/null 2>&1
true
"""


def clear(lab: Lab) -> None:
    """No images of the tests and no half-done transfer on either host; no open change."""
    for host in lab.hosts:
        lab.ssh(host, "bash -s", stdin=CLEAR)


@contextmanager
def slow_fabric(lab: Lab, mbit: int) -> Iterator[None]:
    """The giver's end of the fabric at a rate, so that a transfer has a middle."""
    with slow_link(lab, "test1", "bond0", mbit):
        yield


@contextmanager
def slow_link(lab: Lab, host: str, device: str, mbit: int) -> Iterator[None]:
    """What a host sends through a device at a rate."""
    rule = f"sudo tc qdisc replace dev {device} root tbf rate {mbit}mbit burst 256kb latency 200ms"
    lab.ssh(host, rule)
    try:
        yield
    finally:
        lab.ssh(host, f"sudo tc qdisc del dev {device} root 2>/dev/null || true")


def start(
    deploy: str, *arguments: str, inventory: str = "inventory/lab.py"
) -> subprocess.Popen[str]:
    """A deploy that runs on; a process group of its own."""
    words = [str(PYINFRA), inventory, f"deploys/{deploy}.py", *arguments, "-y"]
    return subprocess.Popen(
        words, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip


def kill(started: subprocess.Popen[str]) -> None:
    """What an operator's machine that loses its power looks like."""
    os.killpg(started.pid, signal.SIGKILL)
    started.communicate()


def wait_for(check: Callable[[], object], seconds: float = 60) -> None:
    """Waits until `check` holds."""
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.2)


def spooled(lab: Lab, host: str = "test2", folder: str = "/var/lib/rigbook/spool") -> int:
    """The bytes of a half-done transfer on a host."""
    # a file may get its name while find looks
    said = lab.ssh(host, f"sudo find {folder} \\( -name '*.layer' -o -name '*.part' "
                   "-o -name '*.whole' \\) -printf '%s\\n' 2>/dev/null || true")  # fmt: skip
    return sum(int(line) for line in said.split())


def listens(lab: Lab, host: str = "test1", port: int = PORT) -> bool:
    """Whether the giver's port is open."""
    return bool(lab.ssh(host, f"ss -Hltn sport = :{port}"))


def at_work(lab: Lab, host: str) -> str:
    """The processes of a transfer on a host."""
    return lab.ssh(host, "pgrep -af 'rignode.*(offer|receive)' | grep -v pgrep || true")


def megabytes(text: str, what: str) -> float:
    """A figure of the deploy's line: `12.3 MB on the wire` → 12.3."""
    found = re.search(rf"([\d.]+) MB {what}", text)
    assert found, text
    return float(found[1])
