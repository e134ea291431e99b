"""A rig's host with a real GPU (`-m lab.gpu`)."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

from lab import core, engine, gpu_wheels
from lab.core import SSH_USER, LabError, LabSettings, load_settings

# A rig host with a real NVIDIA GPU: its parcels, its boot, its engine (docs/reference/gpu.md).

# What turns a machine's own root into a rig host's: names, units, ssh, a login, the driver.

# What would wait for hardware or a network that the host does not have, or work beside a test.
MASKED = (
    "systemd-networkd-wait-online.service", "getty.target", "console-getty.service",
    "apt-daily.timer", "apt-daily-upgrade.timer", "systemd-sysctl.service",
    "systemd-modules-load.service", "systemd-resolved.service", "ssh.socket", "e2scrub_all.timer",
    "fstrim.timer", "dpkg-db-backup.timer", "man-db.timer", "systemd-remount-fs.service",
    "motd-news.timer",
)  # fmt: skip
WANTED = ("ssh.service", "systemd-logind.service")
SSHD = """HostKey /etc/ssh/ssh_host_ed25519_key
PermitRootLogin no
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM yes
Subsystem sftp /usr/lib/openssh/sftp-server
"""
USERS = {
    "sshd": "--no-create-home --home-dir /run/sshd --shell /usr/sbin/nologin --system",
    "messagebus": "--no-create-home --home-dir /nonexistent --user-group --system",
    "systemd-network": "--no-create-home --user-group --system",
    SSH_USER: "--create-home --shell /bin/bash",
}
# Where a driver that no package installed puts its libraries and programs.
DRIVER = Path("/usr/local/nvidia")
# The host's first process, before it becomes systemd: $1 root, $2 folder of the mounts, $3 name.
INNER = r"""set -e
R=$1; hostname "$3"
mount -t proc proc "$R/proc"
mount -t sysfs sysfs "$R/sys"
mount -t cgroup2 cgroup2 "$R/sys/fs/cgroup"
mount -t tmpfs -o mode=755 tmpfs "$R/dev"
for n in null:1:3 zero:1:5 full:1:7 random:1:8 urandom:1:9 tty:5:0 kmsg:1:11 fuse:10:229; do
  IFS=: read -r a b c <<< "$n"; mknod -m 666 "$R/dev/$a" c "$b" "$c"
done
cp -a /dev/nvidia* "$R/dev/" 2> /dev/null || true
mkdir "$R/dev/pts" "$R/dev/shm" "$R/dev/mqueue"
mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts "$R/dev/pts"
ln -s pts/ptmx "$R/dev/ptmx"
ln -s /proc/self/fd "$R/dev/fd"
for n in 0:stdin 1:stdout 2:stderr; do ln -s "/proc/self/fd/${n%:*}" "$R/dev/${n#*:}"; done
mount -t tmpfs -o mode=1777 tmpfs "$R/dev/shm"
mount -t mqueue mqueue "$R/dev/mqueue"
mount -t tmpfs -o mode=755 tmpfs "$R/run"
mount -t tmpfs -o mode=1777 tmpfs "$R/tmp"
mkdir -p "$R/run/lock" "$R/run/sshd" "$R/old"
for i in $(seq 200); do [ -e "$2/go" ] && break; sleep 0.05; done
cd "$R"; pivot_root . old; umount -l /old
p=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
exec env -i container=rigbook-gpu PATH="$p" \
  /usr/lib/systemd/systemd --log-level=notice --log-target=journal < /dev/null
"""


def write_boot_files(root: Path, name: str, hosts: Mapping[str, str]) -> None:
    """Write them into a root; LabError when a program in it fails."""
    etc = root / "etc"
    _write(etc / "hostname", f"{name}\n")
    _write(etc / "hosts", "".join(f"{address} {word}\n" for address, word in hosts.items()))
    _write(etc / "machine-id", f"{uuid.uuid4().hex}\n")
    _write(etc / "fstab", "")
    units = etc / "systemd" / "system"
    for link in units.glob("*.wants/*"):
        link.unlink()
    for unit in MASKED:
        _link(units / unit, "/dev/null")
    _link(units / "default.target", "/usr/lib/systemd/system/multi-user.target")
    for unit in WANTED:
        _link(units / "multi-user.target.wants" / unit, f"/usr/lib/systemd/system/{unit}")
    _write(etc / "ssh" / "sshd_config", SSHD)
    known = {line.partition(":")[0] for line in (etc / "passwd").read_text().splitlines()}
    for user, options in USERS.items():
        if user not in known:
            core.run_console(["chroot", root, "useradd", *options.split(), user])
    _write(etc / "sudoers.d" / SSH_USER, f"{SSH_USER} ALL=(ALL) NOPASSWD: ALL\n", 0o440)
    session = etc / "pam.d" / "common-session"
    if "pam_systemd" not in session.read_text():
        _write(session, session.read_text() + "session optional pam_systemd.so\n")
    _write(root / "var/lib/systemd/linger" / SSH_USER, "")
    # a machine's own Python may lie below it
    (root / "root").chmod(0o711)
    _driver(root)


def install_keys(root: Path, user: str, keys: Path) -> None:
    """The host's own key, and the operator's as the only way in."""
    _write(root / "etc/ssh/ssh_host_ed25519_key", (keys / "host").read_text(), 0o600)
    home = root / "home" / user
    _write(home / ".ssh" / "authorized_keys", (keys / "login.pub").read_text(), 0o600)
    (home / ".ssh").chmod(0o700)
    home.chmod(0o755)
    core.run_console(["chroot", root, "chown", "-R", f"{user}:", f"/home/{user}"])


def _driver(root: Path) -> None:
    """A driver outside of the usual folders, where a packaged one would be."""
    folders = [DRIVER / name for name in ("lib64", "lib") if (DRIVER / name).is_dir()]
    if folders:
        lines = "".join(f"{folder}\n" for folder in folders)
        _write(root / "etc/ld.so.conf.d/zz-nvidia.conf", lines)
        for program in (DRIVER / "bin").glob("nvidia-*"):
            _link(root / "usr/bin" / program.name, str(program))
    # it warns of files that are no links, and ends with 0 all the same
    subprocess.run(["chroot", root, "ldconfig"], stderr=subprocess.DEVNULL, check=True)


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if os.path.lexists(path):
        path.unlink()
    path.write_text(text)
    path.chmod(mode)


def _link(path: Path, target: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if os.path.lexists(path):
        path.unlink()
    path.symlink_to(target)


# Boots a rig's host beside a machine's own system, and takes it away again.
#
# The host is a systemd as PID 1 of namespaces of its own (pid, net, uts, ipc, cgroup, mount). Its
# root is an overlay: a layer of systemd, dbus, ssh and sudo over the machine's own root,
# everything
# written in a tmpfs. The machine's GPUs are its own. It is reached at 10.77.0.2 over a pair of
# virtual interfaces. Nothing is written outside of the tier's folder.

BASE = Path(__file__).resolve().parents[2]
MOUNT = BASE / "mnt"
HOST_ROOT = MOUNT / "root"
LOG = BASE / "boot.log"
NAME = "gputower"
HOST, HOST_OPERATOR = "10.77.0.2", "10.77.0.1"
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


def host_up() -> None:
    """Boot the host; LabError when it does not come up."""
    if os.geteuid() != 0:
        raise LabError("it needs root: namespaces, mounts, device nodes")
    if os.path.ismount(MOUNT):
        raise LabError("a host is up already: python3 -m lab.gpu down")
    with core.phase("boot the host", "3 s"):
        _mount()
        write_boot_files(
            HOST_ROOT, NAME, {"127.0.0.1": "localhost", HOST: NAME, HOST_OPERATOR: "operator"}
        )
        _keys()
        _start()
    core.say_console(run_inside(["systemctl", "is-system-running"], check=False).strip())
    core.say_console(
        run_inside(["systemctl", "--failed", "--no-legend"], check=False).strip() or "-"
    )


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
    core.run_console(["mount", "-t", "tmpfs", "-o", "size=60%,mode=755", "rigbook-gpu", MOUNT])
    core.run_console(["mount", "--make-private", MOUNT])
    layer, lower = MOUNT / "layer", MOUNT / "lower"
    for folder in (layer, lower, MOUNT / "upper", MOUNT / "work", HOST_ROOT):
        folder.mkdir()
    core.run_console(["tar", "-xzf", BASE / "layer.tar.gz", "-C", layer])
    core.run_console(["mount", "--bind", "/", lower])
    core.run_console(["mount", "--make-private", lower])
    _leave_out(layer / "usr/lib/x86_64-linux-gnu", lower, OWN_LIBRARIES, "*.so*")
    _leave_out(layer / "usr/bin", lower, OWN_PROGRAMS, "*")
    options = f"lowerdir={layer}:{lower},upperdir={MOUNT / 'upper'},workdir={MOUNT / 'work'}"
    core.run_console(["mount", "-t", "overlay", "rigbook-gpu", "-o", options, HOST_ROOT])
    core.run_console(["mount", "--make-private", HOST_ROOT])
    # for programs of the layer that run in it before it is booted, with a /dev of its own
    core.run_console(["mount", "--bind", "/dev", HOST_ROOT / "dev"])
    for name in PLAIN:
        (MOUNT / "data" / name).mkdir(parents=True)
        (HOST_ROOT / name).mkdir(parents=True, exist_ok=True)
        core.run_console(["mount", "--bind", MOUNT / "data" / name, HOST_ROOT / name])
    for path in _mounts(Path("/proc/self/mountinfo").read_text()):
        target = HOST_ROOT / path.lstrip("/")
        if Path(path).is_dir():
            target.mkdir(parents=True, exist_ok=True)
        else:
            target.touch()
        core.run_console(["mount", "--bind", "-o", "ro", path, target])
    core.run_console(["mount", "--make-rprivate", MOUNT])


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
        core.run_console(
            ["chroot", HOST_ROOT, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", inner]
        )
        for suffix in ("", ".pub"):
            made = HOST_ROOT / f"root/.rigbook-{name}{suffix}"
            (keys / f"{name}{suffix}").write_text(made.read_text())
            (keys / f"{name}{suffix}").chmod(0o600)
            made.unlink()
    public = " ".join((keys / "host.pub").read_text().split()[:2])
    (keys / "known_hosts").write_text(f"{HOST} {public}\n")
    install_keys(HOST_ROOT, SSH_USER, keys)


def _start() -> None:
    """Start the host's systemd in a cgroup of its own, and wait for ssh."""
    CGROUP.mkdir()
    core.run_console(["mount", "-t", "cgroup2", "cgroup2", CGROUP])
    absent = [name for name in CONTROLLERS if not _enabled(name)]
    if absent:
        core.say_console(f"the machine's cgroup2 has no {', '.join(absent)} for the host")
    OWN.mkdir(exist_ok=True)
    (MOUNT / "inner.sh").write_text(INNER)
    outer = (
        'echo $$ > "$3/cgroup.procs" && exec unshare --mount --propagation private --pid --fork '
        '--uts --ipc --net --cgroup /bin/bash "$2/inner.sh" "$1" "$2" "$4"'
    )
    words: list[str | Path] = [
        "/bin/bash", "-c", outer, "sh", HOST_ROOT, MOUNT, OWN, NAME
    ]  # fmt: skip
    with LOG.open("w") as log:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    pid = _child(process.pid)
    (MOUNT / "pid").write_text(str(pid))
    tool = ["chroot", str(HOST_ROOT), "ip"]
    core.run_console(
        [*tool, "link", "add", LINK, "type", "veth", "peer", "name", "host0", "netns", pid]
    )
    core.run_console([*tool, "addr", "add", f"{HOST_OPERATOR}/24", "dev", LINK])
    core.run_console([*tool, "link", "set", LINK, "up"])
    for line in ("link set lo up", f"addr add {HOST}/24 dev host0", "link set host0 up"):
        core.run_console(["nsenter", "-t", pid, "-n", *tool, *line.split()])
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


def host_down() -> None:
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
        core.run_console(["umount", "--recursive", "--lazy", MOUNT])
    for path in (MOUNT, BASE / "keys", BASE / "operator", LOG):
        core.remove_tree(path)


# The real vLLM in a venv on the GPU tier's host, and pyinfra for the operator beside it.
#
# What the machine itself has (torch, transformers, CUDA) stays where it is. A wheel named like
# each
# of them leads there by a .pth file, so that pip installs vLLM into a new venv like anywhere else.

HOME = Path("/opt/engine")
MODEL = "/srv/models/gpu"
FILES = Path(__file__).resolve().parents[0] / "files"
# The number of a release that does not exist: the real one, whose core raises at its import.
BROKEN_VERSION = "0.23.1"
ENGINE_OPERATOR = BASE / "operator"
ENGINE_ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("deploys", "facts", "gates", "node", "operations", "schema", "lab", "tests/system/gpu")
SPIN_PACKAGE = "rigbook_gpu_spin"
ASK = (
    "import json, os, sys, sysconfig, torch, transformers;"
    "print(json.dumps([os.path.dirname(os.path.dirname(torch.__file__)), torch.__version__,"
    "transformers.__version__]))"
)
ASK_BASE = (
    "import importlib.util, json, sys, sysconfig;"
    "print(json.dumps([sys.executable, sysconfig.get_path('stdlib'),"
    "bool(importlib.util.find_spec('ensurepip'))]))"
)


def operator() -> None:
    """A venv with pyinfra on the machine itself, outside of the host."""
    with core.phase("the operator's side", "15 s"):
        found = sorted((BASE / "operator-wheels").glob("*.whl"))
        pip = next(one for one in found if one.name.startswith("pip-"))
        core.run_console([sys.executable, "-m", "venv", "--without-pip", ENGINE_OPERATOR])
        core.run_console(
            [
                ENGINE_OPERATOR / "bin" / "python",
                pip / "pip",
                "install",
                "-q",
                "--no-index",
                "--no-deps",
                "--no-cache-dir",
                *found,
            ]
        )
        # as `make setup` does: where PYTHONDONTWRITEBYTECODE is set, each run would compile it anew
        core.run_console(
            [ENGINE_OPERATOR / "bin" / "python", "-m", "compileall", "-q", *PACKAGES],
            cwd=ENGINE_ROOT,
        )


def install_engine(parcel: Path) -> None:
    """Unpack the engine's parcel on the host, make the model, install vLLM.

    LabError where the machine's python3 has no torch.
    """
    folder = HOST_ROOT / str(HOME / "wheels").lstrip("/")
    folder.mkdir(parents=True, exist_ok=True)
    model = _model()
    with core.phase("unpack the engine's parcel", "20 s"), parcel.open("rb") as stream:
        words = ["chroot", str(HOST_ROOT), "zstd", "-dc", "--long=27"]
        with subprocess.Popen(words, stdin=stream, stdout=subprocess.PIPE) as unpacker:
            subprocess.run(["tar", "-x", "-C", folder], stdin=unpacker.stdout, check=True)
        _stand_ins(folder)
    broken = threading.Thread(target=_broken, args=(folder,))
    broken.start()
    with core.phase("install it", "20 s"):
        _venv()
    with core.phase("the model and a release that cannot start"):
        broken.join()
        said = model.communicate()[0]
        if model.returncode != 0:
            raise LabError(f"the model could not be made: {said.strip().splitlines()[-1:]}")
        run_inside(["chown", "-R", f"{SSH_USER}:", "/srv/models", str(HOME)])


def _model() -> subprocess.Popen[str]:
    maker, tiny = (str(FILES / name) for name in ("gpu_model.py", "make_tiny_model.py"))
    (HOST_ROOT / MODEL.lstrip("/")).mkdir(parents=True, exist_ok=True)
    words = inside(["env", "HOME=/root", sys.executable, maker, tiny, MODEL])
    return subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def _stand_ins(folder: Path) -> None:
    """Wheels that lead to what the machine has, and the plugin of the case of a spinning GPU."""
    site, torch, transformers = json.loads(core.run_console([sys.executable, "-c", ASK]))
    gpu_wheels.made(folder, "torch", torch, {"zz_machine.pth": f"{site}\n"})
    gpu_wheels.made(folder, "transformers", transformers, {})
    info = f"{SPIN_PACKAGE}-1.0.dist-info"
    entry = f"[vllm.general_plugins]\nrigbook_gpu_spin = {SPIN_PACKAGE}:watch\n"
    source = (FILES / "gpu_spin.py").read_text()
    gpu_wheels.made(
        folder,
        SPIN_PACKAGE,
        "1.0",
        {f"{SPIN_PACKAGE}.py": source, f"{info}/entry_points.txt": entry},
    )


def _broken(folder: Path) -> None:
    """The wheel of a release that cannot start; complete, or not there at all."""
    source = next(folder.glob(f"vllm-{gpu_wheels.VERSION}-*.whl"))
    aside = folder.with_name("making")
    aside.mkdir(exist_ok=True)
    made = engine.rebuild(source, aside, BROKEN_VERSION, broken=True)
    made.rename(folder / made.name)
    aside.rmdir()


def _venv() -> None:
    base = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info[1]}"
    program, stdlib, has_pip = json.loads(core.run_console([base, "-c", ASK_BASE]))
    if not has_pip:
        target = HOST_ROOT / stdlib.lstrip("/") / "ensurepip"
        target.mkdir(parents=True, exist_ok=True)
        (target / "__init__.py").write_text("")
        (target / "__main__.py").write_text((FILES / "gpu_pip.py").read_text())
        pip = next((BASE / "operator-wheels").glob("pip-*.whl"))
        (target / pip.name).write_bytes(pip.read_bytes())
    folder = f"{HOME}/venvs/{gpu_wheels.VERSION}"
    run_inside(["mkdir", "-p", f"{HOME}/venvs"])
    run_inside([program, "-m", "venv", folder])
    run_inside(
        [f"{folder}/bin/python", "-m", "pip", "install", "-q", "--no-index", "--no-compile",
         "--no-cache-dir", f"--find-links={HOME}/wheels", f"vllm=={gpu_wheels.VERSION}"]
    )  # fmt: skip
    run_inside(["ln", "-sfn", folder, f"{HOME}/venv"])


# The two parcels that a machine with a GPU and without network needs, from packages alone.
#
# `kit.tar`: the layer of the host, the operator's wheels, and the project as it is committed.
# `engine.tar.zst`: the wheels of vLLM. Each below 60 MiB, as what carries them may be limited.

KIT, ENGINE = "kit.tar", "engine.tar.zst"
MOST = 60 << 20
# made on the machine (lab/gpu.py), so that every venv of the engine has it
SPIN_WHEEL = "rigbook-gpu-spin"


def build_parcels(settings: LabSettings, target: Path) -> list[Path]:
    """Both parcels in `target`; what does not change with the project comes from the cache."""
    target.mkdir(parents=True, exist_ok=True)
    made = _packed(settings)
    kit, engine = target / KIT, target / ENGINE
    with core.phase("pack the kit"), tempfile.TemporaryDirectory() as folder:
        project = Path(folder) / "project.tar"
        core.run_console(["git", "-C", ENGINE_ROOT, "archive", "-o", project, "HEAD"])
        with tarfile.open(kit, "w") as packed:
            packed.add(made / "layer.tar.gz", "layer.tar.gz")
            packed.add(made / "operator", "operator-wheels")
            packed.add(_zipped(project), "project.tar.gz")
    engine.unlink(missing_ok=True)
    os.link(made / ENGINE, engine)
    for parcel in (kit, engine):
        size = parcel.stat().st_size
        if size > MOST:
            raise LabError(f"{parcel} is larger than {MOST >> 20} MiB: {size >> 20} MiB")
        core.say_console(f"{parcel}: {size / (1 << 20):.1f} MiB")
    return [kit, engine]


def _zipped(path: Path) -> Path:
    core.run_console(["gzip", "-9", path])
    return path.with_name(f"{path.name}.gz")


def _packed(settings: LabSettings) -> Path:
    pins = [(gpu_wheels.REQUIREMENTS / name).read_text() for name in ("base.txt", "gpu.txt")]
    code = [Path(module.__file__ or "").read_text() for module in (gpu_wheels,)]
    target = settings.cache / "gpu" / f"parcels-{core.recipe_hash([pins, code])}"
    if not target.exists():
        with core.phase("build the parts of the GPU tier's parcels", "1 minute"):
            core.build_once(target, _make)
    return target


def _make(part: Path) -> None:
    part.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        with core.phase("  the host's layer"):
            gpu_wheels.build_layer(part / "layer.tar.gz", scratch)
        with core.phase("  the operator's wheels"):
            gpu_wheels.download(part / "operator", "base.txt")
        with core.phase("  the engine's wheels"):
            _engine(part, gpu_wheels.download(scratch / "wheels", "gpu.txt"), scratch / "slim")


def _engine(part: Path, downloaded: list[Path], slim: Path) -> None:
    slim.mkdir()
    pip = next(one for one in downloaded if one.name.startswith("pip-"))
    (part / "operator" / pip.name).write_bytes(pip.read_bytes())
    engine = next(one for one in downloaded if one.name.startswith("vllm-"))
    others = [one for one in downloaded if one not in (pip, engine)]
    for one in others:
        gpu_wheels.slim(one, slim)
    gpu_wheels.slim(
        engine, slim, ("torch", "transformers", SPIN_WHEEL, *map(gpu_wheels.name_of, others))
    )
    packed = part / ENGINE
    with subprocess.Popen(["tar", "-C", slim, "-cf", "-", "."], stdout=subprocess.PIPE) as tar:
        subprocess.run(
            ["zstd", "-12", "--long=27", "-q", "-f", "-o", packed], stdin=tar.stdout, check=True
        )


# ``python -m lab.gpu VERB``: a rig host with a real GPU (docs/reference/gpu.md).
#
# `build` makes the parcels where there are packages; the others run on the machine with the GPU.


def parser() -> argparse.ArgumentParser:
    """The verbs and their arguments."""
    top = argparse.ArgumentParser(prog="python -m lab.gpu", description=__doc__)
    verbs = top.add_subparsers(dest="verb", required=True)
    build = verbs.add_parser("build", help="make both parcels in FOLDER")
    build.add_argument("folder", nargs="?", type=Path, default=Path("build/gpu"))
    verbs.add_parser("up", help="boot the host, install the operator's side")
    install = verbs.add_parser("engine", help="install the real vLLM from its parcel")
    install.add_argument("parcel", type=Path)
    cases = verbs.add_parser("cases", help="run cases; none named: all")
    cases.add_argument("names", nargs="*", metavar="CASE")
    verbs.add_parser("down", help="end the host and remove what was made")
    whole = verbs.add_parser("run", help="up, engine, all cases, down")
    whole.add_argument("parcel", type=Path)
    return top


def run_cases(names: list[str]) -> int:
    """Runs the cases as the operator does; their exit status."""
    words = [str(ENGINE_OPERATOR / "bin" / "python"), "-m", "tests.system.gpu", *names]
    environ = {**os.environ, "RIGBOOK_GPU_PYTHON": sys.executable}
    return subprocess.run(words, cwd=ENGINE_ROOT, env=environ, check=False).returncode


def main() -> int:
    """Entry point: one line on stderr and exit 1 for what went wrong."""
    arguments = parser().parse_args()
    verb = arguments.verb
    try:
        if verb == "build":
            build_parcels(load_settings(), arguments.folder)
        if verb in ("up", "run"):
            host_up()
            operator()
        if verb in ("engine", "run"):
            install_engine(arguments.parcel)
        if verb in ("cases", "run"):
            return run_cases(getattr(arguments, "names", []))
        if verb == "down":
            host_down()
    except LabError as error:
        print(f"lab.gpu: error: {error}", file=sys.stderr)
        return 1
    finally:
        if verb == "run":
            host_down()
    return 0


if __name__ == "__main__":
    sys.exit(main())
