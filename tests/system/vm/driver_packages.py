"""Stand-in of a GPU driver as packages: a real module built by DKMS, a library, and a tool.

The tool is called nvidia-smi and says that it is a stand-in: it compares the module with the
library, as NVIDIA's does. `FAULTS` are new versions that are broken, each in its own repository.
The old version does not build for the newer kernel: that is the seed's case.
"""

from __future__ import annotations

import hashlib
import io
import subprocess
import tarfile
from pathlib import Path

from lab.vm import MODULE, kernels

OLD, NEW = "580.126.09", "580.142"
NAMES = (f"{MODULE}-dkms-580", f"lib{MODULE}-ml-580", f"{MODULE}-utils-580")
# what is wrong with the new version, by the repository's name; `gone`: the repository has lost the
# old one, `unlisted`: it has no new one
FAULTS = ("good", "nobuild", "noload", "mismatch", "unconfigured", "gone", "unlisted")
# needs the old library
OTHER = "viewer"
FOLDER = "/srv/driver"
# while this file is there, the new tool takes long enough to be seen
SLOW = f"{FOLDER}/slow"
_SOURCE = """#include <linux/module.h>
#ifdef TOO_NEW
#error this kernel is too new for the driver
#endif
static int __init start(void) {{ return {result}; }}
static void __exit stop(void) {{ }}
module_init(start);
module_exit(stop);
MODULE_LICENSE("GPL");
MODULE_VERSION("{version}");
MODULE_DESCRIPTION("stand-in for a GPU driver (rigbook's VM tests)");
"""
_DKMS = """PACKAGE_NAME="{module}"
PACKAGE_VERSION="{version}"
BUILT_MODULE_NAME[0]="{module}"
DEST_MODULE_LOCATION[0]="/updates/dkms"
MAKE[0]="make -C ${{kernel_source_dir}} M=${{dkms_tree}}/{module}/{version}/build modules"
CLEAN="true"
AUTOINSTALL="yes"
"""
_POSTINST = """#!/bin/sh
set -e
[ "$1" = configure ] || exit 0
dkms add -m {module} -v {version} 2>/dev/null || true
for build in /lib/modules/*/build; do
    kernel=${{build#/lib/modules/}}
    kernel=${{kernel%/build}}
    # as NVIDIA's: a kernel that does not run is no reason to fail
    dkms install -m {module} -v {version} -k "$kernel" --force || [ "$kernel" != "$(uname -r)" ]
done
{last}
"""
_PRERM = "#!/bin/sh\ndkms remove -m {module} -v {version} --all 2>/dev/null || true\n"
_TOOL = """#!/bin/sh
# rigbook stand-in for nvidia-smi: compares the loaded module with the library, as NVIDIA's does
loaded=$(cat /sys/module/{module}/version 2>/dev/null)
[ "$loaded" != "{new}" ] || [ ! -e {slow} ] || sleep 20
[ -n "$loaded" ] || {{ echo "NVIDIA-SMI has failed (stand-in): no module" >&2; exit 9; }}
for library in /usr/lib/x86_64-linux-gnu/lib{module}-ml.so.*; do :; done
[ "${{library##*.so.}}" = "$loaded" ] && [ "$loaded" != "{refuses}" ] || {{
    echo "Failed to initialize NVML: Driver/library version mismatch (stand-in)" >&2; exit 18; }}
echo "$loaded"
"""


def _files(version: str, fault: str) -> dict[str, dict[str, str]]:
    """package → path → text; a path that starts with DEBIAN/ is dpkg's."""
    names = {"module": MODULE, "version": version}
    source = _SOURCE.format(version=version, result="-ENODEV" if fault == "noload" else "0")
    makefile = f"obj-m := {MODULE}.o\n"
    if fault == "nobuild" or version == OLD:
        newer = kernels().second
        makefile += f"ifeq ($(KERNELRELEASE),{newer})\nccflags-y += -DTOO_NEW\nendif\n"
    last = "exit 1" if fault == "unconfigured" else ""
    folder = f"usr/src/{MODULE}-{version}"
    return {
        NAMES[0]: {
            f"{folder}/{MODULE}.c": source,
            f"{folder}/Makefile": makefile,
            f"{folder}/dkms.conf": _DKMS.format(**names),
            f"usr/lib/modules-load.d/{MODULE}.conf": f"{MODULE}\n",
            "DEBIAN/postinst": _POSTINST.format(last=last, **names),
            "DEBIAN/prerm": _PRERM.format(**names),
        },
        NAMES[1]: {f"usr/lib/x86_64-linux-gnu/lib{MODULE}-ml.so.{version}": "stand-in\n"},
        NAMES[2]: {
            "usr/bin/nvidia-smi": _TOOL.format(
                refuses=version if fault == "mismatch" else "none", new=NEW, slow=SLOW, **names
            ),
            f"etc/{MODULE}.conf": f"of {version}\n",
            "DEBIAN/conffiles": f"/etc/{MODULE}.conf\n",
        },
    }


def _package(stage: Path, target: Path, name: str, version: str, files: dict[str, str]) -> None:
    needs = OLD if name == OTHER else version
    depends = "" if name == NAMES[1] else f"Depends: {NAMES[1]} (= {needs}-1)\n"
    control = f"Package: {name}\nVersion: {version}-1\nArchitecture: amd64\n{depends}"
    control += "Maintainer: rigbook tests\nDescription: stand-in for a GPU driver\n"
    for path, text in {"DEBIAN/control": control, **files}.items():
        (stage / path).parent.mkdir(parents=True, exist_ok=True)
        (stage / path).write_text(text)
        runs = path.endswith(("postinst", "prerm", "nvidia-smi"))
        (stage / path).chmod(0o755 if runs else 0o644)
    argv = ["dpkg-deb", "--root-owner-group", "-Zxz", "-b", str(stage), str(target)]
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)


def _index(folder: Path) -> str:
    """The package index of a folder, as apt reads it."""
    stanzas = []
    for path in sorted(folder.glob("*.deb")):
        argv = ["dpkg-deb", "-f", str(path)]
        said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        raw = path.read_bytes()
        stanzas.append(
            f"{said.strip()}\nFilename: ./{path.name}\nSize: {len(raw)}\n"
            f"SHA256: {hashlib.sha256(raw).hexdigest()}\n"
        )
    return "\n".join(stanzas)


def repositories(folder: Path) -> bytes:
    """A tar of all repositories: most have the old version and one new one."""
    made = io.BytesIO()
    for fault in FAULTS:
        repository = folder / fault
        repository.mkdir(parents=True)
        for version, own in ((OLD, "good"), (NEW, fault)):
            if (version, fault) in ((OLD, "gone"), (NEW, "unlisted")):
                continue
            for name, files in _files(version, own).items():
                target = repository / f"{name}_{version}-1_amd64.deb"
                _package(folder / "stage" / fault / target.stem, target, name, version, files)
        if fault == "good":
            _package(folder / "stage" / OTHER, repository / f"{OTHER}_1.deb", OTHER, "1", {})
        (repository / "Packages").write_text(_index(repository))
    with tarfile.open(fileobj=made, mode="w") as archive:
        for fault in FAULTS:
            archive.add(folder / fault, fault)
    return made.getvalue()


def from_repository(fault: str) -> str:
    """The shell line that has apt know this repository alone."""
    return (
        f"echo 'deb [trusted=yes] copy:{FOLDER}/{fault} ./' > /etc/apt/sources.list; "
        "apt-get update -q >/dev/null"
    )
