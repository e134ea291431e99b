"""node/kube/flags.py: one flag of a command line changes, and comes back byte for byte."""

from __future__ import annotations

import copy
import subprocess
from pathlib import Path
from typing import Any

import pytest

from node.core.errors import NodeError
from node.kube import deployment as kube_deployment
from node.kube import flags

PREFIX, PREFILL = "--prefix-cache-slots", "--prefill-cache-slots"
FIX: dict[str, str | None] = {PREFIX: "0", PREFILL: "0"}
SH = ["sh", "-c"]
LIMIT = "CUDA_DEVICE_MEMORY_LIMIT_0"
# Shapes of charts that people run on such a machine (aamsellem/olares-one-market: the first as
# exl3qwen35a3bone has it, the second as cascade230a3bone); the third is lucebox's own command line
# in Docker (its benchmark's notes), the rest are ours.
SCRIPT = (
    'mkdir -p /opt/infinity_emb\necho "EngineArgs = None; X = None" > /opt/infinity_emb/__init__.py'
    "\nexec python3 main.py\n"
)
LIST = ["--host", "0.0.0.0", "--port", "8080", "--model", "/models/$(MODEL_FILE)", "--mlock"]
LINE = "python3 scripts/server.py --budget 22 --max-ctx 4096"
SHAPES: dict[str, tuple[dict[str, list[str]], list[str]]] = {
    "a script": (
        {"command": SH, "args": [SCRIPT]},
        ["exec python3 main.py --prefill-cache-slots 0 --prefix-cache-slots 0\n"]),
    "a list": ({"command": ["/app/llama-server"], "args": LIST}, [PREFILL, "0", PREFIX, "0"]),
    "args alone": ({"args": LIST}, [PREFILL, "0", PREFIX, "0"]),
    "command alone": ({"command": ["python3", "s.py"]}, [PREFILL, "0", PREFIX, "0"]),
    "a shell line": (
        {"command": ["/bin/bash", "-c"], "args": [LINE]},
        [f"{LINE} --prefill-cache-slots 0 --prefix-cache-slots 0"]),
    "args with -c": ({"args": ["-lc", LINE]}, ["4096 --prefill-cache-slots 0 --prefix-cache"]),
    "tini": (
        {"command": ["tini", "--", "bash", "-ec", f"export A=1; exec {LINE}"]}, ["4096 --prefill"]),
    "one is there": (
        {"command": [*SH, f"{LINE} --prefix-cache-slots 4 --jinja"]},
        ["--prefix-cache-slots 0 --jinja --prefill-cache-slots 0"]),
    "joined": (
        {"command": [*SH, f"{LINE} --prefix-cache-slots=4"]},
        ["--prefix-cache-slots=0 --prefill-cache-slots 0"]),
    "joined in a list": (
        {"command": ["s", f"{PREFIX}=4", PREFILL, "2"]}, [f"{PREFIX}=0", PREFILL, "0"]),
    "of both lists": ({"command": ["s", PREFIX], "args": ["4"]}, ["0", PREFILL, "0"]),
    "piped": (
        {"command": [*SH, f"pip install -q x && {LINE} 2>&1 | tee --append /log"]},
        ["4096 --prefill-cache-slots 0 --prefix-cache-slots 0 2>&1 | tee --append /log"]),
    "or else": (
        {"command": [*SH, f"{LINE} || sleep 60"]}, ["--prefix-cache-slots 0 || sleep 60"]),
    "continued": (
        {"command": [*SH, "python3 s.py \\\n  --threads $(nproc) \\\n  --port \"$PORT\" \\\n"]},
        ['--port "$PORT" --prefill-cache-slots 0 --prefix-cache-slots 0 \\\n']),
    "a comment": (
        {"command": [*SH, "# 'its own\nx; python3 s.py  # --prefix"]},
        ["s.py --prefill-cache-slots 0 --prefix-cache-slots 0  # --prefix"]),
    "a limit beside it": (
        {"command": [*SH, f"export {LIMIT}=23000m; {LINE}"]}, ["4096 --prefill-cache-slots 0"]),
}  # fmt: skip
UNCLEAR: dict[str, dict[str, list[str]]] = {
    "twice": {"command": [*SH, f"{LINE} {PREFIX} 1 {PREFIX} 2"]},
    "twice in a list": {"args": ["s", PREFIX, "1", f"{PREFIX}=2"]},
    "quoted": {"command": [*SH, f"{LINE} {PREFIX} '4'"]},
    "in quotes": {"command": [*SH, f'bash -c "{LINE} {PREFIX} 4"']},
    "computed": {"command": [*SH, f"{LINE} {PREFIX} $SLOTS"]},
    "in a loop": {"command": [*SH, f"while true; do {LINE}; done"]},
    "in a condition": {"command": [*SH, f"if true\nthen {LINE}\nfi"]},
    "in a group": {"command": [*SH, f"({LINE})"]},
    "behind": {"command": [*SH, f"{LINE} & wait"]},
    "backquotes": {"command": [*SH, f"{LINE} --n `nproc`"]},
    "a here document": {"command": [*SH, f"cat <<X\n{LINE}\nX"]},
    "an open quote": {"command": [*SH, f"{LINE} 'x"]},
    "words alone": {"command": ["s", "--", "x"]},
    "words alone in a script": {"command": [*SH, "s -- x"]},
    "no value": {"args": ["s", PREFIX]},
    "a switch": {"command": [*SH, f"s {PREFIX} --jinja"]},
    "a sentence": {"args": ["s", f"say {PREFIX} 4"]},
    "of the shell": {"command": [*SH, LINE], "args": ["sh", PREFIX, "4"]},
    "nothing": {},
    "nothing but comments": {"command": [*SH, "# nothing"]},
}


def document(box: dict[str, list[str]]) -> dict[str, Any]:
    """A Deployment of one container with this command line."""
    meta = {"name": "lucebox", "resourceVersion": "226", "uid": "u", "generation": 3}
    boxes = [{"name": "engine", **copy.deepcopy(box)}]
    return {"metadata": meta, "spec": {"template": {"spec": {"containers": boxes}}}}


def box_of(deployment: dict[str, Any]) -> dict[str, Any]:
    """Its container."""
    found: dict[str, Any] = deployment["spec"]["template"]["spec"]["containers"][0]
    return found


def patched(deployment: dict[str, Any], values: dict[str, str | None]) -> dict[str, Any]:
    """The Deployment as a server has it after the patch: a list of strings is replaced whole."""
    patch = kube_deployment.patch(deployment, box_of(deployment), values)
    after = copy.deepcopy(deployment)
    (change,) = patch["spec"]["template"]["spec"]["containers"]
    box_of(after).update(change)
    return after


@pytest.mark.parametrize("name", SHAPES)
def test_the_seeds_fix_is_set_and_taken_back_byte_for_byte(name: str) -> None:
    """Layer 3 of the seed: `--prefix-cache-slots 0 --prefill-cache-slots 0`."""
    shape, wanted = SHAPES[name]
    before = document(shape)
    pre = {key: kube_deployment.value_of(before, box_of(before), key) for key in FIX}
    after = patched(before, FIX)
    words = [word for key in ("command", "args") for word in box_of(after).get(key, [])]
    assert "\0".join(wanted) in "\0".join(words), words
    assert {key: kube_deployment.value_of(after, box_of(after), key) for key in FIX} == FIX
    changed = {row["path"] for row in kube_deployment.differences(before, after)}
    assert changed == {*kube_deployment.expected(box_of(before), FIX)}
    assert box_of(patched(after, FIX)) == box_of(after)
    assert box_of(patched(after, pre)) == box_of(before)
    # one by one, in the other order
    for key in FIX:
        after = patched(after, {key: pre[key]})
    assert box_of(after) == box_of(before)


def test_a_flag_and_a_variable_of_one_shell_line_are_set_at_once() -> None:
    """Both stand in the same element of args: neither overwrites the other's edit."""
    before = document({"command": [*SH, f"export {LIMIT}=23000m; {LINE}"]})
    after = patched(before, {**FIX, LIMIT: "24000m"})
    assert box_of(after)["command"][2] == (
        f"export {LIMIT}=24000m; {LINE} --prefill-cache-slots 0 --prefix-cache-slots 0"
    )


@pytest.mark.parametrize("name", UNCLEAR)
def test_what_is_not_read_for_sure_is_refused(name: str) -> None:
    before = document(UNCLEAR[name])
    with pytest.raises(NodeError) as caught:
        patched(before, FIX)
    assert caught.value.code == "not_patched" and "\n" not in str(caught.value)


def test_another_flag_is_not_mistaken_for_it() -> None:
    before = document({"command": [*SH, f"{LINE} {PREFIX}-max 4 --no{PREFIX[1:]} 5"]})
    assert kube_deployment.value_of(before, box_of(before), PREFIX) is None


def test_a_value_that_needs_quotes_goes_into_a_list_alone() -> None:
    for value in ("a b", "$(id)", "x;y"):
        assert box_of(patched(document({"args": ["s"]}), {PREFIX: value}))["args"][-1] == value
        with pytest.raises(NodeError, match="would need quotes"):
            patched(document({"command": [*SH, LINE]}), {PREFIX: value})


def test_a_shell_runs_the_engine_with_the_flags(tmp_path: Path) -> None:
    """What a real shell makes of each edited script, the engine being a double that prints."""
    double = tmp_path / "python3"
    double.write_text('#!/bin/sh\nprintf "%s\\n" "$@" > "$SAID"\n')
    double.chmod(0o755)
    for name in ("tee", "sleep", "pip", "x", "nproc"):
        (tmp_path / name).symlink_to("/bin/true")
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "PORT": "8000", "SAID": str(tmp_path / "said")}
    scripts = [words for words, _ in SHAPES.values() if words.get("command", [])[:2] == SH]
    assert len(scripts) > 5
    for shape in scripts:
        if shape.get("args") == [SCRIPT]:
            continue  # it writes into /opt
        box = box_of(patched(document(shape), FIX))
        subprocess.run(["/bin/sh", "-c", box["command"][2]], env=env, check=True, timeout=20)
        said = (tmp_path / "said").read_text().splitlines()
        assert [flags.of_process(said, key) for key in FIX] == ["0", "0"], (shape, said)


def test_what_a_process_has_is_read_from_its_command_line() -> None:
    argv = ["python3", "s.py", PREFIX, "0", f"{PREFILL}=4"]
    assert [flags.of_process(argv, key) for key in (PREFIX, PREFILL, "--x")] == ["0", "4", None]
    assert flags.of_process([*argv[:2], PREFIX], PREFIX) is None
