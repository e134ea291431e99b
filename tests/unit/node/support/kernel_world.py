"""A root of its own for the real apt and dpkg: packages of a stand-in driver, made by dpkg-deb.

Maintainer scripts are run by chroot into it, where no shell is: a package that has one fails there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

MODULE = "gpustand"
OLD, NEW, OTHER = "580.126.09", "580.142", "590.44"
KERNEL = "6.17.0-22-generic"
ARCH = "amd64"


class AptWorld:
    """A host's packages below `root`; `repository` is where its apt gets files from."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.repository = root / "srv/debs"
        for name in ("var/lib/dpkg/updates", "var/lib/dpkg/info", "var/lib/apt/lists/partial",
                     "var/cache/apt/archives/partial", "etc/apt/apt.conf.d", "var/log/apt",
                     "etc/apt/preferences.d", "srv/debs", "stage"):  # fmt: skip
            (root / name).mkdir(parents=True)
        (root / "var/lib/dpkg/status").touch()
        (root / "etc/apt/sources.list").write_text(f"deb [trusted=yes] file:{self.repository} ./\n")
        (root / "apt.conf").write_text(
            f'Dir "{root}";\nDir::State::status "{root}/var/lib/dpkg/status";\n'
            'Dir::Bin::dpkg "/usr/bin/dpkg";\nDir::Bin::methods "/usr/lib/apt/methods";\n'
            'Dir::Bin::apt-key "/usr/bin/apt-key";\nAPT::Architecture "amd64";\n'
            f'DPkg::Options {{"--root={root}";}};\nAPT::Sandbox::User "root";\n'
        )
        self.environ = {"APT_CONFIG": str(root / "apt.conf"), "DPKG_ROOT": str(root)}

    def run(self, *argv: str) -> str:
        """The output of a command in this world, which must work."""
        done = subprocess.run(
            argv, env={**os.environ, **self.environ}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def package(
        self, name: str, version: str, depends: str = "", files: dict[str, str] | None = None,
        conffile: str = "", fails: bool = False,
    ) -> Path:  # fmt: skip
        """Makes a package and puts it into the repository."""
        tree = self.root / "stage" / f"{name}_{version}"
        (tree / "DEBIAN").mkdir(parents=True)
        text = f"Package: {name}\nVersion: {version}\nArchitecture: {ARCH}\nDescription: {name}\n"
        text += "Maintainer: rigbook tests\n" + (f"Depends: {depends}\n" if depends else "")
        (tree / "DEBIAN/control").write_text(text)
        for path, content in (files or {}).items():
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            (tree / path).write_text(content)
        if conffile:
            (tree / "DEBIAN/conffiles").write_text(f"/{conffile}\n")
        if fails:
            script = tree / "DEBIAN/postinst"
            script.write_text("#!/bin/sh\nexit 1\n")
            script.chmod(0o755)
        target = self.repository / f"{name}_{version}_{ARCH}.deb"
        self.run("dpkg-deb", "--root-owner-group", "-Znone", "-b", str(tree), str(target))
        shutil.rmtree(tree)
        return target

    def driver(self, version: str, build: str, fails: bool = False, bad: bool = False) -> None:
        """A stand-in driver's packages of one version; `bad`: its module is for another one."""
        package = f"{version}-{build}"
        branch = version.partition(".")[0]
        self.package(f"{MODULE}-firmware-{branch}-{version}", package)
        self.package(
            f"lib{MODULE}-compute-{branch}", package,
            files={f"usr/lib/x/lib{MODULE}-ml.so.{version}": "a library"},
        )  # fmt: skip
        self.package(
            f"{MODULE}-dkms-{branch}", package, fails=fails,
            depends=f"{MODULE}-firmware-{branch}-{version}, lib{MODULE}-compute-{branch} (= "
            f"{package})", conffile=f"etc/{MODULE}.conf",
            files={f"lib/modules/{KERNEL}/{MODULE}.ko": "1" if bad else version,
                   f"etc/{MODULE}.conf": f"of {version}\n"},
        )  # fmt: skip

    def update(self) -> None:
        """The repository's index, and the lists that apt has of it."""
        os.chdir(self.repository)
        text = self.run("dpkg-scanpackages", "-m", ".")
        (self.repository / "Packages").write_text(text)
        self.run("apt-get", "update", "-q")

    def install(self, *names: str) -> None:
        """Has apt install these."""
        self.run("apt-get", "install", "-y", "-q", *names)

    def forget(self, version: str) -> None:
        """The repository has lost a version, as archives do."""
        for path in self.repository.glob(f"*_{version}*.deb"):
            path.unlink()
        self.update()

    def packages(self) -> dict[str, str]:
        """name → `version state` of what dpkg knows."""
        text = self.run("dpkg-query", "-W", "-f=${Package} ${Version} ${db:Status-Status}\\n")
        return {row.split(" ", 1)[0]: row.split(" ", 1)[1] for row in text.splitlines()}

    def state(self) -> dict[str, str]:
        """Packages, holds, marks and files, to be compared before and after."""
        files = {str(path.relative_to(self.root)): path.read_text()
                 for part in ("usr", "lib", "etc") for path in (self.root / part).rglob("*")
                 if path.is_file() and "apt" not in path.parts}  # fmt: skip
        marks = {"auto": self.run("apt-mark", "showauto"), "hold": self.run("apt-mark", "showhold")}
        return {**self.packages(), **files, **marks}


# grub.cfg texts as grub-mkconfig 2.06 writes them (00_header, 10_linux), for the tests.

HEADER = """#
# DO NOT EDIT THIS FILE
#
### BEGIN /etc/grub.d/00_header ###
if [ -s $prefix/grubenv ]; then
  set have_grubenv=true
  load_env
fi
if [ "${initrdfail}" = 2 ]; then
   set initrdfail=
elif [ "${initrdfail}" = 1 ]; then
   set next_entry="${prev_entry}"
   set prev_entry=
   save_env prev_entry
   if [ "${next_entry}" ]; then
      set initrdfail=2
   fi
fi
if [ "${next_entry}" ] ; then
   set default="${next_entry}"
   set next_entry=
   save_env next_entry
   set boot_once=true
else
   set default="@DEFAULT@"
fi

if [ x"${feature_menuentry_id}" = xy ]; then
  menuentry_id_option="--id"
else
  menuentry_id_option=""
fi

export menuentry_id_option

if [ "${prev_saved_entry}" ]; then
  set saved_entry="${prev_saved_entry}"
  save_env saved_entry
  set prev_saved_entry=
  save_env prev_saved_entry
  set boot_once=true
fi

function savedefault {
  if [ -z "${boot_once}" ]; then
    saved_entry="${chosen}"
    save_env saved_entry
  fi
}
if [ x$feature_default_font_path = xy ] ; then
   font=unicode
else
insmod part_msdos
fi
terminal_output gfxterm
if [ "${recordfail}" = 1 ] ; then
  set timeout=30
else
  set timeout=0
fi
### END /etc/grub.d/00_header ###
### BEGIN /etc/grub.d/10_linux ###
function gfxmode {
\tset gfxpayload="${1}"
}
"""
TAIL = """### END /etc/grub.d/10_linux ###
### BEGIN /etc/grub.d/30_uefi-firmware ###
if [ "$grub_platform" = "efi" ]; then
\tfwsetup --is-supported
\tif [ "$?" = 0 ]; then
\t\tmenuentry 'UEFI Firmware Settings' $menuentry_id_option 'uefi-firmware' {
\t\t\tfwsetup
\t\t}
\tfi
fi
### END /etc/grub.d/30_uefi-firmware ###
### BEGIN /etc/grub.d/41_custom ###
if [ -f  ${config_directory}/custom.cfg ]; then
  source ${config_directory}/custom.cfg
elif [ -z "${config_directory}" -a -f  $prefix/custom.cfg ]; then
  source $prefix/custom.cfg
fi
### END /etc/grub.d/41_custom ###
"""
UUID = "0b1c2d3e-aaaa-4bbb-8ccc-1234567890ab"


def linux(title: str, ident: str, kernel: str, extra: str = "") -> str:
    """One menu entry of 10_linux."""
    return f"""menuentry '{title}' --class gnu-linux $menuentry_id_option '{ident}' {{
\tload_video
\tif [ x$grub_platform = xxen ]; then insmod xzio; insmod lzopio; fi
\tset root='hd0,msdos1'
\techo\t'Loading Linux {kernel} ...'
\tlinux\t/boot/vmlinuz-{kernel} root=UUID={UUID} ro {extra} console=ttyS0
\techo\t'Loading initial ramdisk ...'
\tinitrd\t/boot/initrd.img-{kernel}
}}
"""


def advanced(kernel: str) -> str:
    """The id path of a kernel's own entry."""
    return f"gnulinux-advanced-{UUID}>gnulinux-{kernel}-advanced-{UUID}"


def grub_cfg(
    kernels: Sequence[str], default: str = "${saved_entry}", said: str = "Debian GNU/Linux, with"
) -> str:
    """A whole grub.cfg with these kernels, newest first; `said` stands for the translation."""
    body = linux("Debian GNU/Linux", f"gnulinux-simple-{UUID}", kernels[0])
    body += f"submenu 'Optionen für Debian' $menuentry_id_option 'gnulinux-advanced-{UUID}' {{\n"
    for kernel in kernels:
        for kind in ("advanced", "recovery"):
            extra = "single" if kind == "recovery" else ""
            ident = f"gnulinux-{kernel}-{kind}-{UUID}"
            body += linux(f"{said} Linux {kernel}{extra and ' (recovery)'}", ident, kernel, extra)
    return HEADER.replace("@DEFAULT@", default) + body + "}\n" + TAIL
