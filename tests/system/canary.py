"""Secrets on booted hosts: recipes that name some, and a look for their values in all that a run
leaves, types and says.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from pathlib import Path

import yaml

from facts.endpoint import Endpoint, ask
from schema.core import Secret
from tests.command_lines import CommandLines
from tests.system.rehearsal import ROOT, Done, Lab

FILE = "/etc/rigbook/engine/secrets.env"
NODE_FILE = "/root/rigbook-canary"
VERBOSE = ("-vvv", "--debug", "--diff")
# Where a run or an engine leaves files; the weights and the layers of images (rootfs) are none.
PLACES = (
    "/etc /run /tmp /var/tmp /var/log /var/lib/rigbook /var/lib/docker/containers /usr/local /root "
    "/home /dev/shm"
)
# What root alone reads and what has to hold it: the file, its former versions, the node's own
# source, and docker's note of a container's environment, while it is there.
HOLDERS = (
    FILE,
    NODE_FILE,
    "/var/lib/rigbook/blobs/",
    "/var/lib/docker/containers/",
    "/run/containerd/",
    "/run/docker/",
)


class Keys:
    """A recipe with a key of the operator's file and a token of a file on each host."""

    def __init__(self, folder: Path, base: str, key: str, token: str) -> None:
        self.folder, self.key, self.token = folder, key, token
        self.since = int(time.time())
        self.file = folder / "key"
        text = yaml.safe_load((ROOT / f"catalog/recipes/{base}.yaml").read_text())
        secrets = {
            "VLLM_API_KEY": {"file": str(self.file)}, "HF_TOKEN": {"node_file": NODE_FILE}
        }  # fmt: skip
        made = yaml.safe_dump({**text, "secrets": secrets}, sort_keys=False)
        (folder / "guarded.yaml").write_text(made)
        self.write(key)

    def write(self, key: str) -> None:
        """Another key."""
        self.key = key
        self.file.write_text(f"{key}\n")
        self.file.chmod(0o600)

    @property
    def words(self) -> tuple[str, ...]:
        """The arguments that choose the recipe."""
        return ("--data", "recipe=guarded", "--data", f"recipes_dir={self.folder}")

    def put(self, lab: Lab, hosts: list[str]) -> None:
        """The token, root's alone on each host."""
        for host in hosts:
            lab.ssh(host, f"sudo sh -c 'umask 077; cat >{NODE_FILE}'", stdin=self.token)


def guarded(url: str, key: str) -> None:
    """The engine answers with this key, and to nobody without one."""
    assert ask(Endpoint(url, "tiny", key=Secret(key), ours=True)).ok
    assert "401" in ask(Endpoint(url, "tiny")).detail


def held(lab: Lab, host: str, user: str, *values: str) -> list[str]:
    """The files of PLACES that hold a value, as a user finds them; none is in a command line."""
    search = f"sudo -u {user} grep -rlsaF -f - -D skip --exclude-dir=rootfs {PLACES} || true"
    return lab.ssh(host, search, stdin="".join(f"{value}\n" for value in values)).splitlines()


def said(lab: Lab, host: str, keys: Keys, *values: str) -> list[str]:
    """The values that the host says of itself since there are keys: systemd's journal and units,
    rigbook's, every process. Searched on the host: sudo notes each command line, and the journal
    of a lab's hour is gigabytes.
    """
    commands = (
        f"sudo journalctl --no-pager -o verbose --since @{keys.since}",
        "systemctl show rigbook-engine.service --all",
        "systemctl cat rigbook-engine.service",
        "echo '{}' | sudo rignode journal",
        "sudo rignode status",
        f"""sudo rignode snapshot {shlex.quote('{"files": ["' + FILE + '"]}')}""",
        "ps axww",
        # its own user, who may be who logs in, reads an engine's environment; nobody else does
        "sudo -u nobody ps axwwe",
    )
    search = "grep -aoF -f /dev/fd/3 | sort -u"
    every = f"exec 3<&0; {{ {'; '.join(commands)}; }} </dev/null | {search}"
    return lab.ssh(host, every, stdin="".join(f"{value}\n" for value in values)).splitlines()


def nowhere(lab: Lab, hosts: list[str], values: list[str], runs: list[Done], keys: Keys) -> None:
    """No value is where it must not be, on any host, and none in what the runs said."""
    debug = ROOT / "pyinfra-debug.log"
    texts = {f"run {n}": run.text for n, run in enumerate(runs)}
    texts["pyinfra-debug.log"] = debug.read_text() if debug.exists() else ""
    for value in values:
        holders = [name for name, text in texts.items() if value in text]
        assert holders == [], holders
    for host in hosts:
        assert said(lab, host, keys, *values) == []
        assert held(lab, host, "nobody", *values) == []
        strange = [p for p in held(lab, host, "root", *values) if not p.startswith(HOLDERS)]
        assert strange == []
        assert lab.ssh(host, f"sudo stat -c '%a %U:%G' {FILE}") == "600 root:root"
        modes = lab.ssh(host, "sudo find /var/lib/rigbook/blobs -type f ! -perm 600")
        assert modes == "" and lab.ssh(host, "sudo stat -c %a /var/lib/rigbook") == "700"


def whole_way(
    lab: Lab, deploy: Callable[..., Done], hosts: list[str], url: str, keys: Keys
) -> None:
    """serve with secrets, again, with another key, back; and the look after each."""
    first, second = keys.key, f"2{keys.key}"
    values = [first, second, keys.token]
    runs: list[Done] = []

    def run(*words: str) -> Done:
        runs.append(deploy(*words, *VERBOSE))
        return runs[-1]

    with CommandLines(*values) as poll:
        done = run("serve", *keys.words)
        assert done.rc == 0, done.text
        assert "VLLM_API_KEY new, HF_TOKEN new" in done.text
        guarded(url, first)
        # the start was proven with the key, not by a 401
        start = f"_SYSTEMD_INVOCATION_ID={lab.unit(hosts[0], 'InvocationID')[0]}"
        log = lab.ssh(hosts[0], f"sudo journalctl {start} --no-pager")
        assert "tiny answered in" in log and "wants a key" not in log
        nowhere(lab, hosts, values, runs, keys)

        again = run("serve", *keys.words)
        assert again.rc == 0 and again.counts("Grand total")[1:3] == ("-", "-"), again.text

        keys.write(second)
        done = run("serve", *keys.words)
        assert done.rc == 0, done.text
        assert "VLLM_API_KEY changed, HF_TOKEN unchanged" in done.text
        guarded(url, second)
        nowhere(lab, hosts, values, runs, keys)

        looked = run("doctor", *keys.words)
        assert looked.rc == 0 and "nothing blocks" in looked.text, looked.text

        done = run("serve")
        assert done.rc == 0, done.text
        assert ask(Endpoint(url, "tiny")).ok
        for host in hosts:
            assert lab.ssh(host, f"sudo test -e {FILE}; echo $?") == "1"
    assert poll.looks > 100 and poll.found == set()
    assert [host for host in hosts if said(lab, host, keys, *values)] == []
