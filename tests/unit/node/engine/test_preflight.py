"""preflight: a target's own parser, run where the target runs. vLLM and docker are stand-ins here;
tests/system/engine/test_1_serve.py asks the real ones.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import stat
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from node import gpus
from node.core.run import TimedOut
from node.docker import api
from node.engine import preflight
from node.engine.preflight import preflight as ask

# As vLLM lays it out: main() parses, validates and dispatches to the class's `cmd`.
MAIN = """
import argparse, sys
from vllm.entrypoints.cli import serve
class Parser(argparse.ArgumentParser):
    def parse_args(self):
        if "--raises-value" in sys.argv: raise ValueError("`model` should be the first argument")
        if "--who" in sys.argv:
            import os
            oom, env = open("/proc/self/oom_score_adj").read().strip(), os.environ
            gpus = env["CUDA_VISIBLE_DEVICES"]
            raise ValueError(f"uid {os.getuid()}, oom {oom}, GPUs {gpus!r}, B {env.get('B')}")
        if "--exits" in sys.argv: raise SystemExit(int(sys.argv[-1]))
        return super().parse_args()
def main():
    from vllm.platforms import current_platform
    if not current_platform.device_type: raise RuntimeError("Failed to infer device type")
    if "--drifts" in sys.argv: raise TypeError("main() wants something else")
    if "--sleeps" in sys.argv: import time; time.sleep(60)
    parser = Parser()
    sub = parser.add_subparsers(dest="subparser")
    command = serve.ServeSubcommand()
    command.subparser_init(sub).set_defaults(dispatch_function=command.cmd)
    args = parser.parse_args()
    command.validate(args)
    print("a line of its log")
    args.dispatch_function(args)
"""
SERVE = """
class ServeSubcommand:
    @staticmethod
    def cmd(args):
        raise SystemExit("it served")
    def validate(self, args):
        if args.enable_auto_tool_choice and not args.tool_call_parser:
            raise TypeError("Error: --enable-auto-tool-choice requires --tool-call-parser")
    def subparser_init(self, sub):
        made = sub.add_parser("serve")
        made.add_argument("model_tag")
        for name in ("max-model-len", "max-num-seqs"): made.add_argument("--" + name, type=int)
        for name in ("tool-call-parser", "tool-parser-plugin", "reasoning-parser"):
            made.add_argument("--" + name)
        for name in ("headless", "enable-auto-tool-choice"):
            made.add_argument("--" + name, action="store_true")
        made.set_defaults(model=None)
        return made
"""
ENGINE = """
import os
class AsyncEngineArgs:
    @classmethod
    def from_cli_args(cls, args):
        if args.max_num_seqs == 0: raise ValueError("max_num_seqs must be 1 or more")
        made = cls()
        made.model, made.length = args.model, args.max_model_len
        return made
    def create_model_config(self):
        if self.length == 7: raise ValueError("quantization fp8 is not supported here")
        if self.length == 8: raise OSError("config.json is gone")
        if self.length > 512:
            raise ValueError("User-specified max_model_len (%d) is greater" % self.length)
"""
PLATFORM = """
import os
class _Platform:
    device_type = "" if os.environ.get("NO_GPU") else "cpu"
    def is_unspecified(self): return os.environ.get("NO_GPU") == "1"
current_platform = _Platform()
"""
TOOLS = "class ToolParserManager:\n list_registered = staticmethod(lambda: ['hermes'])\n"
# docker, which runs in this host what it is told to run in a container
DOUBLE = """\
#!{python}
import json, os, sys
words = sys.argv[1:]
env = words[words.index("--env-file") + 1]
made = dict(line.split("=", 1) for line in open(env).read().splitlines())
open({record!r}, "w").write(json.dumps((words, made, os.environ.get("OMP_NUM_THREADS"))))
if "absent:1" in words:
    sys.exit("docker: Error response from daemon: No such image: absent:1")
at = words.index("--entrypoint")
os.environ.update(made, PATH={path!r} + ":" + os.environ["PATH"])
os.execv("/bin/bash", ["bash", *words[at + 3:]])
"""


# One that every user may execute.
PYTHON = "/usr/bin/python3"


@pytest.fixture(autouse=True)
def memory_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough of it, whatever else runs on this machine."""
    monkeypatch.setattr(gpus, "read_memory", lambda: {"available": 64 << 30})


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """A venv-like folder with a stand-in of vLLM."""
    made = tmp_path / "venv"
    package = made / "lib" / "vllm"
    files = {
        "__init__.py": ENGINE, "platforms.py": PLATFORM, "tool_parsers.py": TOOLS,
        "entrypoints/__init__.py": "", "entrypoints/cli/__init__.py": "",
        "entrypoints/cli/main.py": MAIN, "entrypoints/cli/serve.py": SERVE,
    }  # fmt: skip
    for name, text in files.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    start = f'PYTHONPATH={made}/lib exec {PYTHON} "$@"'
    program(made / "bin" / "python", f"#!/bin/sh\n{start}\n")
    program(made / "bin" / "vllm", f"#!{made}/bin/python\n")
    (tmp_path / "model").mkdir()
    return made


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)


def asked(venv: Path, *flags: str, model: str = "", **more: Any) -> dict[str, Any]:
    """What is told of a command line in the venv."""
    argv = ["vllm", "serve", model or str(venv.parent / "model"), *flags]
    request = {"argv": argv, "environ": {}, "venv": str(venv), "user": "root", **more}
    return ask(request)


TOOL = ("--enable-auto-tool-choice", "--tool-call-parser")
# flags, outcome, words of what is said, of what is unsure
CASES: dict[str, tuple[tuple[str, ...], str, str, str]] = {
    "good": (("--max-model-len", "512"), "accepted", "", ""),
    "worker": (("--max-model-len", "9999", "--headless"), "accepted", "", ""),
    "unknown flag": (("--nope",), "refused", "unrecognized arguments: --nope", ""),
    "no number": (("--max-model-len", "x"), "refused", "--max-model-len: invalid int value", ""),
    "its validate": (TOOL[:1], "refused", "TypeError: Error: --enable-auto-tool-choice", ""),
    "parser of tools": ((*TOOL, "nope"), "refused", "parser nope: not one of hermes", ""),
    "parser that it has": ((*TOOL, "hermes", "--max-model-len", "1"), "accepted", "", ""),
    "parser by plugin": (
        (*TOOL, "x", "--tool-parser-plugin", "/p.py", "--max-model-len", "1"), "accepted", "", ""),
    # where this version has its list is not known: nothing is said of it
    "of reasoning": (("--reasoning-parser", "x", "--max-model-len", "1"), "accepted", "", ""),
    "too long": (("--max-model-len", "9999"), "refused", "max_model_len (9999) is greater", ""),
    "its configs": (("--max-num-seqs", "0"), "refused", "max_num_seqs must be 1 or more", ""),
    "no config": (("--max-model-len", "8"), "accepted", "", "OSError: config.json is gone"),
    "on its GPU": (("--max-model-len", "7"), "refused", "quantization fp8", ""),
    "as it raises": (("--raises-value",), "refused", "`model` should be the first argument", ""),
    "exit of a parser": (("--exits", "2"), "refused", "ended with 2", ""),
    "another exit": (("--exits", "1"), "unchecked", "ended with 1", ""),
    "another vLLM": (("--drifts",), "unchecked", "TypeError: main() wants something else", ""),
    "another server": (("--omni",), "unchecked", "--omni starts another server", ""),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_each_command_line_is_judged_by_the_target(venv: Path, case: str) -> None:
    flags, outcome, said, unsure = CASES[case]
    answer = asked(venv, *flags)
    assert answer["outcome"] == outcome and said in answer["said"], answer
    assert unsure in answer["unsure"] and bool(unsure) == bool(answer["unsure"]), answer
    assert 0 <= answer["took_s"] < 60


def test_without_a_gpu_its_word_on_the_config_is_told_and_does_not_block(venv: Path) -> None:
    """A length is no matter of a GPU. Real builds for CUDA do not even parse without one: `Failed
    to infer device type` (vllm/config/device.py), so the device is named to them.
    """
    answer = asked(venv, "--max-model-len", "7", environ={"NO_GPU": "1"})
    assert (answer["outcome"], answer["unsure"]) == (
        "accepted", "quantization fp8 is not supported here")  # fmt: skip
    assert asked(venv, "--max-model-len", "999", environ={"NO_GPU": "1"})["outcome"] == "refused"


def test_a_model_of_the_hub_is_not_looked_for(venv: Path) -> None:
    assert asked(venv, "--max-model-len", "9999", model="org/model")["outcome"] == "accepted"


def test_one_that_hangs_ends_in_its_time(venv: Path) -> None:
    answer = asked(venv, "--sleeps", timeout_s=1)
    assert answer["outcome"] == "unchecked" and "did not end in its time" in answer["said"]
    assert answer["took_s"] < 10


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"user": "nobody-here"}, "nobody-here is no user of this host"),
        ({"venv": "/nosuch/venv"}, "/nosuch/venv"),
    ],
)
def test_what_cannot_be_asked_says_why(venv: Path, change: dict[str, str], said: str) -> None:
    argv = ["vllm", "serve", "m"]
    answer = ask({"argv": argv, "environ": {}, "venv": str(venv), "user": "root", **change})
    assert answer["outcome"] == "unchecked" and said in answer["said"]


def test_an_engine_that_has_the_memory_is_left_alone(
    venv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "read_memory", lambda: {"available": (3 << 30) - 1})
    answer = asked(venv)
    assert answer["outcome"] == "unchecked" and "needs 3 GiB" in answer["said"]


def test_a_venv_is_asked_as_the_engines_user(venv: Path) -> None:
    """Its plugins are that user's code. It has no GPU, and goes first where memory runs short."""
    with tempfile.TemporaryDirectory() as folder:  # pytest's own folder is root's alone
        Path(folder).chmod(0o755)
        shutil.copytree(venv, f"{folder}/venv")
        text = (venv / "bin" / "python").read_text().replace(str(venv), f"{folder}/venv")
        program(Path(folder, "venv/bin/python"), text)
        request = {"argv": ["vllm", "serve", "m", "--who"], "environ": {"B": "4"}}
        answer = ask({**request, "venv": f"{folder}/venv", "user": "nobody"})
    assert f"uid {pwd.getpwnam('nobody').pw_uid}, oom 1000, GPUs '', B 4" in answer["said"]


@pytest.fixture
def docker(venv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which the double of docker writes what it was told."""
    record = tmp_path / "record"
    text = DOUBLE.format(python=sys.executable, record=str(record), path=f"{venv}/bin")
    program(tmp_path / "docker", text)
    monkeypatch.setattr(preflight, "DOCKER", str(tmp_path / "docker"))
    return record


def in_image(venv: Path, *flags: str, image: str = "rigbook/vllm:1", **more: Any) -> dict[str, Any]:
    """What is told of a command line in an image."""
    request = {"argv": ["vllm", "serve", str(venv.parent / "model"), *flags], "image": image}
    return ask({**request, "environ": {"OMP_NUM_THREADS": "3", "A": "b c"}, **more})


def test_a_container_has_neither_network_nor_gpu_and_is_gone_afterwards(
    venv: Path, docker: Path
) -> None:
    """And mounts what is there, for reading: docker would make a folder that is not."""
    rows = [[str(venv.parent / "model"), "/models"], [str(venv.parent / "cache"), "/root/.cache"]]
    answer = in_image(venv, "--max-model-len", "512", volumes=rows)
    assert answer["outcome"] == "accepted", answer
    words, made, of_client = json.loads(docker.read_text())
    assert words[0] == "run" and {"--rm", "--init"} <= set(words)
    for flag, value in (("--network", "none"), ("--pull", "never"), ("--memory", "4g"),
                        ("--oom-score-adj", "1000"), ("--entrypoint", "/bin/bash")):  # fmt: skip
        assert words[words.index(flag) + 1] == value
    assert "--gpus" not in words and "--runtime" not in words and "--privileged" not in words
    assert [w for w in words if w.endswith(":ro")] == [f"{venv.parent}/model:/models:ro"]
    assert (made["A"], made["NVIDIA_VISIBLE_DEVICES"], of_client) == ("b c", "void", None)
    assert "b c" not in " ".join(words)


def test_a_container_refuses_and_an_absent_image_is_told(venv: Path, docker: Path) -> None:
    assert in_image(venv, "--nope")["said"] == "unrecognized arguments: --nope"
    answer = in_image(venv, image="absent:1")
    assert answer["outcome"] == "unchecked" and "No such image: absent:1" in answer["said"]


def test_a_container_that_outlives_its_time_is_removed(
    venv: Path, docker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed: list[str] = []

    def late(*_: object, **__: object) -> None:
        raise TimedOut("docker did not answer in 21 s")

    monkeypatch.setattr(preflight, "run", late)
    monkeypatch.setattr(api, "remove_container", removed.append)
    assert in_image(venv)["said"] == "docker did not answer in 21 s"
    assert removed == [f"rigbook-preflight-{os.getpid()}"]


def test_no_answer_is_not_taken_for_one() -> None:
    for rc, said in ((-9, "for its memory"), (137, "for its memory"), (1, "it ended with 1: boom")):
        found = preflight._answer(preflight.Done(rc, "a log\n", "boom"))
        assert found["outcome"] == "unchecked" and said in found["said"]
    noise = preflight.ANSWER + json.dumps({"outcome": "accepted", "more": 1})
    assert preflight._answer(preflight.Done(0, noise, "")) == {"outcome": "accepted"}


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
@pytest.mark.parametrize("hidden", ["model", "model/config.json"])
def test_weights_that_the_engines_user_cannot_read(venv: Path, hidden: str) -> None:
    """The snapshot reads them as root; the start failed after the live engine was stopped."""
    (venv.parent / "model" / "config.json").write_text("{}")
    for folder in (venv.parent, *venv.parent.parents):
        if folder.stat().st_uid == os.getuid() and str(folder) not in ("/", "/tmp"):
            folder.chmod(0o755)
    (venv.parent / hidden).chmod(0o600)
    answer = asked(venv, user="nobody")
    assert answer["outcome"] == "unreadable", answer
    assert answer["said"].startswith("nobody cannot read ") and str(venv.parent) in answer["said"]


def test_what_is_no_weights_need_not_be_readable(venv: Path) -> None:
    """rigbook's own kept files beside them are root's alone, and a link may be dead."""
    model = venv.parent / "model"
    (model / "config.json").write_text("{}")
    for folder in (venv.parent, *venv.parent.parents):
        if folder.stat().st_uid == os.getuid() and str(folder) not in ("/", "/tmp"):
            folder.chmod(0o755)
    (model / ".rigbook/displaced-20260101T000000Z-weights-0a0a").mkdir(mode=0o700, parents=True)
    (model / ".rigbook").chmod(0o700)
    (model / "gone").symlink_to("nowhere")
    assert asked(venv, user="nobody")["outcome"] != "unreadable"
