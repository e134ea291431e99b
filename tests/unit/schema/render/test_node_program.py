"""Units name the program by its version; the link is for people."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from schema.render import node_program
from schema.render.engine_files import TEMPLATES, UNIT_PATH
from schema.render.kernel_files import candidate_documents
from tests.unit.builders.engine_files import unit_lines
from tests.unit.builders.spark_rig import spark_plan

RUNS, OTHER = platform.release(), "6.17.0-23-generic"


@pytest.mark.parametrize("path", sorted(TEMPLATES.rglob("*.service*.j2")), ids=lambda p: p.name)
def test_no_unit_names_the_link_that_the_next_run_moves(path: Path) -> None:
    commands = re.findall(r"^Exec\w+=[-+!@:]*(\S+.*)$", path.read_text(), re.M)
    assert commands and not [c for c in commands if c.startswith(node_program.LINK)]
    assert "rignode" not in path.read_text()


def test_the_engines_unit_names_this_checkouts_program() -> None:
    unit = next(d for d in spark_plan().documents["spark1"] if d.path == UNIT_PATH)
    assert node_program.programs_in(unit.content) == [node_program.path()]


@pytest.mark.parametrize(("one", "other", "same"), [
    ("rignode-0123456789ab.pyz", "rignode-abcdef012345.pyz", True),
    ("rignode-0123456789ab.pyz", "rignode-0123456789ab.pyz", True),
    ("rignode-0123456789ab.pyz", "rignode-0123456789ab.pyz -v", False),
    ("rignode-0123456789ab.pyz", "rignode-theirs.pyz", False),
    ("rignode-0123456789ab.pyz", "other", False),
])  # fmt: skip
def test_texts_that_differ_in_the_programs_version_alone(one: str, other: str, same: bool) -> None:
    texts = [f"[Service]\nExecStart={node_program.LIBRARY}/{name} pair\n" for name in (one, other)]
    assert node_program.same_but_program(*texts) == same
    # rigbook 1 wrote the link
    link = f"[Service]\nExecStart={node_program.LINK} pair\n"
    assert node_program.same_but_program(link, texts[0])


@pytest.mark.parametrize(("candidate", "met"), [(RUNS, True), (OTHER, False)])
def test_a_candidates_unit_can_reboot_the_candidate_alone(candidate: str, met: bool) -> None:
    """Whatever fails it: a damaged file, another program, no python3. Real systemd judges."""
    unit = candidate_documents(candidate, "6.1.0-1", 900, "20261120T000000Z-kernel-abcd")[1]
    assert "FailureAction=reboot" in unit.content.splitlines()
    asked = [f"{key}={value}" for key, value in unit_lines(unit) if key.startswith("Condition")]
    assert asked == [f"ConditionKernelVersion={candidate}"]
    if shutil.which("systemd-analyze"):
        done = subprocess.run(
            ["systemd-analyze", "condition", *asked], capture_output=True, text=True, check=False
        )
        assert (done.returncode == 0) == met, done.stderr
