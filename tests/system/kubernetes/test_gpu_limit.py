"""gpu_limit against the real API: one value changes, nothing else; what fails goes back."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from node.kube import inspect
from tests.system.kubernetes.conftest import OLARES, Olares, deployment
from tests.system.rehearsal import Done

NAME = "CUDA_DEVICE_MEMORY_LIMIT_0"
WANTED = "wanted=24232551680"


def change_of(done: Done) -> str:
    """The id of the change that a run ended."""
    return str(re.findall(r"change (\S+) COMMITTED", done.text)[-1])


def without_own(document: dict[str, Any]) -> dict[str, Any]:
    """A Deployment's spec with the limit taken out: all that must not move."""
    spec = json.loads(json.dumps(document["spec"]))
    box = spec["template"]["spec"]["containers"][0]
    box["env"] = [row for row in box["env"] if row["name"] != NAME]
    return dict(spec)


def test_the_seeds_limit_is_set_and_nothing_else_moves(olares: Olares) -> None:
    """Faults 47 and 50, incident A5: dry, for real, again, and back by rollback."""
    before = olares.get()
    dry = olares.limit("limit=24000m", WANTED, dry=True)
    assert dry.rc == 0, dry.text
    assert "25,165,824,000 bytes = 24,000.0 MiB = 23.44 GiB" in dry.text
    assert "left      485,490,688 bytes = 463.0 MiB" in dry.text
    line = f"spec.template.spec.containers[engine].env[{NAME}].value: '23000m' becomes '24000m'"
    assert line in dry.text and olares.get()["spec"] == before["spec"]
    done = olares.limit("limit=24000m", WANTED)
    assert done.rc == 0, done.text
    assert olares.env()[NAME] == "24000m" and olares.env(1)[NAME] == "1g"
    assert without_own(olares.get()) == without_own(before)
    again = olares.limit("limit=24000m", WANTED)
    assert again.counts("Set the variables") == ("1", "-", "-", "1")
    back = olares.rollback(f"change={change_of(done)}")
    assert back.rc == 0 and olares.get()["spec"] == before["spec"], back.text


def test_a_merge_patch_would_drop_the_sidecar_and_the_rehearsal_sees_it(olares: Olares) -> None:
    """Fault 47: the server's own dry run of what a person types, and what node says of it."""
    before = olares.get()
    box = {"name": "engine", "image": "lucebox:1.3.0", "env": [{"name": NAME, "value": "24000m"}]}
    patch = {"spec": {"template": {"spec": {"containers": [box]}}}}
    after = json.loads(olares.cluster.kubectl(
        "patch", "deployment", "lucebox", "--type=merge", f"--patch={json.dumps(patch)}",
        "--dry-run=server", "--output=json"))  # fmt: skip
    assert len(after["spec"]["template"]["spec"]["containers"]) == 1
    paths = {row["path"] for row in inspect.differences(before, after)}
    ours = inspect.expected_values(inspect.container_of(before, "engine"), {NAME: "24000m"}, {})
    assert any("containers[sidecar]" in path for path in paths - set(ours))
    assert olares.get()["spec"] == before["spec"]


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        (("limit=0m",), "0 bytes to HAMi-core"),
        (("limit=-1",), "is negative"),
        (("limit=24x",), "no limit that HAMi reads"),
        (("limit=24464m",), "more than the hardware has"),
        (("limit=23000m", WANTED), "less than the 24,232,551,680 bytes"),
        (("limit=24000m", "container=lucebox"), "has no container 'lucebox'; there are: engine"),
        (("limit=24000m", "deployment=lucebx"), "not found"),
        (("limit=24000m", "deployment=$(id)"), "is not a Kubernetes name"),
        (("limit=24000m", "kubeconfig=/etc/absent"), "/etc/absent"),
    ],
)
def test_what_is_refused_changes_nothing(olares: Olares, pairs: tuple[str, ...], said: str) -> None:
    """Faults 46 and 50, incident A3."""
    before = olares.get()
    done = olares.limit(*pairs)
    assert done.rc == 1 and said in done.text and "Traceback" not in done.text, done.text
    assert olares.get()["metadata"]["generation"] == before["metadata"]["generation"]


def test_a_value_with_quotes_arrives_whole(olares: Olares) -> None:
    """Fault 46: no shell strips them."""
    value = '{"a": "it\'s $(id) `x` ; \\"q\\""}'
    done = olares.limit(f"set={json.dumps({'SPEC': value})}")
    assert done.rc == 0 and olares.env()["SPEC"] == value, done.text
    assert olares.env()[NAME] == "23000m"


def test_the_seeds_export_in_args_is_replaced_and_nothing_else_of_it(olares: Olares) -> None:
    line = f"export {NAME}=23000m; exec python3 server.py --slots '0' \"$X\""
    olares.make(deployment([line]))
    done = olares.limit("limit=24000m")
    assert done.rc == 0, done.text
    assert olares.containers()[0]["args"] == [line.replace("23000m", "24000m")]
    olares.rollback(f"change={change_of(done)}")
    assert olares.containers()[0]["args"] == [line]


BOTH = "--prefix-cache-slots 0 --prefill-cache-slots 0"


@pytest.mark.parametrize(("args", "old", "new"), [
    ("exec python3 scripts/server.py --budget 22\n", "server.py", f"server.py {BOTH}"),
    (f"export {NAME}=23000m; python3 server.py --prefix-cache-slots 4 2>&1 | tee log",
     "--prefix-cache-slots 4", BOTH),
])  # fmt: skip
def test_the_seeds_flags_are_set_and_taken_back(
    olares: Olares, args: str, old: str, new: str
) -> None:
    """The seed's layer 3, which a person set by an edit of the chart."""
    olares.make(deployment([args]))
    edit = f"edit={json.dumps({old: new})}"
    dry = olares.limit(edit, dry=True)
    assert dry.rc == 0 and olares.containers()[0]["args"] == [args], dry.text
    assert "spec.template.spec.containers[engine].args[0]: " in dry.text, dry.text
    done = olares.limit(edit)
    assert done.rc == 0, done.text
    assert olares.containers()[0]["args"] == [args.replace(old, new)]
    again = olares.limit(edit)
    assert again.counts("Set the variables") == ("1", "-", "-", "1"), again.text
    olares.rollback(f"change={change_of(done)}")
    assert olares.containers()[0]["args"] == [args]


@pytest.mark.parametrize(("old", "said"), [
    ("--slots 5", "'--slots 5' stands 0 times in command and args of container engine"),
    ("--slots 4", "'--slots 4' stands 2 times in command and args of container engine"),
])  # fmt: skip
def test_a_text_that_does_not_stand_there_once_is_refused(
    olares: Olares, old: str, said: str
) -> None:
    olares.make(deployment(["server.py --slots 4 && worker.py --slots 4"]))
    before = olares.get()
    done = olares.limit(f"edit={json.dumps({old: '--slots 0'})}")
    assert done.rc == 1 and said in done.text and "Traceback" not in done.text, done.text
    assert olares.get()["metadata"]["generation"] == before["metadata"]["generation"]


@pytest.mark.parametrize(
    "line",
    [f"export {NAME}=$LIMIT; x", f'export {NAME}="23000m"; x',
     f"export {NAME}=1g; export {NAME}=2g; x"],
)  # fmt: skip
def test_a_shell_line_that_is_not_plain_is_refused(olares: Olares, line: str) -> None:
    olares.make(deployment([line]))
    done = olares.limit("limit=24000m")
    assert done.rc == 1 and "is not touched" in done.text
    assert olares.containers()[0]["args"] == [line]


def test_a_rollout_that_never_gets_ready_goes_back(olares: Olares) -> None:
    """Fault 48: the pod finds no node."""
    olares.cluster.kubectl("cordon", "hollow1")
    try:
        done = olares.limit("limit=24000m", "deadline=30")
    finally:
        olares.cluster.kubectl("uncordon", "hollow1")
    assert done.rc == 1 and "not rolled out within 30 s" in done.text, done.text
    assert "FailedScheduling" in done.text and "ROLLED_BACK" in done.text
    assert olares.env()[NAME] == "23000m"


def test_undo_without_the_former_replica_set(olares: Olares) -> None:
    """`rollout undo` could not do it."""
    done = olares.limit("limit=24000m")
    old = [line.split()[0] for line in olares.cluster.kubectl(
        "get", "rs", "--no-headers").splitlines() if line.split()[1] == "0"]  # fmt: skip
    olares.cluster.kubectl("delete", "rs", *old)
    back = olares.rollback(f"change={change_of(done)}")
    assert back.rc == 0 and olares.env()[NAME] == "23000m", back.text


def test_undo_of_a_deployment_that_is_gone_or_was_made_anew(olares: Olares) -> None:
    change = change_of(olares.limit("limit=24000m"))
    olares.make(deployment(CUDA_DEVICE_MEMORY_LIMIT_0="20000m"))
    back = olares.rollback(f"change={change}")
    assert back.rc == 0 and olares.env()[NAME] == "20000m", back.text


def test_undo_keeps_what_others_changed_later(olares: Olares) -> None:
    done = olares.limit("limit=24000m")
    olares.cluster.kubectl("set", "env", "deployment/lucebox", "-c", "engine", "OTHER=theirs")
    back = olares.rollback(f"change={change_of(done)}")
    assert back.rc == 0, back.text
    assert (olares.env()[NAME], olares.env()["OTHER"]) == ("23000m", "theirs")


def test_undo_of_a_value_that_was_edited_later_asks_first(olares: Olares) -> None:
    change = change_of(olares.limit("limit=24000m"))
    olares.cluster.kubectl("set", "env", "deployment/lucebox", "-c", "engine", f"{NAME}=23500m")
    back = olares.rollback(f"change={change}")
    assert back.rc == 1 and "edited after the change" in back.text
    assert olares.env()[NAME] == "23500m"
    where = "/kubernetes/default/deployments/lucebox/engine"
    forced = olares.rollback(f"change={change}", f"overwrite={where}")
    assert forced.rc == 0 and olares.env()[NAME] == "23000m", forced.text


def test_a_second_writer_between_look_and_patch_is_a_conflict(olares: Olares) -> None:
    """Fault 46: a stale resourceVersion. Nothing of ours is written, nothing of theirs lost."""
    looked = olares.lab.ssh(
        "test1", "echo '{}' | sudo tee /dev/null >/dev/null; "
        "sudo kubectl --kubeconfig=/etc/rigbook-lab-kubeconfig get deployment lucebox -o json",
    )  # fmt: skip
    meta = json.loads(looked)["metadata"]
    olares.cluster.kubectl("set", "env", "deployment/lucebox", "-c", "engine", "OTHER=theirs")
    step = {
        "op": "kube", "kubectl": "kubectl", "kubeconfig": "/etc/rigbook-lab-kubeconfig",
        "namespace": "default", "deployment": "lucebox", "container": "engine",
        "set": {NAME: "24000m"}, "uid": meta["uid"], "resource_version": meta["resourceVersion"],
    }  # fmt: skip
    change = {"id": "conflict-test", "deploy": "gpu_limit", "operator": "t@t"}
    request = json.dumps({"change": change, "steps": [step]})
    olares.limit("limit=23000m")  # node is installed there
    answer = json.loads(olares.lab.ssh("test1", "sudo rignode apply", stdin=request, check=False))
    assert (answer["ok"], answer["code"]) == (False, "conflict")
    assert "nothing was changed" in answer["error"]
    assert olares.env() == {NAME: "23000m", "OTHER": "theirs"}


def test_writers_all_the_time_lose_nothing(olares: Olares) -> None:
    """Whoever wins, both writers' values are there in the end, or the run says conflict."""
    stop = threading.Event()

    def write() -> None:
        for number in range(200):
            if stop.is_set():
                return
            olares.cluster.kubectl("annotate", "deployment/lucebox", f"n={number}", "--overwrite")
            time.sleep(0.02)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        done = olares.limit("limit=24000m")
    finally:
        stop.set()
        writer.join()
    if done.rc == 0:
        assert olares.env()[NAME] == "24000m"
    else:
        assert "changed by somebody else meanwhile" in done.text, done.text
        assert olares.env()[NAME] == "23000m"
    assert "n" in olares.get()["metadata"]["annotations"]


def test_an_account_that_may_not_patch_gets_one_clear_line(olares: Olares) -> None:
    """RBAC: the viewer may read, and nothing else."""
    rules = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list"]}]
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": "lab-read"}, "rules": rules}  # fmt: skip
    olares.cluster.kubectl("apply", "-f", "-", stdin=json.dumps(role))
    olares.cluster.kubectl("delete", "clusterrolebinding", "lab-read", "--ignore-not-found")
    olares.cluster.kubectl("create", "clusterrolebinding", "lab-read", "--clusterrole=lab-read",
                           "--user=viewer")  # fmt: skip
    text = (olares.cluster.folder / "viewer.conf").read_text()
    olares.lab.ssh("test1", "sudo install -m 600 /dev/stdin /etc/viewer-kubeconfig", stdin=text)
    done = olares.limit("limit=24000m", "kubeconfig=/etc/viewer-kubeconfig")
    assert done.rc == 1 and "may not patch Deployment lucebox" in done.text, done.text
    assert "Traceback" not in done.text and olares.env()[NAME] == "23000m"


def test_doctor_reads_the_cluster_without_changing_it(olares: Olares) -> None:
    before = olares.get()
    done = olares.lab.pyinfra("doctor", inventory=OLARES)
    assert done.rc == 0, done.text
    assert olares.get()["metadata"]["generation"] == before["metadata"]["generation"]


def test_an_engine_on_the_host_is_no_proof_of_the_deployment(olares: Olares) -> None:
    """Fault 55: the address is the host's own, and what listens there is in no pod of ours."""
    words = ("url=http://127.0.0.1:8123", "model=qwen")
    silent = olares.run("verify", *words, "deadline=10")
    assert silent.rc == 1 and "qwen does not answer" in silent.text, silent.text
    with olares.engine(8123):
        done = olares.run("verify", *words)
        assert done.rc == 1 and "port 8123 of this host is held by pid" in done.text, done.text
        limit = olares.limit("limit=24000m", *words)
        assert limit.rc == 1 and "what answers is not Deployment lucebox alone" in limit.text
        assert "ROLLED_BACK" in limit.text and olares.env()[NAME] == "23000m"


HOLD = """
import mmap, sys, time
with open(sys.argv[1], "r+b") as file:
    memory = mmap.mmap(file.fileno(), 0)
time.sleep(float(sys.argv[2]))
"""


@pytest.mark.parametrize(("seconds", "said"), [(8, "was removed"), (60, "stays, with the former")])
def test_the_stale_shared_cache_goes_once_nobody_has_it(
    olares: Olares, seconds: int, said: str
) -> None:
    """A real process maps the file in a hostPath volume, as one of the pod that goes."""
    document = deployment(CUDA_DEVICE_MEMORY_LIMIT_0="23000m")
    spec = document["spec"]["template"]["spec"]
    spec["volumes"] = [{"name": "shared", "hostPath": {"path": "/srv/hami"}}]
    spec["containers"][0]["volumeMounts"] = [{"name": "shared", "mountPath": "/tmp"}]
    olares.make(document)
    path = "/srv/hami/cudevshr.cache"
    make = f"import struct; open('{path}', 'wb').write(struct.pack('<i', 19920718) + bytes(8192))"
    olares.lab.ssh("test1", f'sudo mkdir -p /srv/hami; sudo python3 -c "{make}"')
    olares.lab.ssh("test1", "cat > /tmp/hold.py", stdin=HOLD)
    hold = f"setsid python3 /tmp/hold.py {path} {seconds}"
    pid = olares.lab.ssh("test1", f"sudo sh -c '{hold} >/dev/null 2>&1 </dev/null & echo $!'")
    done = olares.limit("limit=24000m")
    assert done.rc == 0 and f"shared cache {path} {said}" in done.text, done.text
    left = olares.lab.ssh("test1", "ls /srv/hami")
    assert left == ("" if seconds == 8 else "cudevshr.cache")
    olares.lab.ssh("test1", f"sudo kill {pid}; sudo rm -rf /srv/hami", check=False)


# gpu_limit's guard with real systemd and the real API: a chart that is deployed again is told.

SERVICE, TIMER = "rigbook-limit.service", "rigbook-limit.timer"
LOST = f"has lost what gpu_limit set: {NAME} is '23000m', it was set to '24000m'"


JOURNAL = (
    f"sudo journalctl --sync; sudo journalctl -o cat -u {SERVICE} --cursor-file=/run/guard.at; true"
)


def look(olares: Olares) -> str:
    """What the guard tells in one look, as its timer starts it."""
    olares.lab.ssh("test1", JOURNAL)
    olares.lab.ssh("test1", f"sudo systemctl start {SERVICE}")
    return olares.lab.ssh("test1", JOURNAL)


@pytest.fixture
def guarded(olares: Olares) -> Iterator[Olares]:
    """A limit with its guard, which goes at the end."""
    done = olares.limit("limit=24000m", "guard=true")
    assert done.rc == 0, done.text
    yield olares
    olares.limit("limit=24000m")


def test_a_chart_that_is_deployed_again_is_told_once(guarded: Olares) -> None:
    assert guarded.lab.ssh("test1", f"systemctl is-active {TIMER}") == "active"
    assert "has lost" not in look(guarded)
    again = guarded.limit("limit=24000m", "guard=true")
    assert again.counts("Set the variables") == ("1", "-", "-", "1"), again.text

    guarded.make(deployment(CUDA_DEVICE_MEMORY_LIMIT_0="23000m"))
    assert LOST in look(guarded)
    assert "has lost" not in look(guarded)
    assert guarded.env()[NAME] == "23000m"
    doctor = guarded.lab.pyinfra("doctor", inventory=OLARES)
    assert "gpu-limit-drift" in doctor.text, doctor.text

    assert guarded.limit("limit=24000m", "guard=true").rc == 0
    assert "has again what gpu_limit set" in look(guarded)
    assert "gpu-limit-drift" not in guarded.lab.pyinfra("doctor", inventory=OLARES).text


def test_a_run_without_it_takes_the_guard_away(guarded: Olares) -> None:
    done = guarded.limit("limit=23900m")
    assert done.rc == 0, done.text
    state = guarded.lab.ssh("test1", f"systemctl is-active {TIMER}; ls /etc/rigbook", check=False)
    assert "limit.json" not in state and state.splitlines()[0] != "active", state
