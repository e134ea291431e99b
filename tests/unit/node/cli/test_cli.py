"""What a person at the console types: status and undo, with no request."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import pty
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from facts import pack
from node import verbs
from node.core.errors import CannotRead, NodeError
from node.rules.text import bare
from node.verbs import several
from schema import render_unit
from schema.snapshot import NodeSnapshot
from tests.unit.node.support import strace
from tests.unit.node.support.host import (
    NEW,
    OLD,
    Host,
    apply_request,
    file_step,
    unit_step,
    unsigned,
)
from tests.unit.node.support.trees import Engine, picture


@pytest.fixture
def path(host: Host) -> Path:
    """A file that an open change has replaced."""
    path = host.file()
    host.call("apply", apply_request(file_step(path)))
    return path


def test_status_tells_the_open_change_and_how_to_go_back(host: Host) -> None:
    host.systemctl()
    path = host.file()
    host.call("apply", apply_request(file_step(path), unit_step("start")))
    text = host.run(host.argv("status")).stdout
    for words in ("OPEN change-1  serve by tester@here", f"file {path} (done)", "lock: free",
                  "to go back: rignode undo", "unit engine.service: active"):  # fmt: skip
        assert words in text
    assert "Traceback" not in text


def test_status_of_a_host_with_nothing_writes_nothing(host: Host) -> None:
    assert "no changes" in host.run(host.argv("status")).stdout
    assert not host.state.exists()


def test_status_names_a_damaged_journal(host: Host, path: Path) -> None:
    (host.state / "journal" / "change-1.json").write_bytes(b"\xff")
    assert "DAMAGED journal file:" in host.run(host.argv("status")).stdout
    assert host.call("undo")["code"] == "journal_broken"


def test_status_verify_looks_at_the_last_change_or_a_named_one(host: Host, path: Path) -> None:
    """Read-only, and by exit status: 0 as recorded, 1 with the lines that differ."""

    def verify(*words: str) -> subprocess.CompletedProcess[str]:
        return host.run(host.argv("status", "--verify", *words))

    before = (host.state / "journal" / "change-1.json").read_bytes()
    done = verify()
    assert done.returncode == 0 and "all is as it left it" in done.stdout
    path.write_text("mine\n")
    done = verify("change-1")
    assert done.returncode == 1 and f"{path}: sha256 is " in done.stderr and done.stdout == ""
    assert "rignode undo change-1" in done.stderr
    seen = json.loads(host.run(host.argv("status", "--json", "--verify")).stdout)
    assert seen["ok"] and seen["side"] == "post" and len(seen["lines"]) == 1
    assert (host.state / "journal" / "change-1.json").read_bytes() == before
    assert path.read_text() == "mine\n"
    host.call("undo", {"overwrite": [str(path)]})
    done = verify()
    assert done.returncode == 0 and "(ROLLED_BACK, 1 steps): all is as it found it" in done.stdout
    path.chmod(0o600)
    assert "mode is 0600, not 0640" in verify().stderr
    assert "no change change-9" in verify("change-9").stdout
    assert host.run(host.argv("status", "--verify", "a", "b")).returncode == 2


def test_status_verify_tells_what_is_not_known(host: Host, path: Path) -> None:
    file = host.state / "journal" / "change-1.json"
    found = unsigned(file)
    found["steps"][0]["state"] = "intent"
    file.write_text(json.dumps(found))
    done = host.run(host.argv("status", "--verify"))
    assert done.returncode == 1 and "announced, not known to be done" in done.stderr


def test_undo_with_an_empty_stdin(host: Host, path: Path) -> None:
    done = host.run(host.argv("undo", "--text"))
    assert done.returncode == 0 and "undone: change-1 is ROLLED_BACK" in done.stdout
    assert path.read_text() == OLD


def test_undo_at_a_terminal_prints_lines(host: Host, path: Path) -> None:
    path.write_text("mine\n")
    assert "edited after the change" in at_terminal(host, "undo")
    assert path.read_text() == "mine\n"
    text = at_terminal(host, "undo", "--overwrite", str(path))
    assert "undone: change-1 is ROLLED_BACK" in text and "{" not in text
    assert path.read_text() == OLD
    assert "nothing to undo" in at_terminal(host, "undo")


def test_undo_of_a_named_change(host: Host, path: Path) -> None:
    host.call("close", {"change": "change-1", "status": "COMMITTED"})
    assert "nothing to undo" in at_terminal(host, "undo")
    assert path.read_text() == NEW
    assert "ROLLED_BACK" in at_terminal(host, "undo", "change-1")


def test_undo_without_a_start_leaves_the_unit_stopped_and_names_it(host: Host) -> None:
    units = host.systemctl()
    (units / "engine.service.active").write_text("active\n")
    host.call("apply", apply_request(unit_step("restart")))
    text = at_terminal(host, "undo", "--no-start")
    assert "engine.service" in text and "ROLLED_BACK" in text
    assert (units / "engine.service.active").read_text() == "inactive\n"


def at_terminal(host: Host, *args: str) -> str:
    """What a verb prints when stdin, stdout and stderr are a terminal."""
    master, slave = pty.openpty()
    child = subprocess.Popen(
        host.argv(*args), env=host.environ(), stdin=slave, stdout=slave, stderr=slave
    )
    os.close(slave)
    out = b""
    # at the end of its output a terminal gives EIO
    with contextlib.suppress(OSError):
        while chunk := os.read(master, 4096):
            out += chunk
    os.close(master)
    child.wait(timeout=20)
    return out.decode()


def waiting(host: Host, verb: str) -> subprocess.Popen[str]:
    """A verb that waits for its stdin, which nobody closes."""
    child = subprocess.Popen(
        host.argv(verb), env=host.environ(), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    deadline = time.monotonic() + 20
    # read(2) of descriptor 0
    while not Path(f"/proc/{child.pid}/syscall").read_text().startswith("0 0x0 "):
        assert time.monotonic() < deadline and child.poll() is None
        time.sleep(0.01)
    return child


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
@pytest.mark.parametrize("verb", ["apply", "undo", "close", "tree prune", "preflight", "journal"])
def test_a_signal_ends_a_verb_that_waits_for_its_stdin(host: Host, verb: str, name: str) -> None:
    """It was remembered for the end of a step, and none had begun."""
    child, number = waiting(host, verb), signal.Signals[name]
    child.send_signal(number)
    try:
        out, err = child.communicate(timeout=5)
    finally:
        child.kill()
    assert (child.returncode, out, err) == (-number, "", "")
    assert not host.state.exists()


def test_ctrl_c_while_it_loads_is_no_traceback(host: Host, tmp_path: Path) -> None:
    """At reads of its own archive, from the first module of ours on."""
    options = ["-P", str(host.pyz), "-e", "trace=read"]
    strace.traced(host, "status", "", options, tmp_path / "log")
    reads = (tmp_path / "log").read_text().count("read(")
    assert reads > 30
    for n in range(20, reads, 5):
        inject = [*options, "-e", f"inject=read:signal=INT:when={n}"]
        done = strace.traced(host, "status", "", inject, tmp_path / "log")
        assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", ""), n


NO_READER = {"closed": ">&-", "full": "> /dev/full", "gone": "| head -c0"}


@pytest.mark.parametrize("how", NO_READER)
@pytest.mark.parametrize("words", ["apply", "undo", "undo --text", "status", "journal"])
def test_an_answer_that_nobody_reads_is_no_traceback(
    host: Host, path: Path, words: str, how: str
) -> None:
    """It ended with one, or with 120; what was done is in the journal."""
    if words == "apply":
        host.call("close", {"change": "change-1", "status": "COMMITTED"})
    asked = json.dumps(apply_request(file_step(path, "third\n"), name="change-2"))
    request = host.root / "request"
    request.write_text(asked if words == "apply" else "")
    argv = shlex.join([*host.argv(words.split()[0]), *words.split()[1:]])
    # head ends before anything is written
    wait = "sleep 1; " if how == "gone" else ""
    script = f"({wait}{argv} < {request}; echo $? > {host.root}/rc) {NO_READER[how]}"
    done = subprocess.run(["sh", "-c", script], env=host.environ(), capture_output=True, text=True)
    assert (host.root / "rc").read_text() == "1\n"
    assert done.stderr.startswith("rignode: the answer cannot be written: ")
    assert len(done.stderr.splitlines()) == 1 and done.stdout == ""
    changes = [(row["id"], row["status"]) for row in host.call("journal")["changes"]]
    if words == "apply":
        assert changes[0] == ("change-2", "OPEN") and path.read_text() == "third\n"
    elif words.startswith("undo"):
        assert changes == [("change-1", "ROLLED_BACK")] and path.read_text() == OLD
    else:
        assert changes == [("change-1", "OPEN")] and path.read_text() == NEW


def test_a_deep_request_is_bad_usage(host: Host) -> None:
    done = host.run(host.argv("apply"), '{"a":' + "[" * 50_000)
    assert done.returncode == 2 and json.loads(done.stdout)["code"] == "usage"


# several: other verbs in one process; each part answers, fails and is late by itself.

Json = dict[str, Any]
# what the doctor asks
DOCTOR = ("growth", "hardware", "host", "kernel", "snapshot", "tree list")


def _raise(error: BaseException) -> Json:
    raise error


VERBS: dict[str, Any] = {
    "well": lambda asked: {"asked": asked},
    "refuses": lambda _: _raise(NodeError("no such tree", "no_tree", "name another")),
    "unread": lambda _: _raise(CannotRead("journalctl: no")),
    "disk": lambda _: _raise(OSError(5, "Input/output error", "/srv")),
    "faulty": lambda _: _raise(KeyError("boots")),
    "leaves": lambda _: sys.exit(3),
    "hangs": lambda _: threading.Event().wait(60),
}
SAID: dict[str, Json] = {
    "well": {"ok": True, "asked": {"a": 1}},
    "refuses": {"error": "no such tree", "code": "no_tree", "remedy": "name another"},
    "unread": {"error": "journalctl: no", "code": "io"},
    "disk": {"error": "/srv: Input/output error", "code": "io"},
    "faulty": {"error": "a fault of rignode itself: KeyError: 'boots'", "code": "internal"},
    "leaves": {"error": "a fault of rignode itself: SystemExit: 3", "code": "internal"},
    "hangs": {"error": "no answer in 1 s", "code": "late"},
}


def part(verb: str, seconds: float = 1) -> Json:
    return {"verb": verb, "request": {"a": 1}, "seconds": seconds}


@pytest.fixture(scope="module")
def parts() -> dict[str, Json]:
    """What each part says, where all of them are asked and most fail."""
    found: dict[str, Json] = several({"parts": [part(verb) for verb in VERBS]}, VERBS)["parts"]
    return found


@pytest.mark.parametrize("verb", SAID)
def test_each_part_has_its_own_end(parts: dict[str, Json], verb: str) -> None:
    wanted = SAID[verb] if "ok" in SAID[verb] else {"ok": False, "remedy": "", **SAID[verb]}
    assert parts[verb] == wanted


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        ([part("several")], "verb"),
        ([part("apply")], "verb"),
        ([part("growth"), part("growth")], "asked twice"),
        ([part("growth", 0)], "seconds"),
        ([{"verb": "growth"}], "request"),
        ("growth", "parts"),
    ],
)
def test_what_may_not_be_asked_is_refused(rows: Any, line: str) -> None:
    with pytest.raises(NodeError, match=line):
        verbs.run("several", {"parts": rows})


def test_by_stdin_each_part_is_what_its_verb_prints_alone(host: Host) -> None:
    """One Python of the host's, which has the modules of all parts and no others."""
    (host.bin / "python3").symlink_to(sys.executable)
    rows = [pack.Part(verb, {}, 60) for verb in DOCTOR]
    line, stdin = pack.several_call(rows)
    done = host.run(["sh", "-c", line], stdin)
    answer = json.loads(done.stdout)
    assert done.stderr == "" and answer["ok"] is True and sorted(answer["parts"]) == [*DOCTOR]
    for verb, said in answer["parts"].items():
        call = pack.stdin_call(verb, {})
        alone = json.loads(host.run(["sh", "-c", call.line], call.stdin).stdout)
        assert said["ok"] is True, (verb, said)
        assert {*said} - {"ok"} == {*alone} - {"ok"}, verb
    sent = set(pack.needs("several", *DOCTOR))
    assert sent == {"node.verbs"}.union(*(pack.needs(verb) for verb in DOCTOR))


# How the program travels: one shell line that writes nothing, or an installed zipapp.

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
    assert pack.zipapp_bytes() == first and re.fullmatch(
        "[0-9a-f]{12}", render_unit.program_version()
    )
    archive = zipfile.ZipFile(io.BytesIO(first))
    assert archive.testzip() is None
    names = archive.namelist()
    assert "node/__main__.py" in names
    assert all(name == "__main__.py" or name.startswith("node/") for name in names)
    assert {info.date_time for info in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_the_version_follows_the_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    before = render_unit.program_version()
    changed = {**render_unit.whole_program(), "node/core/errors.py": b"# changed\n"}
    monkeypatch.setattr(render_unit, "whole_program", lambda: changed)
    render_unit.program_version.cache_clear()
    assert render_unit.program_version() != before
    render_unit.program_version.cache_clear()


def test_the_program_is_python_3_10_and_standard_library_only() -> None:
    for name, raw in render_unit.whole_program().items():
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
    assert "node.gpus" in pack.needs("snapshot")
    assert not {"node.change.transaction", "node.reap"} & set(pack.needs("snapshot"))
    assert {"node.change.kinds", "node.change.apply"} <= set(pack.needs("apply"))


@pytest.mark.parametrize("verb", sorted(verbs.ALL))
def test_no_import_is_overlooked(verb: str) -> None:
    """What every sent module imports of the program, by the syntax tree, is sent too."""
    sent = pack.needs(verb)
    packages = {name.rpartition(".")[0] for name in sent} - {""}
    assert packages <= set(sent), "a module without its package is not found on the host"
    files = {
        n[:-3].replace("/", ".").removesuffix(".__init__"): n for n in render_unit.whole_program()
    }
    for module in sent:
        for node in ast.walk(ast.parse(render_unit.whole_program()[files[module]])):
            if isinstance(node, ast.Import):
                assert {a.name for a in node.names if a.name.startswith("node")} <= set(sent)
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("node"):
                named = {f"{node.module}.{a.name}" for a in node.names} & files.keys()
                assert {node.module, *named} <= set(sent)


@pytest.mark.parametrize("verb", [*verbs.READING, "reap", "tree backup", "tree prune"])
def test_what_is_asked_without_installing_fits_a_command_line(verb: str) -> None:
    """With a twentieth of the room left for the request."""
    assert len(pack.inline_command(verb, {})) < 0.95 * pack.MAX_COMMAND


@pytest.mark.parametrize("name", render_unit.program_files())
def test_what_travels_differs_in_docstrings_alone(name: str) -> None:
    source = render_unit.program_file(name).decode()
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
    pyz = library / f"rignode-{render_unit.program_version()}.pyz"
    assert pyz.read_bytes() == pack.zipapp_bytes() and stat.S_IMODE(pyz.stat().st_mode) == 0o755
    assert link.readlink() == pyz and [p.name for p in library.iterdir()] == [pyz.name]
    inode = pyz.stat().st_ino
    again = lab_python.run(["bash", "-c", wrapped(command)], stdin)
    assert json.loads(again.stdout)["changed"] is False and pyz.stat().st_ino == inode
    assert "OPEN change-1" in lab_python.run([str(link), "status"]).stdout


def test_install_mends_a_cut_zipapp_and_an_old_link(lab_python: Host, tmp_path: Path) -> None:
    library, link = tmp_path / "lib", tmp_path / "rignode"
    library.mkdir()
    pyz = library / f"rignode-{render_unit.program_version()}.pyz"
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


# The same zipapp under every Python from 3.10 to 3.13 that this machine has.

THIS = ".".join(map(str, sys.version_info[:2]))


def version_of(python: str) -> str:
    """The version an interpreter says it has, "" when it does not run."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def interpreters() -> dict[str, str]:
    """Version to interpreter: this one, pyenv's, and those on PATH."""
    found = {THIS: sys.executable}
    for minor in range(10, 14):
        name = f"python3.{minor}"
        pyenv = Path.home().glob(f".pyenv/versions/3.{minor}*/bin/{name}")
        places = [str(path) for path in sorted(pyenv)]
        places += filter(None, [shutil.which(name)])
        for place in places:
            if f"3.{minor}" not in found and version_of(place) == f"3.{minor}":
                found[f"3.{minor}"] = place
    return dict(sorted(found.items(), key=lambda item: int(item[0].split(".")[1])))


FOUND = interpreters()


@pytest.mark.parametrize("version", FOUND)
def test_snapshot_apply_undo(host: Host, version: str) -> None:
    host.python = FOUND[version]
    done = host.run(host.argv("snapshot"), json.dumps({"files": ["/etc/passwd"]}))
    seen = NodeSnapshot.model_validate_json(done.stdout)
    assert seen.identity.python.startswith(version + ".") and done.stderr == ""
    path = host.file()
    steps = apply_request(file_step(path, validate=["sh", "-n", "{tmp}"]))
    assert host.call("apply", steps)["changed"] is True and path.read_text() == NEW
    assert host.call("apply", steps)["changed"] is False
    assert "OPEN change-1" in host.run(host.argv("status")).stdout
    assert host.call("undo")["status"] == "ROLLED_BACK" and path.read_text() == OLD
    assert host.call("apply", {"x": 1})["code"] == "bad_request"


@pytest.mark.parametrize("version", FOUND)
def test_the_inline_command(host: Host, version: str) -> None:
    (host.bin / "python3").symlink_to(FOUND[version])
    done = host.run(["sh", "-c", pack.inline_command("snapshot", {})])
    seen = NodeSnapshot.model_validate_json(done.stdout)
    assert seen.identity.python.startswith(version + ".") and done.stderr == ""


@pytest.mark.parametrize("version", FOUND)
def test_backup_verify_restore_undo(engine: Engine, version: str) -> None:
    engine.host.python = FOUND[version]
    before = picture(engine.tree)
    backup = engine.verified()
    shutil.rmtree(engine.package)
    assert engine.restore()["backup"] == backup and picture(engine.tree) == before
    assert engine.host.call("undo")["status"] == "ROLLED_BACK" and not engine.package.exists()
    assert engine.ask("prune", {"keep": 1, "displaced": True})["displaced_removed"]
