"""The driver's module on the disk: there for each kernel, of the right version, signed, built."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable

from node.core import proc
from node.core.errors import Json, NodeError
from node.core.run import TimedOut, run
from node.kernel import installed, report

BUILD_S = 1200.0
TIMEOUT_S = 15.0
ENFORCED = "/sys/module/module/parameters/sig_enforce"
# Ubuntu's shim-signed, then dkms's own (dkms(8), SIGNING)
KEYS = ("/var/lib/shim-signed/mok/MOK.der", "/var/lib/dkms/mok.pub")
LOGS = "/var/lib/dkms/*/{}/build/make.log"
_ERROR = re.compile(r"\b(?:error|fatal error|ERROR|Error)\b[: ]")


def signed_only() -> bool:
    """Gives True where the kernel loads signed modules alone: Secure Boot, or its own parameter."""
    return bool(report.secure_boot()) or proc.read_text(ENFORCED).strip() in ("Y", "1")


def key() -> Json:
    """Gives the key that dkms signs with, and whether the firmware knows it (None: not known)."""
    path = next((each for each in KEYS if os.path.isfile(each)), None)
    if path is None:
        return {"path": None, "enrolled": None}
    try:
        done = run(["mokutil", "--test-key", path], TIMEOUT_S)
    except (FileNotFoundError, TimedOut):
        return {"path": path, "enrolled": None}
    said = (done.out + done.err).lower()
    # mokutil(1): "is already enrolled", "is already in the enrollment request", "is not enrolled"
    known = True if "already enrolled" in said else False if "enroll" in said else None
    return {"path": path, "enrolled": known}


def headers(release: str) -> bool:
    """Gives True where a module can be built for the kernel."""
    return os.path.exists(f"/lib/modules/{release}/build/Makefile")


def version(release: str, name: str) -> str | None:
    """Gives the version of the module that a kernel would load, None where it has none."""
    found = installed.module_of(release, name)
    return None if found is None else found["version"]


def problem(release: str, name: str, wanted: str | None) -> str | None:
    """Gives why a kernel would not get the module of this version, None where it would."""
    found = installed.module_of(release, name)
    if found is None:
        return f"there is no {name} module for {release}"
    if wanted is not None and found["version"] != wanted:
        return f"the {name} module for {release} is {found['version']}, not {wanted}"
    if found["vermagic"].split(" ", 1)[0] != release:
        return f"{found['path']} was built for {found['vermagic'].split(' ', 1)[0]}"
    if signed_only() and found["signer"] is None:
        return f"{found['path']} is not signed, and this kernel loads signed modules alone"
    return None


def _log_says(version: str | None) -> str:
    """Gives the first error of the last build, "" where no log tells one."""
    logs = sorted(glob.glob(LOGS.format(version or "*")), key=os.path.getmtime)
    for line in proc.read_text(logs[-1]).splitlines() if logs else ():
        if _ERROR.search(line):
            return f": {' '.join(line.split())[:200]} ({logs[-1]})"
    return ""


def ensure(releases: Iterable[str], name: str, wanted: str | None) -> list[str]:
    """Build the module by DKMS for each of these kernels that lacks it; gives what is there then.

    Raises NodeError (`no_module`) with the first error of the build.
    """
    told = []
    for release in releases:
        if problem(release, name, wanted) is not None and os.path.isdir("/var/lib/dkms"):
            try:
                run(["dkms", "autoinstall", "-k", release], BUILD_S)
            except (FileNotFoundError, TimedOut) as error:
                raise NodeError(f"dkms for {release}: {error}", "no_module") from None
        if (why := problem(release, name, wanted)) is not None:
            raise NodeError(f"{why}{_log_says(wanted)}", "no_module",
                            f"sudo dkms autoinstall -k {release}")  # fmt: skip
        told.append(f"{name} {wanted} for {release}")
    return told
