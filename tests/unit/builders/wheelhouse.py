"""Real wheels of a few lines, made on the spot, and real venvs for them: pip cannot tell."""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path


def wheel(
    folder: Path,
    name: str,
    version: str,
    files: Mapping[str, str] | None = None,
    requires: Sequence[str] = (),
    tag: str = "py3-none-any",
) -> Path:
    """A wheel in a folder; `files` are its modules, by path below site-packages."""
    plain = name.replace("-", "_")
    info = f"{plain}-{version}.dist-info"
    lines = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"]
    lines += [f"Requires-Dist: {line}\n" for line in requires]
    content = {
        **(files or {f"{plain}/__init__.py": f"__version__ = {version!r}\n"}),
        f"{info}/METADATA": "".join(lines) + "\nA long description.\n",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    record = "".join(f"{path},{_digest(text)},{len(text.encode())}\n" for path, text in
                     content.items())  # fmt: skip
    content[f"{info}/RECORD"] = record + f"{info}/RECORD,,\n"
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / f"{plain}-{version}-{tag}.whl"
    with zipfile.ZipFile(made, "w") as archive:
        for path, text in content.items():
            archive.writestr(path, text)
    return made


def _digest(text: str) -> str:
    raw = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest())
    return "sha256=" + raw.decode().rstrip("=")


def torch_files(version: str, cuda: str | None) -> dict[str, str]:
    """torch/version.py as torch's own build writes it."""
    text = (
        "from typing import Optional\n\n__all__ = ['__version__', 'debug', 'cuda']\n"
        f"__version__ = {version!r}\ndebug = False\ncuda: Optional[str] = {cuda!r}\n"
    )
    return {"torch/__init__.py": "", "torch/version.py": text}


def vllm_files(version: str, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """A package `vllm` with the version file that its build writes."""
    text = (
        f"__version__ = version = {version!r}\n__version_tuple__ = version_tuple = (0,)\n\n"
        "__commit_id__ = commit_id = None\n"
    )
    return {"vllm/__init__.py": "", "vllm/_version.py": text, **(more or {})}


def venv(folder: Path) -> Path:
    """A venv with the pip that its Python brings."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=120)
    return folder


def install(folder: Path, *wheels: Path) -> None:
    """Installs wheels into a venv, without looking for anything else."""
    argv = [str(folder / "bin/python"), "-m", "pip", "install", "--quiet", "--no-index",
            "--no-deps", "--force-reinstall", *map(str, wheels)]  # fmt: skip
    subprocess.run(argv, check=True, timeout=120)


def site_packages(folder: Path) -> Path:
    """The folder in which a venv's packages lie."""
    (found,) = folder.glob("lib/python3*/site-packages")
    return found
