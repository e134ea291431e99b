"""The `kube` step with a stand-in kubectl: killed before and after the patch, the journal is true.

The real API's behaviour is tests/system/kubernetes's; here the program is killed at the one call
that matters."""

from __future__ import annotations

import copy
import json
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from node.core.errors import NodeError
from node.kube import deployment_step, inspect, kubectl
from tests.unit.node.support.host import Host, apply_request
from tests.unit.node.support.host import change as host_change

# node/kube/inspect.py: one value of one container changes, and what is not sure is refused.

NAME = "CUDA_DEVICE_MEMORY_LIMIT_0"
DONE = {"observedGeneration": 3, "updatedReplicas": 1, "replicas": 1, "availableReplicas": 1}
SEED = f"set -e; export {NAME}=23000m; exec python3 scripts/server.py --prefix-cache-slots 0"


def deployment(*args: str, **env: object) -> dict[str, Any]:
    """A Deployment with an engine and a sidecar."""
    rows = [{"name": key, "value": value} for key, value in env.items()]
    engine = {"name": "engine", "args": list(args), "env": rows}
    sidecar = {"name": "sidecar", "env": [{"name": NAME, "value": "1g"}]}
    meta = {"name": "lucebox", "resourceVersion": "226", "uid": "u", "generation": 3}
    return {"metadata": meta,
            "spec": {"template": {"spec": {"containers": [engine, sidecar]}}}}  # fmt: skip


def engine_of(document: dict[str, Any]) -> dict[str, Any]:
    """Its engine's container."""
    return inspect.container_of(document, "engine")


def patched(document: dict[str, Any], value: str | None) -> dict[str, Any]:
    """The patch that gives the variable a value, or takes it away; its one container as `box`."""
    patch = inspect.patch_of(document, engine_of(document), {NAME: value}, {})
    (box,) = patch["spec"]["template"]["spec"]["containers"]
    return {**patch, "box": box}


def test_env_is_patched_by_name_with_the_resource_version() -> None:
    """Fault 47: container and variable are named, so that the sidecar stays."""
    document = deployment(**{NAME: "23000m"})
    patch = patched(document, "24000m")
    assert patch["metadata"] == {"resourceVersion": "226"}
    assert patch["box"] == {"name": "engine", "env": [{"name": NAME, "value": "24000m"}]}
    assert patched(document, None)["box"]["env"] == [{"name": NAME, "$patch": "delete"}]


@pytest.mark.parametrize(("line", "wanted"), [
    (SEED, SEED.replace("23000m", "24000m")),
    (f"{NAME}=23000m python3 x", f"{NAME}=24000m python3 x"),
    (f"a && export {NAME}=23000m&& b", f"a && export {NAME}=24000m&& b"),
    (f"(export {NAME}=23000m; b)", f"(export {NAME}=24000m; b)"),
    (f"export {NAME}=\nb", f"export {NAME}=24000m\nb"),
    (f"export A=1 {NAME}=2 B=3", f"export A=1 {NAME}=24000m B=3"),
])  # fmt: skip
def test_the_one_export_of_a_shell_line_is_replaced(line: str, wanted: str) -> None:
    document = deployment("first", line)
    assert patched(document, "24000m")["box"] == {"name": "engine", "args": ["first", wanted]}
    assert inspect.expected_values(engine_of(document), {NAME: "x"}, {}) == [
        "spec.template.spec.containers[engine].args[1]"
    ]


@pytest.mark.parametrize(("args", "env"), [
    ((f"export {NAME}=$(cat x)",), {}), ((f"export {NAME}=`cat x`",), {}),
    ((f"export {NAME}=$X",), {}), ((f'export {NAME}="23000m"',), {}),
    ((f"export {NAME}='23000m'",), {}), ((f"echo '{NAME}=1' > x",), {}),
    ((f"export {NAME}=1; export {NAME}=2",), {}), ((f"export {NAME}=1\\\n2",), {}),
    ((f"export {NAME}=1", f"export {NAME}=2"), {}), ((SEED,), {NAME: "1g"}),
])  # fmt: skip
def test_what_is_not_plain_or_stands_twice_is_refused(
    args: tuple[str, ...], env: dict[str, str]
) -> None:
    with pytest.raises(NodeError, match="2 places" if env else None) as caught:
        inspect.find_container(engine_of(deployment(*args, **env)), NAME)
    assert caught.value.code == "not_patched"


@pytest.mark.parametrize("line", [f"export MY_{NAME}=1", f"echo ${NAME}", f"export {NAME}_0=1",
                                  "nothing of it"])  # fmt: skip
def test_another_variable_is_not_mistaken_for_it(line: str) -> None:
    assert inspect.find_container(engine_of(deployment(line)), NAME).value is None


def test_a_value_from_elsewhere_is_refused() -> None:
    document = deployment()
    row = {"name": NAME, "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}}
    engine_of(document)["env"].append(row)
    with pytest.raises(NodeError, match="comes from configMapKeyRef"):
        inspect.find_container(engine_of(document), NAME)


def test_a_value_that_needs_quotes_does_not_go_into_a_shell_line() -> None:
    for value in ("a b", "$(id)", "x;y", "'"):
        with pytest.raises(NodeError, match="would need quotes"):
            patched(deployment(SEED), value)


LINE = "python3 server.py --slots 4 --max-ctx 4096"
# (command line, texts, how it then reads)
EDITS: dict[str, tuple[list[str], dict[str, str], list[str]]] = {
    "a value": ([LINE], {"--slots 4 ": "--slots 0 "}, [LINE.replace("4 ", "0 ", 1)]),
    "longer": ([LINE], {"--slots 4": "--slots 40"}, [LINE.replace("4 ", "40 ", 1)]),
    "added": ([LINE], {"server.py": "server.py --jinja"},
              [LINE.replace(".py", ".py --jinja")]),
    "taken away": ([LINE], {"server.py --slots 4": "server.py"}, [LINE.replace(" --slots 4", "")]),
    "an element": (["s", "--slots", "4"], {"4": "0"}, ["s", "--slots", "0"]),
    "several": (["a b", "c d"], {"a": "x", "b": "y", "d": "z"}, ["x y", "c z"]),
    "quotes": (["s '$X' \"y\""], {"'$X' \"y\"": "'$Z'"}, ["s '$Z'"]),
}  # fmt: skip
# (command line, texts, what the refusal says)
REFUSED: dict[str, tuple[list[str], dict[str, str], str]] = {
    "absent": ([LINE], {"--slots 5": "--slots 0"}, "stands 0 times in command and args of"),
    "twice": (["a a"], {"a": "b"}, "stands 2 times"),
    "in two elements": (["--slots 4", LINE], {"--slots 4": "--slots 0"}, "stands 2 times"),
    "over itself": (["aaa"], {"aa": "b"}, "stands 2 times"),
    "the new one is there": (["s 4 0"], {"4": "0"}, "stands 1 times .*, and '0' beside it"),
    "over two elements": (["s", "--slots", "4"], {"--slots 4": "--slots 0"}, "stands 0 times"),
    "one in another": (["ac"], {"a": "ab", "bc": "bcd"}, "stands 0 times"),
    "side by side": (["abc"], {"ab": "x", "bc": "y"}, "stands 0 times"),
    "the same twice": (["a b"], {"a": "x", "b": "x"}, "beside it|overlap|stands 2 times"),
}  # fmt: skip


def edit(document: dict[str, Any], edits: dict[str, str]) -> dict[str, Any]:
    """The Deployment as a server has it after the patch: a list of strings is replaced whole."""
    patch = inspect.patch_of(document, engine_of(document), {}, edits)
    after = copy.deepcopy(document)
    for change in patch["spec"].get("template", {"spec": {"containers": []}})["spec"]["containers"]:
        engine_of(after).update(change)
    return after


@pytest.mark.parametrize("name", EDITS)
def test_a_text_is_replaced_and_taken_back_byte_for_byte(name: str) -> None:
    args, edits, wanted = EDITS[name]
    before = deployment(*args, **{NAME: "1"})
    after = edit(before, edits)
    assert engine_of(after)["args"] == wanted
    changed = [row["path"] for row in inspect.differences(before, after)]
    assert changed == inspect.expected_values(engine_of(before), {}, edits)
    # once more is nothing
    assert edit(after, edits) == after
    for old, new in edits.items():
        assert inspect.find_text(engine_of(before), old, new).value == old
        assert inspect.find_text(engine_of(after), old, new).value == new
    assert edit(after, {new: old for old, new in edits.items()}) == before


@pytest.mark.parametrize("name", REFUSED)
def test_a_text_that_is_not_there_once_is_refused(name: str) -> None:
    args, edits, said = REFUSED[name]
    with pytest.raises(NodeError, match=said) as caught:
        edit(deployment(*args), edits)
    assert caught.value.code == "not_patched"


def test_a_text_and_a_variable_of_one_shell_line_are_set_at_once() -> None:
    """Both stand in the same element of args: neither overwrites the other's edit."""
    before = deployment(SEED)
    box = engine_of(before)
    edits = {"--prefix-cache-slots 0": "--prefix-cache-slots 2"}
    patch = inspect.patch_of(before, box, {NAME: "24000m"}, edits)
    (change,) = patch["spec"]["template"]["spec"]["containers"]
    assert change["args"] == [SEED.replace("23000m", "24000m").replace("slots 0", "slots 2")]
    with pytest.raises(NodeError, match="stands 0 times"):
        inspect.patch_of(before, box, {NAME: "24000m"}, {"=23000m; exec": "=23000m; nice"})


@pytest.mark.parametrize("value", [{"A": "x"}, {"": "x"}, {"a b": ""}, {"a b": "a b"},
                                   {"a\nb": "x"}, ["a b"], {"a b": 1}])  # fmt: skip
def test_texts_are_checked(value: Any) -> None:
    with pytest.raises(NodeError) as caught:
        kubectl.edits_of(value, "edit")
    assert caught.value.code == "bad_request"


def test_a_wrong_container_lists_those_that_there_are() -> None:
    """Fault 46."""
    with pytest.raises(NodeError, match="has no container 'lucebox'; there are: engine, sidecar"):
        inspect.container_of(deployment(), "lucebox")
    with pytest.raises(NodeError, match="needs container"):
        inspect.container_of(deployment(), None)
    assert inspect.container_of(deployment(), None, first=True)["name"] == "engine"


def test_differences_name_each_value_and_pass_over_the_servers_own() -> None:
    before = deployment(OTHER="a", **{NAME: "1"})
    after = copy.deepcopy(before)
    after["metadata"].update(resourceVersion="227", generation=4)
    engine_of(after)["env"].reverse()
    assert inspect.differences(before, after) == []
    engine_of(after)["env"].append({"name": "NEW", "value": "x"})
    after["spec"]["replicas"] = 2
    base = "spec.template.spec.containers[engine].env[NEW]"
    assert [row["path"] for row in inspect.differences(before, after)] == [
        "spec.replicas", f"{base}.name", f"{base}.value",
    ]  # fmt: skip


def test_a_dropped_sidecar_would_be_seen() -> None:
    """Fault 47: what --type=merge does."""
    before = deployment(**{NAME: "1"})
    after = copy.deepcopy(before)
    del after["spec"]["template"]["spec"]["containers"][1]
    paths = [row["path"] for row in inspect.differences(before, after)]
    assert f"spec.template.spec.containers[sidecar].env[{NAME}].value" in paths


@pytest.mark.parametrize(("status", "generation", "done", "failed"), [
    (DONE, 3, True, False), ({**DONE, "observedGeneration": 2}, 3, False, False),
    ({**DONE, "replicas": 2}, 3, False, False), ({}, 1, False, False),
    ({k: v for k, v in DONE.items() if k != "availableReplicas"}, 3, False, False),
    ({"observedGeneration": 3, "conditions": [
        {"type": "Progressing", "reason": "ProgressDeadlineExceeded"}]}, 3, False, True),
])  # fmt: skip
def test_rollout_is_judged_as_kubectl_does(
    status: dict[str, Any], generation: int, done: bool, failed: bool
) -> None:
    document = {"metadata": {"generation": generation}, "spec": {"replicas": 1}, "status": status}
    found = inspect.rollout(document)
    assert (found["done"], found["failed"]) == (done, failed)


@pytest.mark.parametrize("value", ["-x", "A", "a b", "$(id)", "a\nb", "../x", ""])
def test_names_are_checked(value: str) -> None:
    with pytest.raises(NodeError):
        kubectl.kube_name(value, "deployment")


KUBECTL = """\
#!/usr/bin/env python3
# rigbook stand-in for kubectl: one Deployment in a file; `get` and a strategic `patch`
import json, os, pathlib, signal, sys
here = pathlib.Path(sys.argv[0]).parent / "deployment.json"
fault = (here.parent / "fault").read_text() if (here.parent / "fault").exists() else ""
document = json.loads(here.read_text())
if "get" in sys.argv:
    print(json.dumps(document))
    sys.exit(0)
dry = "--dry-run=server" in sys.argv
path = next(w for w in sys.argv if w.startswith("--patch-file=")).partition("=")[2]
patch = json.load(open(path))
if patch["metadata"]["resourceVersion"] != document["metadata"]["resourceVersion"]:
    print("Error from server (Conflict): the object has been modified", file=sys.stderr)
    sys.exit(1)
if fault == "forbidden" and not dry:
    print("Error from server (Forbidden): cannot patch resource", file=sys.stderr)
    sys.exit(1)
if fault == "before" and not dry:
    os.kill(os.getppid(), signal.SIGKILL)
    sys.exit(1)
box = document["spec"]["template"]["spec"]["containers"][0]
rows = {row["name"]: row for row in box["env"]}
document["spec"]["replicas"] = patch["spec"].get("replicas", document["spec"]["replicas"])
boxes = patch["spec"].get("template", {"spec": {"containers": [{"env": []}]}})["spec"]["containers"]
box.update({key: boxes[0][key] for key in ("command", "args") if key in boxes[0]})
for row in boxes[0].get("env", []):
    if row.get("$patch") == "delete":
        rows.pop(row["name"], None)
    else:
        rows[row["name"]] = row
box["env"] = list(rows.values())
if fault == "webhook":
    box["image"] = "another"
if not dry:
    document["metadata"]["resourceVersion"] = str(int(document["metadata"]["resourceVersion"]) + 1)
    here.write_text(json.dumps(document))
if fault == "after" and not dry:
    os.kill(os.getppid(), signal.SIGKILL)
print(json.dumps(document))
"""


@pytest.fixture
def cluster(host: Host) -> Host:
    """A host whose kubectl is the stand-in."""
    host.double("kubectl", KUBECTL)
    box = {"name": "engine", "image": "one", "env": [{"name": NAME, "value": "23000m"}],
           "args": ["exec server --slots 4 --jinja"]}  # fmt: skip
    meta = {"name": "lucebox", "uid": "u-1", "resourceVersion": "7", "generation": 1}
    spec = {"replicas": 0, "template": {"spec": {"containers": [box]}}}
    (host.bin / "deployment.json").write_text(json.dumps({"metadata": meta, "spec": spec}))
    return host


def spec_of(host: Host) -> dict[str, Any]:
    """What the Deployment asks for now."""
    found: dict[str, Any] = json.loads((host.bin / "deployment.json").read_text())["spec"]
    return found


def env(host: Host) -> dict[str, str]:
    """The variables of the Deployment now."""
    box = spec_of(host)["template"]["spec"]["containers"][0]
    return {row["name"]: row["value"] for row in box["env"]}


def fault(host: Host, name: str) -> None:
    """What goes wrong from now on; empty: nothing."""
    (host.bin / "fault").write_text(name)


def step(value: str = "24000m", version: str = "7", **more: Any) -> dict[str, object]:
    """The step that gpu_limit sends."""
    return {"op": "kube", "kubectl": "kubectl", "namespace": "ai", "deployment": "lucebox",
            "container": "engine", "set": {NAME: value}, "uid": "u-1",
            "resource_version": version, **more}  # fmt: skip


def state_of(host: Host) -> list[str]:
    """The states of the journal's steps."""
    return [row["state"] for path in sorted((host.state / "journal").glob("*.json"))
            for row in json.loads(Path(path).read_text())["steps"]]  # fmt: skip


@pytest.mark.parametrize("values", [{NAME: "24000m"}, {"NEW": "x y"}])
def test_set_again_and_undone(cluster: Host, values: dict[str, str]) -> None:
    """Also a variable that was not there: it goes again."""
    assert cluster.call("apply", apply_request(step(set=values)))["changed"] is True
    assert env(cluster) == {NAME: "23000m", **values} and state_of(cluster) == ["done"]
    again = apply_request(step(set=values, version="8"))
    assert cluster.call("apply", again)["changed"] is False
    assert cluster.call("undo")["status"] == "ROLLED_BACK"
    assert env(cluster) == {NAME: "23000m"}
    assert cluster.call("undo")["changed"] is False


SLOTS = {"--slots 4": "--slots 0"}


def args(host: Host) -> list[str]:
    """The command line of the Deployment now."""
    found: list[str] = spec_of(host)["template"]["spec"]["containers"][0]["args"]
    return found


def rewrite(host: Host, *lines: str) -> None:
    """Somebody else edits the command line."""
    path = host.bin / "deployment.json"
    document = json.loads(path.read_text())
    document["spec"]["template"]["spec"]["containers"][0]["args"] = [*lines]
    path.write_text(json.dumps(document))


def test_a_text_is_edited_again_and_undone(cluster: Host) -> None:
    """With a variable in the same step; what others wrote into the line meanwhile stays."""
    assert cluster.call("apply", apply_request(step(edit=SLOTS)))["changed"] is True
    assert args(cluster) == ["exec server --slots 0 --jinja"] and env(cluster) == {NAME: "24000m"}
    assert cluster.run(cluster.argv("status", "--verify")).returncode == 0
    again = apply_request(step(edit=SLOTS, version="8"))
    assert cluster.call("apply", again)["changed"] is False
    rewrite(cluster, "exec nice server --slots 0 --jinja")
    assert cluster.call("undo")["status"] == "ROLLED_BACK"
    assert args(cluster) == ["exec nice server --slots 4 --jinja"]
    assert env(cluster) == {NAME: "23000m"}


def test_a_text_that_somebody_edited_since_is_left(cluster: Host) -> None:
    cluster.call("apply", apply_request(step(set={}, edit=SLOTS)))
    rewrite(cluster, "exec server --slots 2 --jinja")
    answer = cluster.call("undo")
    assert answer["code"] == "later_edit" and "edited after the change" in answer["error"]
    where = "/kubernetes/ai/deployments/lucebox/engine"
    answer = cluster.call("undo", {"overwrite": [where]})
    assert answer["code"] == "undo_incomplete" and "'--slots 0' stands 0 times" in answer["error"]
    # by hand
    rewrite(cluster, "exec server --slots 4 --jinja")
    assert cluster.call("undo")["status"] == "ROLLED_BACK"


@pytest.mark.parametrize(("when", "slots"), [("before", 4), ("after", 0)])
def test_killed_at_the_patch_of_a_text_the_undo_knows(cluster: Host, when: str, slots: int) -> None:
    killed(cluster, when, apply_request(step(set={}, edit=SLOTS)))
    assert args(cluster) == [f"exec server --slots {slots} --jinja"]
    assert cluster.call("undo")["status"] == "ROLLED_BACK"
    assert args(cluster) == ["exec server --slots 4 --jinja"]


def test_a_text_that_is_not_there_once_leaves_no_change(cluster: Host) -> None:
    answer = cluster.call("apply", apply_request(step(edit={"--slots 5": "--slots 0"})))
    assert answer["code"] == "not_patched" and "stands 0 times" in answer["error"], answer
    assert env(cluster) == {NAME: "23000m"} and state_of(cluster) == []


def test_a_change_of_0_2_0_that_set_a_flag_is_left_to_its_program(cluster: Host) -> None:
    """By its name: this program does not know where it stood."""
    cluster.call("apply", apply_request(step()))
    (path,) = (cluster.state / "journal").glob("*.json")
    found = json.loads(path.read_text())
    del found["sha256"]
    found["program"] = "/usr/local/lib/rigbook/rignode-020.pyz"
    del found["steps"][0]["edit"]
    found["steps"][0].update(pre={"--slots": "4"}, post={"--slots": "0"})
    path.write_text(json.dumps(found))
    answer = cluster.call("undo")
    assert answer["code"] == "unknown_kind" and "sets --slots by its name" in answer["error"]
    assert "rignode-020.pyz" in answer["error"] and env(cluster) == {NAME: "24000m"}


def start() -> dict[str, object]:
    """The step that serve sends."""
    return {**{key: value for key, value in step().items() if key != "set"}, "replicas": 1}


def test_a_stopped_deployment_is_started_and_stopped_again_by_undo(cluster: Host) -> None:
    cluster.call("apply", apply_request(start()))
    assert spec_of(cluster)["replicas"] == 1 and env(cluster) == {NAME: "23000m"}
    again = apply_request({**start(), "resource_version": "8"})
    assert cluster.call("apply", again)["changed"] is False
    assert cluster.call("undo")["status"] == "ROLLED_BACK" and spec_of(cluster)["replicas"] == 0


def test_a_container_without_a_volume_keeps_its_shared_cache_to_itself(cluster: Host) -> None:
    answer = cluster.call("apply", apply_request(step(clear_cache=True)))
    said = "shared cache /tmp/cudevshr.cache: it goes with the container"
    assert answer["steps"][0]["cache"] == said


def killed(host: Host, when: str, request: dict[str, object]) -> None:
    """An apply that is killed before or after its patch; from then on nothing goes wrong."""
    fault(host, when)
    assert host.run(host.argv("apply"), json.dumps(request)).returncode == -9
    fault(host, "")


@pytest.mark.parametrize(("when", "value", "replicas"), [("before", "23000m", 0),
                                                         ("after", "24000m", 1)])  # fmt: skip
def test_killed_at_the_patch_the_next_run_knows_what_became_of_it(
    cluster: Host, when: str, value: str, replicas: int
) -> None:
    """P4: announced before, settled by what the cluster has, be it a value or a start."""
    killed(cluster, when, apply_request(step()))
    assert env(cluster) == {NAME: value} and state_of(cluster) == ["intent"]
    assert cluster.call("undo")["status"] == "ROLLED_BACK"
    assert env(cluster) == {NAME: "23000m"} and state_of(cluster) == ["undone"]
    version = json.loads((cluster.bin / "deployment.json").read_text())["metadata"]
    started = {**start(), "resource_version": version["resourceVersion"]}
    killed(cluster, when, apply_request(started, name="change-2"))
    assert spec_of(cluster)["replicas"] == replicas
    assert cluster.call("undo")["status"] == "ROLLED_BACK" and spec_of(cluster)["replicas"] == 0


@pytest.mark.parametrize(("when", "version"), [("before", "7"), ("after", "8")])
def test_killed_at_the_patch_the_same_apply_gets_through(
    cluster: Host, when: str, version: str
) -> None:
    killed(cluster, when, apply_request(step()))
    cluster.call("apply", apply_request(step(version=version)))
    assert env(cluster) == {NAME: "24000m"}
    closed = cluster.call("close", {"change": "change-1", "status": "COMMITTED"})
    assert closed["change"]["status"] == "COMMITTED"


@pytest.mark.parametrize(("name", "version", "code"), [
    ("forbidden", "7", "forbidden"), ("", "6", "conflict"), ("webhook", "7", "not_patched"),
])  # fmt: skip
def test_what_the_server_refuses_leaves_no_change(
    cluster: Host, name: str, version: str, code: str
) -> None:
    fault(cluster, name)
    answer = cluster.call("apply", apply_request(step(version=version)))
    assert (answer["ok"], answer["code"]) == (False, code), answer
    assert "nothing was changed" in answer["error"]
    assert env(cluster) == {NAME: "23000m"} and state_of(cluster) == []


def test_dry_asks_the_server_and_changes_nothing(cluster: Host) -> None:
    request = {"change": host_change(), "steps": [step()], "dry": True}
    assert cluster.call("apply", request)["changed"] is True
    assert env(cluster) == {NAME: "23000m"}


@pytest.mark.parametrize("bad", [
    {"deployment": "-x"}, {"namespace": "a b"}, {"set": {}}, {"set": {"A B": "x"}},
    {"set": {"A": "x\ny"}}, {"kubectl": "rm"}, {"kubeconfig": "relative"}, {"more": 1},
    {"replicas": 1}, {"clear_cache": "yes"}, {"edit": {"A": "x"}}, {"set": {"--slots": "0"}},
])  # fmt: skip
def test_bad_steps_are_refused(cluster: Host, bad: dict[str, object]) -> None:
    answer = cluster.call("apply", apply_request(step(**bad)))
    assert answer["code"] == "bad_request" and env(cluster) == {NAME: "23000m"}


def test_the_look_of_an_undo_takes_each_value_by_its_first_step(cluster: Host) -> None:
    """Two steps about one container are one thing, with the values of both."""
    cluster.call("apply", apply_request(step()))
    cluster.call("apply", apply_request(step(set={"NEW": "x"}, version="8")))
    assert cluster.run(cluster.argv("status", "--verify")).returncode == 0
    assert cluster.call("undo")["status"] == "ROLLED_BACK" and env(cluster) == {NAME: "23000m"}
    document = json.loads((cluster.bin / "deployment.json").read_text())
    rows = document["spec"]["template"]["spec"]["containers"][0]["env"]
    rows.append({"name": "NEW", "value": "theirs"})
    (cluster.bin / "deployment.json").write_text(json.dumps(document))
    done = cluster.run(cluster.argv("status", "--verify"))
    assert done.returncode == 1 and "lucebox NEW is theirs, not None" in done.stderr


# HAMi's shared cache: real files, and real processes that have them mapped.

CACHE = struct.pack("<i", deployment_step.MAGIC) + bytes(8192)
HOLD = """
import mmap, sys, time
with open(sys.argv[1], "r+b") as file:
    memory = mmap.mmap(file.fileno(), 0)
print("mapped", flush=True)
time.sleep(60)
"""


@contextmanager
def mapping(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that maps the file and has it open no more, as HAMi-core does."""
    with subprocess.Popen([sys.executable, "-c", HOLD, path], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"mapped\n"
        try:
            yield process
        finally:
            process.kill()


def hami_cache_deployment(
    folder: Path, grace: int = 1, **volume: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A Deployment whose container has `folder` of the host at /tmp, and that container."""
    box = {"name": "engine", "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}]}
    volumes = [{"name": "tmp", **(volume or {"hostPath": {"path": str(folder)}})}]
    spec = {"containers": [box], "volumes": volumes, "terminationGracePeriodSeconds": grace}
    return {"spec": {"template": {"spec": spec}}}, box


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A shared cache that a pod left on the host."""
    path = tmp_path / "cudevshr.cache"
    path.write_bytes(CACHE)
    return path


def test_one_that_nobody_has_is_removed(cache: Path) -> None:
    said = deployment_step.clear_cache(*hami_cache_deployment(cache.parent))
    assert said == f"the former shared cache {cache} was removed" and not cache.exists()
    assert (
        deployment_step.clear_cache(*hami_cache_deployment(cache.parent))
        == f"there is no shared cache {cache}"
    )


def test_it_waits_for_the_pod_that_goes(cache: Path) -> None:
    with mapping(cache) as process:
        timer = threading.Timer(0.5, process.kill)
        timer.start()
        said = deployment_step.clear_cache(*hami_cache_deployment(cache.parent))
        assert "was removed" in said and not cache.exists()


def test_a_newcomer_keeps_it(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new pod has it already: to unlink it would part the processes of one container."""
    started: list[Any] = []

    def sleep(_: float) -> None:
        started.append(mapping(cache))
        started[-1].__enter__()

    with mapping(cache) as first:
        monkeypatch.setattr(time, "sleep", sleep)
        said = deployment_step.clear_cache(*hami_cache_deployment(cache.parent))
        monkeypatch.undo()
        for one in started:
            one.__exit__(None, None, None)
        assert "stays, with the former limit" in said and str(first.pid) in said
        assert len(started) == 1 and cache.exists()


def test_a_pod_that_does_not_end_keeps_it(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployment_step, "GRACE_S", 0.2)
    with mapping(cache):
        assert "stays, with the former limit" in deployment_step.clear_cache(
            *hami_cache_deployment(cache.parent, 0)
        )
        assert cache.exists()


def test_what_is_no_cache_of_hami_is_left(cache: Path) -> None:
    """A link, a folder, a file of others, an empty one."""
    others = cache.parent / "others"
    others.write_bytes(CACHE)
    for make in (lambda: cache.symlink_to(others), cache.mkdir, lambda: cache.write_bytes(b"mine"),
                 cache.touch):  # fmt: skip
        cache.unlink(missing_ok=True)
        make()
        assert "it is left" in deployment_step.clear_cache(*hami_cache_deployment(cache.parent))
        assert cache.is_symlink() or cache.exists()
        if cache.is_dir() and not cache.is_symlink():
            cache.rmdir()
    assert others.exists()


@pytest.mark.parametrize(("volume", "why"), [
    ({"emptyDir": {}}, "it goes with the pod"),
    ({"persistentVolumeClaim": {"claimName": "x"}}, "which is not looked into"),
])  # fmt: skip
def test_other_volumes_are_told(cache: Path, volume: dict[str, Any], why: str) -> None:
    assert (
        why in deployment_step.clear_cache(*hami_cache_deployment(cache.parent, **volume))
        and cache.exists()
    )


def test_the_variable_names_it_and_a_sub_path_counts(tmp_path: Path) -> None:
    document, box = hami_cache_deployment(tmp_path)
    box["env"] = [{"name": deployment_step.VARIABLE, "value": "/vgpu/a/x.cache"}]
    box["volumeMounts"].append({"name": "tmp", "mountPath": "/vgpu", "subPath": "pods/one"})
    found = deployment_step.cache_place(document["spec"]["template"], box)
    assert (found.inside, found.host) == ("/vgpu/a/x.cache", f"{tmp_path}/pods/one/a/x.cache")
    box["env"] = [{"name": deployment_step.VARIABLE, "value": "/cache/x"}]
    assert deployment_step.cache_place(document["spec"]["template"], box).host is None
