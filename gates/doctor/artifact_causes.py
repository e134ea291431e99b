"""The causes of findings about the engine itself: version, wheels, patches, build."""

from __future__ import annotations

from gates.doctor.cause import DOWN, GHOSTS, UNSERVED, Cause

ARTIFACT_CAUSES: dict[str, Cause] = {
    "version-broken": Cause(
        "the version was never made to work on this hardware (B1)",
        here=DOWN,
        anywhere=UNSERVED,
        until=GHOSTS,
    ),
    "version-unknown": Cause("nobody has reported this version on such a rig"),
    "torch-cpu": Cause(
        "torch was resolved from an index without CUDA wheels (C1)",
        here=DOWN,
        anywhere=UNSERVED,
        until=GHOSTS,
    ),
    "torch-variant": Cause(
        "torch was resolved from another index than the last time",
        here=DOWN,
        anywhere=UNSERVED,
        until=GHOSTS,
    ),
    "wheel-missing": Cause("the index or the wheel folder has no such wheel for this Python"),
    "pip-report-unreadable": Cause("the host could not be asked; unknown is not healthy"),
    "old-wheel-missing": Cause("nightlies are rotated out of their server (B5)"),
    "backup-required": Cause("no backup of what serves now was made, or it was not verified"),
    "patch-drifted": Cause(
        "edited by hand, or another version of the engine",
        here=DOWN,
        anywhere=UNSERVED,
        until=GHOSTS,
    ),
    "patch-unknown": Cause("the file moved with another version, or the path is wrong"),
    "module-missing": Cause(
        "the build left it out, or cloned without its submodules (C2)",
        here=DOWN,
        anywhere=UNSERVED,
        until=GHOSTS,
    ),
}
