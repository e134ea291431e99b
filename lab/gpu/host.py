"""Boots a rig's host beside a machine's own system, and takes it away again.

The host is a systemd as PID 1 of namespaces of its own (pid, net, uts, ipc, cgroup, mount). Its
root is an overlay: a layer of systemd, dbus, ssh and sudo over the machine's own root, everything
written in a tmpfs. The machine's GPUs are its own. It is reached at 10.77.0.2 over a pair of
virtual interfaces. Nothing is written outside of the tier's folder.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

from lab.core import cache, console
from lab.core.settings import SSH_USER, LabError
from lab.gpu import boot_files

BASE = Path(__file__).resolve().parents[3]
MOUNT = BASE / "mnt"
ROOT = MOUNT / "root"
LOG = BASE / "boot.log"
NAME = "gputower"
HOST, OPERATOR = "10.77.0.2", "10.77.0.1"
LINK = "rigv0"
# the one hierarchy of cgroup2, mounted once more, wherever the machine has it
CGROUP = MOUNT / "cgroup"
OWN = CGROUP / "rigbook-gpu"
CONTROLLERS = ("cpu", "memory", "pids", "io", "cpuset")
# What is backed up, restored and measured lies on a plain filesystem: on an overlay a folder and
# its files tell different device numbers, and a backup refuses such a tree (tree_mixed).
PLAIN = ("opt/engine", "srv", "var/lib/rigbook")
# A driver's folder, or Python's, may be a mount of its own, which the overlay does not see.
SEEN = ("/usr/", "/opt/", "/lib/")
BOOT_S = 60.0
# Programs that come from the layer although the machine has them.
OWN_PROGRAMS = (
    "systemd", "systemctl", "journalctl", "loginctl", "busctl", "hostnamectl", "networkctl",
    "timedatectl", "localectl", "resolvectl", "bootctl", "sudo", "dbus", "ssh", "zstd", "strace",
)  # fmt: skip
# vLLM's users' OpenSSL; sshd of the layer was built with this one.
OWN_LIBRARIES = ("libcrypto", "libssl")


def up() -> None:
    """Boot the host; LabError when it does not come up."""
    if os.geteuid() != 0:
        raise LabError("it needs root: namespaces, mounts, device nodes")
    if os.path.ismount(MOUNT):
        raise LabError("a host is up already: python3 -m lab.gpu down")
    with console.phase("boot the host", "3 s"):
        _mount()
        boot_files.write(ROOT, NAME, {"127.0.0.1": "localhost", HOST: NAME, OPERATOR: "operator"})
        _keys()
        _start()
    console.say(run_inside(["systemctl", "is-system-running"], check=False).strip())
    console.say(run_inside(["systemctl", "--failed", "--no-legend"], check=False).strip() or "-")


def inside(argv: list[str]) -> list[str]:
    """The command line that runs another as root on the host."""
    pid = (MOUNT / "pid").read_text()
    return ["nsenter", "-t", pid, "-a", "--", *argv]


def run_inside(argv: list[str], check: bool = True, timeout_s: float = 600) -> str:
    """Standard output of a command that root runs on the host."""
    done = subprocess.run(
        inside(argv), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s
    )
    if check and done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()[-3:]
        raise LabError(f"{' '.join(argv)[:80]} on the host: {'; '.join(said)}")
    return done.stdout


def _mount() -> None:
    MOUNT.mkdir(parents=True, exist_ok=True)
    console.run(["mount", "-t", "tmpfs", "-o", "size=60%,mode=755", "rigbook-gpu", MOUNT])
    console.run(["mount", "--make-private", MOUNT])
    layer, lower = MOUNT / "layer", MOUNT / "lower"
    for folder in (layer, lower, MOUNT / "upper", MOUNT / "work", ROOT):
        folder.mkdir()
    console.run(["tar", "-xzf", BASE / "layer.tar.gz", "-C", layer])
    console.run(["mount", "--bind", "/", lower])
    console.run(["mount", "--make-private", lower])
    _leave_out(layer / "usr/lib/x86_64-linux-gnu", lower, OWN_LIBRARIES, "*.so*")
    _leave_out(layer / "usr/bin", lower, OWN_PROGRAMS, "*")
    options = f"lowerdir={layer}:{lower},upperdir={MOUNT / 'upper'},workdir={MOUNT / 'work'}"
    console.run(["mount", "-t", "overlay", "rigbook-gpu", "-o", options, ROOT])
    console.run(["mount", "--make-private", ROOT])
    # for programs of the layer that run in it before it is booted, with a /dev of its own
    console.run(["mount", "--bind", "/dev", ROOT / "dev"])
    for name in PLAIN:
        (MOUNT / "data" / name).mkdir(parents=True)
        (ROOT / name).mkdir(parents=True, exist_ok=True)
        console.run(["mount", "--bind", MOUNT / "data" / name, ROOT / name])
    for path in _mounts(Path("/proc/self/mountinfo").read_text()):
        target = ROOT / path.lstrip("/")
        if Path(path).is_dir():
            target.mkdir(parents=True, exist_ok=True)
        else:
            target.touch()
        console.run(["mount", "--bind", "-o", "ro", path, target])
    console.run(["mount", "--make-rprivate", MOUNT])


def _mounts(mountinfo: str) -> list[str]:
    """The mount points that hold programs and libraries, outer ones first."""
    points = {line.split()[4] for line in mountinfo.splitlines()}
    return sorted(p for p in points if p.startswith(SEEN) and not p.startswith(str(BASE)))


def _leave_out(folder: Path, lower: Path, own: tuple[str, ...], pattern: str) -> None:
    """Remove from the layer what the machine has itself, but for what has to be the layer's."""
    for path in folder.glob(pattern):
        theirs = lower / path.relative_to(MOUNT / "layer")
        if not path.name.startswith(own) and os.path.lexists(theirs):
            path.unlink()


def _keys() -> None:
    """A host key and the operator's key, made here, known to each other."""
    keys = BASE / "keys"
    keys.mkdir(mode=0o700)
    for name in ("host", "login"):
        inner = f"/root/.rigbook-{name}"
        console.run(["chroot", ROOT, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", inner])
        for suffix in ("", ".pub"):
            made = ROOT / f"root/.rigbook-{name}{suffix}"
            (keys / f"{name}{suffix}").write_text(made.read_text())
            (keys / f"{name}{suffix}").chmod(0o600)
            made.unlink()
    public = " ".join((keys / "host.pub").read_text().split()[:2])
    (keys / "known_hosts").write_text(f"{HOST} {public}\n")
    boot_files.install_keys(ROOT, SSH_USER, keys)


def _start() -> None:
    """Start the host's systemd in a cgroup of its own, and wait for ssh."""
    CGROUP.mkdir()
    console.run(["mount", "-t", "cgroup2", "cgroup2", CGROUP])
    absent = [name for name in CONTROLLERS if not _enabled(name)]
    if absent:
        console.say(f"the machine's cgroup2 has no {', '.join(absent)} for the host")
    OWN.mkdir(exist_ok=True)
    (MOUNT / "inner.sh").write_text(boot_files.INNER)
    outer = (
        'echo $$ > "$3/cgroup.procs" && exec unshare --mount --propagation private --pid --fork '
        '--uts --ipc --net --cgroup /bin/bash "$2/inner.sh" "$1" "$2" "$4"'
    )
    words: list[str | Path] = [
        "/bin/bash", "-c", outer, "sh", ROOT, MOUNT, OWN, NAME
    ]  # fmt: skip
    with LOG.open("w") as log:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    pid = _child(process.pid)
    (MOUNT / "pid").write_text(str(pid))
    tool = ["chroot", str(ROOT), "ip"]
    console.run([*tool, "link", "add", LINK, "type", "veth", "peer", "name", "host0", "netns", pid])
    console.run([*tool, "addr", "add", f"{OPERATOR}/24", "dev", LINK])
    console.run([*tool, "link", "set", LINK, "up"])
    for line in ("link set lo up", f"addr add {HOST}/24 dev host0", "link set host0 up"):
        console.run(["nsenter", "-t", pid, "-n", *tool, *line.split()])
    (MOUNT / "go").touch()
    _until(_ssh_answers, "ssh of the host")
    run_inside(["systemctl", "is-system-running", "--wait"], check=False, timeout_s=BOOT_S)


def _enabled(controller: str) -> bool:
    """Give a controller to the cgroups below the root, as a machine with systemd does anyway."""
    try:
        (CGROUP / "cgroup.subtree_control").write_text(f"+{controller}")
    except OSError:
        return False
    return True


def _child(parent: int) -> str:
    """The pid of the one child of a process, as soon as it has one."""
    path = Path(f"/proc/{parent}/task/{parent}/children")
    _until(lambda: path.exists() and path.read_text().strip(), "the host's first process")
    return path.read_text().split()[0]


def _ssh_answers() -> bool:
    probe = ["bash", "-c", f"exec 3<>/dev/tcp/{HOST}/22"]
    return subprocess.run(probe, stderr=subprocess.DEVNULL, check=False).returncode == 0


def _until(true: object, what: str) -> None:
    began = time.monotonic()
    while not (callable(true) and true()):
        if time.monotonic() - began > BOOT_S:
            lines = LOG.read_text().splitlines()[-5:] if LOG.exists() else []
            raise LabError(f"{what} did not come within {BOOT_S:.0f} s: {'; '.join(lines)}")
        time.sleep(0.05)


def down() -> None:
    """End the host with all its processes, and take away what `up` made."""
    pid = MOUNT / "pid"
    if pid.exists() and Path(f"/proc/{pid.read_text()}").exists():
        os.kill(int(pid.read_text()), signal.SIGKILL)
    if OWN.exists():
        _until(lambda: "populated 0" in (OWN / "cgroup.events").read_text(), "the host's end")
        for folder in sorted(OWN.rglob("*/"), key=lambda path: -len(path.parts)):
            folder.rmdir()
        OWN.rmdir()
    if os.path.ismount(MOUNT):
        console.run(["umount", "--recursive", "--lazy", MOUNT])
    for path in (MOUNT, BASE / "keys", BASE / "operator", LOG):
        cache.remove(path)
