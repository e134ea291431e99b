"""What a machine with a GPU lacks to be a rig's host: systemd, dbus, ssh, sudo, as one layer.

The layer lies over the machine's own root, so libraries that the machine has stay its own
(lab/gpu/host.py).
"""

from __future__ import annotations

import subprocess
import tarfile
from pathlib import Path

from lab.core import cache, console

# Named one by one: what apt would add (perl, a libc of its own) is the machine's already.
_PACKAGES = """
systemd systemd-sysv libsystemd-shared libpam-systemd dbus dbus-daemon dbus-bin
dbus-system-bus-common dbus-session-bus-common libdbus-1-3 openssh-server openssh-client
openssh-sftp-server sudo iproute2 zstd kmod libkmod2 procps libproc2-0 psmisc ethtool libssl3
libbpf1 libelf1 libmnl0 libxtables12 libcap2-bin libcap2 libapparmor1 libaudit1 libcap-ng0
libcryptsetup12 libfdisk1 libip4tc2 libseccomp2 libwrap0 libgssapi-krb5-2 libkrb5-3
libk5crypto3 libkrb5support0 libcom-err2 libkeyutils1 libedit2 libbsd0 libmd0 libcbor0.8
libfido2-1 libjson-c5 libdevmapper1.02.1 libexpat1 libargon2-1 libgcrypt20 libgpg-error0
libacl1 libtirpc3 libtirpc-common libnsl2 libncursesw6 libtinfo6 iputils-ping strace
libunwind8 libudev1 jq libjq1 libonig5 rsync libpopt0 libxxhash0 curl libcurl4 libnghttp2-14
libidn2-0 libunistring2 librtmp1 libssh2-1 libpsl5 libldap-2.5-0 libsasl2-2
libsasl2-modules-db libbrotli1 file libmagic1 libmagic-mgc netcat-openbsd lsof
"""
PACKAGES = _PACKAGES.split()
MERGED = ("bin", "sbin", "lib", "lib64")
LEFT_OUT = (
    "man", "doc", "locale", "info", "lintian", "bash-completion", "zsh", "common-licenses", "bug",
    "i18n",
)  # fmt: skip


def build(target: Path, scratch: Path) -> None:
    """Pack the layer, `target` a .tar.gz, from Debian packages that apt has verified."""
    debs, tree = scratch / "debs", scratch / "layer"
    debs.mkdir(parents=True)
    for name in MERGED:
        (tree / "usr" / name).mkdir(parents=True)
        (tree / name).symlink_to(f"usr/{name}")
    console.run(["apt-get", "download", "-q", *PACKAGES], cwd=debs)
    for deb in sorted(debs.glob("*.deb")):
        with subprocess.Popen(
            ["dpkg-deb", "--fsys-tarfile", deb], stdout=subprocess.PIPE
        ) as unpacker:
            subprocess.run(
                ["tar", "-x", "--keep-directory-symlink", "-C", tree],
                stdin=unpacker.stdout,
                check=True,
            )
    for name in LEFT_OUT:
        cache.remove(tree / "usr" / "share" / name)
    with tarfile.open(target, "w:gz", compresslevel=6) as packed:
        for name in (*MERGED, "etc", "usr", "var"):
            packed.add(tree / name, name)
