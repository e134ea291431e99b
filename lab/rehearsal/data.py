"""The merged data of an inventory's hosts, as rigbook reads it: host over group over all.

`python -m lab.rehearsal.data INVENTORY` prints it as JSON. A process of its own: pyinfra's command
line patches the standard library, and an inventory may change what it likes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from lab.core.settings import LabError

ROOT = Path(__file__).resolve().parents[2]
LOAD_SECONDS = 60
HostsData = dict[str, dict[str, Any]]


def load(inventory: str) -> HostsData:
    """Host name → data of an inventory file; LabError in one line for one that cannot be read."""
    if not Path(ROOT, inventory).is_file():
        known = ", ".join(f"inventory/{f.name}" for f in sorted((ROOT / "inventory").glob("*.py")))
        raise LabError(f"{inventory} is not a file; there are: {known}")
    done = subprocess.run(
        [sys.executable, "-m", "lab.rehearsal.data", inventory], cwd=ROOT,
        capture_output=True, text=True, timeout=LOAD_SECONDS, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise LabError(
            f"{inventory}: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}"
        )
    found: HostsData = json.loads(done.stdout.splitlines()[-1])
    if not found:
        raise LabError(f"{inventory} has no hosts")
    return found


def merged(inventory: str) -> HostsData:
    """The same, in this process."""
    # here: importing them patches the standard library for gevent
    from pyinfra.api import State
    from pyinfra.context import ctx_state
    from pyinfra_cli.inventory import make_inventory

    state = State()
    with ctx_state.use(state):
        made = make_inventory(inventory, cwd=str(ROOT))
        found = {}
        for host in made:
            data = dict(made.get_data())
            for group in host.groups:
                data |= made.get_group_data(group)
            found[host.name] = data | made.get_host_data(host.name)
    return found


if __name__ == "__main__":
    # the inventory imports the project, and pyinfra puts the folder on the path only later
    sys.path.insert(0, str(ROOT))
    print(json.dumps(merged(sys.argv[1])))
