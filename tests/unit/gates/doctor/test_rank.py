"""Which finding explains which, and in what order they stand."""

from __future__ import annotations

import itertools
import random
from typing import Any

from gates.core.codes import CODES, violation
from gates.core.violation import Violation
from gates.doctor.causes import CAUSES
from gates.doctor.rank import explain

HEAD, WORKER = "spark1", "spark2"


def made(code: str, node: str | None = HEAD, **more: Any) -> Violation:
    return violation(code, node, "s", evidence="e", remedy="r", **more)


def order(*findings: Violation) -> list[str]:
    return [found.key for found in explain(findings, {HEAD: 0, WORKER: 1})]


def test_every_code_has_a_cause_and_names_known_codes_only() -> None:
    assert set(CAUSES) == set(CODES)
    for code, cause in CAUSES.items():
        assert cause.text and "\n" not in cause.text
        named = {*cause.here, *cause.anywhere, *cause.until}
        assert named <= set(CODES) and code not in named, code


def test_the_table_has_no_circle() -> None:
    left = {code: {*cause.here, *cause.anywhere} for code, cause in CAUSES.items()}
    while left:
        ends = [code for code, effects in left.items() if not effects & left.keys()]
        assert ends, f"these explain each other: {sorted(left)}"
        for code in ends:
            del left[code]


def test_a_cause_of_this_node_and_of_any_node() -> None:
    down = [made("unit-ghost"), made("engine-down"), made("engine-down", WORKER),
            made("no-answer")]  # fmt: skip
    ghost, *_ = explain(down, {HEAD: 0, WORKER: 1})
    assert ghost.explains == ("engine-down@spark1", "no-answer@spark1")
    elsewhere, *_ = explain([made("unit-ghost", WORKER), made("engine-down"), made("no-answer")])
    assert elsewhere.explains == ("no-answer@spark1",)


def test_fabric_down_explains_ports_engines_and_the_endpoint() -> None:
    first, *rest = explain([made("no-answer"), made("engine-down"), made("port-taken"),
                            made("fabric-ping", WORKER), made("fabric-down")])  # fmt: skip
    assert first.code == "fabric-down"
    assert {*first.explains} == {found.key for found in rest}


def test_a_throttled_gpu_explains_a_slow_answer_of_the_rig() -> None:
    """D3: decode at half its speed, and nothing in any log."""
    slow, gpu = made("answer-slow"), made("gpu-throttled", WORKER)
    first, second = explain([slow, gpu])
    assert (first.code, first.explains) == ("gpu-throttled", ("answer-slow@spark1",))
    assert second.explained_by == ("gpu-throttled@spark2",)


def test_an_orphan_explains_the_port_it_holds() -> None:
    first, second = explain([made("port-taken"), made("engine-orphan")])
    assert (first.code, first.explains) == ("engine-orphan", ("port-taken@spark1",))
    assert second.explained_by == ("engine-orphan@spark1",)


def test_warnings_without_a_consequence_stand_last() -> None:
    assert order(made("driver-stand-in"), made("engine-down"), made("page-cache")) == [
        "page-cache@spark1", "engine-down@spark1", "driver-stand-in@spark1"]  # fmt: skip


def test_a_cause_in_a_higher_layer_still_comes_first() -> None:
    """Memory is short because a foreign engine holds it: that one is to be ended."""
    assert order(made("memory-short"), made("foreign-engine")) == [
        "foreign-engine@spark1", "memory-short@spark1"]  # fmt: skip


def test_a_ghost_never_got_as_far_as_memory_or_flags() -> None:
    late = [made("page-cache"), made("forbidden-env", severity="warn"), made("drift")]
    found = {v.code: v for v in explain([*late, made("unit-ghost"), made("engine-down")])}
    assert found["engine-down"].explained_by == ("unit-ghost@spark1",)
    assert all(found[v.code].explains == () for v in late)
    # On the other node nothing stands between the page cache and the engine.
    other = explain([made("page-cache", WORKER), made("unit-ghost"), made("engine-down", WORKER)])
    assert next(v for v in other if v.code == "page-cache").explains == ("engine-down@spark2",)


def test_a_specific_cause_wins_over_the_tables() -> None:
    (told,) = explain([made("crash-loop", cause="it ran out of discs")])
    (plain,) = explain([made("crash-loop")])
    assert (told.cause, plain.cause) == ("it ran out of discs", CAUSES["crash-loop"].text)


def test_the_order_does_not_depend_on_the_order_of_the_gates() -> None:
    codes = ["no-answer", "drift", "engine-down", "unit-ghost", "page-cache", "fabric-mtu",
             "memory-short", "foreign-engine", "driver-stand-in", "wedged-pair"]  # fmt: skip
    some = [made(code, node) for code, node in itertools.product(codes, (HEAD, WORKER))]
    wanted = order(*some)
    shuffle = random.Random(7)
    for _ in range(20):
        shuffle.shuffle(some)
        assert order(*some) == wanted
    assert len(wanted) == len(some)
