"""What a unit would start: systemd's rules for files and words, links and layers of an image."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from node.core.errors import CannotRead
from node.docker import api, filesystem
from node.systemd import exec_check, unit_files
from node.systemd.unit_files import Part


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
    found = unit_files.drop_ins("a-b.service", [strong, weak], {})
    assert [part.text for part in found] == [
        "etc/service.d/05-all.conf", "lib/a-b.service.d/10-y.conf",
        "etc/a-b.service.d/20-x.conf", "lib/a-.service.d/30-z.conf"]  # fmt: skip
    then = unit_files.drop_ins("a-b.service", [strong, weak], proposed)
    assert [part.text for part in then][2:] == [
        "new", "lib/a-b.service.d/20-x.conf", "lib/a-.service.d/30-z.conf"]  # fmt: skip


def test_a_reset_takes_away_what_stood_before() -> None:
    base = Part("/u", "[Service]\nExecStart=/bin/a \\\n# a comment\n  b\nExecStartPre=/bin/p\n")
    more = Part("/d", "[Service]\nExecStart=\nExecStart=/bin/c\n[Install]\nExecStart=/bin/x\n")
    assert [c.words for c in unit_files.commands([base], "ExecStart")] == [("/bin/a", "b")]
    assert [c.words for c in unit_files.commands([base, more], "ExecStart")] == [("/bin/c",)]
    assert [line.path for line in unit_files.exec_lines([base, more], "ExecStart")] == ["/d"]


@pytest.mark.parametrize(("value", "words"), [
    ("/bin/a  b", ("/bin/a", "b")),
    ('/bin/a "two words" \'x "y"\'', ("/bin/a", "two words", 'x "y"')),
    ('/bin/a "q\\"q" 50%% $$HOME ""', ("/bin/a", 'q"q', "50%", "$HOME", "")),
    ("@/bin/a zero one", ("/bin/a", "one")), ("/bin/a x ; /bin/b", ("/bin/a", "x")),
])  # fmt: skip
def test_words_are_systemds(value: str, words: tuple[str, ...]) -> None:
    part = Part("/u", f"[Service]\nExecStart={value}\n")
    assert unit_files.commands([part], "ExecStart")[0].words == words


def test_marks_before_a_program_and_what_only_systemd_knows() -> None:
    def first(value: str) -> Any:
        return unit_files.commands([Part("/u", f"[Service]\nExecStart={value}\n")], "ExecStart")

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
    ran = exec_check.docker_run(("/usr/bin/docker", *line.split()[1:]))
    assert ran is not None and (ran.image, ran.words, ran.mounts) == (image, words, mounts)


def test_other_command_lines_are_no_docker_run() -> None:
    assert exec_check.docker_run(("/usr/bin/docker", "exec", "a", "b")) is None
    assert exec_check.docker_run(("/bin/podman", "run", "a")) is None


def layered(tmp_path: Path) -> filesystem.Tree:
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
    return filesystem.Tree("image box", (str(upper), str(lower)), (("/m", str(tmp_path / "host")),),
                       filesystem.DEFAULT_PATH, "/", (), ())  # fmt: skip


def test_files_of_an_image_are_found_as_its_own_root_has_them(tmp_path: Path) -> None:
    tree = layered(tmp_path)
    for path in ("/w/new.sh", "/w/old.sh", "/w/link.sh", "/bin/bash", "/m/serve.sh", "/w/../bin"):
        assert filesystem.stat_mode(tree, path) is not None, path
    # /etc/passwd is this host's, not the image's
    for path in ("/w/gone.sh", "/shut/hidden", "/etc/passwd", "/m/none", "/w/old.sh/x"):
        assert filesystem.stat_mode(tree, path) is None, path
    with pytest.raises(CannotRead, match="without end"):
        filesystem.stat_mode(tree, "/loop")
    wrong = {"bash": None, "/bin/bash": None, "python3": "which is not in image box",
             "/w/old.sh": "which is no executable file in image box"}  # fmt: skip
    assert {name: filesystem.program_problem(tree, name) for name in wrong} == wrong


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
    return exec_check.missing_programs(unit_files.commands([part], "ExecStart"))


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
