"""The engine's wheels, by pip, from wherever this machine's pip is set up to look."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from lab.core import cache, console
from lab.core.settings import LabError, LabSettings

REQUIREMENTS = Path(__file__).resolve().parents[2] / "requirements" / "engine.txt"
# the image is Debian 12: glibc 2.36, Python 3.11
SOURCE = REQUIREMENTS.with_suffix(".in")
# wanted by metadata only; there is no CPU build of them, or the engine runs without
LEFT_OUT = {"torchvision", "torchaudio", "torchcodec", "triton"}
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in range(36, 4, -1)]
PLATFORMS += ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64"]


def download_argv(target: Path, requirements: Path = REQUIREMENTS) -> list[str]:
    """The pip command that fetches every pinned wheel, checked by hash, for the image's Python."""
    return [
        sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes",
        "--only-binary=:all:", "--python-version=3.11", "--implementation=cp",
        *(f"--platform={name}" for name in PLATFORMS),
        f"--dest={target}", f"--requirement={requirements}",
    ]  # fmt: skip


def explain(output: str) -> str:
    """One line for a failed download, from pip's output."""
    missing = re.search(r"No matching distribution found for (\S+)", output)
    if missing and missing[1].startswith("torch=="):
        return (
            f"pip finds no {missing[1]}: set PIP_EXTRA_INDEX_URL to PyTorch's index of CPU wheels "
            "(or PIP_FIND_LINKS to a folder with the wheel) and run this again"
        )
    lines = [line for line in output.splitlines() if line.startswith("ERROR")]
    return f"pip download failed: {(lines or output.strip().splitlines() or ['no output'])[-1]}"


def download(settings: LabSettings) -> Path:
    """The folder of the wheels, complete; downloaded if it is not there."""
    name = cache.recipe_hash([REQUIREMENTS.read_text(), PLATFORMS])
    target = settings.cache / "wheels" / f"engine-{name}"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with console.phase("download the engine's wheels", "1 to 3 minutes"):
            cache.build_once(target, _download)
    return target


def _download(part: Path) -> None:
    done = subprocess.run(download_argv(part), capture_output=True, text=True)
    if done.returncode != 0:
        raise LabError(explain(done.stdout + done.stderr))


def pinned(report: dict[str, Any]) -> str:
    """Requirement lines, each with its wheel's hash, from pip's installation report."""
    lines = []
    for item in report["install"]:
        name = re.sub(r"[-_.]+", "-", item["metadata"]["name"]).lower()
        if name not in LEFT_OUT:
            digest = item["download_info"]["archive_info"]["hashes"]["sha256"]
            version = item["metadata"]["version"]
            lines.append(f"{name}=={version} \\\n    --hash=sha256:{digest}\n")
    return "".join(sorted(lines))


def renew() -> None:
    """Resolve engine.in again, for the image's Python, and write engine.txt."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        console.run(
            [
                sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed",
                "--only-binary=:all:", "--python-version=3.11", "--implementation=cp",
                *(f"--platform={name}" for name in PLATFORMS), f"--target={folder}",
                f"--report={report}", f"--requirement={SOURCE}",
            ]
        )  # fmt: skip
        text = pinned(json.loads(report.read_text()))
    REQUIREMENTS.write_text(f"# made from {SOURCE.name} by: python -m lab.engine.wheels\n{text}")


if __name__ == "__main__":
    renew()
