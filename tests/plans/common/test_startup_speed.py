"""deploys.plans.startup_speed: a run is shorter, and pyinfra finds out the same."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import BaseModel
from pyinfra.api import util

from deploys.plans.startup_speed import NEEDED

ROOT = Path(__file__).resolve().parents[3]
# In a process of its own: what shorten does holds for the rest of it.
RUN = """
import gc, sys
import pyinfra_cli.main
from deploys.plans.startup_speed import COLLECT_AFTER, shorten
from pyinfra.api import util
# as pyinfra's main does
sys.dont_write_bytecode = True

found = []
for first in (list, lambda: shorten(["inventory/lab.py", "debug-inventory"])):
    first()
    found.append((util.get_call_location(0), util.get_caller_frameinfo(-1)[:3]))
assert found[0] == found[1] and "line 12 in " in found[0][0], found
assert gc.get_threshold()[0] == COLLECT_AFTER
print(sys.dont_write_bytecode, "schema.core" in sys.modules)
"""


@pytest.mark.parametrize("needed", NEEDED)
def test_what_is_imported_ahead_is_there(needed: str) -> None:
    """A wrong name would cost nothing but time, so nobody else would tell."""
    name, _, kind = needed.partition(":")
    module = importlib.import_module(name)
    assert not kind or issubclass(getattr(module, kind), BaseModel)


def test_pyinfra_asks_for_what_is_replaced() -> None:
    """In this version as when it was measured; and for file and line only."""
    source = inspect.getsource(util)
    assert "from inspect import getframeinfo, stack" in source
    assert "code_context" not in source and ".positions" not in source


@pytest.mark.parametrize(("flags", "kept"), [((), "False"), (("-B",), "True")])
def test_a_run_is_the_same(flags: tuple[str, ...], kept: str, tmp_path: Path) -> None:
    """Same places of calls; bytecode is kept unless Python was told not to."""
    environ = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
    environ["PYTHONPYCACHEPREFIX"] = str(tmp_path / "cache")
    script = tmp_path / "run.py"
    script.write_text(RUN)
    done = subprocess.run(
        [sys.executable, *flags, str(script)],
        env=environ,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.split()) == (0, [kept, "False"]), done.stderr
