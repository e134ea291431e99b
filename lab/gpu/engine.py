"""The real vLLM in a venv on the GPU tier's host, and pyinfra for the operator beside it.

What the machine itself has (torch, transformers, CUDA) stays where it is. A wheel named like each
of them leads there by a .pth file, so that pip installs vLLM into a new venv like anywhere else.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

from lab.core import console
from lab.core.settings import SSH_USER, LabError
from lab.engine import venv_wheels
from lab.gpu import host, wheels

HOME = Path("/opt/engine")
MODEL = "/srv/models/gpu"
FILES = Path(__file__).resolve().parents[1] / "files"
# The number of a release that does not exist: the real one, whose core raises at its import.
BROKEN_VERSION = "0.23.1"
OPERATOR = host.BASE / "operator"
ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("deploys", "facts", "gates", "node", "operations", "schema", "lab", "tests/system/gpu")
SPIN = "rigbook_gpu_spin"
ASK = (
    "import json, os, sys, sysconfig, torch, transformers;"
    "print(json.dumps([os.path.dirname(os.path.dirname(torch.__file__)), torch.__version__,"
    "transformers.__version__]))"
)
ASK_BASE = (
    "import importlib.util, json, sys, sysconfig;"
    "print(json.dumps([sys.executable, sysconfig.get_path('stdlib'),"
    "bool(importlib.util.find_spec('ensurepip'))]))"
)


def operator() -> None:
    """A venv with pyinfra on the machine itself, outside of the host."""
    with console.phase("the operator's side", "15 s"):
        found = sorted((host.BASE / "operator-wheels").glob("*.whl"))
        pip = next(one for one in found if one.name.startswith("pip-"))
        console.run([sys.executable, "-m", "venv", "--without-pip", OPERATOR])
        console.run(
            [OPERATOR / "bin" / "python", pip / "pip", "install", "-q", "--no-index", "--no-deps",
             "--no-cache-dir", *found]
        )  # fmt: skip
        # as `make setup` does: where PYTHONDONTWRITEBYTECODE is set, each run would compile it anew
        console.run([OPERATOR / "bin" / "python", "-m", "compileall", "-q", *PACKAGES], cwd=ROOT)


def install(parcel: Path) -> None:
    """Unpack the engine's parcel on the host, make the model, install vLLM.

    LabError where the machine's python3 has no torch.
    """
    folder = host.ROOT / str(HOME / "wheels").lstrip("/")
    folder.mkdir(parents=True, exist_ok=True)
    model = _model()
    with console.phase("unpack the engine's parcel", "20 s"), parcel.open("rb") as stream:
        words = ["chroot", str(host.ROOT), "zstd", "-dc", "--long=27"]
        with subprocess.Popen(words, stdin=stream, stdout=subprocess.PIPE) as unpacker:
            subprocess.run(["tar", "-x", "-C", folder], stdin=unpacker.stdout, check=True)
        _stand_ins(folder)
    broken = threading.Thread(target=_broken, args=(folder,))
    broken.start()
    with console.phase("install it", "20 s"):
        _venv()
    with console.phase("the model and a release that cannot start"):
        broken.join()
        said = model.communicate()[0]
        if model.returncode != 0:
            raise LabError(f"the model could not be made: {said.strip().splitlines()[-1:]}")
        host.run_inside(["chown", "-R", f"{SSH_USER}:", "/srv/models", str(HOME)])


def _model() -> subprocess.Popen[str]:
    maker, tiny = (str(FILES / name) for name in ("gpu_model.py", "make_tiny_model.py"))
    (host.ROOT / MODEL.lstrip("/")).mkdir(parents=True, exist_ok=True)
    words = host.inside(["env", "HOME=/root", sys.executable, maker, tiny, MODEL])
    return subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def _stand_ins(folder: Path) -> None:
    """Wheels that lead to what the machine has, and the plugin of the case of a spinning GPU."""
    site, torch, transformers = json.loads(console.run([sys.executable, "-c", ASK]))
    wheels.made(folder, "torch", torch, {"zz_machine.pth": f"{site}\n"})
    wheels.made(folder, "transformers", transformers, {})
    info = f"{SPIN}-1.0.dist-info"
    entry = f"[vllm.general_plugins]\nrigbook_gpu_spin = {SPIN}:watch\n"
    source = (FILES / "gpu_spin.py").read_text()
    wheels.made(folder, SPIN, "1.0", {f"{SPIN}.py": source, f"{info}/entry_points.txt": entry})


def _broken(folder: Path) -> None:
    """The wheel of a release that cannot start; complete, or not there at all."""
    source = next(folder.glob(f"vllm-{wheels.VERSION}-*.whl"))
    aside = folder.with_name("making")
    aside.mkdir(exist_ok=True)
    made = venv_wheels.rebuild(source, aside, BROKEN_VERSION, broken=True)
    made.rename(folder / made.name)
    aside.rmdir()


def _venv() -> None:
    base = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info[1]}"
    program, stdlib, has_pip = json.loads(console.run([base, "-c", ASK_BASE]))
    if not has_pip:
        target = host.ROOT / stdlib.lstrip("/") / "ensurepip"
        target.mkdir(parents=True, exist_ok=True)
        (target / "__init__.py").write_text("")
        (target / "__main__.py").write_text((FILES / "gpu_pip.py").read_text())
        pip = next((host.BASE / "operator-wheels").glob("pip-*.whl"))
        (target / pip.name).write_bytes(pip.read_bytes())
    folder = f"{HOME}/venvs/{wheels.VERSION}"
    host.run_inside(["mkdir", "-p", f"{HOME}/venvs"])
    host.run_inside([program, "-m", "venv", folder])
    host.run_inside(
        [f"{folder}/bin/python", "-m", "pip", "install", "-q", "--no-index", "--no-compile",
         "--no-cache-dir", f"--find-links={HOME}/wheels", f"vllm=={wheels.VERSION}"]
    )  # fmt: skip
    host.run_inside(["ln", "-sfn", folder, f"{HOME}/venv"])
