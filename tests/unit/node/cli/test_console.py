"""What a person at the console types: status and undo, with no request."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest

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
