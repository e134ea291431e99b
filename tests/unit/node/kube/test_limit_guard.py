"""limit guard: a limit that a chart took away is told once and left; a cluster that is silent is
not taken for one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.node.support.host import Host, apply_request, file_step
from tests.unit.node.support.transfers import Server, serving

NAME, EDITS = "CUDA_DEVICE_MEMORY_LIMIT_0", {"--slots 4": "--slots 0"}
SECRET = "T0P-S3CRET"
KUBECTL = """\
#!/usr/bin/env python3
# rigbook stand-in for kubectl: `get deployment` of one that is in a file, or is not, or no API
import pathlib, sys
here = pathlib.Path(sys.argv[0]).parent / "deployment.json"
if not here.exists():
    print('Error from server (NotFound): deployments.apps "lucebox" not found', file=sys.stderr)
    sys.exit(1)
if here.read_text() == "down":
    print("The connection to the server 127.0.0.1:6443 was refused", file=sys.stderr)
    sys.exit(1)
print(here.read_text())
"""
# What Olares's chart brings: the limit that means "none" to its writer (the seed, layer 2).
CHART: dict[str, Any] = {"name": "engine", "args": ["s.py --slots 4"],
                         "env": [{"name": NAME, "value": "0m"}]}  # fmt: skip
OURS: dict[str, Any] = {"name": "engine", "args": ["s.py --slots 0"],
                        "env": [{"name": NAME, "value": "24000m"}]}  # fmt: skip


class Guarded:
    """A host whose gpu_limit was run with guard=true."""

    def __init__(self, host: Host, hook: Server) -> None:
        self.host, self.hook, self.logged = host, hook, ""
        host.double("kubectl", KUBECTL)
        host.env["RIGBOOK_LIMIT"] = str(host.root / "limit.json")

    def configure(self, **changes: object) -> None:
        """Write limit.json as deploys/gpu_limit.py does."""
        body = {
            "format": 1, "rig": "olares", "node": "one", "kubectl": "kubectl", "kubeconfig": None,
            "namespace": "ai", "deployment": "lucebox", "container": "engine",
            "set": {NAME: "24000m"}, "edit": EDITS, "webhook": f"{self.hook.url}/{SECRET}",
            "webhook_file": None, **changes,
        }  # fmt: skip
        path = self.host.root / "limit.json"
        path.write_text(json.dumps(body))
        path.chmod(0o600)

    def deploy(self, box: dict[str, Any] | str | None, uid: str = "u-1") -> None:
        """The chart is deployed with that container (None: taken away; text: kubectl's file)."""
        path = self.host.bin / "deployment.json"
        if box is None:
            path.unlink()
        elif isinstance(box, str):
            path.write_text(box)
        else:
            meta = {"name": "lucebox", "uid": uid, "resourceVersion": "7", "generation": 1}
            spec = {"replicas": 1, "template": {"spec": {"containers": [box]}}}
            path.write_text(json.dumps({"metadata": meta, "spec": spec}))

    def look(self, times: int = 1) -> int:
        """That many runs of the verb, as systemd starts it; gives the last exit status."""
        for _ in range(times):
            done = self.host.run(self.host.argv("limit guard"))
            self.logged += done.stdout + done.stderr
        return done.returncode

    @property
    def told(self) -> list[str]:
        """The statuses that the webhook got."""
        return [notice["status"] for notice in self.hook.got]


@pytest.fixture
def guarded(host: Host) -> Iterator[Guarded]:
    """A guarded limit and a real HTTP receiver."""
    with serving(lambda _: (200, {})) as hook:
        found = Guarded(host, hook)
        found.configure()
        found.deploy(OURS)
        yield found


def test_what_stays_says_nothing(guarded: Guarded) -> None:
    assert guarded.look(2) == 0 and guarded.told == [] and guarded.logged == ""


def test_a_chart_that_was_deployed_again_is_told_once_and_left(guarded: Guarded) -> None:
    """Another Deployment of the same name; its template is not touched."""
    guarded.deploy(CHART, uid="u-2")
    before = (guarded.host.bin / "deployment.json").read_bytes()
    assert guarded.look(3) == 0
    assert guarded.told == ["limit-reset"]
    text = guarded.hook.got[0]["text"]
    assert f"{NAME} is '0m', it was set to '24000m'" in text
    assert "'--slots 4' stands there again, it was edited to '--slots 0'" in text
    assert "deploys/gpu_limit.py" in text
    assert guarded.logged.count("has lost what gpu_limit set") == 1
    assert SECRET not in guarded.logged and len(guarded.logged.splitlines()) == 1
    assert (guarded.host.bin / "deployment.json").read_bytes() == before
    guarded.deploy(OURS)
    guarded.look(2)
    guarded.deploy(CHART)
    guarded.look(2)
    assert guarded.told == ["limit-reset", "limit-set", "limit-reset"]


def test_each_loss_is_told_one_that_grows_as_well(guarded: Guarded) -> None:
    guarded.deploy({**OURS, "env": CHART["env"]})
    guarded.look()
    guarded.deploy({**CHART, "name": "server"})
    guarded.look()
    guarded.deploy({**OURS, "args": None, "env": CHART["env"]})
    guarded.look()
    guarded.deploy(None)
    guarded.look(2)
    assert guarded.told == [*["limit-reset"] * 3, "limit-gone"]
    assert "--slots" not in guarded.hook.got[0]["text"]
    assert "has no container 'engine'; there are: server" in guarded.hook.got[1]["text"]
    assert "'--slots 4' stands 0 times in command and args" in guarded.hook.got[2]["text"]


def test_a_cluster_that_does_not_answer_is_not_a_lost_limit(guarded: Guarded) -> None:
    guarded.deploy("down")
    assert guarded.look() == 1 and guarded.told == []
    assert "was refused" in guarded.logged and len(guarded.logged.splitlines()) == 1
    guarded.deploy(OURS)
    assert guarded.look() == 0 and guarded.told == []


def test_while_a_change_is_open_the_guard_waits(guarded: Guarded) -> None:
    """It is the operator's run that sets the values."""
    guarded.host.call("apply", apply_request(file_step(guarded.host.file("x")), name="open-1"))
    guarded.deploy(CHART)
    guarded.look()
    assert guarded.told == []
    guarded.host.call("close", {"change": "open-1", "status": "COMMITTED"})
    guarded.look()
    assert guarded.told == ["limit-reset"]


def test_a_webhook_that_is_down_gets_its_notice_later(guarded: Guarded) -> None:
    guarded.hook.reply = lambda _: (503, {})
    guarded.deploy(CHART)
    guarded.look()
    guarded.hook.got.clear()
    guarded.hook.reply = lambda _: (200, {})
    guarded.look(2)
    assert guarded.told == ["limit-reset"]


@pytest.mark.parametrize("changes", [{"format": 2}, {"more": 1}, {"set": {}, "edit": {}},
                                     {"set": {"a b": "x"}}, {"set": {"--slots": "0"}},
                                     {"kubectl": "rm"}, {"container": "-x"},
                                     {"webhook": f"ftp://{SECRET}"}])  # fmt: skip
def test_a_bad_file_is_one_line(guarded: Guarded, changes: dict[str, object]) -> None:
    guarded.configure(**changes)
    guarded.deploy(CHART)
    assert guarded.look() == 1 and guarded.told == [] and SECRET not in guarded.logged
    assert len(guarded.logged.splitlines()) == 1 and "guard=true" in guarded.logged


def test_without_a_file_nothing_is_guarded(guarded: Guarded) -> None:
    (guarded.host.root / "limit.json").unlink()
    guarded.deploy(CHART)
    assert guarded.look() == 0 and guarded.logged == ""


def test_the_look_of_a_deploy_tells_what_is_guarded(guarded: Guarded) -> None:
    """Without the webhook; of this Deployment alone; a file that is broken is no silence."""
    guarded.deploy(CHART)
    request = {"kubectl": "kubectl", "namespace": "ai", "deployment": "lucebox"}
    guarded.host.double("kubectl", KUBECTL.replace(
        "print(here.read_text())",
        'print(here.read_text() if "deployment" in sys.argv else \'{"items": []}\')'))  # fmt: skip
    said = guarded.host.call("kube look", request)["guard"]
    assert (said["values"], said["edits"]) == ({NAME: "24000m"}, EDITS)
    assert said["container"] == "engine"
    assert len(said["differs"]) == 2 and SECRET not in json.dumps(said)
    guarded.configure(deployment="other")
    assert guarded.host.call("kube look", request)["guard"] is None
    guarded.configure(format=2)
    assert "limit.json" in guarded.host.call("kube look", request)["guard"]["unreadable"]
