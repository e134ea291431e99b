"""Drift: the live engine against its plan, one line a difference."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gates.doctor import examine
from gates.gate_sets import check
from gates.processes import compare_vllm_flags, flags_of
from gates.recipe import drift, written_argv, written_environ
from schema import render_unit
from schema.plan import UNIT, Plan
from schema.render_engine import ENV_PATH, SCRIPT_PATH
from schema.snapshot import Mount, NodeSnapshot, Unreadable
from tests.unit.builders import engine_parts, host_parts, rigs
from tests.unit.builders.rigs import spark_plan

PLAN = spark_plan()
HEAD, WORKER = PLAN.rig.nodes


def texts(*changes: tuple[str, Any], node: Any = HEAD) -> list[str]:
    """The differences of a serving node with these values changed."""
    seen = rigs.serving(PLAN)[node.name]
    for path, value in changes:
        seen = rigs.put(seen, path, value)
    return [difference.text for difference in drift(PLAN, node, seen)]


def argv(*swaps: tuple[str, str], node: Any = HEAD) -> tuple[str, ...]:
    """The node's live command line with texts replaced; an empty one is left out."""
    processes: Any = rigs.serving(PLAN)[node.name].engine_processes
    tokens = processes[0].argv
    swap = dict(swaps)
    return tuple(swap.get(token, token) for token in tokens if swap.get(token, token))


def live(*swaps: tuple[str, str], node: Any = HEAD) -> list[str]:
    return texts(("engine_processes.0.argv", argv(*swaps, node=node)), node=node)


def test_a_serving_rig_has_no_drift() -> None:
    assert texts() == []
    assert texts(node=WORKER) == []


def test_a_changed_flag() -> None:
    assert live(("131072", "200000")) == ["max_model_len 200000, recipe says 131072"]


def test_the_seeds_hand_relaunch() -> None:
    drifted = live(("131072", "200000"), ("8", "4"), ("--enable-expert-parallel", ""))
    assert drifted == [
        "max_model_len 200000, recipe says 131072",
        "max_num_seqs 4, recipe says 8",
        "enable_expert_parallel not set, recipe says true",
    ]


def test_a_flag_that_the_recipe_does_not_have() -> None:
    assert live(("131072", "131072 ")) == []  # a number is a number
    extra = (*argv(), "--enforce-eager", "--seed=7")
    assert texts(("engine_processes.0.argv", extra)) == [
        "enforce_eager true, recipe says not set",
        "seed 7, recipe says not set",
    ]


def test_a_worker_without_headless() -> None:
    assert live(("--headless", ""), node=WORKER) == ["headless not set, recipe says true"]


def test_json_that_lost_its_quotes_is_named() -> None:
    spec = '{"method":"deepseek_mtp","num_speculative_tokens":2}'
    (line,) = live((spec, "{method:deepseek_mtp,num_speculative_tokens:2}"))
    assert line.startswith("speculative_config {method:deepseek_mtp,num_speculative_tokens:2}")
    assert "lost its JSON quotes" in line
    # bash's brace expansion splits what the quotes held together
    torn = ["serve", "--x", "method:deepseek_mtp", "num_speculative_tokens:2"]
    split = [*compare_vllm_flags(["serve", "--x", spec], torn)]
    assert "lost its JSON quotes" in split[0][2]


def test_json_is_compared_by_value() -> None:
    one = ["serve", "m", "--x", '{"a": 1, "b": [2]}', "--y", "0.90", "--no-z"]
    other = ["serve", "m", '--x={"b":[2],"a":1.0}', "--y", "0.9", "--no-z"]
    assert list(compare_vllm_flags(one, other)) == []
    other[2] = '--x={"b":[2],"a":2}'
    assert [name for name, _, _ in compare_vllm_flags(one, other)] == ["x"]
    assert "lost" not in next(iter(compare_vllm_flags(one, other)))[2]


def test_json_that_differs_in_a_type_kept_its_quotes() -> None:
    ((_, _, had),) = compare_vllm_flags(["serve", "--x", '{"a":1}'], ["serve", "--x", '{"a":"1"}'])
    assert had == '{"a":"1"}'


def test_flags_of_a_command_line() -> None:
    words = ["python3", "vllm", "serve", "/m", "--a-b", "--no-c", "--d", "x", "-1", "--e=f"]
    assert flags_of(words) == {"model": ("/m",), "a_b": True, "c": False, "d": ("x", "-1"),
                               "e": ("f",)}  # fmt: skip


def test_a_masked_secret_is_not_compared() -> None:
    assert (
        list(compare_vllm_flags(["serve", "--api-key", "k"], ["serve", "--api-key", "***"])) == []
    )


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        ("docker.containers.0.restart_policy", "unless-stopped",
         "container restart policy: unless-stopped (a second supervisor beside systemd), "
         "wanted no"),
        ("docker.containers.0.ipc_mode", "private", "container ipc mode: private, wanted host"),
        ("docker.containers.0.privileged", False, "container privileged: false, wanted true"),
        ("docker.containers.0.init", False, "container init process: false, wanted true"),
        ("units.0.enabled", "disabled", f"unit {UNIT}: disabled, wanted enabled"),
        ("units.0.needs_reload", True,
         f"unit {UNIT}: changed since systemd read it, wanted loaded as on disk"),
        ("units.0.drop_ins", ("/etc/x.conf",),
         f"unit {UNIT}: overridden by /etc/x.conf, wanted no drop-in of others"),
        ("units.0.active_state", "inactive",
         f"unit {UNIT}: inactive, while its container runs, wanted active"),
        ("files.0.kind", "absent", "file /etc/rigbook/engine/serve.sh: absent, wanted a file"),
        ("files.0.mode", "0777",
         "file /etc/rigbook/engine/serve.sh: mode 0777, wanted mode 0755"),
        ("files.1.uid", 1000,
         "file /etc/rigbook/engine/engine.env: owner 1000:0, wanted owner 0:0"),
        ("files.1.gid", 1000,
         "file /etc/rigbook/engine/engine.env: owner 0:1000, wanted owner 0:0"),
    ],
)  # fmt: skip
def test_one_changed_value_is_one_line(path: str, value: Any, text: str) -> None:
    assert texts((path, value)) == [text]


def test_a_file_is_compared_by_its_hash() -> None:
    (line,) = texts(("files.1.sha256", "f" * 64))
    assert line.startswith("file /etc/rigbook/engine/engine.env: sha256 ffffffffffff, wanted")


def test_a_unit_of_a_former_rigbook_is_named_with_both_programs() -> None:
    unit = PLAN.documents[HEAD.name][2]
    former = "/usr/local/lib/rigbook/rignode-0123456789ab.pyz"
    found = engine_parts.written_file(
        replace(unit, content=unit.content.replace(render_unit.program_path(), former))
    )
    assert texts(("files.2", found)) == [
        f"file {unit.path}: runs {former}, wanted runs {render_unit.program_path()}"
    ]
    edited = engine_parts.written_file(replace(unit, content=f"{found.content}# edited\n"))
    assert "sha256" in texts(("files.2", edited))[0]


def test_another_image_of_the_same_tag() -> None:
    (line,) = texts(("docker.containers.0.image_id", "sha256:" + "9" * 64))
    assert line.startswith("image ghcr.io/") and "sha256:999999999999" in line


def test_mounts() -> None:
    mounts = engine_parts.container(PLAN, HEAD).mounts
    volume = Mount(source="/var/lib/docker/volumes/x/_data", target="/data", read_only=False)
    assert texts(("docker.containers.0.mounts", (*mounts, volume))) == []
    stray = volume.model_copy(update={"source": "/home/milo/patched"})
    assert texts(("docker.containers.0.mounts", (*mounts[1:], stray))) == [
        "mount /models: none, wanted /home/milo/models (writable)",
        "mount /data: /home/milo/patched (writable), wanted none",
    ]


def test_the_live_environment() -> None:
    environ = {**PLAN.specs[HEAD.name].environ, "OMP_NUM_THREADS": "1"}
    environ.pop("NCCL_IB_HCA")
    assert texts(("docker.containers.0.environ", environ)) == [
        "OMP_NUM_THREADS 1, recipe says 8",
        "NCCL_IB_HCA not set, recipe says rocep1s0f0,rocep1s0f1",
    ]


def test_what_the_host_masks_or_does_not_report_is_not_compared() -> None:
    environ = {**PLAN.specs[HEAD.name].environ, "HF_TOKEN": "secret", "LD_PRELOAD": "x.so"}
    spec = replace(PLAN.specs[HEAD.name], environ=environ)
    plan = replace(PLAN, specs={**PLAN.specs, HEAD.name: spec})
    reported = {**PLAN.specs[HEAD.name].environ, "HF_TOKEN": "***"}
    seen = rigs.put(rigs.serving(PLAN)[HEAD.name], "docker.containers.0.environ", reported)
    assert drift(plan, HEAD, seen) == []


def test_a_forbidden_variable_says_why() -> None:
    (line,) = texts(("engine_processes.0.environ", {"VLLM_WORKER_MULTIPROC_METHOD": "fork"}))
    assert line.startswith("VLLM_WORKER_MULTIPROC_METHOD=fork is forbidden: ")
    assert "ShmRingBuffer" in line


@pytest.mark.parametrize("section", ["files", "units", "docker"])
def test_an_unreadable_section_is_a_difference(section: str) -> None:
    lines = texts((section, Unreadable(unreadable="permission denied")))
    assert f"unknown {section}: permission denied, wanted readable" in lines


def test_a_node_without_an_engine_lacks_files_and_unit_only() -> None:
    found = drift(PLAN, HEAD, rigs.healthy(PLAN)[HEAD.name])
    assert {d.kind for d in found} == {"file", "unit"}
    assert len(found) == 7


def test_a_starting_container_shows_no_command_line_yet() -> None:
    assert texts(("engine_processes", ())) == []


def test_a_short_name_is_the_flag_that_it_stands_for() -> None:
    long = ("vllm", "serve", "/m", "--tensor-parallel-size", "2", "--enable-expert-parallel")
    assert not list(compare_vllm_flags(long, ("vllm", "serve", "/m", "-tp", "2", "-ep")))
    assert list(compare_vllm_flags(long, ("vllm", "serve", "/m", "-tp", "4", "-ep"))) == [
        ("tensor_parallel_size", "2", "4")]  # fmt: skip
    levels = [("vllm", "serve", "/m", *words) for words in (("-O3",), ("-O=3",), ("-O", "3"))]
    assert not any(list(compare_vllm_flags(one, levels[0])) for one in levels)


# Where no engine runs, the launch files on the node tell what the next start would run.

LAUNCH_FILES_HEAD, LAUNCH_FILES_WORKER = PLAN.rig.nodes
FAILED = host_parts.unit(
    active_state="failed", sub_state="failed", result="exit-code", exit_status=1
)


def ended(node: Any) -> Any:
    """The node with a unit that failed, and no engine left."""
    seen = rigs.serving(PLAN)[node.name]
    for path in ("docker.containers", "engine_processes", "ports"):
        seen = rigs.put(seen, path, ())
    return rigs.put(seen, "units.0", FAILED)


def edited(path: str, old: str, new: str, node: Any = LAUNCH_FILES_HEAD) -> Any:
    """The node with a failed engine and one text of a launch file replaced, as by hand."""
    seen = ended(node)
    place = next(n for n, d in enumerate(PLAN.documents[node.name]) if d.path == path)
    text = PLAN.documents[node.name][place].content
    assert old in text
    seen = rigs.put(seen, f"files.{place}.content", text.replace(old, new))
    return rigs.put(seen, f"files.{place}.sha256", "f" * 64)


def kinds(node: Any, seen: Any) -> list[str]:
    return [d.text for d in drift(PLAN, node, seen) if d.kind not in ("file", "unit")]


def test_the_script_that_serve_writes_reads_as_its_spec() -> None:
    for node in PLAN.rig.nodes:
        assert written_argv(rigs.serving(PLAN)[node.name]) == PLAN.specs[node.name].argv
        assert kinds(node, ended(node)) == []


def test_an_edited_script() -> None:
    assert kinds(LAUNCH_FILES_HEAD, edited(SCRIPT_PATH, "131072", "200000")) == [
        "max_model_len 200000, recipe says 131072"
    ]
    seen = rigs.serving(PLAN) | {
        "spark2": edited(SCRIPT_PATH, "--headless", "", LAUNCH_FILES_WORKER)
    }
    assert "worker-not-headless" in {v.code for v in examine(PLAN, seen)}


def test_an_edited_environment_file() -> None:
    fork = "OMP_NUM_THREADS=8\nVLLM_WORKER_MULTIPROC_METHOD=fork"
    seen = edited(ENV_PATH, "OMP_NUM_THREADS=8", fork)
    (line,) = kinds(LAUNCH_FILES_HEAD, seen)
    assert line.startswith("VLLM_WORKER_MULTIPROC_METHOD=fork is forbidden")
    found = {v.code: v for v in examine(PLAN, {**rigs.serving(PLAN), "spark1": seen})}
    assert "would start with VLLM_WORKER_MULTIPROC_METHOD=fork" in found["forbidden-env"].summary
    assert "engine-down@spark1" in found["forbidden-env"].explains


def test_what_cannot_be_read_is_not_compared() -> None:
    seen = edited(SCRIPT_PATH, "131072", "'unclosed")
    assert written_argv(seen) == () and kinds(LAUNCH_FILES_HEAD, seen) == []
    private = rigs.put(rigs.serving(PLAN)["spark1"], "files.1.content", None)
    assert written_environ(private) is None
    assert written_environ(rigs.healthy(PLAN)["spark1"]) is None


# Gates of what the recipe asks for: forbidden variables and warnings.

CHOICES_HEAD, CHOICES_WORKER = "spark1", "spark2"


@pytest.fixture(scope="module")
def plan() -> Plan:
    return spark_plan()


def with_spec(plan: Plan, **changes: Any) -> Plan:
    specs = {name: replace(spec, **changes) for name, spec in plan.specs.items()}
    return replace(plan, specs=specs)


def test_forbidden_env_in_the_recipe_blocks(plan: Plan) -> None:
    forked = with_spec(plan, environ={"VLLM_WORKER_MULTIPROC_METHOD": "fork"})
    found = [v for v in rigs.beyond_usual(forked, rigs.healthy(plan)) if v.code == "forbidden-env"]
    assert [(v.node, v.severity) for v in found] == [
        (CHOICES_HEAD, "block"),
        (CHOICES_WORKER, "block"),
    ]
    assert "ShmRingBuffer" in found[0].evidence
    spawned = with_spec(plan, environ={"VLLM_WORKER_MULTIPROC_METHOD": "spawn"})
    assert "forbidden-env" not in {v.code for v in rigs.beyond_usual(spawned, rigs.healthy(plan))}


def test_enforce_eager_warns_where_there_are_cuda_graphs(plan: Plan) -> None:
    eager = with_spec(plan, flags={**plan.specs[CHOICES_HEAD].flags, "enforce_eager": True})
    (found,) = rigs.beyond_usual(eager, rigs.healthy(plan))
    assert (found.code, found.severity) == ("enforce-eager", "warn")
    tiny = spark_plan(recipe="tiny")
    assert tiny.specs[CHOICES_HEAD].flags["enforce_eager"] is True
    assert check(tiny, _cpu(tiny)) == []


def _cpu(plan: Plan) -> dict[str, NodeSnapshot]:
    """Healthy hosts without any NVIDIA driver."""
    missing = Unreadable(unreadable="nvidia-smi not found")
    return {name: rigs.put(seen, "gpus", missing) for name, seen in rigs.healthy(plan).items()}


@pytest.mark.parametrize(
    ("image", "warned"),
    [
        ("ghcr.io/x/y:latest", True),
        ("localhost:5000/y", True),
        ("y:1.2", False),
        ("y:latest@sha256:" + "d" * 64, False),
    ],
)
def test_image_latest(plan: Plan, image: str, warned: bool) -> None:
    assert plan.recipe.container is not None
    box = plan.recipe.container.model_copy(update={"image": image, "privileged": False})
    named = replace(plan, recipe=plan.recipe.model_copy(update={"container": box}))
    codes = {v.code for v in check(named, rigs.healthy(named))}
    assert ("image-latest" in codes) is warned
    assert "privileged" not in codes
