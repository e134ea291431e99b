"""The measurements that were kept: a folder of JSON files on this machine, and a copy on the head.

`measurements/RIG/ID.json`, written anew after each part: what was measured stays, whatever ends the
run.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError
from pyinfra import state
from pyinfra.api.exceptions import DeployError

from deploys.common.cli_guards import ROOT
from facts.rignode.context import real
from operations.change.node_call import StepFailed, call
from schema.core.parse import misfit
from schema.desired.plan import Plan
from schema.measure.run import BenchRun, SoakRun

Run = BenchRun | SoakRun
_RUN: TypeAdapter[Run] = TypeAdapter(Annotated[Run, Field(discriminator="kind")])
# The folder on this machine; git ignores it.
FOLDER = ROOT / "measurements"
# Another folder, for tests.
VARIABLE = "RIGBOOK_MEASUREMENTS"
_LAST = "last"
# Of a node, in the head's copy: an hour of them.
MOST_SAMPLES = 720


def folder(rig: str) -> Path:
    """The folder of a rig's measurements."""
    return Path(os.environ.get(VARIABLE) or FOLDER) / rig


def new_id(kind: str) -> str:
    """A measurement's id: UTC time, kind, and four hex digits so that two never share one."""
    return f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{kind}-{uuid.uuid4().hex[:4]}"


def save(run: BenchRun | SoakRun) -> Path:
    """Writes a run into the folder, over what it held of it before; gives the path."""
    path = folder(run.subject.rig) / f"{run.id}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".part")
    beside.write_text(run.model_dump_json(indent=1, exclude_none=True) + "\n", encoding="utf-8")
    beside.replace(path)
    return path


def save_on_head(plan: Plan, run: BenchRun | SoakRun) -> str:
    """Writes it on the rig's head as well, of many samples some; a line about where, or why not."""
    here, head = real(state), plan.rig.head.name
    document = json.loads(run.model_dump_json(exclude_none=True))
    for machine in document["machines"]:
        rows = machine["samples"]
        machine["samples"] = rows[:: 1 + len(rows) // MOST_SAMPLES]
    try:
        found = call(
            here, here.inventory.get_host(head), "measure keep",
            {"id": run.id, "document": document},
        )  # fmt: skip
    except StepFailed as error:
        return f"not kept on the head: {error}"
    return f"kept on {head} as {found['path']}"


def ids(rig: str, kind: str) -> list[str]:
    """The ids of a rig's measurements of this kind, newest first."""
    found = (path.stem for path in folder(rig).glob(f"*-{kind}-*.json"))
    return sorted(found, reverse=True)


def runs(rig: str) -> tuple[list[Run], list[str]]:
    """A rig's measurements, newest first, and a line for each file that is none of ours."""
    found: list[Run] = []
    bad = []
    for path in sorted(folder(rig).glob("*.json"), key=lambda path: path.stem, reverse=True):
        try:
            found.append(_RUN.validate_json(path.read_text(encoding="utf-8")))
        except ValidationError as error:
            bad.append(f"{path.name}: the document {misfit(error)}")
        except (OSError, UnicodeDecodeError) as error:
            bad.append(f"{path.name}: {error}")
    return found, bad


def _benches(rig: str) -> Iterator[BenchRun]:
    """Those that can be read, newest first."""
    for name in ids(rig, "bench"):
        with suppress(DeployError):
            yield bench(rig, name)


def bench(rig: str, name: str) -> BenchRun:
    """A bench of this rig by its id, the beginning of one, or `last`; DeployError when there is
    none, or when its file is none of ours.
    """
    known = ids(rig, "bench")
    matching = known[:1] if name == _LAST else [one for one in known if one.startswith(name)]
    if name in known:
        matching = [name]
    if not known:
        raise DeployError(
            f"no bench of rig {rig} is kept in {folder(rig)}; make one: "
            "pyinfra INVENTORY deploys/bench.py -y"
        )
    if len(matching) != 1:
        some = ", ".join(known[:5])
        why = f"begins {len(matching)} ids" if matching else "is no bench of this rig"
        raise DeployError(f"{name} {why}; there are: {some}")
    path = folder(rig) / f"{matching[0]}.json"
    try:
        return BenchRun.model_validate_json(path.read_text(encoding="utf-8"))
    except ValidationError as error:
        raise DeployError(f"{path}: the document {misfit(error)}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DeployError(f"{path}: {error}") from None


def last_rates(plan: Plan, profile: str) -> tuple[float, ...]:
    """The rates of one stream in the newest whole bench of this recipe and of `profile`, which
    runs, by the client that upgrade and rollback use as well; empty where there is none.
    """
    for run in _benches(plan.rig.name):
        same = (run.subject.recipe, run.subject.profile) == (plan.recipe.name, profile)
        if same and run.complete and run.other is not None and run.other.rates:
            return run.other.rates
    return ()
