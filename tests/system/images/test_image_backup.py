"""The images are gone, from their registry too, and files were edited: back from the backups."""

from __future__ import annotations

from lab.core.settings import ENGINE_IMAGE
from tests.system.lab.support import moving as m
from tests.system.rehearsal import Lab

FILES = "/etc/systemd/system/rigbook-engine.service /etc/rigbook/engine/serve.sh"
LAYERS = "sudo docker image inspect {} | jq -c '.[0] | [.Id, .RootFS.Layers]'"


def as_is(lab: Lab) -> list[str]:
    """The image and the files of each host."""
    look = f"{LAYERS.format(ENGINE_IMAGE)}; sudo sha256sum {FILES}; sudo stat -c '%a %U' {FILES}"
    return [lab.ssh(host, look) for host in lab.hosts]


def lose(lab: Lab) -> None:
    """Stopped, without its image, its launch script of another hand."""
    assert lab.pyinfra("stop").rc == 0
    for host in lab.hosts:
        lab.ssh(host, f"sudo docker rmi -f {ENGINE_IMAGE} >/dev/null; sudo docker image prune -f")
        assert m.image_id(lab, host, ENGINE_IMAGE) == ""
        lab.ssh(host, "echo exit 1 | sudo tee /etc/rigbook/engine/serve.sh >/dev/null")


def loads(lab: Lab, host: str) -> bool:
    """Whether a restore works on a host."""
    return bool(lab.ssh(host, "pgrep -af 'rignode.*image restore' | grep -v pgrep || true"))


def test_the_rig_serves_again_from_its_backups(serving: Lab) -> None:
    done = serving.pyinfra("backup")
    assert done.rc == 0 and done.text.count("is whole: ") == 2, done.text
    print(f"REPLAY {[line for line in done.text.splitlines() if 'stored' in line]}")
    again = serving.pyinfra("backup")
    assert again.rc == 0 and again.counts("Grand total")[1] == "-", again.text
    before = as_is(serving)
    lose(serving)
    restored = serving.pyinfra("restore")
    assert restored.rc == 0 and " serves: " in restored.text, restored.text
    assert restored.text.count("(loaded, ") == 2 and "COMMITTED" in restored.text
    print(f"REPLAY {[line for line in restored.text.splitlines() if 'loaded' in line]}")
    assert as_is(serving) == before
    quiet = serving.pyinfra("restore")
    assert quiet.rc == 0 and quiet.counts("Grand total")[1] == "-", quiet.text


def test_an_operator_killed_in_the_load_and_the_same_command_once_more(serving: Lab) -> None:
    before = as_is(serving)
    lose(serving)
    started = m.start("restore")
    m.wait_for(lambda: loads(serving, "test1"), 120)
    m.kill(started)
    m.wait_for(lambda: not any(loads(serving, host) for host in serving.hosts), 240)
    restored = serving.pyinfra("restore")
    assert restored.rc == 0 and " serves: " in restored.text, restored.text
    assert as_is(serving) == before and not m.open_changes(serving)
