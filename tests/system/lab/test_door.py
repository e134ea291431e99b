"""A login whose sudo is the door alone: runbooks work, and it has no shell (reference/sudo.md).

The lab's own login keeps its sudo: the narrow one is made beside it, with the same key.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator

import pytest

from operations.door.script import DOOR, SUDOERS, script
from schema.render import node_program
from tests.system.rehearsal import Done, Lab

LOGIN = "narrow"
HOSTS = ("test1", "test2")
UNIT = "vllm-door-trial.service"
PATH = f"/etc/systemd/system/{UNIT}"
GHOST = "[Service]\nExecStart=/nowhere/x.sh\nRestart=no\n[Install]\nWantedBy=multi-user.target\n"
SHELLS = (
    "sudo -n id", "sudo -n sh -c id", "sudo -n bash", "sudo -n su", "sudo -n -u rig id",
    "sudo -n -s", "sudo -n cat /etc/shadow", "sudo -n rignode status", "sudo -n python3 -c 0",
    "sudo -n systemctl restart ssh", "sudo -n docker ps", f"sudo -n {DOOR} -c id",
    f"sudo -n {DOOR} -c 'sh -c id'", f"sudo -n {DOOR} -c 'timeout -k 5 9 sh -c id'",
    f"sudo -n {DOOR} -c 'cat /proc/sys/kernel/random/boot_id; id'",
)  # fmt: skip


def as_narrow(lab: Lab, command: str, host: str = "test1") -> subprocess.CompletedProcess[str]:
    """A command that the narrow login types on a host, over a connection of its own."""
    *words, _ = [word for word in lab.shared(host) if not word.startswith("-oControl")]
    target = f"{LOGIN}@{lab.hosts[host].address}"
    return subprocess.run([*words, target, command], stdin=subprocess.DEVNULL, text=True,
                          capture_output=True, timeout=60, check=False)  # fmt: skip


def runbook(lab: Lab, deploy: str, *pairs: str, how: tuple[str, ...] = ()) -> Done:
    """A runbook over the narrow login."""
    words = [word for pair in (f"ssh_user={LOGIN}", f"_shell_executable={DOOR}", *pairs)
             for word in ("--data", pair)]  # fmt: skip
    return lab.pyinfra(deploy, *words, *how, yes=not how)


@pytest.fixture(scope="module")
def narrow(lab: Lab) -> Iterator[Lab]:
    """Both hosts with the narrow login, made as the page says."""
    home = f"/home/{LOGIN}"
    for host in HOSTS:
        lab.ssh(host, f"sudo useradd --create-home --shell /bin/bash {LOGIN}")
        lab.ssh(host, f"sudo cp -r ~/.ssh {home}/.ssh; sudo chown -R {LOGIN}: {home}/.ssh")
        said = lab.ssh(host, "sudo -n python3 -I -", stdin=script(LOGIN))
        assert said.endswith(f"{LOGIN} may run {DOOR} as root, and nothing else"), said
    yield lab
    for host in HOSTS:
        lab.ssh(host, f"sudo rm -f {SUDOERS} {DOOR}; sudo userdel --remove --force {LOGIN}; true",
                check=False)  # fmt: skip


def test_the_login_has_no_shell_by_sudo(narrow: Lab) -> None:
    for command in SHELLS:
        done = as_narrow(narrow, command)
        assert done.returncode != 0 and done.stdout == "", (command, done)
        assert "uid=0" not in done.stderr and len(done.stderr.splitlines()) == 1, (command, done)
    allowed = as_narrow(narrow, "sudo -n -l").stdout.splitlines()
    assert [line.strip() for line in allowed if "NOPASSWD" in line] == [f"(root) NOPASSWD: {DOOR}"]
    for path in (DOOR, node_program.path(), SUDOERS):
        assert as_narrow(narrow, f"echo x >> {path}").returncode != 0


def test_a_runbook_changes_the_host_and_goes_back(narrow: Lab) -> None:
    """Facts, steps, the journal and the undo: all of it through the door."""
    doctor = runbook(narrow, "doctor")
    assert "nodes-reachable" not in doctor.text and "door" not in doctor.text, doctor.text
    narrow.ssh("test1", f"sudo tee {PATH}; sudo systemctl daemon-reload", stdin=GHOST)
    try:
        exec_start = "exec_start=/usr/bin/sleep infinity"
        dry = runbook(narrow, "unit", f"unit={UNIT}", exec_start, how=("--dry",))
        assert dry.rc == 0, dry.text
        done = runbook(narrow, "unit", f"unit={UNIT}", exec_start)
        assert done.rc == 0 and "COMMITTED" in done.text, done.text
        state = f"systemctl show -p ActiveState --value {UNIT}"
        back = runbook(narrow, "rollback", f"change={narrow.changes('test1')[0]['id']}")
        assert back.rc == 0 and "ROLLED_BACK" in back.text, back.text
        assert narrow.ssh("test1", state) != "active"
    finally:
        narrow.ssh("test1", f"sudo systemctl disable --now {UNIT}; sudo rm -rf {PATH} {PATH}.d; "
                            "sudo systemctl daemon-reload; true", check=False)  # fmt: skip
    typed = as_narrow(narrow, f"sudo -n {DOOR} status")
    assert typed.returncode == 0 and "ROLLED_BACK" in typed.stdout, typed


def test_a_program_that_root_did_not_install_is_refused_with_the_command(narrow: Lab) -> None:
    """Another version of the program on the host than this checkout's."""
    other = node_program.path().replace(node_program.version(), "0" * 12)
    edit = f"s/{node_program.version()}/{'0' * 12}/"
    change = ("import sys\nfrom zipfile import ZipFile\n"
              "a, b = ZipFile(sys.argv[1]), ZipFile(sys.argv[2], 'w')\n"
              "for n in a.namelist(): b.writestr(n, a.read(n) + b'# other')")  # fmt: skip
    narrow.ssh("test1", f"sudo python3 -c {shlex.quote(change)} {node_program.path()} {other}; "
                        f"sudo sed -i {edit} {DOOR}")  # fmt: skip
    try:
        done = runbook(narrow, "doctor")
        assert done.rc == 1 and "make sudoers LOGIN=" in done.text, done.text
        assert "is not this checkout's" in done.text and "Traceback" not in done.text
    finally:
        narrow.ssh("test1", f"sudo rm -f {other}")
        narrow.ssh("test1", "sudo -n python3 -I -", stdin=script(LOGIN))
    assert "checkout's" not in runbook(narrow, "doctor").text


def test_a_login_that_may_still_run_anything_is_told_so(narrow: Lab) -> None:
    """The lab's own login: another sudoers file makes the narrow one worth nothing."""
    try:
        said = narrow.ssh("test2", "sudo -n python3 -I -", stdin=script("rig")).splitlines()
    finally:
        narrow.ssh("test2", "sudo -n python3 -I -", stdin=script(LOGIN))
    assert said[-1].startswith("sudo still lets rig run this besides"), said
    assert said[-1].endswith("take it away: (ALL) NOPASSWD: ALL"), said
    assert f"wrote {SUDOERS}" in said
    bad = narrow.ssh("test2", "sudo -n python3 -I - 2>&1", check=False, stdin=script("nobody-here"))
    assert bad == "rigbook-door: there is no login nobody-here on this host"
