"""Which versions of the program must stay, by who names them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from node.change import apply, journal, programs, undo
from node.core import version
from node.core.errors import NodeError
from schema.render import node_program
from tests.unit.node.support.host import change


def program(letter: str) -> str:
    """A version's path."""
    return f"{version.LIBRARY}/rignode-{letter * 12}.pyz"


@pytest.fixture
def units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for unit files; the state's own beside."""
    monkeypatch.setenv("RIGBOOK_STATE", str(tmp_path / "state"))
    folder = tmp_path / "units"
    folder.mkdir()
    monkeypatch.setattr(programs, "UNIT_FOLDERS", (str(folder),))
    monkeypatch.setattr(programs, "LINK", str(tmp_path / "rignode"))
    (tmp_path / "rignode").symlink_to(program("f"))
    return folder


def write(path: Path, letter: str, number: int = 1) -> None:
    """A change whose file step makes a unit name a version."""
    step = {"op": "file", "path": str(path), "content": f"ExecStart={program(letter)} pair\n",
            "mode": "0644"}  # fmt: skip
    apply.apply({"change": change(f"change-{number}"), "steps": [step]})


def test_a_unit_its_drop_in_a_change_a_backup_and_the_link_each_keep_theirs(units: Path) -> None:
    unit = units / "rigbook-engine.service"
    unit.write_text(f"ExecStartPre=+{program('a')} prelaunch\n")
    write(unit, "b")
    (units / "rigbook-engine.service.d").mkdir()
    drop_in = units / "rigbook-engine.service.d" / "x.conf"
    drop_in.write_text(f"[Service]\nExecStop={program('c')} container stop\n")
    (units / "gone.service").symlink_to("/nowhere")
    manifest = units.parent / "state/backups/b-1/manifest.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_text(json.dumps({"documents": {"files": {"x": f"{program('d')} pair"}}}))
    assert programs.named() == {
        program("a"): ["change change-1"],
        program("b"): [str(unit)],
        program("c"): [str(drop_in)],
        program("d"): [str(manifest)],
        program("f"): [str(units.parent / "rignode")],
    }


def test_what_can_no_longer_be_put_back_keeps_nothing(units: Path) -> None:
    unit = units / "rigbook-pair.service"
    unit.write_text(f"ExecStart={program('a')} pair\n")
    write(unit, "b")
    undo.undo({})
    assert set(programs.named()) == {program("a"), program("f")}
    unit.unlink()
    assert set(programs.named()) == {program("f")}


def test_the_program_of_a_blessed_change_stays_where_only_it_knows_a_step(units: Path) -> None:
    """A kind of 0.2.0 that is gone: its undo is handed over to the program that wrote it."""
    write(units / "rigbook-pair.service", "a")
    path = Path(journal.path_of("change-1"))
    found = json.loads(path.read_text())
    del found["sha256"]
    found.update(status="COMMITTED", program=program("b"))
    path.write_text(json.dumps(found))
    assert program("b") not in programs.named()
    found["steps"].append({"op": "install", "state": "done", "path": "/opt/engine/venv"})
    path.write_text(json.dumps(found))
    assert programs.named()[program("b")] == ["change change-1"]


def test_a_damaged_journal_lets_nothing_go(units: Path) -> None:
    write(units / "rigbook-pair.service", "a")
    Path(journal.path_of("change-1")).write_text("{")
    with pytest.raises(NodeError, match="damaged"):
        programs.named()


def test_the_places_are_those_that_the_units_are_rendered_with() -> None:
    assert (version.LIBRARY, version.LINK) == (node_program.LIBRARY, node_program.LINK)
    assert programs._PROGRAM.fullmatch(node_program.path().encode())
