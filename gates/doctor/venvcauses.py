"""The rows of the table of causes for an engine in a venv (gates/doctor/causes.py holds the
table).
"""

from __future__ import annotations

from gates.doctor.cause import DOWN, UNSERVED, Cause

VENV_CAUSES: dict[str, Cause] = {
    "venvs-unreadable": Cause("the host could not be asked; unknown is not healthy"),
    "venv-missing": Cause(
        "the folder was moved or removed, or the link to it was not put back",
        here=("script-ghost", "patch-unknown", *DOWN),
        anywhere=UNSERVED,
    ),
    "venv-python-missing": Cause(
        "the Python of the system was upgraded or removed, and the venv's links lead nowhere",
        here=("venv-entry-missing", "script-ghost", *DOWN),
        anywhere=UNSERVED,
    ),
    "venv-entry-missing": Cause(
        "pip uninstall took it, and what was restored brought the package alone (B3)",
        here=("script-ghost", *DOWN),
        anywhere=UNSERVED,
    ),
    "venv-version": Cause("an upgrade or a downgrade by hand", here=DOWN, anywhere=UNSERVED),
    "venv-user": Cause("the recipe names a user of another machine", here=DOWN, anywhere=UNSERVED),
    "remove-ipc": Cause(
        "the default of systemd-logind, and an engine that is not root's",
        here=DOWN,
        anywhere=UNSERVED,
    ),
}
