"""A root of its own for the real apt and dpkg: packages of a stand-in driver, made by dpkg-deb.

Maintainer scripts are run by chroot into it, where no shell is: a package that has one fails there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
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
