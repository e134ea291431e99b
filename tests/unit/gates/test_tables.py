"""Gates as tables: cases/*.yaml break a healthy rig and say what is found (README.md there)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from gates.core import CODES, Violation
from gates.doctor import Finding, examine
from gates.driver import changeable
from gates.gate_sets import REBOOTING, RESTARTING, UPGRADING, check
from gates.health import xids
from gates.kernel import BOOT, bootable_once, pinnable
from gates.transfer import TransferRequest, image_gates, weights_gates, weights_source
from schema.artifact import Probe
from schema.compatibility import load_xids as xid_table
from schema.plan import Plan
from tests.unit.builders import host_parts, parts, rigs
from tests.unit.builders.rigs import spark_plan

CASES = Path(__file__).with_name("cases")
XIDS = xid_table(Path(__file__).parents[3])
PORT = 29680
Found = list[Violation]
FIELDS = ("summary", "evidence", "remedy", "cause", "explains", "explained_by")


@dataclass(frozen=True)
class Rig:
    """A kind of rig: its plan, and its nodes' snapshots by state."""

    plan: Callable[..., Plan]
    states: Mapping[str, Callable[[Plan], dict[str, Any]]]


def _with_kernels(plan: Plan) -> dict[str, Any]:
    seen = rigs.healthy(plan)
    return {name: host_parts.with_kernel(s, host_parts.kernel_facts()) for name, s in seen.items()}


def _with_drivers(plan: Plan) -> dict[str, Any]:
    seen = rigs.healthy(plan)
    return {name: host_parts.with_driver(snapshot) for name, snapshot in seen.items()}


RIGS = {
    "spark": Rig(
        spark_plan,
        {
            "healthy": rigs.healthy,
            "serving": rigs.serving,
            "kernels": _with_kernels,
            "drivers": _with_drivers,
        },
    ),
    "tower": Rig(rigs.tower_plan, {"healthy": rigs.healthy_tower, "serving": rigs.serving_tower}),
}


def _doctor(plan: Plan, seen: Any, refused: bool = False) -> Found:
    nobody = Probe("http://192.168.1.11:8000", "nobody listens there", "refused")
    return list(examine(plan, seen, nobody if refused else None, hands=(xids(XIDS),)))


def _image(plan: Plan, seen: Any, chosen: str | None = None, **options: Any) -> Found:
    return check(plan, seen, image_gates(TransferRequest(chosen, PORT, **options)))


def _weights(plan: Plan, seen: Any, chosen: str | None = None, **options: Any) -> Found:
    source = weights_source(plan, seen, chosen)
    return check(plan, seen, weights_gates(TransferRequest(source, PORT, **options)))


def _pin(plan: Plan, seen: Any, release: str, nodes: tuple[str, ...] = ("spark1",)) -> Found:
    return check(plan, seen, pinnable(release, frozenset(nodes)))


def _once(plan: Plan, seen: Any, release: str) -> Found:
    return check(plan, seen, bootable_once(release, frozenset({"spark1"})))


def _driver(plan: Plan, seen: Any, kernel: str | None = None) -> Found:
    return check(plan, seen, changeable("580.142", kernel))


GATES: dict[str, Callable[..., Found]] = {
    "serving": check,
    "doctor": _doctor,
    "image": _image,
    "weights": _weights,
    "restart": lambda plan, seen: check(plan, seen, RESTARTING),
    "reboot": lambda plan, seen: check(plan, seen, REBOOTING),
    "upgrade": lambda plan, seen: check(plan, seen, UPGRADING),
    "boot": lambda plan, seen: check(plan, seen, BOOT),
    "driver": _driver,
    "pin": _pin,
    "once": _once,
}


def _cases() -> list[Any]:
    """Every case with its file's defaults, named by file and words."""
    found = []
    for path in sorted(CASES.glob("*.yaml")):
        table = parts.load(path)
        for number, row in enumerate(table["cases"]):
            case = {**table.get("all", {}), **row}
            words = case.get("case") or f"{number}-{'-'.join(map(_code, case['finds']))}"
            found.append(pytest.param(case, id=f"{path.stem}: {words}"))
    return found


def _code(wanted: Any) -> str:
    return str(next(iter(wanted)) if isinstance(wanted, dict) else wanted).partition("@")[0]


@cache
def _plan(rig: str, changes: tuple[tuple[str, Any], ...]) -> Plan:
    return RIGS[rig].plan(**dict(changes))


def _findings(case: dict[str, Any], breaks: Mapping[str, Any]) -> Found:
    """What the case's gates find on its rig with these parts broken."""
    return _ask(case, *_rig(case, breaks))


def _rig(case: dict[str, Any], breaks: Mapping[str, Any]) -> tuple[Plan, dict[str, Any]]:
    """The case's plan, and its hosts with these parts broken."""
    rig = case.get("rig", "spark")
    plan = _plan(rig, tuple(case.get("plan", {}).items()))
    for path, value in case.get("recipe", {}).items():
        plan = replace(plan, recipe=rigs.put(plan.recipe, path, value))
    seen = RIGS[rig].states[case.get("state", "healthy")](plan)
    for place, value in breaks.items():
        nodes, _, path = place.partition(" ")
        for node in seen if nodes == "all" else nodes.split("+"):
            seen[node] = rigs.put(seen[node], path, value)
    return plan, seen


def _ask(case: dict[str, Any], plan: Plan, seen: Mapping[str, Any]) -> Found:
    """What the case's gates find there."""
    gates = case.get("gates", "serving")
    name, options = next(iter(gates.items())) if isinstance(gates, dict) else (gates, {})
    found = GATES[name](plan, seen, **options)
    only = case.get("only", ("block", "warn"))
    return [v for v in found if v.severity in only or v.code in only]


def _holds(found: Violation, wanted: Any) -> bool:
    """Whether a finding is the wanted one: `code@node`, or that with what it has to say."""
    key, says = next(iter(wanted.items())) if isinstance(wanted, dict) else (wanted, {})
    code, _, node = key.partition("@")
    if (found.code, found.node or "") != (code, node):
        return False
    assert found.severity == says.get("severity", CODES[code].severity), found
    assert found.unknown == says.get("unknown", found.unknown), found
    for field in FIELDS:
        text = getattr(found, field, "")
        assert "\n" not in text
        words = says.get(field, ())
        assert words != [] or not text, (field, found)
        for word in [words] if isinstance(words, str) else words:
            assert word in text, (field, word, found)
    for word in says.get("never", ()):
        assert word not in found.summary + found.evidence + found.remedy, found
    return True


@pytest.mark.parametrize("case", _cases())
def test_a_broken_part_is_found(case: dict[str, Any]) -> None:
    """Just the wanted findings (`some`: at least these), in any order, each with its words."""
    breaks = case.get("break", {})
    usual = set() if case.get("usual") else {(v.code, v.node) for v in _findings(case, {})}
    found = [v for v in _findings(case, breaks) if (v.code, v.node) not in usual]
    for one in found:
        assert one.summary and one.evidence and one.remedy, one
        assert case.get("says", "") in f"{one.summary} {one.evidence} {one.remedy}", one
        assert not isinstance(one, Finding) or one.cause, one
    first = case.get("first")
    assert first is None or f"{found[0].code}@{found[0].node}" == first, found
    left = list(found)
    for wanted in case["finds"]:
        match = next((one for one in left if _holds(one, wanted)), None)
        assert match is not None, (wanted, [(v.code, v.node) for v in found])
        left.remove(match)
    never = case.get("never", ())
    assert not {v.code for v in left} & set(never), left
    assert case.get("some") or left == [], left
    if case.get("doctors_own"):  # serve mends it, so it may not stop serve
        serve = _findings({**case, "gates": "serving"}, breaks)
        assert not {v.code for v in serve} & {v.code for v in found}


HOSTILE = ";rm -rf ~"


@pytest.mark.parametrize("case", [param for param in _cases() if param.values[0]["finds"]])
def test_a_remedy_quotes_what_a_host_says(case: dict[str, Any]) -> None:
    """A person pastes it into a root shell: each word of a host that a remedy holds, made hostile
    where its type lets it be, stands there in quotes.
    """
    plan, seen = _rig(case, case.get("break", {}))
    remedies = "\n".join(one.remedy for one in _ask(case, plan, seen))
    said = {name: one.model_dump(mode="json", warnings=False) for name, one in seen.items()}
    for word in sorted({*_words(list(said.values()))}):
        if len(word) < 3 or word.rpartition("/")[2] not in remedies:
            continue
        head, dot, end = word.rpartition(".")
        evil = f"{head}{HOSTILE}{dot}{end}" if head and "/" not in end else word + HOSTILE
        try:
            now = {
                name: type(seen[name]).model_validate(_swapped(document, word, evil))
                for name, document in said.items()
            }
        except ValidationError:
            continue
        for one in _ask(case, plan, now):
            bare = re.sub(r"(?<![a-z])'[^']*'", "", one.remedy)
            assert HOSTILE not in bare, (word, one.code, one.remedy)


def _words(document: Any) -> Iterator[str]:
    """Every text of a document."""
    if isinstance(document, str):
        yield document
    for inner in document.values() if isinstance(document, dict) else document or ():
        if isinstance(inner, str | dict | list):
            yield from _words(inner) if not isinstance(inner, str) else (inner,)


def _swapped(document: Any, word: str, other: str) -> Any:
    """The document with one text in place of another, wherever it stands."""
    if isinstance(document, dict):
        return {key: _swapped(inner, word, other) for key, inner in document.items()}
    if isinstance(document, list):
        return [_swapped(inner, word, other) for inner in document]
    return other if document == word else document


def codes() -> set[str]:
    """Every code that a case of the tables finds."""
    cases = [param.values[0] for param in _cases()]
    return {_code(wanted) for case in cases for wanted in case["finds"]}
