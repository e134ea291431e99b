"""apply: a change is opened, and its steps are recorded and done."""

from __future__ import annotations

from node.change import journal, kinds, transaction
from node.change.transaction import Transaction
from node.core import signals, validate
from node.core.errors import CannotRead, Json, NodeError, io_remedy
from node.core.step_kind import Seen
from node.systemd import dropin_check

MAX_STEPS = 200


def parse_request(request: Json) -> Json:
    """Gives an apply request with every value checked."""
    body = validate.keys(request, "request", ("change", "steps", "dry"), ("change", "steps"))
    rows = validate.array(body["steps"], "steps", MAX_STEPS)
    return {
        "change": journal.parse_change(body["change"]),
        "steps": [kinds.parse(row, f"steps[{n}]") for n, row in enumerate(rows)],
        "dry": validate.boolean(body.get("dry", False), "dry"),
    }


def _answer(step: Json, changed: bool, detail: str, told: Json) -> Json:
    """Gives what became of one step."""
    about: Json = {key: step[key] for key in ("unit", "path") if key in step}
    return {"op": step["op"], **about, "changed": changed, "detail": detail, **told}


def _plan_ahead(wanted: list[Json]) -> list[tuple[bool, str] | None]:
    """Gives what each step would do that can be planned before the first is done, else None.

    The drop-ins that change are checked as one. Raises NodeError for the first step that must not
    be done.
    """
    seen = Seen()
    plans = [kinds.of(step).plan(step, seen) if kinds.of(step).plans_ahead else None
             for step in wanted]  # fmt: skip
    dropin_check.require_sound([step for step, plan in zip(wanted, plans, strict=True)
                         if plan and plan[0]])  # fmt: skip
    return plans


def _dry(wanted: list[Json]) -> list[Json]:
    """Gives what each step would do; reads only."""
    answers: list[Json] = []
    seen = Seen()
    for step, plan in zip(wanted, _plan_ahead(wanted), strict=True):
        changed, detail = plan or kinds.of(step).plan(step, seen)
        seen.changed_before = seen.changed_before or changed
        answers.append(_answer(step, changed, detail if changed else "as wanted", {}))
    return answers


def apply(request: Json) -> Json:
    """Do the steps of a change that are not yet so; gives what each did. None: it is only opened.

    When a step on a path fails before any unit was touched, the steps of this call are taken
    back, so nothing has changed. A failing unit step leaves the change OPEN.
    """
    body = parse_request(request)
    if body["dry"]:
        answers = _dry(body["steps"])
        changed = any(row["changed"] for row in answers)
        return {"change": body["change"]["id"], "status": None, "changed": changed,
                "steps": answers}  # fmt: skip
    with transaction.opened(body["change"], "apply") as steps:
        _plan_ahead(body["steps"])
        if not body["steps"]:
            steps.announce()
        try:
            answers = _do_all(steps, body["steps"])
        except (NodeError, CannotRead, OSError) as error:
            raise steps.take_back(error) from error
    return {
        **steps.answer(),
        "changed": any(row["changed"] for row in answers),
        "steps": answers,
    }


def _do_all(steps: Transaction, wanted: list[Json]) -> list[Json]:
    """Do the steps in order; gives what each did. Stops between two steps on a signal."""
    answers: list[Json] = []
    for step in wanted:
        if signals.interrupted():
            raise NodeError(
                f"ended by {signals.interrupted()} after {len(answers)} of {len(wanted)} steps",
                "interrupted",
                "run it again, or: rignode undo",
            )
        kind = kinds.of(step)
        try:
            changed, detail = kind.do(step, steps)
        except OSError as error:
            raise NodeError(kinds.failed(step, error), "io", io_remedy(error)) from error
        steps.changed_before = steps.changed_before or changed
        told = {key: steps.rows[-1][key] for key in kind.told if changed and key in steps.rows[-1]}
        answers.append(_answer(step, changed, detail, told))
    return answers
