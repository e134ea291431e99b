"""The gates before an upgrade, as pyinfra runs them: the catalog's table, and the real pip."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.plans.support.scenario import Runs, Scenario, make_recipe, serving
from tests.unit.builders import wheelhouse as w

DEPLOY = "tests/plans/support/upgrade_gates.py"
WAIVE = ("--data", "waive=torch-variant", "--data", "reason=the extensions are rebuilt as well")


@pytest.fixture(scope="module")
def ran() -> Iterator[Runs]:
    """All runs of this module: one venv with vllm 0.19.2rc1, three wheel folders."""
    with tempfile.TemporaryDirectory(prefix="rigbook-upgrade-") as text:
        folder = Path(text)
        old = w.wheel(folder / "good", "vllm", "0.19.2rc1", w.vllm_files("0.19.2rc1"))
        torch = w.wheel(folder / "good", "torch", "2.9.0+cpu", w.torch_files("2.9.0+cpu", None))
        w.wheel(folder / "good", "vllm", "0.20.2", w.vllm_files("0.20.2"), ["torch==2.9.0"])
        w.wheel(folder / "rotated", "vllm", "0.20.2", w.vllm_files("0.20.2"))
        other = w.torch_files("2.10.0+cu130", "13.0")
        w.wheel(folder / "other", "torch", "2.10.0+cu130", other)
        w.wheel(folder / "other", "vllm", "0.20.2", w.vllm_files("0.20.2"), ["torch==2.10.0"])
        w.wheel(folder / "other", "vllm", "0.19.2rc1", w.vllm_files("0.19.2rc1"))
        w.install(w.venv(folder / "venv"), old, torch)
        recipes = make_recipe(folder)

        def run(house: str, *arguments: str) -> Scenario:
            return Scenario(
                (DEPLOY, "-y", *arguments), serving,
                data={"recipe": "patched", "recipes_dir": [str(recipes)],
                      "venv": str(folder / "venv")},
                env={"PIP_FIND_LINKS": str(folder / house), "PIP_NO_INDEX": "1"},
            )  # fmt: skip

        yield Runs(
            {
                "good": run("good"),
                "rotated": run("rotated"),
                "other": run("other"),
                "waived": run("other", *WAIVE),
                "empty": run("nowhere"),
            }
        )


def test_what_pip_would_do_is_asked_and_nothing_is_changed(ran: Runs) -> None:
    run = ran["good"]
    assert run.status == 0 and run.changing == (), run.output
    assert "asking pip what vllm 0.20.2 would change" in run.stderr
    assert "would install ['0.20.2', '0.20.2'], ()" in run.stderr
    assert "warn version-unknown" in run.stderr and "compatibility.yaml" in run.stderr


def test_an_old_wheel_that_is_gone_is_told(ran: Runs) -> None:
    """B5, with the real pip: only the backup that the upgrade makes brings the old version back."""
    run = ran["rotated"]
    assert run.status == 0 and "warn old-wheel-missing" in run.stderr, run.output


def test_a_torch_of_another_variant_is_refused_and_can_be_waived_in_writing(ran: Runs) -> None:
    """C1, with the real pip; the reason is for the journal."""
    ran["other"].refused("torch-variant", "built for cu130, installed is cpu")
    assert ran["waived"].status == 0, ran["waived"].output
    assert "('torch-variant', 'the extensions are rebuilt as well')" in ran["waived"].stderr


def test_a_wheel_that_cannot_be_had_is_refused(ran: Runs) -> None:
    ran["empty"].refused("wheel-missing", "vllm 0.20.2 cannot be had")
