"""The venv that a change leaves again: executed before a link leads there again (B3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gevent
from pyinfra.api import State

from operations.change.node_call import StepFailed
from operations.venv.venv import check_venv
from schema.desired.plan import Plan
from schema.recipe.wheels import WheelsSpec


class FormerVenvs:
    """The checks of a change's former venvs, one a node; they run while the engine is stopped.

    A blessed change serves: there the whole check comes first, so that nothing stops for a former
    venv that does not run. Else a quick one (its files, its interpreter) decides before the link
    goes back, and the program, which loads the whole engine, is executed while the engine starts.
    """

    def __init__(
        self, state: State, plan: Plan, changes: Mapping[str, Mapping[str, Any] | None]
    ) -> None:
        self._package = (plan.recipe.wheels or WheelsSpec()).package
        self._state = state
        self._folders = {
            node: folder
            for node, change in changes.items()
            if (folder := former(change, plan.specs[node].venv))
        }
        blessed = any(change and change.get("status") == "COMMITTED" for change in changes.values())
        self._jobs = self._spawn(quick=not blessed)
        if blessed:
            self.check()

    def _spawn(self, quick: bool) -> list[gevent.Greenlet[..., StepFailed | None]]:
        return [gevent.spawn(self._one, *each, quick) for each in self._folders.items()]

    def _one(self, node: str, folder: str, quick: bool) -> StepFailed | None:
        host = self._state.inventory.get_host(node)
        try:
            check_venv(self._state, host, folder, self._package, imports=False, quick=quick)
        except StepFailed as error:
            return error
        return None

    def check(self) -> None:
        """Waits for them; StepFailed names the former venv that does not run."""
        for job in self._jobs:
            failed = job.get()
            if failed is not None:
                raise StepFailed(
                    f"the former version does not run: {failed}; bring it back from a backup with: "
                    "pyinfra INVENTORY deploys/rollback.py -y --data backup=last"
                )

    def executed(self) -> None:
        """Executes their programs; StepFailed as `check`."""
        self._jobs = self._spawn(quick=False)
        self.check()


def former(change: Mapping[str, Any] | None, venv: str | None) -> str | None:
    """Where the plan's venv led before the change; None where the change left it alone."""
    for step in (change or {}).get("steps", ()):
        pre = step.get("pre") or {}
        if step.get("op") == "link" and step.get("path") == venv and pre.get("kind") == "link":
            target = str(pre["target"])
            return target if target.startswith("/") else f"{str(venv).rpartition('/')[0]}/{target}"
    return None
