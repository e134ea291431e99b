"""The two parcels that a machine with a GPU and without network needs, from packages alone.

`kit.tar`: the layer of the host, the operator's wheels, and the project as it is committed.
`engine.tar.zst`: the wheels of vLLM. Each below 60 MiB, as what carries them may be limited.
"""

from __future__ import annotations

import os
import subprocess
import tarfile
import tempfile
from pathlib import Path

from lab.core import cache, console
from lab.core.settings import LabError, LabSettings
from lab.gpu import layer, wheels

ROOT = Path(__file__).resolve().parents[2]
KIT, ENGINE = "kit.tar", "engine.tar.zst"
MOST = 60 << 20
# made on the machine (lab/gpu/engine.py), so that every venv of the engine has it
SPIN = "rigbook-gpu-spin"


def build(settings: LabSettings, target: Path) -> list[Path]:
    """Both parcels in `target`; what does not change with the project comes from the cache."""
    target.mkdir(parents=True, exist_ok=True)
    made = _packed(settings)
    kit, engine = target / KIT, target / ENGINE
    with console.phase("pack the kit"), tempfile.TemporaryDirectory() as folder:
        project = Path(folder) / "project.tar"
        console.run(["git", "-C", ROOT, "archive", "-o", project, "HEAD"])
        with tarfile.open(kit, "w") as packed:
            packed.add(made / "layer.tar.gz", "layer.tar.gz")
            packed.add(made / "operator", "operator-wheels")
            packed.add(_zipped(project), "project.tar.gz")
    engine.unlink(missing_ok=True)
    os.link(made / ENGINE, engine)
    for parcel in (kit, engine):
        size = parcel.stat().st_size
        if size > MOST:
            raise LabError(f"{parcel} is larger than {MOST >> 20} MiB: {size >> 20} MiB")
        console.say(f"{parcel}: {size / (1 << 20):.1f} MiB")
    return [kit, engine]


def _zipped(path: Path) -> Path:
    console.run(["gzip", "-9", path])
    return path.with_name(f"{path.name}.gz")


def _packed(settings: LabSettings) -> Path:
    pins = [(wheels.REQUIREMENTS / name).read_text() for name in ("base.txt", "gpu.txt")]
    code = [Path(module.__file__ or "").read_text() for module in (layer, wheels)]
    target = settings.cache / "gpu" / f"parcels-{cache.recipe_hash([pins, code])}"
    if not target.exists():
        with console.phase("build the parts of the GPU tier's parcels", "1 minute"):
            cache.build_once(target, _make)
    return target


def _make(part: Path) -> None:
    part.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        with console.phase("  the host's layer"):
            layer.build(part / "layer.tar.gz", scratch)
        with console.phase("  the operator's wheels"):
            wheels.download(part / "operator", "base.txt")
        with console.phase("  the engine's wheels"):
            _engine(part, wheels.download(scratch / "wheels", "gpu.txt"), scratch / "slim")


def _engine(part: Path, downloaded: list[Path], slim: Path) -> None:
    slim.mkdir()
    pip = next(one for one in downloaded if one.name.startswith("pip-"))
    (part / "operator" / pip.name).write_bytes(pip.read_bytes())
    engine = next(one for one in downloaded if one.name.startswith("vllm-"))
    others = [one for one in downloaded if one not in (pip, engine)]
    for one in others:
        wheels.slim(one, slim)
    wheels.slim(engine, slim, ("torch", "transformers", SPIN, *map(wheels.name_of, others)))
    packed = part / ENGINE
    with subprocess.Popen(["tar", "-C", slim, "-cf", "-", "."], stdout=subprocess.PIPE) as tar:
        subprocess.run(
            ["zstd", "-12", "--long=27", "-q", "-f", "-o", packed], stdin=tar.stdout, check=True
        )
