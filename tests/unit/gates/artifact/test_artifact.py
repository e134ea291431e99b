"""Gates of an engine in a venv: silent on a healthy tower, one broken piece gives its own code."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from facts import local
from gates.artifact import VENV_GATES, wheels, would_install
from gates.core import UNWAIVABLE
from gates.doctor import healthy_line
from gates.gate_sets import check
from gates.patches import PatchState, added_blocks, findings, judge_file_patch_state, unfinished
from gates.processes import engine_state
from gates.recipe import drift
from schema.artifact import VenvWheels, parse_pip_report, variant_of
from schema.compatibility import FilePatch, PatchTool
from schema.core import SpecError, build_parse
from schema.plan import Plan
from schema.recipe import WheelsSpec
from schema.snapshot import Unreadable
from tests.unit.builders import host_parts, rigs
from tests.unit.builders.mxfp4 import BASE, FOUR, PATCHED, THREE, diff
from tests.unit.builders.rigs import spark_plan

TOWER = rigs.TOWER


@pytest.fixture(scope="module")
def plan() -> Plan:
    return rigs.tower_plan()


def test_a_rig_of_containers_knows_nothing_of_venvs() -> None:
    spark = spark_plan()
    assert check(spark, rigs.healthy(spark), VENV_GATES) == []


def test_a_recipe_without_a_version_takes_any(plan: Plan) -> None:
    venv = plan.recipe.venv
    assert venv is not None
    free = plan.recipe.model_copy(update={"venv": venv.model_copy(update={"version": None})})
    seen = rigs.healthy_tower(plan)
    seen[TOWER] = rigs.put(seen[TOWER], "venvs.0.versions", {"vllm": ("9.9",)})
    assert check(Plan(**{**vars(plan), "recipe": free}), seen, VENV_GATES) == []


def down(plan: Plan, **unit: Any) -> Any:
    """The tower with its unit in trouble and no engine."""
    seen = rigs.serving_tower(plan)
    seen[TOWER] = rigs.put(seen[TOWER], "engine_processes", ())
    seen[TOWER] = rigs.put(seen[TOWER], "ports", (host_parts.port(22),))
    values = {"active_state": "failed", "sub_state": "failed", "main_pid": None, **unit}
    seen[TOWER] = rigs.put(seen[TOWER], "units", (host_parts.unit(**values),))
    return seen


@pytest.mark.parametrize(
    ("unit", "processes", "state"),
    [
        ({}, True, "running"),
        ({"active_state": "activating", "sub_state": "start-post"}, True, "starting"),
        ({}, False, "starting"),
        ({"active_state": "inactive", "sub_state": "dead"}, False, "stopped"),
        ({"active_state": "failed", "sub_state": "failed"}, False, "failed"),
        ({"active_state": "activating", "sub_state": "auto-restart"}, False, "failed"),
        ({"load_state": "not-found"}, False, "absent"),
    ],
)
def test_the_state_follows_unit_and_processes(
    plan: Plan, unit: dict[str, Any], processes: bool, state: str
) -> None:
    seen: Any = rigs.serving_tower(plan)[TOWER]
    seen = rigs.put(seen, "units", (host_parts.unit(**unit),))
    if not processes:
        seen = rigs.put(rigs.put(seen, "engine_processes", ()), "ports", ())
    assert engine_state(plan, plan.rig.head, seen) == state


def test_unknown_processes_are_no_running_engine(plan: Plan) -> None:
    seen = rigs.put(
        rigs.serving_tower(plan)[TOWER], "engine_processes", Unreadable(unreadable="denied")
    )
    assert engine_state(plan, plan.rig.head, seen) == "failed"


def texts(plan: Plan, seen: Any) -> list[str]:
    """What has drifted on the tower."""
    return [d.text for d in drift(plan, plan.rig.head, seen)]


def test_drift_of_the_live_engine(plan: Plan) -> None:
    seen: Any = rigs.serving_tower(plan)[TOWER]
    assert texts(plan, seen) == []
    argv = [*seen.engine_processes[0].argv, "--max-num-seqs", "9"]
    moved = rigs.put(seen, "engine_processes.0.argv", tuple(argv))
    assert texts(plan, moved) == ["max_num_seqs 9, recipe says 4"]
    environ = {**seen.engine_processes[0].environ, "VLLM_WORKER_MULTIPROC_METHOD": "fork"}
    forked = rigs.put(seen, "engine_processes.0.environ", environ)
    assert ["VLLM_WORKER_MULTIPROC_METHOD=fork is forbidden" in x for x in texts(plan, forked)] == [
        True
    ]


def test_an_engine_of_the_former_venv_has_drifted(plan: Plan) -> None:
    """The link was moved on; what serves is the old version."""
    seen: Any = rigs.serving_tower(plan)[TOWER]
    moved = rigs.put(seen, "venvs.0.target", "/opt/engine/venvs/0.33.0")
    (found,) = texts(plan, moved)
    assert "/opt/engine/venvs/0.33.0" in found and "/opt/engine/venvs/0.32.0/bin/python" in found
    argv = list(seen.engine_processes[0].argv)
    argv[1] = "/srv/other/bin/vllm"
    (found,) = texts(plan, rigs.put(seen, "engine_processes.0.argv", tuple(argv)))
    assert "/srv/other/bin/vllm" in found


def test_a_stopped_engine_is_compared_by_its_files(plan: Plan) -> None:
    seen = down(plan)[TOWER]
    assert texts(plan, seen) == []
    script = seen.files[0]
    other = script.content.replace("--max-num-seqs 4", "--max-num-seqs 7")
    assert "max_num_seqs 7, recipe says 4" in texts(plan, rigs.put(seen, "files.0.content", other))


def test_the_line_about_a_tower_that_is_well(plan: Plan) -> None:
    line = healthy_line(plan, plan.rig.head, rigs.serving_tower(plan)[TOWER])
    assert "4 processes" in line and "vllm 0.32.0+cpu" in line and "image" not in line


# The gate on pip's plan: torch's variant, wheels that are not there, the way back.

PLAN = spark_plan()
CPU_PLAN = spark_plan(recipe="tiny", profile="balanced")
NODE = PLAN.rig.head.name
ENVIRONMENT = {"platform_system": "Linux", "platform_machine": "x86_64", "sys_platform": "linux"}


def report(*items: tuple[str, str], requires: tuple[str, ...] = (), url: str = "") -> str:
    """A report of pip over these (name, version)."""
    rows = [
        {
            "metadata": {"name": name, "version": version, "requires_dist": list(requires)},
            "download_info": {"url": url or f"file:///w/{name}-{version}-py3-none-any.whl"},
            "requested": name == "vllm",
        }
        for name, version in items
    ]
    return json.dumps(
        {"version": "1", "pip_version": "25.0", "install": rows, "environment": ENVIRONMENT}
    )


OLD = report(("vllm", "0.19.2rc1"))
NEW = ("vllm", "0.20.2")


def answer(wanted: str | None = None, **changes: object) -> VenvWheels:
    """A venv with vllm 0.19.2rc1 and torch 2.9.0+cu130, and pip's plan for 0.20.2."""
    values: dict[str, object] = {
        "python": "/opt/vllm/bin/python",
        "pip": "25.0",
        "args": (),
        "installed": (
            {"name": "vllm", "version": "0.19.2rc1", "path": "/opt/vllm/vllm.dist-info"},
            {"name": "torch", "version": "2.9.0+cu130", "path": "/opt/vllm/torch.dist-info"},
        ),
        "torch_cuda": "13.0",
        "wanted": wanted or report(NEW),
        "wanted_error": None,
        "old": OLD,
        "old_error": None,
        **changes,
    }
    return VenvWheels.model_validate(values)


def codes(seen: VenvWheels, **spec: object) -> list[tuple[str, str]]:
    """The codes and severities of the findings."""
    rules = WheelsSpec.model_validate(spec)
    found = wheels(PLAN, rules, "0.20.2", {NODE: seen})
    assert all(v.evidence and v.remedy and v.node == NODE for v in found)
    return [(v.code, v.severity) for v in found]


def test_an_upgrade_that_leaves_torch_alone_is_no_finding() -> None:
    assert codes(answer()) == []
    assert would_install(WheelsSpec(), answer()) == "0.20.2"


def test_a_torch_of_the_same_variant_is_no_finding() -> None:
    assert codes(answer(report(NEW, ("torch", "2.10.0+cu130")))) == []


@pytest.mark.parametrize(
    ("version", "code"),
    [
        ("2.10.0+cpu", "torch-cpu"),
        ("2.10.0", "torch-cpu"),
        ("2.10.0+cu128", "torch-variant"),
        ("2.10.0+rocm6.4", "torch-variant"),
    ],
)
def test_a_torch_of_another_variant_is_refused(version: str, code: str) -> None:
    """C1: pip resolves it without a word; the C extension does not load."""
    seen = answer(report(NEW, ("torch", version)))
    assert codes(seen) == [(code, "block")]
    (found,) = wheels(PLAN, WheelsSpec(), "0.20.2", {NODE: seen})
    assert "2.9.0+cu130 (cu130) now" in found.evidence and version in found.evidence


def test_the_recipe_may_want_another_variant() -> None:
    seen = answer(report(NEW, ("torch", "2.10.0+cu128")))
    assert codes(seen, torch_variant="cu128") == []
    assert codes(answer(), torch_variant="cu128") == [("torch-variant", "block")]


def test_on_a_rig_without_gpus_the_recipe_rules() -> None:
    seen = answer(
        report(NEW, ("torch", "2.10.0+cpu")),
        installed=({"name": "torch", "version": "2.9.0+cpu", "path": "/t"},),
        torch_cuda="",
    )

    def found(spec: WheelsSpec) -> list[str]:
        rows = wheels(CPU_PLAN, spec, "0.20.2", {CPU_PLAN.rig.head.name: seen})
        return [v.code for v in rows]

    assert found(WheelsSpec()) == [] and found(WheelsSpec(torch_variant="cpu")) == []
    assert found(WheelsSpec(torch_variant="cu130")) == ["torch-variant"]


def test_a_torch_that_does_not_say_what_it_is_is_unknown() -> None:
    """P5; a recipe that names the variant answers it."""
    installed = ({"name": "torch", "version": "2.9.0", "path": "/t"},)
    seen = answer(report(NEW, ("torch", "2.10.0+cu130")), installed=installed, torch_cuda=None)
    (found,) = wheels(PLAN, WheelsSpec(), "0.20.2", {NODE: seen})
    assert found.code == "torch-variant" and found.unknown and "torch_variant" in found.remedy
    assert codes(seen, torch_variant="cu130") == []


@pytest.mark.parametrize(
    ("requires", "machine", "variant"),
    [
        ('nvidia-cuda-runtime-cu12==12.8.90; platform_system == "Linux"', "x86_64", "cu12"),
        ("nvidia-cudnn-cu13==9.1", "x86_64", "cu13"),
        ('cuda-toolkit[cudart]==13.0.2; platform_machine == "x86_64"', "x86_64", "cu13"),
        ('nvidia-cuda-runtime-cu12==12.8.90; platform_machine == "x86_64"', "aarch64", "cpu"),
        ("sympy>=1.13", "x86_64", "cpu"),
    ],
)
def test_a_torch_of_the_plain_index_is_told_by_what_it_asks_for(
    requires: str, machine: str, variant: str
) -> None:
    """Its version has no local part; on arm64 the plain index has a CPU build."""
    parsed = parse_pip_report(report(("torch", "2.10.0"), requires=(requires,)))
    torch = parsed.item("torch")
    assert torch is not None
    assert variant_of(torch, {**ENVIRONMENT, "platform_machine": machine}) == variant


def test_a_variant_in_the_file_s_name_counts() -> None:
    url = "http://host/whl/cu130/torch-2.10.0%2Bcu130-cp312-cp312-linux_x86_64.whl"
    torch = parse_pip_report(report(("torch", "2.10.0"), url=url)).item("torch")
    assert torch is not None and variant_of(torch, ENVIRONMENT) == "cu130"


def test_cu12_of_the_plain_index_is_any_cuda_12() -> None:
    line = ("nvidia-cuda-runtime-cu12==12.8.90",)
    seen = answer(
        report(("torch", "2.10.0"), requires=line),
        installed=({"name": "torch", "version": "2.9.0+cu128", "path": "/t"},),
    )
    assert codes(seen) == []


def test_a_wheel_that_cannot_be_had_blocks_and_cannot_be_waived() -> None:
    seen = answer(wanted=None, wanted_error="ERROR: No matching distribution found")
    seen = seen.model_copy(update={"wanted": None})
    assert codes(seen) == [("wheel-missing", "block")]
    assert {"wheel-missing", "pip-report-unreadable"} <= UNWAIVABLE


@pytest.mark.parametrize("text", ["not json", "[]", '{"version": "2", "install": []}', '{"x": 1}'])
def test_a_report_that_cannot_be_read_blocks(text: str) -> None:
    assert codes(answer(text)) == [("pip-report-unreadable", "block")]


def test_the_old_wheel_that_is_gone_is_told_before_an_upgrade() -> None:
    """B5: the backup is the only way back, and it says so."""
    seen = answer(old=None, old_error="ERROR: no matching distribution: vllm==0.19.2rc1")
    assert codes(seen) == [("old-wheel-missing", "warn")]
    (found,) = wheels(PLAN, WheelsSpec(), "0.20.2", {NODE: seen})
    assert "the backup is the only way back" in found.summary


def test_another_version_of_the_old_wheel_does_not_count() -> None:
    assert codes(answer(old=report(("vllm", "0.19.3")))) == [("old-wheel-missing", "warn")]


def test_a_first_installation_has_no_old_version() -> None:
    assert codes(answer(installed=(), torch_cuda=None, old=None)) == []


def test_nodes_that_did_not_answer_are_not_judged() -> None:
    assert wheels(PLAN, WheelsSpec(), "0.20.2", {}) == []


# The states of a patch in a file, decided with the real git; and what is mended, and what not.

KNOWN = {"before": ["BASE"], "after": ["PATCHED"]}


def digest(text: str) -> str:
    """A text's sha256."""
    return hashlib.sha256(text.encode()).hexdigest()


def patch(**changes: object) -> FilePatch:
    """The seed's patch; a key changed to `...` is left out."""
    values: dict[str, object] = {
        "id": "mxfp4-gpu-cache",
        "path": "vllm/mxfp4.py",
        "reason": "without it the GPU's firmware hangs",
        "diff": diff(),
        "contains": "empty_cache",
        "count": 2,
        **changes,
    }
    return build_parse(
        FilePatch, {k: v for k, v in values.items() if v is not ...}, lambda key: "r.yaml"
    )


def hashed(**changes: object) -> FilePatch:
    """The same with the hashes of both known files."""
    return patch(**{"before": [digest(BASE)], "after": [digest(PATCHED)], **changes})


def state(one: FilePatch, text: str, version: str | None = "0.20.2") -> PatchState:
    """The patch's state in a file of this text."""
    return judge_file_patch_state(one, "/v/mxfp4.py", text.encode(), version, local.git_apply)


ONLY_DIFF = patch(contains=..., count=...)
MOVED = "# a line more\n" * 5 + BASE
OTHER_PATCHED = PATCHED + "# edited by hand\n"


@pytest.mark.parametrize("one", [patch(), hashed(), ONLY_DIFF], ids=["count", "hashes", "diff"])
def test_each_state_is_told(one: FilePatch) -> None:
    assert state(one, BASE).state == "not applied"
    assert state(one, PATCHED).state == "applied"
    assert state(one, THREE).state == "doubled"
    assert state(one, FOUR).state == "doubled"
    assert state(one, "import torch\n").state == "drifted"


@pytest.mark.parametrize("one", [patch(), hashed(), ONLY_DIFF], ids=["count", "hashes", "diff"])
def test_what_is_wanted_is_the_known_good_content(one: FilePatch) -> None:
    """C4 and C15: without the patch and with a doubled one, the outcome is the same file."""
    for text in (BASE, THREE, FOUR):
        assert state(one, text).wanted == PATCHED.encode()
    for text in (PATCHED, "import torch\n"):
        assert state(one, text).wanted is None


def test_a_file_that_moved_is_patched_where_the_hunks_are() -> None:
    moved = state(patch(), MOVED)
    assert moved.state == "not applied" and moved.wanted is not None
    assert moved.wanted.count(b"empty_cache") == 2
    again = state(patch(), moved.wanted.decode())
    assert again.state == "applied"


def test_with_hashes_only_the_known_files_are_touched() -> None:
    """A file in neither known state is refused, also when the diff would fit."""
    for text in (MOVED, OTHER_PATCHED):
        found = state(hashed(), text)
        assert found.state == "drifted" and found.wanted is None
        assert "is not known" in found.detail
    assert state(patch(), OTHER_PATCHED).state == "applied"


def test_a_doubled_file_with_other_edits_is_named_and_not_mended_by_hash() -> None:
    found = state(hashed(), THREE + "# edited\n")
    assert found.state == "doubled" and found.wanted is None
    assert findings("n", [found])[0].code == "patch-doubled"


def test_half_a_patch_is_drifted() -> None:
    half = PATCHED.replace(added_blocks(diff())[0].decode(), "", 1)
    found = state(ONLY_DIFF, half)
    assert (found.state, found.wanted) == ("drifted", None)


def test_upstreamed_is_what_the_recipe_knows_of_a_version() -> None:
    one = hashed(upstreamed=">=0.21")
    upstream = "import torch\n# rewritten\n"
    assert state(one, upstream, "0.21.0").state == "upstreamed"
    assert state(one, upstream, "0.20.2").state == "drifted"
    assert state(one, upstream, None).state == "drifted"
    assert state(one, BASE, "0.21.0").state == "not applied"
    assert state(one, PATCHED, "0.21.0").state == "applied"
    assert state(one, THREE, "0.21.0").state == "doubled"


def test_hashes_without_a_diff_are_checked_and_never_applied() -> None:
    one = hashed(diff=..., contains=..., count=...)
    found = state(one, BASE)
    assert found.state == "not applied" and found.wanted is None
    assert [v.code for v in findings("n", [found])] == ["patch-missing"]
    assert state(one, THREE).state == "drifted"


def test_a_diff_whose_outcome_is_not_the_known_file_is_refused() -> None:
    wrong = hashed(after=[digest("something else")])
    found = state(wrong, BASE)
    assert (found.state, found.wanted) == ("drifted", None)
    assert "not the patched file that the recipe knows" in found.detail


def test_findings_stop_what_nobody_may_write() -> None:
    """What patch mends is no finding; the rest blocks, an optional patch only warns."""
    assert findings("n", [state(patch(), text) for text in (BASE, PATCHED, THREE)]) == []
    found = findings("n", [state(patch(), "x\n")])
    assert [(v.code, v.severity) for v in found] == [("patch-drifted", "block")]
    optional = findings("n", [state(patch(required=False), "x\n")])
    assert [(v.code, v.severity) for v in optional] == [("patch-drifted", "warn")]
    none = PatchState(patch(required=False), "unknown", "must match one file: no such file")
    (blocked,) = findings("n", [none])
    assert (blocked.code, blocked.severity, blocked.unknown) == ("patch-unknown", "block", True)


def test_unfinished_names_every_required_patch_that_is_not_in_force() -> None:
    rows = [state(patch(), text) for text in (BASE, PATCHED, THREE, "x\n")]
    assert [v.code for v in unfinished("n", rows)] == [
        "patch-missing",
        "patch-doubled",
        "patch-drifted",
    ]
    assert unfinished("n", [state(patch(required=False), BASE)]) == []


def test_the_diffs_own_names_are_not_used() -> None:
    """A header that leads elsewhere changes nothing elsewhere."""
    evil = diff(name="../../../etc/passwd")
    assert local.git_apply(evil, BASE.encode(), False) == PATCHED.encode()
    assert local.git_apply(diff(), b"other\n", False) is None
    assert local.git_apply(diff(), PATCHED.encode(), True) == BASE.encode()


def test_ends_of_lines_are_kept() -> None:
    """A file without a last newline, and one with CRLF."""
    before, after = "a\nb", "a\nc"
    text = (
        "--- a\n+++ b\n@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+c\n"
        "\\ No newline at end of file\n"
    )
    assert local.git_apply(text, before.encode(), False) == after.encode()
    assert local.git_apply(diff(), BASE.replace("\n", "\r\n").encode(), False) is None


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"diff": ...}, "cannot be checked"),
        ({"diff": "hello"}, "is not a unified diff of one file"),
        ({"diff": "--- a\n+++ b\nhello\n"}, "has no hunk"),
        ({"diff": diff() + diff()}, "is not a unified diff of one file"),
        ({"diff": diff() + "\x1b[31m"}, "control characters"),
        ({"count": ...}, "contains and count go together"),
        ({"count": 0}, "1 or more"),
        ({"before": ["abc"]}, "is not a sha256"),
        ({"before": [digest(BASE)], "after": [digest(BASE)]}, "in before and in after"),
        ({"path": "../x.py"}, "is not a path below site-packages"),
        ({"path": "-x.py"}, "is not a path below site-packages"),
        ({"path": "/a/../x.py"}, "is not an absolute path"),
        ({"path": "$(touch x).py"}, "is not a path below site-packages"),
        ({"upstreamed": "0.21"}, "is not a range of versions"),
        ({"id": "a;b"}, "is not a plain name"),
        ({"reason": "a\nb"}, "newline"),
        ({"colour": 1}, "unknown key"),
    ],
)
def test_a_wrong_patch_is_one_clear_line(changes: dict[str, object], part: str) -> None:
    with pytest.raises(SpecError) as caught:
        patch(**changes)
    assert part in str(caught.value) and "allowed:" in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"argv": []}, "too few"),
        ({"argv": ["genesis"]}, "is 'genesis'"),
        ({"argv": ["-c", "x"]}, "starts with `-`"),
        ({"argv": ["/bin/sh", "a\nb"]}, "newline"),
        ({"tree": "vllm/*"}, "one folder"),
        ({"tree": "../vllm"}, "is not a path below site-packages"),
        ({"env": {"A B": "1"}}, "is not a variable's name"),
        ({"timeout_s": 0}, "1 or more"),
    ],
)
def test_a_wrong_tool_is_one_clear_line(changes: dict[str, object], part: str) -> None:
    values = {"id": "genesis", "argv": ["{venv}/bin/python", "-m", "genesis"], "reason": "r"}
    assert build_parse(PatchTool, values, lambda key: "r.yaml").tree == "vllm"
    with pytest.raises(SpecError, match=part):
        build_parse(PatchTool, {**values, **changes}, lambda key: "r.yaml")
