"""Makes a twin: its files, its hosts, and what lies on them before anything serves."""

from __future__ import annotations

import shlex
from pathlib import Path

from lab.core import console
from lab.core.parallel import in_parallel
from lab.core.settings import MODEL_PATH, LabError, LabHost, LabSettings
from lab.engine import image, stand_ins, venv
from lab.hosts import lifecycle, ssh
from lab.rehearsal.shape import ROOT, Shape, files

HUB = "/.cache/huggingface/hub/"
COMMIT = "0" * 40


def up(settings: LabSettings, made: Shape) -> None:
    """Brings the twin up: hosts, the small engine under the recipe's names, the weights.

    Safe to run again. LabError in one line for what went wrong.
    """
    if made.is_venv:
        lifecycle.up(settings, None, venv.layer, twin=made.twin)
    else:
        lifecycle.up(settings, len(made.twin.names), twin=made.twin)
        image.provide(settings)
    for name, text in files(made).items():
        path = ROOT / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    with console.phase("the rig's own paths and names on the hosts"):
        in_parallel(settings.hosts(), lambda host: put(settings, host, furniture(made)))


def put(settings: LabSettings, host: LabHost, script: str) -> None:
    """Runs a script as root on a host; LabError with its last words if it fails."""
    done = ssh.sudo(settings, host, script, timeout=300)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise LabError(f"{host.name}: the twin's files: {' '.join(said) or done.returncode}")


def furniture(made: Shape) -> str:
    """The shell script that puts the recipe's image, weights and venv under their names."""
    user = made.twin.user
    home = f"/home/{user}"
    weights = at_home(made.weights, home)
    lines = ["set -e"]
    if not made.is_venv:
        lines.append(stand_ins.command(made.image, stand_ins.files(made.recipe)))
    if HUB in weights:
        lines += [f"mkdir -p {shlex.quote(weights)}/refs",
                  f"printf {COMMIT} > {shlex.quote(weights)}/refs/main"]  # fmt: skip
        weights = f"{weights}/snapshots/{COMMIT}"
    parent = shlex.quote(str(Path(weights).parent))
    lines += [
        f"mkdir -p {parent}",
        f"[ -e {shlex.quote(weights)} ] || cp -r {MODEL_PATH} {shlex.quote(weights)}",
        f"chown -R {user}: {_below(weights, home)}",
    ]
    for wanted, there in ((made.venv, f"$(readlink -f {venv.LINK})"), (made.wheels, venv.WHEELS)):
        if wanted and wanted not in (venv.LINK, venv.WHEELS):
            path = shlex.quote(at_home(wanted, home))
            lines += [f"mkdir -p $(dirname {path})",
                      f"[ -e {path} ] || ln -s {there} {path}"]  # fmt: skip
    return "\n".join(lines) + "\n"


def at_home(path: str, home: str) -> str:
    """A path that may begin with `~`."""
    return home + path[1:] if path.startswith("~") else path


def _below(path: str, home: str) -> str:
    """The top folder below the home that the path is in, else the path: what the user is given."""
    inside = path.startswith(f"{home}/")
    return shlex.quote("/".join(path.split("/")[:4]) if inside else path)
