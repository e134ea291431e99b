"""What turns a machine's own root into a rig host's: names, units, ssh, a login, the driver."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Mapping
from pathlib import Path

from lab.core import console
from lab.core.settings import SSH_USER

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


def write(root: Path, name: str, hosts: Mapping[str, str]) -> None:
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
            console.run(["chroot", root, "useradd", *options.split(), user])
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
    console.run(["chroot", root, "chown", "-R", f"{user}:", f"/home/{user}"])


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
