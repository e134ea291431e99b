"""Does an engine's venv run? Its program is executed and its package imported, as its owner.

An upgrade looks before it switches, a rollback before it starts: a `bin/vllm` that is not there, or
whose interpreter is gone, ends the unit with 127 (B3).
"""

from __future__ import annotations

import os

from node.core import validate
from node.core.errors import Json, NodeError
from node.core.run import Done
from node.core.run_as_owner import Owner
from node.snapshot.venv import shebang
from node.venv.pip_plan import masked
from node.venv.versions import installed, package

DEFAULT_TIMEOUT_S = 180
# nothing is written: the next backup of the tree would differ
_ENV = {"PYTHONDONTWRITEBYTECODE": "1", "VLLM_NO_USAGE_STATS": "1"}


def check_venv(request: Json) -> Json:
    """`venv check`: what the program says of itself. Raises NodeError (`venv_broken`).

    `venv` is a folder or a link to one; `imports` False leaves the import out. `quick`: the program
    is looked at, not run (it loads the whole engine), and its interpreter is run.
    """
    allowed = ("venv", "package", "timeout_s", "imports", "quick")
    body = validate.keys(request, "request", allowed, ("venv", "package"))
    path, name = validate.path(body["venv"], "venv"), package(body["package"])
    timeout_s = validate.number(body.get("timeout_s", DEFAULT_TIMEOUT_S), "timeout_s", 1, 1800)
    imports = validate.boolean(body.get("imports", True), "imports")
    real = os.path.realpath(path)
    if not os.path.isdir(real):
        raise _broken(f"{path} is not there, or leads nowhere")
    found = installed(real, name)
    if len(found) != 1:
        raise _broken(f"{real} holds {name} {', '.join(found) or 'of no version'}")
    owner = Owner(real)
    if validate.boolean(body.get("quick", False), "quick"):
        _ran(owner, [_interpreter(os.path.join(real, "bin", name)), "-c", ""], timeout_s)
        return {"venv": real, "version": found[0], "said": ""}
    module = name.replace("-", "_")
    if imports:
        python = os.path.join(real, "bin", "python")
        _ran(owner, [python, "-c", f"import {module}"], timeout_s)
    done = _ran(owner, [os.path.join(real, "bin", name), "--version"], timeout_s)
    said = [line.strip() for line in done.out.splitlines() if line.strip()]
    return {"venv": real, "version": found[0], "said": said[-1][:200] if said else ""}


def _interpreter(program: str) -> str:
    """Gives what a program's first line names. Raises NodeError when it cannot be executed."""
    if not os.access(program, os.X_OK):
        raise _broken(f"{program} is not there, or cannot be executed")
    return shebang(program) or program


def _ran(owner: Owner, argv: list[str], timeout_s: float) -> Done:
    """Gives a program's output. Raises NodeError when it does not run to its end."""
    what = " ".join(argv)
    try:
        done = owner.run(argv, timeout_s, _ENV)
    except NodeError as error:
        raise _broken(f"{what}: {error}") from None
    if done.rc != 0:
        raise _broken(f"{what} ended with {done.rc}: {masked(done.last_line())[:300]}")
    return done


def _broken(line: str) -> NodeError:
    return NodeError(
        line, "venv_broken", "bring it back from a backup: sudo rignode tree list, tree restore"
    )
