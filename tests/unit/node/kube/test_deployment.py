"""node/kube/deployment.py: one value of one container changes, and what is not sure is refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from node.core.errors import NodeError
from node.kube import deployment as kube_deployment
from node.kube import inspect, names

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
    return kube_deployment.container_of(document, "engine")


def patched(document: dict[str, Any], value: str | None) -> dict[str, Any]:
    """The patch that gives the variable a value, or takes it away; its one container as `box`."""
    patch = kube_deployment.patch(document, engine_of(document), {NAME: value}, {})
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
    assert kube_deployment.expected(engine_of(document), {NAME: "x"}, {}) == [
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
        kube_deployment.find(engine_of(deployment(*args, **env)), NAME)
    assert caught.value.code == "not_patched"


@pytest.mark.parametrize("line", [f"export MY_{NAME}=1", f"echo ${NAME}", f"export {NAME}_0=1",
                                  "nothing of it"])  # fmt: skip
def test_another_variable_is_not_mistaken_for_it(line: str) -> None:
    assert kube_deployment.find(engine_of(deployment(line)), NAME).value is None


def test_a_value_from_elsewhere_is_refused() -> None:
    document = deployment()
    row = {"name": NAME, "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}}
    engine_of(document)["env"].append(row)
    with pytest.raises(NodeError, match="comes from configMapKeyRef"):
        kube_deployment.find(engine_of(document), NAME)


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
    patch = kube_deployment.patch(document, engine_of(document), {}, edits)
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
    changed = [row["path"] for row in kube_deployment.differences(before, after)]
    assert changed == kube_deployment.expected(engine_of(before), {}, edits)
    # once more is nothing
    assert edit(after, edits) == after
    for old, new in edits.items():
        assert kube_deployment.find_text(engine_of(before), old, new).value == old
        assert kube_deployment.find_text(engine_of(after), old, new).value == new
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
    patch = kube_deployment.patch(before, box, {NAME: "24000m"}, edits)
    (change,) = patch["spec"]["template"]["spec"]["containers"]
    assert change["args"] == [SEED.replace("23000m", "24000m").replace("slots 0", "slots 2")]
    with pytest.raises(NodeError, match="stands 0 times"):
        kube_deployment.patch(before, box, {NAME: "24000m"}, {"=23000m; exec": "=23000m; nice"})


@pytest.mark.parametrize("value", [{"A": "x"}, {"": "x"}, {"a b": ""}, {"a b": "a b"},
                                   {"a\nb": "x"}, ["a b"], {"a b": 1}])  # fmt: skip
def test_texts_are_checked(value: Any) -> None:
    with pytest.raises(NodeError) as caught:
        names.edits_of(value, "edit")
    assert caught.value.code == "bad_request"


def test_a_wrong_container_lists_those_that_there_are() -> None:
    """Fault 46."""
    with pytest.raises(NodeError, match="has no container 'lucebox'; there are: engine, sidecar"):
        kube_deployment.container_of(deployment(), "lucebox")
    with pytest.raises(NodeError, match="needs container"):
        kube_deployment.container_of(deployment(), None)
    assert kube_deployment.container_of(deployment(), None, first=True)["name"] == "engine"


def test_differences_name_each_value_and_pass_over_the_servers_own() -> None:
    before = deployment(OTHER="a", **{NAME: "1"})
    after = copy.deepcopy(before)
    after["metadata"].update(resourceVersion="227", generation=4)
    engine_of(after)["env"].reverse()
    assert kube_deployment.differences(before, after) == []
    engine_of(after)["env"].append({"name": "NEW", "value": "x"})
    after["spec"]["replicas"] = 2
    base = "spec.template.spec.containers[engine].env[NEW]"
    assert [row["path"] for row in kube_deployment.differences(before, after)] == [
        "spec.replicas", f"{base}.name", f"{base}.value",
    ]  # fmt: skip


def test_a_dropped_sidecar_would_be_seen() -> None:
    """Fault 47: what --type=merge does."""
    before = deployment(**{NAME: "1"})
    after = copy.deepcopy(before)
    del after["spec"]["template"]["spec"]["containers"][1]
    paths = [row["path"] for row in kube_deployment.differences(before, after)]
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
        names.name(value, "deployment")
