"""Drop-ins of a unit: the real systemd-analyze checks the whole unit before one is made."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path
from typing import Any

import pytest

from node.change.journal import read_all
from tests.unit.node.support.host import SYSTEMCTL, Host, apply_request, file_step
from tests.unit.node.support.strace import Faulted

NAME = "vllm-ds4-head.service"
GHOST = "[Unit]\nDescription=ghost\n[Service]\nExecStart=/workspace/vllm-head-090.sh\n"
GOOD = "[Service]\nExecStart=\nExecStart=/bin/sleep infinity\n"
# What the stand-in for systemctl says of units whose files lie in the test's own folder.
SHOWS_FILES = """\
#!/bin/sh
# rigbook stand-in for systemctl: as the other one, and it knows the unit files of one folder
for last; do :; done
case "$*" in
*UnitPath*) echo FOLDER /lib/systemd/system; exit;;
*FragmentPath*) echo "Id=$last"
  case $(readlink FOLDER/$last) in /dev/null) echo LoadState=masked;; *)
  if [ -e FOLDER/$last ]; then echo LoadState=loaded; echo FragmentPath=FOLDER/$last
  else echo LoadState=not-found; fi;; esac; exit;;
esac
exec "$(dirname "$0")/systemctl-states" "$@"
"""


@pytest.fixture
def units(host: Host) -> Path:
    """The folder of unit files, with the seed's ghost in it; the stand-in systemctl reads it."""
    folder = host.root / "etc/systemd/system"
    folder.mkdir(parents=True)
    (folder / NAME).write_text(GHOST)
    (host.bin / "units").mkdir()
    host.double("systemctl-states", SYSTEMCTL)
    host.double("systemctl", SHOWS_FILES.replace("FOLDER", str(folder)))
    return folder


def path_of(units: Path, name: str = "50-rigbook-exec") -> Path:
    """Where a drop-in of the unit lies."""
    return units / f"{NAME}.d" / f"{name}.conf"


def steps(units: Path, text: str | None, **more: object) -> list[dict[str, object]]:
    """The steps of a drop-in: its folder, its file (None: away with it), systemd's reload."""
    path = path_of(units)
    made: list[dict[str, object]] = []
    if not path.parent.exists():
        made.append({"op": "directory", "path": str(path.parent), "mode": "0755"})
    if text is None:
        made.append({"op": "absent", "path": str(path), "for_unit": NAME, **more})
    else:
        made.append(file_step(path, text, for_unit=NAME, **more))
    return [*made, {"op": "unit", "unit": NAME, "active": None, "daemon_reload": True}]


def apply(host: Host, units: Path, text: str | None, **more: object) -> dict[str, Any]:
    """An apply of a drop-in."""
    return host.call("apply", apply_request(*steps(units, text, **more)))


def tree(folder: Path) -> dict[str, tuple[int, str]]:
    """Every entry below a folder: mode and content."""
    return {
        str(path): (stat.S_IMODE(path.lstat().st_mode), path.read_text() if path.is_file() else "")
        for path in sorted(folder.rglob("*"))
    }


def test_a_ghost_is_repointed_once_and_undone_byte_for_byte(host: Host, units: Path) -> None:
    before = tree(units)
    assert apply(host, units, GOOD)["changed"] is True
    assert path_of(units).read_text() == GOOD
    assert "daemon-reload" in (host.bin / "units/log").read_text()
    assert apply(host, units, GOOD)["changed"] is False
    assert host.call("undo")["status"] == "ROLLED_BACK"
    assert tree(units) == before and host.leftovers() == []


BROKEN = {
    "no reset": ("[Service]\nExecStart=/bin/sleep 1\n", "more than one ExecStart= setting"),
    "nothing to start": ("[Service]\nExecStart=\n", "no ExecStart="),
    "no such program": ("[Service]\nExecStart=\nExecStart=/opt/gone\n", "/opt/gone, which does"),
    "no program": ("[Service]\nExecStart=\nExecStart=/etc/passwd\n", "no executable file"),
    "no such script": ("[Service]\nExecStart=\nExecStart=/bin/sh /opt/gone.sh\n", "/opt/gone.sh"),
    "still a ghost": ("[Service]\nRestart=always\n", "/workspace/vllm-head-090.sh, which does"),
    "unknown key": (GOOD + "ExecStrat=/bin/true\n", "Unknown key"),
    "unknown section": (GOOD + "[Sevice]\nRestart=no\n", "Unknown section"),
    "bad value": (GOOD + "Restart=sometimes\n", "Failed to parse"),
    "no section": ("[Service\nExecStart=\nExecStart=/bin/sleep 1\n", "Invalid section header"),
    "open quote": ('[Service]\nExecStart=\nExecStart=/bin/sleep "1\n', "quot"),
    "docker is silent": (
        "[Service]\nExecStart=\nExecStart=/bin/true\nExecStartPre=/DOCKER exec x /y\n",
        "cannot tell whether it can start",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_bad_drop_in_is_refused_and_nothing_is_changed(
    host: Host, units: Path, name: str
) -> None:
    text, said = BROKEN[name]
    docker = host.double("docker", "#!/bin/sh\n")
    text = text.replace("/DOCKER", str(docker))
    before = tree(units)
    dry = host.call("apply", {**apply_request(*steps(units, text)), "dry": True})
    answer = apply(host, units, text)
    assert (answer["code"], dry["code"]) == ("not_valid", "not_valid")
    assert said in answer["error"] and "nothing was changed" in answer["error"], answer
    assert "\n" not in answer["error"] and "rigbook-verify" not in answer["error"]
    assert tree(units) == before and host.call("journal")["changes"] == []
    assert not (host.bin / "units/log").exists(), "systemd was not told of anything"


def test_a_later_drop_in_that_wins_is_named(host: Host, units: Path) -> None:
    path_of(units).parent.mkdir()
    later = path_of(units, "60-hand")
    later.write_text("[Service]\nExecStart=\nExecStart=/bin/true\n")
    answer = apply(host, units, GOOD)
    assert f"would not count: ExecStart= comes from {later}" in answer["error"]


@pytest.mark.parametrize("where", ["other.service.d/x.conf", f"{NAME}.d/x.txt", "x.conf"])
def test_a_path_that_systemd_would_not_read_is_refused(host: Host, units: Path, where: str) -> None:
    path = units / where
    path.parent.mkdir(exist_ok=True)
    answer = host.call("apply", apply_request(file_step(path, GOOD, for_unit=NAME)))
    assert answer["code"] == "bad_request" and "is no drop-in of" in answer["error"]
    assert not path.exists()


def test_units_that_cannot_be_extended(host: Host, units: Path) -> None:
    (units / NAME).unlink()
    assert "has no unit" in apply(host, units, GOOD)["error"]
    (units / NAME).symlink_to("/dev/null")
    assert "is masked" in apply(host, units, GOOD)["error"]


def test_taking_one_away_is_checked_too(host: Host, units: Path) -> None:
    apply(host, units, GOOD)
    host.call("close", {"change": "change-1", "status": "COMMITTED", "reason": "t"})
    before = tree(units)
    answer = host.call("apply", apply_request(*steps(units, None), name="change-2"))
    assert "ExecStart starts /workspace/vllm-head-090.sh" in answer["error"]
    assert tree(units) == before
    accepted = apply_request(*steps(units, None, accept_ghosts=True), name="change-2")
    assert host.call("apply", accepted)["changed"] is True
    assert not path_of(units).exists()


def test_a_broken_one_can_be_taken_away(host: Host, units: Path) -> None:
    (units / NAME).write_text(GHOST.replace("/workspace/vllm-head-090.sh", "/bin/true"))
    path_of(units).parent.mkdir()
    path_of(units).write_text("[Service]\nExecStart=/bin/sleep 1\n")
    assert apply(host, units, None)["changed"] is True


def test_the_reading_verb_says_the_same_and_leaves_nothing(host: Host, units: Path) -> None:
    request = {"unit": NAME, "path": str(path_of(units)), "content": GOOD}
    before = tree(host.root), {*Path("/run").glob("rigbook-verify-*")}
    answer = host.call("dropin", request)
    assert (answer["problems"], answer["ghosts"]) == ([], [])
    assert answer["exec_start"] == ["/bin/sleep", "infinity"]
    (line,) = host.call("dropin", {**request, "content": "[Service]\nRestart=no\n"})["ghosts"]
    assert line.startswith("ExecStart starts /workspace/vllm-head-090.sh")
    torn = host.call("dropin", {**request, "content": BROKEN["no reset"][0]})["problems"]
    assert "more than one ExecStart=" in torn[0]
    log = str(host.bin / "units/log")
    now = {path: what for path, what in tree(host.root).items() if path != log}
    assert (now, {*Path("/run").glob("rigbook-verify-*")}) == before


def test_killed_in_the_middle_it_is_old_or_new(host: Host, units: Path) -> None:
    """At each mkdir and rename; the undo that follows brings the ghost back as it was."""
    before, folders = tree(units), {*Path("/run").glob("rigbook-verify-*")}

    def undone() -> None:
        assert read_all()[1] == [] and host.call("undo")["ok"] is True
        assert tree(units) == before
        for path in (host.state / "journal").glob("*.json"):
            path.unlink()

    faulted = Faulted(host, "apply", apply_request(*steps(units, GOOD)), undone)
    points = faulted.points("mkdir", "rename", "renameat")
    assert len(points) > 5
    for point, _ in faulted.each(points):
        assert not path_of(units).exists() or path_of(units).read_text() == GOOD, point
    undone()
    # a kill leaves the check's folder in memory; a later check removes it once it is old
    for left in {*Path("/run").glob("rigbook-verify-*")} - folders:
        shutil.rmtree(left)
