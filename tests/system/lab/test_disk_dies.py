"""A node's disk dies (D18): what rigbook kept and the engine's folder go with it. They come back
from another node's copy."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from tests.system.lab.support import moving as m
from tests.system.rehearsal import Lab

MB = 1_000_000
TREE = "/opt/engine/venv"
OF_TREE = ("--data", f"tree={TREE}")
# Nothing of it is shared with another tree, and zstd cannot make it smaller.
MAKE = f"""set -e
rm -rf {TREE} && mkdir -p {TREE}/bin {TREE}/lib && cd {TREE}
head -c 24000000 /dev/urandom > lib/kernel.so && ln lib/kernel.so lib/same.so
printf '#!/bin/sh\\necho engine\\n' > bin/vllm && chown 12345:0 bin/vllm && chmod 4750 bin/vllm
ln -s ../lib/kernel.so bin/link && setfattr -n user.word -v here lib/kernel.so 2>/dev/null || true
touch -d @1700000000.123456789 lib/kernel.so
"""
PICTURE = f"""cd {TREE} 2>/dev/null || exit 0
find . -printf '%p %y %m %U %G %l %T@\\n' | grep -v '^\\./* d' | sort
find . -type f -exec sha256sum {{}} + | sort
"""
DIES = f"rm -rf /var/lib/rigbook /usr/local/lib/rigbook {TREE}"
KEPT = "/var/lib/rigbook/copies-of-others"


def root(lab: Lab, host: str, script: str) -> str:
    """A script of root's on a host."""
    return lab.ssh(host, "sudo bash -s", stdin=script)


def backed_up(lab: Lab) -> str:
    """test1's tree in a verified backup; its id."""
    done = lab.pyinfra("backup", *OF_TREE)
    assert done.rc == 0, done.text
    found = re.search(r"\[test1\] (\S+) is whole", done.text)
    assert found, done.text
    return found[1]


@pytest.fixture
def venv(lab: Lab) -> Iterator[str]:
    """Both hosts have a folder of an engine; what test1's looks like."""
    m.clear(lab)
    for host in lab.hosts:
        root(lab, host, f"rm -rf /var/lib/rigbook/backups {KEPT}; rm -rf /var/lib/rigbook/copies")
        root(lab, host, MAKE)
    yield root(lab, "test1", PICTURE)
    for host in lab.hosts:
        root(lab, host, f"rm -rf {TREE} {KEPT} /var/lib/rigbook/backups")
    m.clear(lab)


def restored(lab: Lab, backup: str) -> str:
    """The tree after a restore at the console."""
    said = lab.ssh("test1", "sudo rignode tree restore", stdin=f'{{"backup": "{backup}"}}')
    assert json.loads(said)["changed"] is True, said
    return root(lab, "test1", PICTURE)


def half(lab: Lab, host: str, folder: str) -> int:
    """The bytes of a payload that is on its way to a host."""
    said = root(lab, host, f"stat -c %s {folder}*.partial/payload.tar.zst 2>/dev/null || true")
    return int(said or 0)


def test_the_tree_is_back_from_the_other_node(lab: Lab, venv: str) -> None:
    backup = backed_up(lab)
    dry = lab.pyinfra("backup", *OF_TREE, "--data", "to=test2", "--dry", yes=False)
    assert dry.rc == 0 and f"[test1] copy {backup} to test2, out of bond0" in dry.text
    # an operator that loses its power in the middle, and the same command
    with m.slow_fabric(lab, 40):
        started = m.start("backup", *OF_TREE, "--data", "to=test2")
        m.wait_for(lambda: half(lab, "test2", f"{KEPT}/test1/") > 4 * MB)
        m.kill(started)
        m.wait_for(lambda: not m.listens(lab), 30)
    assert root(lab, "test2", f"ls {KEPT}/test1").endswith(".partial")
    done = lab.pyinfra("backup", *OF_TREE, "--data", "to=test2")
    assert done.rc == 0 and "copied, and read back in /var/lib/rigbook/copies-of" in done.text
    assert m.megabytes(done.text, "came in an earlier run") > 4
    assert root(lab, "test2", f"stat -c '%U %a' {KEPT} {KEPT}/test1/{backup}") == (
        "root 700\nroot 700")  # fmt: skip
    again = lab.pyinfra("backup", *OF_TREE, "--data", "to=test2")
    assert again.rc == 0 and "was there; it was read back" in again.text

    root(lab, "test1", DIES)
    back = lab.pyinfra("backup", "--data", f"take={backup}")
    assert back.rc == 0 and f"{backup} is back from test2, and whole" in back.text
    assert restored(lab, backup) == venv != ""
