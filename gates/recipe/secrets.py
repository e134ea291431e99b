"""The recipe's secrets: whether each can be had, and what the nodes have of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from gates.core.codes import violation
from gates.core.violation import Violation
from node.rules.secret import SECRETS_PATH
from schema.desired.plan import EngineSpec, Plan
from schema.observed.files import FileState


def missing(plan: Plan, problems: Iterable[tuple[str | None, str, str]]) -> list[Violation]:
    """A finding for each (node or None, why, what to do) of a secret that cannot be had.

    An engine without its key serves everybody, one without its token loads nothing after 20
    minutes: so that stops all hosts before anything changes (moving.md, row 6).
    """
    return [
        violation(
            "secret-missing",
            node,
            f"a secret of recipe {plan.recipe.name} cannot be had",
            evidence=evidence,
            remedy=remedy,
        )
        for node, evidence, remedy in problems
    ]


def differing(spec: EngineSpec, states: Mapping[str, FileState]) -> Iterator[tuple[str, str, str]]:
    """(path, wanted, found) of each difference of the file of secrets; the host tells names alone,
    so another value is not among them.
    """
    path, wanted = SECRETS_PATH, ", ".join(spec.secrets)
    state = states.get(path)
    if state is None or state.kind != "file":
        if spec.secrets:
            yield path, f"a file with {wanted}", state.kind if state else "not in the snapshot"
        return
    if not spec.secrets:
        yield path, "absent: the recipe names no secret", "a file"
        return
    names = [line.partition("=")[0] for line in (state.content or "").splitlines() if "=" in line]
    if set(names) != set(spec.secrets):
        yield path, wanted, ", ".join(names) or "no secret"
    if state.mode is None or int(state.mode, 8) != 0o600:
        yield path, "mode 0600", f"mode {state.mode}"
    if (state.uid, state.gid) != (0, 0):
        yield path, "owner 0:0", f"owner {state.uid}:{state.gid}"
