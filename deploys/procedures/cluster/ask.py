"""What the host of a Kubernetes rig is asked beside its snapshot: each thing once a run."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import ValidationError
from pyinfra import state
from pyinfra.api.exceptions import DeployError

from deploys.common.load_and_gate import once
from facts.rignode.call import AskFailed, ask_node
from operations.rollback.revert import DEPLOYMENT_TIMEOUT_S, undo_only
from schema.core.base import Frozen
from schema.core.parse import misfit
from schema.desired.plan import Plan

M = TypeVar("M", bound=Frozen)
revert = undo_only(timeout_s=DEPLOYMENT_TIMEOUT_S)


def ask_typed(plan: Plan, verb: str, request: dict[str, Any], kind: type[M], key: str) -> M:
    """A reading verb's typed answer, asked once a run; DeployError when there is none."""

    def make() -> M:
        host = state.inventory.get_host(plan.rig.head.name)
        try:
            return kind.model_validate(ask_node(state, host, verb, request))
        except AskFailed as error:
            raise DeployError(str(error)) from None
        except ValidationError as error:
            raise DeployError(f"{host.name}: {verb}: {misfit(error)}") from None

    return once(f"looked:{key}", make)
