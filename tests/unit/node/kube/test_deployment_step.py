"""The `kube` step with a stand-in kubectl: killed before and after the patch, the journal is true.

The real API's behaviour is tests/system/kubernetes's; here the program is killed at the one call
that matters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.node.support.host import Host, apply_request, change

NAME = "CUDA_DEVICE_MEMORY_LIMIT_0"
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
    request = {"change": change(), "steps": [step()], "dry": True}
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
