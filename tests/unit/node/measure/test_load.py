"""The engine's own client, run where the engine runs. vLLM and docker are stand-ins here, with the
names and the result of vllm/benchmarks/serve.py of 0.32.0; tests/system/measure runs the real one.
"""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from node import gpus, measure
from node.core.errors import NodeError

SERVE = """
import argparse, json, os
FlexibleArgumentParser = argparse.ArgumentParser
class _Tokenizer:
    def encode(self, text): return text.split()
    def decode(self, ids): return " ".join(ids)
def get_tokenizer(name, tokenizer_mode, trust_remote_code): return _Tokenizer()
def get_samples(args, tokenizer): raise SystemExit("its own prompts")
def add_cli_args(parser):
    for flag in ("backend endpoint base-url model served-model-name tokenizer tokenizer-mode "
                 "dataset-name num-prompts max-concurrency num-warmups ready-check-timeout-sec "
                 "temperature extra-body").split():
        parser.add_argument("--" + flag)
    for flag in "ignore-eos save-detailed disable-tqdm trust-remote-code".split():
        parser.add_argument("--" + flag, action="store_true")
def main(args):
    asked = get_samples(args, None)
    if "SLEEP" in asked[0].prompt:
        import time
        time.sleep(60)
    if "BREAK" in asked[0].prompt: raise ValueError("no such\\nbackend")
    print("==== Serving Benchmark Result ====")
    key = os.environ.get("OPENAI_API_KEY")
    bad = ["FAIL" in one.prompt for one in asked]
    return {"duration": 2.0, "completed": 1, "failed": sum(bad),
            "errors": ["Traceback\\nInternal Server Error" if b else "" for b in bad],
            "ttfts": [0.1] * len(asked), "itls": [[0.01] * 9] * len(asked),
            "output_lens": [one.expected_output_len for one in asked],
            "input_lens": [len(one.prompt.split()) for one in asked],
            "seen": (vars(args), key)}
"""
DATASETS = """
class SampleRequest:
    def __init__(self, prompt, prompt_len, expected_output_len):
        self.prompt, self.expected_output_len = prompt, expected_output_len
"""
DOCKER = """\
#!/usr/bin/python3
import json, os, sys
words = sys.argv[1:]
made = dict(line.split("=", 1) for line in open(words[words.index("--env-file") + 1]))
made = {{key: value.strip() for key, value in made.items()}}
open({record!r}, "w").write(json.dumps((words, made)))
if "gone" in words:
    sys.exit("Error response from daemon: No such container: gone")
os.environ.update(made, PATH={path!r} + ":" + os.environ["PATH"])
os.execv("/bin/bash", ["bash", *words[words.index("/bin/bash") + 1:]])
"""
JOB: dict[str, Any] = {
    "url": "http://127.0.0.1:8000", "model": "/models/tiny", "name": "tiny", "mode": "auto",
    "tokenizer": "/models/tiny", "trust": False, "template": {}, "tokens": 10, "seed": "s",
    "rounds": [["one", "two"]],
}  # fmt: skip


@pytest.fixture(autouse=True)
def memory_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "read_memory", lambda: {"available": 64 << 30})


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """A venv-like folder with a stand-in of vLLM."""
    made = tmp_path / "venv"
    files = {"__init__.py": "__version__ = '0.32.0'", "benchmarks/__init__.py": "",
             "benchmarks/serve.py": SERVE, "benchmarks/datasets.py": DATASETS}  # fmt: skip
    for name, text in files.items():
        path = made / "lib" / "vllm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    program(made / "bin/python", f'#!/bin/sh\nPYTHONPATH={made}/lib exec /usr/bin/python3 "$@"\n')
    program(made / "bin/vllm", f"#!{made}/bin/python\n")
    return made


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def asked(venv: Path, rounds: list[Any], seconds: int = 20, **more: Any) -> dict[str, Any]:
    job = {**JOB, "rounds": rounds, **more}
    return measure.load_engine({"job": job, "seconds": seconds, "venv": str(venv), "user": "root"})


def test_rounds_are_told_one_by_one(venv: Path) -> None:
    found = asked(venv, [["one", "two"], ["three", "FAIL"]])
    assert (found["client"], found["error"]) == ("vllm bench serve 0.32.0", None)
    first, second = (row["round"] for row in found["rounds"])
    assert (first["tokens"], first["failed"], first["seconds"]) == (20, 0, 2.0)
    assert first["stream_tok_s"] == pytest.approx([100.0, 100.0])
    assert first["itl_p95_s"] == 0.01 and first["ttft_s"] == [0.1, 0.1]
    assert (second["tokens"], second["failed"]) == (10, 1)
    assert second["errors"] == ["Internal Server Error"]


def test_a_length_is_a_new_prompt_of_it_asked_twice(venv: Path) -> None:
    (row,) = asked(venv, [64])["rounds"]
    assert row["cold"]["prompt_tokens"] == row["cached"]["prompt_tokens"] == [64]
    assert row["cold"]["tokens"] == 1


def test_what_breaks_in_the_middle_leaves_what_came_before(venv: Path) -> None:
    broken = asked(venv, [["one"], ["BREAK"], ["three"]])
    assert len(broken["rounds"]) == 1 and broken["error"] == "ValueError: no such backend"
    late = asked(venv, [["one"], ["SLEEP"]], seconds=2)
    assert len(late["rounds"]) == 1 and late["error"] == "it did not end in its time"


def test_where_it_cannot_begin_it_says_why(venv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (venv / "lib/vllm/benchmarks/serve.py").write_text("raise ImportError('No module aiohttp')")
    with pytest.raises(NodeError, match="could not be run: ImportError: No module aiohttp"):
        asked(venv, [["one"]])
    with pytest.raises(NodeError, match="more than 100000 characters"):
        asked(venv, [["x" * 100_000]])
    monkeypatch.setattr(gpus, "read_memory", lambda: {"available": 2 << 30})
    with pytest.raises(NodeError, match=r"2\.0 GiB of memory are available"):
        asked(venv, [["one"]])


def test_in_a_container_the_key_stands_in_no_command_line(
    venv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = tmp_path / "docker.json"
    program(tmp_path / "docker", DOCKER.format(record=str(record), path=str(venv / "bin")))
    monkeypatch.setattr(measure, "DOCKER", str(tmp_path / "docker"))
    request = {"job": JOB, "seconds": 20, "container": "rigbook-engine", "key": "geheim",
               "environ": {"NCCL_DEBUG": "INFO"}}  # fmt: skip
    found = measure.load_engine(request)
    assert found["error"] is None and len(found["rounds"]) == 1
    words, environ = json.loads(record.read_text())
    assert words[0] == "exec" and "geheim" not in " ".join(words)
    assert environ["OPENAI_API_KEY"] == "geheim" and environ["CUDA_VISIBLE_DEVICES"] == ""
    assert environ["NCCL_DEBUG"] == "INFO"
    with pytest.raises(NodeError, match="No such container: gone"):
        measure.load_engine({**request, "container": "gone"})


def test_documents_are_kept_and_the_oldest_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RIGBOOK_STATE", str(tmp_path / "state"))
    for number in range(measure.KEEP_RUNS + 2):
        found = measure.keep_run(
            {"id": f"20261101T08{number:04}Z-bench-aaaa", "document": {"n": number}}
        )
    assert json.loads(Path(found["path"]).read_text()) == {"n": measure.KEEP_RUNS + 1}
    assert stat.S_IMODE(Path(found["path"]).stat().st_mode) == 0o600
    names = measure.kept_runs()
    assert len(names) == measure.KEEP_RUNS and names[-1] == "20261101T080002Z-bench-aaaa"
    with pytest.raises(NodeError, match="no measurement's"):
        measure.keep_run({"id": "../x", "document": {}})


def test_a_sample_says_what_it_could_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    now = {"available": 5, "page_cache": 4, "shmem": 3, "total": 9}
    monkeypatch.setattr(gpus, "read_memory", lambda: now)
    monkeypatch.setattr(measure.gpus, "gpu_health", lambda: [])
    assert measure.sample({}) == {
        "available": 5, "page_cache": 4, "shmem": 3, "gpus": [], "vram": None, "problem": None,
    }  # fmt: skip
    monkeypatch.setattr(measure.gpus, "gpu_health", lambda: [{"bus_id": "0"}])
    # a GB10 has no memory of its own
    monkeypatch.setattr(measure.gpus, "read_gpus", lambda: {"gpus": [{"memory_used_mib": None}]})
    assert measure.sample({})["vram"] is None
    monkeypatch.setattr(measure.gpus, "read_gpus", lambda: {"gpus": [{"memory_used_mib": 3}] * 2})
    assert measure.sample({})["vram"] == 6 << 20

    def broken() -> list[Any]:
        raise measure.CannotRead("nvidia-smi -q did not answer in 10 s")

    monkeypatch.setattr(measure.gpus, "gpu_health", broken)
    assert measure.sample({})["problem"] == "nvidia-smi -q did not answer in 10 s"
