"""Drop-ins of a unit: the real systemd-analyze checks the whole unit before one is made."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest

from node import dropin
from node import units as node_units
from node.change.journal import read_all
from node.core.errors import CannotRead
from node.docker import api, store
from node.units import Part
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


# What a unit would start: systemd's rules for files and words, links and layers of an image.


def test_drop_ins_are_read_in_systemds_order(tmp_path: Path) -> None:
    """By name over all folders; of equal names the stronger folder's, then the closer one's."""
    strong, weak = str(tmp_path / "etc"), str(tmp_path / "lib")
    for name in ("etc/a-b.service.d/20-x.conf", "lib/a-b.service.d/10-y.conf",
                 "lib/a-b.service.d/20-x.conf", "lib/a-.service.d/30-z.conf",
                 "etc/service.d/05-all.conf", "etc/service.d/20-x.conf",
                 "etc/other.service.d/1.conf", "etc/a-b.service.d/note.txt"):  # fmt: skip
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    proposed = {f"{strong}/a-b.service.d/15-new.conf": b"new",
                f"{strong}/a-b.service.d/20-x.conf": None}  # fmt: skip
    found = node_units.drop_ins("a-b.service", [strong, weak], {})
    assert [part.text for part in found] == [
        "etc/service.d/05-all.conf", "lib/a-b.service.d/10-y.conf",
        "etc/a-b.service.d/20-x.conf", "lib/a-.service.d/30-z.conf"]  # fmt: skip
    then = node_units.drop_ins("a-b.service", [strong, weak], proposed)
    assert [part.text for part in then][2:] == [
        "new", "lib/a-b.service.d/20-x.conf", "lib/a-.service.d/30-z.conf"]  # fmt: skip


def test_a_reset_takes_away_what_stood_before() -> None:
    base = Part("/u", "[Service]\nExecStart=/bin/a \\\n# a comment\n  b\nExecStartPre=/bin/p\n")
    more = Part("/d", "[Service]\nExecStart=\nExecStart=/bin/c\n[Install]\nExecStart=/bin/x\n")
    assert [c.words for c in node_units.file_commands([base], "ExecStart")] == [("/bin/a", "b")]
    assert [c.words for c in node_units.file_commands([base, more], "ExecStart")] == [("/bin/c",)]
    assert [line.path for line in node_units.exec_lines([base, more], "ExecStart")] == ["/d"]


@pytest.mark.parametrize(("value", "words"), [
    ("/bin/a  b", ("/bin/a", "b")),
    ('/bin/a "two words" \'x "y"\'', ("/bin/a", "two words", 'x "y"')),
    ('/bin/a "q\\"q" 50%% $$HOME ""', ("/bin/a", 'q"q', "50%", "$HOME", "")),
    ("@/bin/a zero one", ("/bin/a", "one")), ("/bin/a x ; /bin/b", ("/bin/a", "x")),
])  # fmt: skip
def test_words_are_systemds(value: str, words: tuple[str, ...]) -> None:
    part = Part("/u", f"[Service]\nExecStart={value}\n")
    assert node_units.file_commands([part], "ExecStart")[0].words == words


def test_marks_before_a_program_and_what_only_systemd_knows() -> None:
    def first(value: str) -> Any:
        return node_units.file_commands(
            [Part("/u", f"[Service]\nExecStart={value}\n")], "ExecStart"
        )

    assert first("-+/bin/a")[0].may_fail and not first("!!/bin/a")[0].may_fail
    assert first("/opt/%i/run") == [] and first('/bin/a "x') == []


@pytest.mark.parametrize(("line", "image", "words", "mounts"), [
    ("docker run --rm box:1 /x", "box:1", ("/x",), ()),
    ("docker run -dit --name n -e A=1 -v /h:/c:ro box sh /c/x", "box", ("sh", "/c/x"),
     (("/c", "/h"),)),
    ("docker run --init --ipc host --net=host -v/h:/c box", "box", (), (("/c", "/h"),)),
    ("docker run --mount type=bind,source=/h,target=/c,readonly box a", "box", ("a",),
     (("/c", "/h"),)),
    ("docker run -v named:/c --gpus all box a", "box", ("a",), ()),
])  # fmt: skip
def test_a_docker_run_is_read(
    line: str, image: str, words: tuple[str, ...], mounts: tuple[tuple[str, str], ...]
) -> None:
    ran = dropin.docker_run(("/usr/bin/docker", *line.split()[1:]))
    assert ran is not None and (ran.image, ran.words, ran.mounts) == (image, words, mounts)


def test_other_command_lines_are_no_docker_run() -> None:
    assert dropin.docker_run(("/usr/bin/docker", "exec", "a", "b")) is None
    assert dropin.docker_run(("/bin/podman", "run", "a")) is None


def layered(tmp_path: Path) -> store.Tree:
    """Two layers: links, a deleted file, a folder that hides the one below."""
    upper, lower = tmp_path / "upper", tmp_path / "lower"
    for path in (lower / "usr/bin/bash", lower / "w/old.sh", lower / "w/gone.sh",
                 lower / "shut/hidden", upper / "w/new.sh"):  # fmt: skip
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    (lower / "usr/bin/bash").chmod(0o755)
    (lower / "bin").symlink_to("/usr/bin")
    (lower / "loop").symlink_to("loop")
    (upper / "w/link.sh").symlink_to("../w/old.sh")
    os.mknod(upper / "w/gone.sh", 0o20000, os.makedev(0, 0))
    (upper / "shut").mkdir()
    os.setxattr(upper / "shut", "user.overlay.opaque", b"y")
    (tmp_path / "host").mkdir()
    (tmp_path / "host/serve.sh").write_text("")
    return store.Tree("image box", (str(upper), str(lower)), (("/m", str(tmp_path / "host")),),
                       store.DEFAULT_PATH, "/", (), ())  # fmt: skip


def test_files_of_an_image_are_found_as_its_own_root_has_them(tmp_path: Path) -> None:
    tree = layered(tmp_path)
    for path in ("/w/new.sh", "/w/old.sh", "/w/link.sh", "/bin/bash", "/m/serve.sh", "/w/../bin"):
        assert store.stat_mode(tree, path) is not None, path
    # /etc/passwd is this host's, not the image's
    for path in ("/w/gone.sh", "/shut/hidden", "/etc/passwd", "/m/none", "/w/old.sh/x"):
        assert store.stat_mode(tree, path) is None, path
    with pytest.raises(CannotRead, match="without end"):
        store.stat_mode(tree, "/loop")
    wrong = {"bash": None, "/bin/bash": None, "python3": "which is not in image box",
             "/w/old.sh": "which is no executable file in image box"}  # fmt: skip
    assert {name: store.program_problem(tree, name) for name in wrong} == wrong


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A file that looks like docker's program."""
    path = tmp_path / "docker"
    path.write_text("")
    path.chmod(0o755)
    return path


def wrong(line: str) -> list[str]:
    """What is wrong with a unit whose ExecStart is this."""
    part = Part("/u", f"[Service]\nExecStart={line}\n")
    return dropin.missing_programs(node_units.file_commands([part], "ExecStart"))


def test_a_script_behind_docker_run_is_looked_for_in_mounts_and_layers(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for docker's answer about an image; its layers are real folders."""
    upper, lower = layered(tmp_path).layers
    row = {"Id": "x", "Config": {"Entrypoint": ["/bin/bash"]},
           "GraphDriver": {"Data": {"UpperDir": upper, "LowerDir": lower}}}  # fmt: skip
    monkeypatch.setattr(api, "get", lambda path, absent_ok=False: row)
    run = f"{program} run --rm"
    assert wrong(f"{run} box /w/old.sh") == []
    assert wrong(f"{run} -v {tmp_path}/host:/m box /m/serve.sh") == []
    (line,) = wrong(f"{run} box /m/serve.sh")
    assert line == "ExecStart starts /m/serve.sh, which is not in image box"
    assert wrong(f"{run} --entrypoint bash box /w/old.sh") == []
    (line,) = wrong(f"{run} --entrypoint /w/none box")
    assert "/w/none, which is not in image box" in line


def test_what_cannot_be_told_is_wrong(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unknown is not fine: docker is silent, or the container is not there."""
    monkeypatch.setattr(api, "get", lambda path, absent_ok=False: None)
    for verb in ("exec box bash /x", "start -a box", "run box sh /x"):
        (line,) = wrong(f"{program} {verb}")
        assert "cannot tell whether it can start: there is no" in line
    assert wrong(f"-{program} exec box bash /x") == []
