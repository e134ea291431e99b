"""``python -m lab.gpu VERB``: a rig host with a real GPU (docs/reference/gpu.md).

`build` makes the parcels where there are packages; the others run on the machine with the GPU.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from lab.core.settings import LabError, load
from lab.gpu import engine, host, parcels


def parser() -> argparse.ArgumentParser:
    """The verbs and their arguments."""
    top = argparse.ArgumentParser(prog="python -m lab.gpu", description=__doc__)
    verbs = top.add_subparsers(dest="verb", required=True)
    build = verbs.add_parser("build", help="make both parcels in FOLDER")
    build.add_argument("folder", nargs="?", type=Path, default=Path("build/gpu"))
    verbs.add_parser("up", help="boot the host, install the operator's side")
    install = verbs.add_parser("engine", help="install the real vLLM from its parcel")
    install.add_argument("parcel", type=Path)
    cases = verbs.add_parser("cases", help="run cases; none named: all")
    cases.add_argument("names", nargs="*", metavar="CASE")
    verbs.add_parser("down", help="end the host and remove what was made")
    whole = verbs.add_parser("run", help="up, engine, all cases, down")
    whole.add_argument("parcel", type=Path)
    return top


def run_cases(names: list[str]) -> int:
    """Runs the cases as the operator does; their exit status."""
    words = [str(engine.OPERATOR / "bin" / "python"), "-m", "tests.system.gpu", *names]
    environ = {**os.environ, "RIGBOOK_GPU_PYTHON": sys.executable}
    return subprocess.run(words, cwd=parcels.ROOT, env=environ, check=False).returncode


def main() -> int:
    """Entry point: one line on stderr and exit 1 for what went wrong."""
    arguments = parser().parse_args()
    verb = arguments.verb
    try:
        if verb == "build":
            parcels.build(load(), arguments.folder)
        if verb in ("up", "run"):
            host.up()
            engine.operator()
        if verb in ("engine", "run"):
            engine.install(arguments.parcel)
        if verb in ("cases", "run"):
            return run_cases(getattr(arguments, "names", []))
        if verb == "down":
            host.down()
    except LabError as error:
        print(f"lab.gpu: error: {error}", file=sys.stderr)
        return 1
    finally:
        if verb == "run":
            host.down()
    return 0


if __name__ == "__main__":
    sys.exit(main())
