"""The first download: onto one node by the hub's own client, and over the fabric to the others.

The client, the hub and the hosts are stand-ins; node's part: tests/unit/node/weights/test_hub.py.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import yaml

from schema.plan import Plan
from schema.snapshot import Unreadable
from tests.plans.support.scenario import (
    HEAD,
    WORKER,
    Runs,
    Scenario,
    Seen,
    Snapshots,
    broken,
    data,
    done,
    each_row,
    failed,
    quiet,
    refused,
)
from tests.plans.venv.test_venv_rig import NAME, fresh, hosts
from tests.unit.builders.rigs import ROOT, healthy, put

WEIGHTS = "deploys/weights.py"
COMMIT, SHA, BLOB = "0f1e2d3c4b5a69788796a5b4c3d2e1f001122334", "a" * 64, "b" * 40
MODEL = "/srv/hub/models--org--tiny"
TOKEN = f"T0K-{os.urandom(6).hex()}"
MADE = tempfile.TemporaryDirectory()


def recipe(name: str, base: str, **changes: Any) -> tuple[str, str]:
    """The --data of a recipe that differs from `base`."""
    made = yaml.safe_load((ROOT / "catalog" / "recipes" / f"{base}.yaml").read_text())
    made["weights"].update(changes.pop("weights", {}))
    Path(MADE.name, f"{name}.yaml").write_text(yaml.safe_dump({**made, **changes}))
    return f"recipe={name}", f"recipes_dir={MADE.name}"


SECRET = recipe("secret", "tiny", secrets={"HF_TOKEN": {"env": "RIGBOOK_TEST_TOKEN"}})
CACHED = recipe("cached", "tiny", weights={"path": MODEL})


def row(name: str, size: int = 2_000_000, **more: Any) -> dict[str, Any]:
    """A file as `weights hub` tells it."""
    in_lfs = name.endswith((".safetensors", ".bin", ".gguf"))
    return {"name": name, "size": size, "blob": BLOB, "sha256": SHA if in_lfs else None, **more}


SHARD = "model-00001-of-00001.safetensors"
THERE = {"commit": COMMIT, "took_s": 1.0, "files": [
    row("config.json", 2000), row(SHARD, 3 << 30), row("pytorch_model.bin", 3 << 30),
    row(".gitattributes", 100), row("README.md", 10)]}  # fmt: skip
CAME = {"files": ["config.json", SHARD, "README.md"], "bytes": 3 << 30, "changed": True,
        "took_s": 40.0}  # fmt: skip
nobody = broken(healthy, *((name, path, value) for name in (HEAD, WORKER)
                           for path, value in (("weights.0.exists", False),
                                               ("weights.0.files", ()))))  # fmt: skip
no_room = broken(nobody, *((HEAD, f"disks.{n}.free", 1 << 30) for n in range(2)))
in_cache = broken(nobody, *((name, path, MODEL) for name in (HEAD, WORKER)
                            for path in ("weights.0.path", "disks.0.path")))  # fmt: skip


def all_there(plan: Plan) -> Snapshots:
    """Both nodes have what the hub has, hashed."""
    seen = dict(healthy(plan))
    sizes = {"README.md": 10, "config.json": 2000}
    for name, snapshot in seen.items():
        assert not isinstance(snapshot.weights, Unreadable)
        config, shard, *_ = snapshot.weights[0].files
        files = tuple(
            config.model_copy(update={"name": n, "size": sizes[n], "sha256": SHA})
            if n != SHARD else shard.model_copy(update={"sha256": SHA})
            for n in ("README.md", "config.json", SHARD)
        )  # fmt: skip
        seen[name] = put(snapshot, "weights.0.files", files)
    return seen


def run(
    *pairs: str, seen: Seen = nobody, how: str = "-y", hub: Any = THERE, node: str = HEAD,
    faults: dict[str, Any] | None = None, **more: Any,
) -> Scenario:  # fmt: skip
    """A download of org/tiny."""
    faults = {f"{node}:says weights hub": hub, f"{node}:answers": {"weights download": CAME},
              **(faults or {})}  # fmt: skip
    pairs = pairs if any("download" in p for p in pairs) else ("download=org/tiny", *pairs)
    return Scenario((WEIGHTS, how, *data(*pairs)), seen, faults=faults, **more)


PARTS = [{"lab1 weights offer", "lab2 weights receive"}, "lab1 close COMMITTED"]
TOLD = f"org/tiny@main is commit {COMMIT}: 3 files, 3.22 GB; 2 others, 3.22 GB, are left out"
GIVES = f"give /srv/models/tiny to {WORKER}, out of bond0"
TABLE = {
    "dry": (run(how="--dry"), quiet(
        TOLD, f"[{HEAD}] download 3 of 3 files, 3.22 GB, of org/tiny at {COMMIT} into "
        "/srv/models/tiny, with the hub's client in rigbook/vllm-cpu:0.32.0", GIVES)),
    # what came goes on to the others in the same change; the proof looks at both
    "download": (run(faults={f"{HEAD}:brings": True}), done(
        "3 files, 3.22 GB, in 40 s, each as the hub says",
        steps=["lab1 weights download", *PARTS, "lab2 close COMMITTED"])),
    "onto the other": (
        run(f"from={WORKER}", node=WORKER, faults={f"{WORKER}:brings": True}),
        done(f"[{WORKER}] download 3", steps=[
            "lab2 weights download", {"lab2 weights offer", "lab1 weights receive"},
            "lab1 close COMMITTED", "lab2 close COMMITTED"])),
    "at a revision": (run("download=org/tiny@v1.0", how="--dry"), quiet("org/tiny@v1.0 is commit")),
    "is there": (run(seen=all_there), quiet(f"{HEAD}: all of them are in /srv/models/tiny")),
    "no room": (run(seen=no_room), refused("transfer-room", HEAD)),
    "no such format": (
        run(hub={**THERE, "files": [row("pytorch_model.bin")]}),
        refused("has no file of .safetensors among its 1 files; the recipe loads safetensors")),
    "the hub says no": (
        run(hub=None, faults={f"{HEAD}:lost": "weights hub"}), refused("the line was cut")),
    "no token here": (
        run(*SECRET), refused("RIGBOOK_TEST_TOKEN of this shell is not set", "read -rs")),
    "a token": (
        run(*SECRET, faults={f"{HEAD}:brings": True}, env={"RIGBOOK_TEST_TOKEN": TOKEN}), done()),
    "a hub cache": (
        run(*CACHED, seen=in_cache, faults={f"{HEAD}:brings": True}, data={"ssh_user": "root"}),
        done(f"into {MODEL}/snapshots/{COMMIT}", steps=[
            "lab1 weights download", "lab1 apply directory+file",
            {"lab1 weights offer", "lab2 weights receive", "lab2 apply directory+file"},
            "lab1 close COMMITTED", "lab2 close COMMITTED"])),
    # what came waits beside the weights for the same command
    "cut off": (
        run(faults={f"{HEAD}:weights download": {"error": "401 of the hub", "code": "hub"}}),
        failed("401 of the hub", "run it again: it goes on from here",
               steps=["lab1 weights download", "lab1 beat"])),
    "in a venv": (
        run(seen=fresh, hosts=hosts, node=NAME, faults={f"{NAME}:brings": True}),
        done("with the hub's client in /opt/engine/venv", steps=[
            "tower1 weights download", "tower1 close COMMITTED"])),
    **{pair: (run(pair), refused("download", "ORG/NAME")) for pair in
       ("download=tiny", "download=-x/y", "download=a/b@../c", "download=a/b;id")},
}  # fmt: skip
test_each_run_ends_as_its_row_says = each_row(TABLE)


def asked(ran: Runs, name: str, verb: str = "weights download") -> dict[str, Any]:
    """What the one host was asked."""
    (sent,) = [c for c in ran[name].commands if c.verb == verb]
    return sent.request


def test_the_client_runs_in_the_engines_own_image_at_the_commit(ran: Runs) -> None:
    """Not at a revision that moves; with what the hub says of each file."""
    request = asked(ran, "download")
    assert request["image"] == "rigbook/vllm-cpu:0.32.0" and request["owner"] == "milo"
    assert (request["repo"], request["revision"]) == ("org/tiny", COMMIT)
    assert request["path"] == "/srv/models/tiny" and request["token"] is None
    assert [f["name"] for f in request["files"]] == ["config.json", SHARD, "README.md"]
    assert request["environ"] == {"HF_HUB_OFFLINE": "1"}
    assert asked(ran, "download", "weights hub")["revision"] == "main"
    assert asked(ran, "at a revision", "weights hub")["revision"] == "v1.0"
    assert asked(ran, "in a venv")["venv"] == "/opt/engine/venv"


def test_a_hub_cache_gets_the_snapshot_and_its_ref(ran: Runs) -> None:
    run = ran["a hub cache"]
    assert asked(ran, "a hub cache")["path"] == f"{MODEL}/snapshots/{COMMIT}"
    steps = [c.request["steps"][1] for c in run.changing if c.verb == "apply"]
    assert [(s["path"], s["content"]) for s in steps] == [(f"{MODEL}/refs/main", COMMIT)] * 2


def test_the_token_goes_by_stdin_and_is_told_nowhere(ran: Runs) -> None:
    run = ran["a token"]
    assert asked(ran, "a token")["token"] == {"name": "HF_TOKEN", "value": TOKEN}
    assert TOKEN not in run.output and all(TOKEN not in c.raw for c in run.commands)
