"""Debian root trees by mmdebstrap, from the package sources this machine already uses."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from lab.core import cache, console
from lab.core.settings import LabError, LabSettings

SUITE = "bookworm"
# the next release: its docker has the containerd image store
CONTAINERD_SUITE = "trixie"
TOOLS = {
    "mmdebstrap": "mmdebstrap",
    "systemd-nspawn": "systemd-container",
    "ip": "iproute2",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "unshare": "util-linux",
    "nsenter": "util-linux",
}
HOST_PACKAGES = [
    "systemd-sysv", "dbus", "udev", "openssh-server", "python3", "python3-venv", "sudo",
    "iproute2", "iputils-ping", "ethtool", "kmod", "zstd", "procps", "psmisc",
    "ca-certificates", "docker.io", "iptables", "curl", "jq", "binutils", "file", "strace",
    "netcat-openbsd", "socat", "rsync", "earlyoom",
]  # fmt: skip
# each line runs in the new root; the lab adds keys, names and addresses per host at first start
HOST_SET_UP: tuple[str, ...] = (
    "useradd --create-home --shell /bin/bash rig",
    "usermod --lock root",
    "printf 'rig ALL=(ALL) NOPASSWD: ALL\\n' > /etc/sudoers.d/rig",
    "chmod 0440 /etc/sudoers.d/rig",
    "printf 'PasswordAuthentication no\\nKbdInteractiveAuthentication no\\n"
    "PermitRootLogin no\\n' > /etc/ssh/sshd_config.d/rig.conf",
    "mkdir -p /etc/docker && printf '{\"live-restore\": false}\\n' > /etc/docker/daemon.json",
    "rm -f /etc/ssh/ssh_host_*",
    "systemctl enable systemd-networkd.service ssh.service docker.service",
    # a test arms it with limits of its own
    "systemctl disable earlyoom.service",
    "systemctl mask systemd-networkd-wait-online.service getty.target console-getty.service"
    " apt-daily.timer apt-daily-upgrade.timer",
)
# That docker has its command line and BuildKit in packages of their own, and its unit uses the
# system's containerd.
CONTAINERD_PACKAGES = [*HOST_PACKAGES, "docker-cli", "docker-buildx", "containerd"]
CONTAINERD_SET_UP = (
    *HOST_SET_UP,
    'printf \'{"live-restore": false, "features": {"containerd-snapshotter": true}}\\n\''
    " > /etc/docker/daemon.json",
    "systemctl enable containerd.service",
)


def check_tools() -> None:
    """LabError with the one line that installs what is missing."""
    missing = sorted({package for tool, package in TOOLS.items() if not shutil.which(tool)})
    if missing:
        raise LabError(f"programs are missing; install them: apt-get install {' '.join(missing)}")


def deb822_stanzas(text: str, suite: str) -> list[str]:
    """The stanzas of a .sources file that name the suite or its updates."""
    kept = []
    for stanza in re.split(r"\n\s*\n", text):
        suites = re.search(r"^Suites:(.*)$", stanza, re.MULTILINE)
        if suites and any(belongs(word, suite) for word in suites[1].split()):
            kept.append(stanza.strip() + "\n")
    return kept


def one_line_entries(text: str, suite: str) -> list[str]:
    """The ``deb`` lines of a .list file that name the suite or its updates."""
    kept = []
    for line in text.splitlines():
        match = re.match(r"deb\s+(?:\[[^]]*\]\s+)?\S+\s+(\S+)", line.strip())
        if match and belongs(match[1], suite):
            kept.append(line.strip() + "\n")
    return kept


def belongs(word: str, suite: str) -> bool:
    """Whether a suite name is the suite itself, its updates or its security fixes."""
    return word in (suite, f"{suite}-updates", f"{suite}-security")


def write_sources(folder: Path, suite: str = SUITE) -> list[Path]:
    """This machine's own sources, as files for mmdebstrap; [] = its defaults.

    They name SUITE; for another suite its name is put in their place.
    """
    apt = Path("/etc/apt")
    lists = [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*.list"))]
    stanzas = [
        stanza
        for path in sorted((apt / "sources.list.d").glob("*.sources"))
        for stanza in deb822_stanzas(path.read_text(), SUITE)
    ]
    entries = [
        entry
        for path in lists
        if path.is_file()
        for entry in one_line_entries(path.read_text(), SUITE)
    ]
    files = []
    for name, blocks in (("own.sources", stanzas), ("own.list", entries)):
        if blocks:
            files.append(folder / name)
            files[-1].write_text("\n".join(blocks).replace(SUITE, suite))
    return files


def bootstrap(
    target: Path,
    variant: str,
    packages: Sequence[str],
    set_up: Sequence[str],
    log: Path,
    suite: str = SUITE,
) -> None:
    """Make a root tree at ``target``; mmdebstrap's output goes to ``log``."""
    script = " && ".join(set_up)
    with tempfile.TemporaryDirectory() as folder:
        console.run(
            [
                "mmdebstrap",
                "--format=directory",
                f"--variant={variant}",
                f"--include={','.join(packages)}",
                '--aptopt=APT::Install-Recommends "false"',
                "--dpkgopt=path-exclude=/usr/share/man/*",
                "--dpkgopt=path-exclude=/usr/share/locale/*",
                "--dpkgopt=path-exclude=/usr/share/doc/*",
                *([f"--customize-hook=chroot \"$1\" sh -ec '{_quoted(script)}'"] if script else []),
                suite,
                target,
                *write_sources(Path(folder), suite),
            ],
            log=log,
        )


def _quoted(script: str) -> str:
    return script.replace("'", "'\\''")


def host_root(settings: LabSettings, containerd: bool = False) -> Path:
    """The cached root tree of a lab host, built if it is not there.

    `containerd`: of one whose docker keeps images in the containerd store.
    """
    suite, packages, set_up = SUITE, HOST_PACKAGES, HOST_SET_UP
    if containerd:
        suite, packages, set_up = CONTAINERD_SUITE, CONTAINERD_PACKAGES, CONTAINERD_SET_UP
    recipe = [suite, "minbase", packages, set_up, "no-doc-1"]
    target = settings.roots / f"host-{cache.recipe_hash(recipe)}"
    if target.exists():
        return target
    settings.roots.mkdir(parents=True, exist_ok=True)
    log = settings.roots / f"{target.name}.log"
    with console.phase(f"host root tree of {suite} by mmdebstrap", "2 minutes"):
        cache.build_once(
            target, lambda part: bootstrap(part, "minbase", packages, set_up, log, suite)
        )
    return target
