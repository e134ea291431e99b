"""Where no engine runs, the launch files on the node tell what the next start would run."""

from __future__ import annotations

from typing import Any

from gates.doctor.examine import examine
from gates.drift.compare import drift
from gates.drift.launch_files import written_argv, written_environ
from schema.render.engine_files import ENV_PATH, SCRIPT_PATH
from tests.unit.builders import host_parts as h
from tests.unit.builders import snapshots as f
from tests.unit.builders.spark_rig import spark_plan

PLAN = spark_plan()
HEAD, WORKER = PLAN.rig.nodes
FAILED = h.unit(active_state="failed", sub_state="failed", result="exit-code", exit_status=1)


def ended(node: Any) -> Any:
    """The node with a unit that failed, and no engine left."""
    seen = f.serving(PLAN)[node.name]
    for path in ("docker.containers", "engine_processes", "ports"):
        seen = f.put(seen, path, ())
    return f.put(seen, "units.0", FAILED)


def edited(path: str, old: str, new: str, node: Any = HEAD) -> Any:
    """The node with a failed engine and one text of a launch file replaced, as by hand."""
    seen = ended(node)
    place = next(n for n, d in enumerate(PLAN.documents[node.name]) if d.path == path)
    text = PLAN.documents[node.name][place].content
    assert old in text
    seen = f.put(seen, f"files.{place}.content", text.replace(old, new))
    return f.put(seen, f"files.{place}.sha256", "f" * 64)


def kinds(node: Any, seen: Any) -> list[str]:
    return [d.text for d in drift(PLAN, node, seen) if d.kind not in ("file", "unit")]


def test_the_script_that_serve_writes_reads_as_its_spec() -> None:
    for node in PLAN.rig.nodes:
        assert written_argv(f.serving(PLAN)[node.name]) == PLAN.specs[node.name].argv
        assert kinds(node, ended(node)) == []


def test_an_edited_script() -> None:
    assert kinds(HEAD, edited(SCRIPT_PATH, "131072", "200000")) == [
        "max_model_len 200000, recipe says 131072"
    ]
    seen = f.serving(PLAN) | {"spark2": edited(SCRIPT_PATH, "--headless", "", WORKER)}
    assert "worker-not-headless" in {v.code for v in examine(PLAN, seen)}


def test_an_edited_environment_file() -> None:
    fork = "OMP_NUM_THREADS=8\nVLLM_WORKER_MULTIPROC_METHOD=fork"
    seen = edited(ENV_PATH, "OMP_NUM_THREADS=8", fork)
    (line,) = kinds(HEAD, seen)
    assert line.startswith("VLLM_WORKER_MULTIPROC_METHOD=fork is forbidden")
    found = {v.code: v for v in examine(PLAN, {**f.serving(PLAN), "spark1": seen})}
    assert "would start with VLLM_WORKER_MULTIPROC_METHOD=fork" in found["forbidden-env"].summary
    assert "engine-down@spark1" in found["forbidden-env"].explains


def test_what_cannot_be_read_is_not_compared() -> None:
    seen = edited(SCRIPT_PATH, "131072", "'unclosed")
    assert written_argv(seen) == () and kinds(HEAD, seen) == []
    private = f.put(f.serving(PLAN)["spark1"], "files.1.content", None)
    assert written_environ(private) is None
    assert written_environ(f.healthy(PLAN)["spark1"]) is None
