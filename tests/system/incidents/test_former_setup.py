"""Fault 55, as it was tried: a pair that served the seed's old way, and came back beside ours.

Container `vllm_ds4`, the engine by `docker exec` of a unit with Restart=on-failure, on both hosts.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterator

import pytest

from facts.endpoint import ask
from tests.system.engine.steps import doctor, head, mended, named, wait_until
from tests.system.rehearsal import Lab

BOX, UNIT = "vllm_ds4", "vllm-ds4.service"
PATH = f"/etc/systemd/system/{UNIT}"
# A vLLM imports for ten seconds before it has a port: serve finds it free, and starts ours, too.
RESTART_S = 1
# serve beside it, as it went before this gate blocked
WAIVED = ("--data", "waive=second-unit", "--data", "reason=trial of both at once")
SEED = f"""\
[Unit]
Description=trial of the seed's old way
StartLimitIntervalSec=0
[Service]
ExecStartPre=-/usr/bin/docker start {BOX}
ExecStart=/usr/bin/docker exec {BOX} /bin/bash /rigbook/serve.sh
Restart=on-failure
RestartSec={RESTART_S}
[Install]
WantedBy=multi-user.target
"""


def answers_again(lab: Lab) -> None:
    """The former setup answers, started by its owner as often as it takes: a vLLM whose worker is
    gone ends with status 0, after which on-failure starts nothing.
    """

    def answers() -> bool:
        for host in lab.hosts:
            lab.ssh(host, f"sudo systemctl start --no-block {UNIT}")
        return ask(head(lab), 20).ok

    wait_until("the former setup answers", 300, answers, poll_s=3)


def box_words(lab: Lab, host: str) -> list[str]:
    """The `docker run` of our own unit, made into the seed's: a container that only sleeps."""
    text = lab.ssh(host, "cat /etc/systemd/system/rigbook-engine.service").replace("\\\n", " ")
    line = next(row for row in text.splitlines() if row.startswith("ExecStart="))
    words = shlex.split(line.partition("=")[2])
    words[words.index("--name") + 1] = BOX
    words.remove("--rm")
    entry = words.index("--entrypoint")
    image = words[entry + 2]
    return [
        *words[:2],
        "--detach",
        *words[2:entry],
        "--entrypoint",
        "/bin/sleep",
        image,
        "infinity",
    ]


@pytest.fixture
def former(serving: Lab) -> Iterator[Lab]:
    """Ours is stopped; the former setup serves the same model on the same ports."""
    assert serving.pyinfra("serve").rc == 0
    assert serving.pyinfra("stop").rc == 0
    for host in ("test2", "test1"):
        serving.ssh(host, f"sudo {shlex.join(box_words(serving, host))}")
        serving.ssh(host, f"sudo tee {PATH} >/dev/null", stdin=SEED)
        serving.ssh(host, f"sudo systemctl daemon-reload; sudo systemctl enable --now {UNIT}")
    answers_again(serving)
    yield serving
    for host in serving.hosts:
        serving.ssh(
            host,
            f"sudo systemctl disable --now {UNIT}; sudo rm -f {PATH}; sudo docker rm -f {BOX}; "
            f"sudo systemctl daemon-reload; sudo systemctl reset-failed {UNIT}; true",
            check=False,
        )
    done = serving.pyinfra("serve")
    assert done.rc == 0, done.text


def test_an_engine_of_a_former_setup_is_never_taken_for_ours(former: Lab) -> None:
    refused = former.pyinfra("serve")
    assert refused.rc == 1 and "port-taken" in refused.text, refused.text
    # the supervisor itself, with adopt as the way
    assert "second-unit" in refused.text, refused.text
    assert "pyinfra inventory/lab.py deploys/adopt.py -y" in refused.text, refused.text
    # by the unit, and with what starts it again: `docker stop` alone was the remedy, and a trap
    assert f"sudo systemctl stop {UNIT} && sudo docker stop {BOX}" in refused.text, refused.text
    assert f"Restart=on-failure of {UNIT} starts it again" in refused.text
    assert f"sudo systemctl disable {UNIT}" in refused.text
    verify = former.pyinfra("verify")
    assert verify.rc == 1 and "is not this rig's engine" in verify.text, verify.text

    # as it was done on the evening of the trial: docker stop alone, and serve at once
    for host in former.hosts:
        former.ssh(host, f"sudo docker stop -t 1 {BOX}")
    both = former.pyinfra("serve", *WAIVED)
    assert both.rc == 1 and "COMMITTED" not in both.text, both.text
    for host in former.hosts:
        newest = former.changes(host)[0]
        assert newest["deploy"] != "serve" or newest["status"] == "ROLLED_BACK", newest

    # the old one answers again; nobody says that the rig does
    answers_again(former)
    verify = former.pyinfra("verify")
    assert verify.rc == 1 and "Traceback" not in verify.text, verify.text
    assert re.search(r"port 8000 of test1 is held by pid \d+ \(", verify.text), verify.text
    assert f"sudo systemctl stop {UNIT} && sudo docker stop {BOX}" in verify.text, verify.text
    assert ("port-taken", "test1") in named(doctor(former))

    # the remedy as it is told now, on both hosts; a unit that is stopped only comes back at a boot
    for host in former.hosts:
        former.ssh(host, f"sudo systemctl stop {UNIT} && sudo docker stop -t 1 {BOX}")
    time.sleep(RESTART_S + 5)
    enabled = former.pyinfra("serve")
    assert enabled.rc == 1 and "second-unit" in enabled.text, enabled.text
    for host in former.hosts:
        former.ssh(host, f"sudo systemctl disable --now {UNIT}")
    mended(former.pyinfra("serve"))
    assert former.pyinfra("verify").rc == 0
    for host in former.hosts:
        newest = former.changes(host)[0]
        assert (newest["deploy"], newest["status"]) == ("serve", "COMMITTED")
