"""After a start the engine's log says whether NCCL uses RDMA; the recipe says what that means."""

from __future__ import annotations

import atexit
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from tests.plans.support.doubles import Reply
from tests.plans.support.scenario import (
    HEAD,
    WORKER,
    Scenario,
    done,
    each_row,
    failed,
    quiet,
    refused,
    serving,
)
from tests.unit.builders.rigs import healthy, tiny

MADE = TemporaryDirectory(prefix="rigbook-rdma-")
atexit.register(MADE.cleanup)
RDMA = "   2 NET/IB : Using [0]rocep1s0f0:1/RoCE [RO]; OOB bond0:10.0.0.1<0>\n  18 via NET/IB\n"
TCP = "      1 NET/IB : No device found.\n      1 Using network Socket\n     32 via NET/Socket\n"
SERVE, VERIFY = ("deploys/serve.py", "-y"), ("deploys/verify.py", "-y")


def _recipe(rdma: str) -> str:
    """A recipe like tiny that expects RDMA."""
    recipe = tiny()
    recipe["env"]["NCCL_DEBUG"] = "INFO"
    recipe["expect"]["rdma"] = rdma
    Path(MADE.name, f"{rdma}.yaml").write_text(yaml.safe_dump(recipe))
    return rdma


def _run(words: tuple[str, ...], rdma: str, head: str, worker: str, fresh: bool = True) -> Scenario:
    """A start (or a look) whose nodes log this."""
    return Scenario(
        words,
        healthy if fresh else serving,
        data={"recipe": _recipe(rdma), "recipes_dir": [MADE.name]},
        faults={f"{HEAD}:nccl": head, f"{WORKER}:nccl": worker},
        answers=Reply,
    )


USES = f"NCCL of {HEAD}, {WORKER} uses RDMA (NET/IB) through [0]rocep1s0f0:1/RoCE"
TABLE = {
    "rdma": (_run(SERVE, "required", RDMA, RDMA), done("6 characters in", USES, "COMMITTED")),
    # silent TCP on one node: back to what was
    "tcp, required": (_run(SERVE, "required", RDMA, TCP), failed(
        f"it answers, but NCCL of {WORKER} uses TCP (NET/Socket), not RDMA",
        "recipe required has expect.rdma: required", "docs/reference/fabric.md")),
    # "only what was seen": a log without a word is no proof
    "nothing logged, required": (_run(SERVE, "required", RDMA, ""), failed(
        f"the log of {WORKER} does not say which network NCCL uses")),
    "tcp, wanted": (_run(SERVE, "wanted", TCP, RDMA), done(
        f"NCCL of {HEAD} uses TCP (NET/Socket), not RDMA; compare", "COMMITTED")),
    "looked at": (_run(VERIFY, "wanted", RDMA, RDMA, fresh=False), quiet(USES)),
    "looked at, tcp": (_run(VERIFY, "wanted", TCP, RDMA, fresh=False), quiet(
        f"NCCL of {HEAD} uses TCP (NET/Socket), not RDMA")),
    "looked at, tcp, required": (_run(VERIFY, "required", TCP, RDMA, fresh=False), refused(
        f"NCCL of {HEAD} uses TCP (NET/Socket), not RDMA", "expect.rdma: required")),
}  # fmt: skip
test_each_run_ends_as_its_row_says = each_row(TABLE)
