"""How the program travels: one shell line that writes nothing, or an installed zipapp."""

from __future__ import annotations

import ast
import io
import json
import os
import re
import shlex
import stat
import sys
import zipfile
from pathlib import Path

import pytest

from facts.rignode import pack
from node.cli import verb_table
from node.rules.source_text import bare
from schema.observed.snapshot import NodeSnapshot
from schema.render import node_program
from tests.unit.node.support.host import NEW, Host, apply_request, file_step

FULL = {
    "files": ["/etc/rigbook/engine/serve.sh", "/etc/passwd"], "units": ["rigbook-engine.service"],
    "images": ["vllm/vllm-openai@sha256:" + "a" * 64], "weights": ["/srv/models/x"],
    "peers": ["127.0.0.1"], "disks": ["/"], "sysctls": ["vm.swappiness"],
}  # fmt: skip


@pytest.fixture
def lab_python(host: Host) -> Host:
    """A host whose python3 is this very interpreter."""
    (host.bin / "python3").symlink_to(sys.executable)
    return host


def wrapped(command: str) -> str:
    """The command as pyinfra and the facts wrap it: timeout, sh -c, sudo's sh -c."""
    return f"sh -c {shlex.quote(f'timeout -k 5 60 sh -c {shlex.quote(command)}')}"


def test_the_zipapp_is_the_same_each_time_and_holds_only_the_program() -> None:
    first = pack.zipapp_bytes()
    pack.zipapp_bytes.cache_clear()
    assert pack.zipapp_bytes() == first and re.fullmatch("[0-9a-f]{12}", node_program.version())
    archive = zipfile.ZipFile(io.BytesIO(first))
    assert archive.testzip() is None
    names = archive.namelist()
    assert "node/__main__.py" in names
    assert all(name == "__main__.py" or name.startswith("node/") for name in names)
    assert {info.date_time for info in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_the_version_follows_the_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    before = node_program.version()
    changed = {**node_program.whole(), "node/core/errors.py": b"# changed\n"}
    monkeypatch.setattr(node_program, "whole", lambda: changed)
    node_program.version.cache_clear()
    assert node_program.version() != before
    node_program.version.cache_clear()


def test_the_program_is_python_3_10_and_standard_library_only() -> None:
    for name, raw in node_program.whole().items():
        tree = ast.parse(raw, name, feature_version=(3, 10))
        for node in ast.walk(tree):
            modules = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{name}: relative import"
                modules = [node.module or ""]
            for module in modules:
                top = module.split(".")[0]
                assert top == "node" or top in sys.stdlib_module_names, f"{name}: {module}"


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_the_inline_command_gives_a_snapshot(lab_python: Host, shell: str) -> None:
    command = pack.inline_command("snapshot", FULL)
    assert len(wrapped(command)) < 100 * 1024 and "'" not in command and "\0" not in command
    done = lab_python.run([shell, "-c", wrapped(command)])
    assert done.stderr == ""
    assert NodeSnapshot.model_validate_json(done.stdout).identity.boot_id


# the calls that change a file system; openat and creat are looked at by their flags
WRITES = "mkdir,mkdirat,unlink,unlinkat,rename,renameat,renameat2,link,linkat,symlink,symlinkat," \
         "chmod,fchmod,fchmodat,chown,fchown,lchown,fchownat,truncate,ftruncate,mknod,mknodat," \
         "setxattr,utimensat,creat,mount,rmdir"  # fmt: skip


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_read_only_use_writes_nothing(lab_python: Host, tmp_path: Path, shell: str) -> None:
    log = tmp_path / "strace.log"
    command = pack.inline_command("snapshot", FULL)
    lab_python.run(["strace", "-f", "-qq", "-o", str(log), "-e", f"trace=openat,open,{WRITES}",
                    shell, "-c", command])  # fmt: skip
    calls = [line for line in log.read_text().splitlines() if "ENOENT" not in line]
    assert sum("openat(" in line for line in calls) > 100
    opened = [line for line in calls if re.search(r"O_(WRONLY|RDWR|CREAT|TRUNC)", line)]
    others = [line for line in calls if "(" in line and not re.search(r" open(at)?\(", line)
              and "exited" not in line and "SIG" not in line and "resumed" not in line]  # fmt: skip
    written = [line for line in opened if not re.search(r'"/(dev|proc)/', line)]
    assert written == [] and others == []


def test_only_the_modules_that_a_verb_needs_are_sent() -> None:
    assert "node.snapshot.gpus" in pack.needs("snapshot")
    assert not {"node.change.undo", "node.reap.reap"} & set(pack.needs("snapshot"))
    assert {"node.change.kinds", "node.change.apply"} <= set(pack.needs("apply"))


@pytest.mark.parametrize("verb", sorted(verb_table.ALL))
def test_no_import_is_overlooked(verb: str) -> None:
    """What every sent module imports of the program, by the syntax tree, is sent too."""
    sent = pack.needs(verb)
    packages = {name.rpartition(".")[0] for name in sent} - {""}
    assert packages <= set(sent), "a module without its package is not found on the host"
    files = {n[:-3].replace("/", ".").removesuffix(".__init__"): n for n in node_program.whole()}
    for module in sent:
        for node in ast.walk(ast.parse(node_program.whole()[files[module]])):
            if isinstance(node, ast.Import):
                assert {a.name for a in node.names if a.name.startswith("node")} <= set(sent)
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("node"):
                named = {f"{node.module}.{a.name}" for a in node.names} & files.keys()
                assert {node.module, *named} <= set(sent)


@pytest.mark.parametrize("verb", [*verb_table.READING, "reap", "tree backup", "tree prune"])
def test_what_is_asked_without_installing_fits_a_command_line(verb: str) -> None:
    """With a twentieth of the room left for the request."""
    assert len(pack.inline_command(verb, {})) < 0.95 * pack.MAX_COMMAND


@pytest.mark.parametrize("name", node_program.paths())
def test_what_travels_differs_in_docstrings_alone(name: str) -> None:
    source = node_program.raw(name).decode()
    trees = [ast.parse(source), ast.parse(bare(source))]
    for tree in trees:
        for node in ast.walk(tree):
            body = getattr(node, "body", None)
            if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
                value = body[0].value
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    # its end is behind the lines that are empty now
                    body[0] = ast.Pass(lineno=body[0].lineno)
    kept, sent = (ast.dump(tree, include_attributes=False) for tree in trees)
    assert sent == kept
    lines = [[n.lineno for n in ast.walk(t) if isinstance(n, ast.stmt)] for t in trees]
    assert lines[0] == lines[1], "a traceback names the lines of the source"


def test_install_then_run_then_nothing_to_install(lab_python: Host, tmp_path: Path) -> None:
    library, link = tmp_path / "lib", tmp_path / "rignode"
    path = lab_python.file(text=None)
    asked = apply_request(file_step(path))
    command, stdin = pack.install_call("apply", asked, str(library), str(link))
    assert "'" not in command and NEW.strip() not in command
    done = lab_python.run(["dash", "-c", wrapped(command)], stdin)
    assert json.loads(done.stdout)["changed"] is True and path.read_text() == NEW
    pyz = library / f"rignode-{node_program.version()}.pyz"
    assert pyz.read_bytes() == pack.zipapp_bytes() and stat.S_IMODE(pyz.stat().st_mode) == 0o755
    assert link.readlink() == pyz and [p.name for p in library.iterdir()] == [pyz.name]
    inode = pyz.stat().st_ino
    again = lab_python.run(["bash", "-c", wrapped(command)], stdin)
    assert json.loads(again.stdout)["changed"] is False and pyz.stat().st_ino == inode
    assert "OPEN change-1" in lab_python.run([str(link), "status"]).stdout


def test_install_mends_a_cut_zipapp_and_an_old_link(lab_python: Host, tmp_path: Path) -> None:
    library, link = tmp_path / "lib", tmp_path / "rignode"
    library.mkdir()
    pyz = library / f"rignode-{node_program.version()}.pyz"
    pyz.write_bytes(pack.zipapp_bytes()[:5000])
    link.symlink_to(library / "rignode-000000000000.pyz")
    command, stdin = pack.install_call("journal", {}, str(library), str(link))
    assert json.loads(lab_python.run(["sh", "-c", command], stdin).stdout)["ok"] is True
    assert pyz.read_bytes() == pack.zipapp_bytes() and link.readlink() == pyz


def test_install_refuses_a_link_path_that_is_somebody_elses(
    lab_python: Host, tmp_path: Path
) -> None:
    link = tmp_path / "rignode"
    link.write_text("theirs")
    command, stdin = pack.install_call("journal", {}, str(tmp_path / "lib"), str(link))
    done = lab_python.run(["sh", "-c", command], stdin)
    answer = json.loads(done.stdout)
    assert done.returncode == 1 and answer["code"] == "install" and link.read_text() == "theirs"


def test_a_long_request_is_an_error_inline_and_none_by_stdin(
    lab_python: Host, tmp_path: Path
) -> None:
    text = os.urandom(90_000).hex() + "\n"
    with pytest.raises(ValueError, match="bytes long"):
        pack.inline_command("snapshot", {"x": text})
    path = lab_python.file(text=None)
    asked = apply_request(file_step(path, text))
    command, stdin = pack.install_call("apply", asked, str(tmp_path / "lib"), str(tmp_path / "l"))
    assert json.loads(lab_python.run(["sh", "-c", command], stdin).stdout)["changed"] is True
    assert path.read_text() == text
