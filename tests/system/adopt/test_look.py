"""A look at ways of serving with real engines, the files that it writes, and how they compare."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.system.adopt.conftest import Served
from tests.system.adopt.setups import BOX, COMPOSE, SCRIPTED, SEED, UNIT, Setup
from tests.system.rehearsal import ROOT

NAME = "written_by_a_test"
FILES = [ROOT / f"inventory/{NAME}.py", ROOT / f"group_data/{NAME}.py",
         ROOT / f"catalog/recipes/{NAME}.yaml"]  # fmt: skip
# what is told of each: where the engine is, who starts it, what comes at the next boot
TOLD = {
    "seed": (f"by docker exec in container {BOX}, rank 0, port 8000",
             f"started by unit {UNIT} (enabled, active/running, Restart=on-failure)",
             f"started by docker's restart policy of {BOX}: restart policy unless-stopped, running",
             "started by crontab /etc/crontab:", "put into the container by hand: /workspace/"),
    "compose": ("as the main process of container llm-vllm-1", "started by compose project llm",
                "at the next boot: llm-vllm-1"),
    "script": ("started by hand, pid", "at the next boot: nothing starts it",
               f"lost when it stops: container {BOX} (--rm)"),
}  # fmt: skip


@pytest.fixture
def written() -> Iterator[None]:
    """No files of a run that ended half-way, and none afterwards."""
    for path in FILES:
        path.unlink(missing_ok=True)
    yield
    for path in FILES:
        path.unlink(missing_ok=True)


@pytest.mark.parametrize("setup", [SEED, COMPOSE, SCRIPTED], ids=lambda setup: setup.name)
def test_what_serves_is_told_written_and_renders_the_same(
    served_by: Served, written: None, setup: Setup
) -> None:
    with served_by(setup) as lab:
        journals = [lab.changes(host) for host in lab.hosts]
        done = lab.pyinfra("adopt", "--data", f"write={NAME}")
        assert done.rc == 0, done.text
        for line in TOLD[setup.name]:
            assert line in done.text, line
        assert "not looked at" not in done.text and " differs:" not in done.text
        assert done.text.count("nothing differs") == 2
        again = lab.pyinfra("adopt", "--data", f"write={NAME}")
        assert again.rc == 1 and "nothing is overwritten" in again.text, again.text
        # with the written inventory, by the loader and the files as pyinfra finds them
        look = lab.pyinfra("adopt", inventory=f"inventory/{NAME}.py")
        assert look.rc == 0 and look.text.count("nothing differs") == 2, look.text
        assert "--data take=true hands the rig over" in look.text
        assert [lab.changes(host) for host in lab.hosts] == journals
        counts = next(line for line in look.text.splitlines() if "renders the same" in line)
        print(f"TABLE | {setup.name} | {counts.split('same: ')[1]} the same | 0 differ |")
