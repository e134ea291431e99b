"""`python -m tests.system.molecule.kill_operator serve --data profile=NAME`: on the lab of
RIGBOOK_LAB; killed with SIGKILL once it has started the head, while the engine loads."""

from __future__ import annotations

import sys

from tests.system.engine.steps import killed_operator
from tests.system.rehearsal import Lab

if __name__ == "__main__":
    print(f"killed in change {killed_operator(Lab(), *sys.argv[1:])}")
