"""What pyinfra reads before anything else: guards, and how rigbook runs on hosts.

pyinfra executes this file from the working directory; started elsewhere it finds neither this
file nor group_data, and says nothing (pyinfra-notes.md, "Loading"): the deploys check for that.
"""

import sys
from pathlib import Path

from pyinfra import config
from pyinfra.context import ctx_state

ROOT = Path(__file__).resolve().parent
# First, whatever else is on the path: another checkout may be, by its virtual environment.
sys.path.insert(0, str(ROOT))

config.REQUIRE_PYINFRA_VERSION = ">=3.10,<3.11"
# A rig's login user is not root; what rigbook reads and changes is root's.
config.SUDO = True

from deploys.plans.cli import install_cli_guards
from deploys.plans.cli import own_folder
from deploys.plans.startup_speed import shorten

own_folder()
install_cli_guards(ctx_state.get(), sys.argv[1:])
shorten(sys.argv[1:])
