"""Which steps bring a node's files, folders and unit to what the plan says."""

from __future__ import annotations

import dataclasses

import pytest

from node.change import kinds
from operations.engine.engine import file_steps, folder_steps, timer_steps, unit_steps
from schema.desired.plan import ENGINE_DIR, PAIR_TIMER, Document
from schema.observed.files import FileState
from schema.observed.units import Unit
from schema.render.engine_files import PAIR_TIMER_PATH
from tests.plans.support.scenario import HEAD, tiny_plan
from tests.unit.builders.engine_parts import absent_file, written_file
from tests.unit.builders.host_parts import absent_unit, pair_timer, unit
from tests.unit.builders.spark_rig import spark_plan

PLAN = tiny_plan()
DOCUMENTS = PLAN.documents[HEAD]
SCRIPT = DOCUMENTS[0]


def states(documents: tuple[Document, ...] = DOCUMENTS) -> dict[str, FileState]:
    """The files as serve wrote them."""
    return {document.path: written_file(document) for document in documents}


def changed(**values: object) -> dict[str, FileState]:
    """The same with the launch script's state changed."""
    return {**states(), SCRIPT.path: states()[SCRIPT.path].model_copy(update=values)}


def test_equal_files_need_no_step() -> None:
    """The environment's content stays on the host; its hash is enough."""
    assert states()[f"{ENGINE_DIR}/engine.env"].content is None
    assert file_steps(DOCUMENTS, states()) == []


@pytest.mark.parametrize(
    "values",
    [
        {"sha256": "0" * 64},
        {"mode": "0777"},
        {"uid": 1000},
        {"gid": 1000},
        {"kind": "link", "sha256": None},
    ],
    ids=str,
)
def test_any_difference_needs_the_step(values: dict[str, object]) -> None:
    """Content, mode and owner: a script that another user can write runs as root."""
    (step,) = file_steps(DOCUMENTS, changed(**values))
    assert (step["path"], step["content"], step["mode"]) == (
        SCRIPT.path,
        SCRIPT.content,
        SCRIPT.mode,
    )
    assert (step["owner"], step["group"]) == ("root", "root")


def test_a_step_expects_what_the_diff_showed() -> None:
    """An edit between look and write is refused by node, not overwritten."""
    (step,) = file_steps(DOCUMENTS, changed(sha256="0" * 64))
    assert step["expect_sha256"] == "0" * 64
    for nothing in ({}, {d.path: absent_file(d.path) for d in DOCUMENTS}):
        steps = file_steps(DOCUMENTS, nothing)
        assert [step["expect_sha256"] for step in steps] == ["absent"] * len(DOCUMENTS)


def test_only_a_script_is_checked_by_bash() -> None:
    """A syntax error never replaces a launch script that works."""
    checks = {str(step["path"]): step.get("validate") for step in file_steps(DOCUMENTS, {})}
    assert checks.pop(SCRIPT.path) == ["bash", "-n", "{tmp}"]
    assert set(checks.values()) == {None}


def test_absent_folders_are_made_with_their_owner() -> None:
    """The engine's and those of compiled kernels are root's, the caches are the login user's; the
    weights' is never made."""
    spec = spark_plan().specs["spark1"]
    assert spec.cache_folders and spec.jit_folders
    paths = [ENGINE_DIR, "/etc/rigbook", *spec.jit_folders, *spec.cache_folders, spec.weights]
    steps = folder_steps(spec, {path: absent_file(path) for path in paths}, "milo")
    owners = {step["path"]: step["owner"] for step in steps}
    assert owners == {
        "/etc/rigbook": "root",
        ENGINE_DIR: "root",
        **dict.fromkeys(spec.jit_folders, "root"),
        **dict.fromkeys(spec.cache_folders, "milo"),
    }
    order = [step["path"] for step in steps]
    assert order.index("/etc/rigbook") < order.index(ENGINE_DIR)
    made = [path for path in order if path in spec.jit_folders]
    assert made == sorted(spec.jit_folders, key=len), "a folder's parent comes first"


def test_folders_that_are_there_or_unknown_are_left_alone() -> None:
    """Nothing is made where nobody looked, or where something stands."""
    spec = spark_plan().specs["spark1"]
    there = absent_file(ENGINE_DIR).model_copy(update={"kind": "directory"})
    assert folder_steps(spec, {}, "milo") == []
    assert folder_steps(spec, {ENGINE_DIR: there}, "milo") == []
    link = absent_file(ENGINE_DIR).model_copy(update={"kind": "link"})
    assert folder_steps(spec, {ENGINE_DIR: link}, "milo") == []


@pytest.mark.parametrize(
    ("now", "files_change", "wanted"),
    [
        (None, False, True),
        (absent_unit(), False, True),
        (unit(enabled="disabled"), False, True),
        (unit(enabled="masked"), True, True),
        (unit(), True, True),
        (unit(needs_reload=True), False, None),
    ],
)
def test_the_unit_is_enabled_and_reloaded_where_needed(
    now: object, files_change: bool, wanted: bool | None
) -> None:
    """One step, which never starts or stops: that is another step of the order."""
    (step,) = unit_steps(now, files_change)
    assert (step["enabled"], step["active"], step["daemon_reload"]) == (wanted, None, True)


def test_an_enabled_unit_as_written_needs_nothing() -> None:
    """A second run does not even reload systemd."""
    assert unit_steps(unit(), False) == []


def test_node_accepts_every_step() -> None:
    """The steps of a fresh rig, against node's own checks."""
    spec = dataclasses.replace(PLAN.specs[HEAD], cache_folders=("/home/milo/.cache",))
    absent = {p: absent_file(p) for p in ("/etc/rigbook", ENGINE_DIR, *spec.cache_folders)}
    steps = folder_steps(spec, absent, "root") + file_steps(DOCUMENTS, {}) + unit_steps(None, True)
    assert len(steps) == 3 + len(DOCUMENTS) + 1
    for number, step in enumerate(steps):
        kinds.parse(step, f"steps[{number}]")


@pytest.mark.parametrize(
    ("timer", "files", "active"),
    [
        (None, (), "start"),
        (pair_timer(enabled="disabled"), (), "start"),
        (pair_timer(active_state="inactive"), (), "start"),
        # A timer that runs goes on by its old file until it is started anew.
        (pair_timer(), (PAIR_TIMER_PATH,), "restart"),
        (pair_timer(), (f"{PAIR_TIMER_PATH}.d/x.conf",), None),
        (pair_timer(), (), None),
    ],
)
def test_a_timer_runs_as_its_file_says(
    timer: Unit | None, files: tuple[str, ...], active: str | None
) -> None:
    steps = timer_steps(PAIR_TIMER, timer, files)
    assert [(step["unit"], step["enabled"], step["active"]) for step in steps] == (
        [(PAIR_TIMER, True, active)] if active else []
    )
