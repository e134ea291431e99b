"""doctor with bundle: the same look, each engine's log, and one archive beside the findings."""

from __future__ import annotations

import json
import tarfile
import tempfile
from pathlib import Path

from schema.plan import Plan
from tests.plans.support.doubles import Reply
from tests.plans.support.scenario import (
    HEAD,
    WORKER,
    Runs,
    Scenario,
    Snapshots,
    Table,
    data,
    each_row,
    quiet,
    serving,
    tiny_plan,
)

FOLDER = tempfile.TemporaryDirectory(prefix="rigbook-bundle-")
FILE = Path(FOLDER.name) / "rig.tar.gz"
OF_THROUGHPUT = FILE.with_name("throughput.tar.gz")


def as_throughput(plan: Plan) -> Snapshots:
    """The pair as `serve --data profile=throughput` leaves it."""
    return serving(tiny_plan(str(plan.rig.head.lan_address), profile="throughput"))


TABLE: Table = {
    "bundle": (
        Scenario(("deploys/doctor.py", "-y", *data(f"bundle={FILE}")), answers=Reply),
        quiet(f"wrote {FILE}, secrets masked"),
    ),
    "bundle of another profile": (
        Scenario(
            ("deploys/doctor.py", "-y", *data(f"bundle={OF_THROUGHPUT}")),
            as_throughput,
            answers=Reply,
        ),
        quiet(f"wrote {OF_THROUGHPUT}"),
    ),
}
test_each_run_ends_as_its_row_says = each_row(TABLE)


def test_the_archive_has_both_nodes(ran: Runs) -> None:
    assert ran["bundle"].status == 0
    with tarfile.open(FILE) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        head = json.load(archive.extractfile(f"rigbook-lab/snapshots/{HEAD}.json"))  # type: ignore[arg-type]
    assert {f"snapshots/{HEAD}.json", f"snapshots/{WORKER}.json", f"logs/{HEAD}.log",
            f"logs/{WORKER}.log", "findings.json", "versions.json"} == names  # fmt: skip
    # docs/runbooks/doctor.md names these
    assert {"units", "docker", "engine_processes", "ports", "gpus", "kernel", "hardware", "files",
            "journal"} <= head.keys()  # fmt: skip


def test_it_names_the_profile_that_runs(ran: Runs) -> None:
    said = {}
    for name, path in (("bundle", FILE), ("bundle of another profile", OF_THROUGHPUT)):
        assert ran[name].status == 0
        with tarfile.open(path) as archive:
            file = archive.extractfile("rigbook-lab/versions.json")
            assert file is not None
            said[name] = json.load(file)["profile"]
    assert list(said.values()) == ["balanced", "throughput"]
