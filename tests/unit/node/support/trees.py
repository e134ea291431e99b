"""Real small venvs for the tree tests: made by `python -m venv`, filled by pip from a wheel.

The wheel is called vllm, because that is what is looked for; it is a stand-in of a few lines.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.unit.node.support.host import Host

Edit = Callable[[Path], None]
CODE = '"""Stand-in for an engine."""\n\n\ndef main():\n    print("stand-in vllm {version}")\n'


def wheel(folder: Path, version: str) -> Path:
    """A wheel of the stand-in with a console script `vllm`."""
    name, info = f"vllm-{version}-py3-none-any.whl", f"vllm-{version}.dist-info"
    files = {
        "vllm/__init__.py": CODE.format(version=version),
        "vllm/data.bin": hashlib.sha256(version.encode()).hexdigest() * 2000,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[console_scripts]\nvllm = vllm:main\n",
    }
    rows = []
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
        rows.append(f"{path},sha256={digest.decode()},{len(text)}\n")
    record = "".join(rows) + f"{info}/RECORD,,\n"
    with zipfile.ZipFile(folder / name, "w") as archive:
        for path, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(path, text)
    return folder / name


def install(tree: Path, wheels: Path, version: str) -> None:
    """Put a version of the stand-in into a venv in place, as `pip install` does."""
    command = [sys.executable, "-m", "pip", "--python", str(tree / "bin" / "python"), "install",
               "--quiet", "--no-index", "--no-deps", str(wheel(wheels, version))]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)


def make(tree: Path, wheels: Path, version: str = "0.27.0") -> None:
    """A venv with the stand-in in it."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tree)], check=True)
    install(tree, wheels, version)


def moved(source: Path, tree: Path) -> None:
    """A copy of a venv at another path, which its scripts then name."""
    subprocess.run(["cp", "-a", str(source), str(tree)], check=True)
    script = tree / "bin" / "vllm"
    script.write_text(script.read_text().replace(str(source), str(tree)))


@dataclass
class Engine:
    """A venv on a host, and the program with which it is backed up."""

    host: Host
    tree: Path
    wheels: Path

    @property
    def backups(self) -> Path:
        """The folder of the backups."""
        return self.host.state / "backups"

    @property
    def package(self) -> Path:
        """The stand-in's package folder."""
        return next(self.tree.glob("lib/python3*/site-packages")) / "vllm"

    def ask(self, verb: str, request: object = None) -> dict[str, Any]:
        """A tree verb's answer."""
        return self.host.call(f"tree {verb}", request)

    def backup(self, **more: object) -> str:
        """Back the tree up; gives the id."""
        answer = self.ask("backup", {"tree": str(self.tree), **more})
        assert answer["ok"], answer
        return str(answer["backup"])

    def verified(self, **more: object) -> str:
        """Back the tree up and verify it; gives the id."""
        backup = self.backup(**more)
        assert self.ask("verify", {"backup": backup})["ok"]
        return backup

    def restore(self, name: str = "restore-1", **more: object) -> dict[str, Any]:
        """Restore as a change of this name."""
        change = {"id": name, "deploy": "rollback", "operator": "tester@here"}
        return self.ask("restore", {"change": change, **more})

    def close(self, name: str = "restore-1", status: str = "COMMITTED") -> None:
        """End a change."""
        assert self.host.call("close", {"change": name, "status": status})["ok"]

    def run(self) -> str:
        """What the venv's entry point prints, or how it fails."""
        try:
            done = subprocess.run([self.tree / "bin" / "vllm"], capture_output=True, text=True)
        except OSError as error:
            return type(error).__name__
        return done.stdout.strip() or f"exit {done.returncode}"

    def manifest(self, backup: str) -> dict[str, Any]:
        """A backup's manifest."""
        found: dict[str, Any] = json.loads((self.backups / backup / "manifest.json").read_text())
        return found

    def names(self) -> list[str]:
        """What lies beside the tree and in the folder of the backups."""
        beside = sorted(path.name for path in self.tree.parent.iterdir())
        stored = self.backups.iterdir() if self.backups.exists() else ()
        return beside + sorted(path.name for path in stored)


def versions(host: Host, venv: Path, *names: str) -> Engine:
    """Copies of a venv in folders of these names, and a link `venv` to the first of them."""
    beside = host.root / "engine" / "venvs"
    beside.mkdir(parents=True)
    for name in names:
        moved(venv, beside / name)
    link = beside.with_name("venv")
    link.symlink_to(beside / names[0])
    return Engine(host, link, venv.parent / "wheels")


def picture(root: Path) -> dict[str, tuple[object, ...]]:
    """All that a restore has to bring back, by path: kind, mode, owner, time, content, xattrs."""
    found: dict[str, tuple[object, ...]] = {}
    for path in [root, *sorted(root.rglob("*"))]:
        info = path.lstat()
        content: object = None
        if path.is_symlink():
            content = str(path.readlink())
        elif path.is_file():
            content = path.read_bytes()
        times = () if path.is_dir() and not path.is_symlink() else (info.st_mtime_ns,)
        xattrs = {name: os.getxattr(path, name, follow_symlinks=False)
                  for name in os.listxattr(path, follow_symlinks=False)}  # fmt: skip
        found[str(path.relative_to(root))] = (
            oct(info.st_mode), info.st_uid, info.st_gid, *times, content,
            tuple(sorted(xattrs.items())),
        )  # fmt: skip
    return found
