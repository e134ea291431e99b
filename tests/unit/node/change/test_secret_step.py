"""The engine's secrets: root's alone on the host, compared there, and in nothing that is told."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from node.files import secret_env
from node.rules.secret import API_KEY
from node.snapshot import files
from tests.unit.node.support.host import Host, apply_request, mode

CANARY = f"T0P-{os.urandom(6).hex()}"
OTHER = "0TH3R-S3CRET"
Step = dict[str, object]


def row(name: str = "HF_TOKEN", value: str = CANARY) -> dict[str, str]:
    return {"name": name, "value": value}


def step(path: Path, *rows: dict[str, str], quoted: bool = False, **more: object) -> Step:
    """The step that serve sends."""
    head = {"op": "file", "path": str(path), "mode": "0600", "secrets": list(rows)}
    return {**head, "quoted": quoted, **more}


def env_path(host: Host) -> Path:
    return host.root / "secrets.env"


def look(host: Host, *rows: dict[str, str], quoted: bool = False) -> dict[str, str]:
    """What `secrets look` says."""
    request = {"path": str(env_path(host)), "secrets": list(rows), "quoted": quoted}
    states: dict[str, str] = host.call("secrets look", request)["states"]
    return states


def lines(host: Host) -> list[str]:
    """The file behind its first line, which is random."""
    first, *rest = env_path(host).read_text().splitlines()
    assert re.match(r"# .*[0-9a-f]{32}\Z", first)
    return rest


def everything(folder: Path) -> dict[Path, str]:
    """Every file below the folder by its path."""
    return {p: p.read_text(errors="replace") for p in folder.rglob("*") if p.is_file()}


def test_the_file_is_roots_alone_and_nothing_else_holds_a_value(host: Host) -> None:
    """Neither the answers nor the journal have it; the former value is in a blob, 0600 as well."""
    path = env_path(host)
    answers: list[object] = [
        host.call("apply", apply_request(step(path, row()))),
        host.call("apply", apply_request(step(path, row(value=OTHER)))),
        host.call("journal", {"change": "change-1"}),
    ]
    answers.append(host.run(host.argv("status")).stdout)
    assert (lines(host), mode(path)) == ([f"HF_TOKEN={OTHER}"], 0o600)
    for secret, holders in ((CANARY, 1), (OTHER, 1)):
        assert secret not in json.dumps(answers)
        found = [p for p, text in everything(host.root).items() if secret in text]
        assert len(found) == holders and all(mode(p) == 0o600 for p in found)
    assert mode(host.state) == mode(host.state / "blobs") == 0o700
    assert host.leftovers() == []


def test_no_digest_tells_a_value(host: Host) -> None:
    """A short secret could be guessed from a sha256: two files of the same value have two."""
    digests = set()
    for n in range(2):
        env_path(host).unlink(missing_ok=True)
        host.call("apply", apply_request(step(env_path(host), row()), name=f"change-{n}"))
        journal = host.call("journal", {"change": f"change-{n}"})["change"]
        digests.add(journal["steps"][0]["post"]["sha256"])
        host.call("close", {"change": f"change-{n}", "status": "COMMITTED", "reason": "x"})
    assert len(digests) == 2
    plain = f"HF_TOKEN={CANARY}\n".encode()
    assert hashlib.sha256(plain).hexdigest() not in digests


def test_a_second_apply_changes_nothing(host: Host) -> None:
    host.call("apply", apply_request(step(env_path(host), row())))
    before = env_path(host).read_bytes()
    again = host.call("apply", apply_request(step(env_path(host), row())))
    assert again["changed"] is False and env_path(host).read_bytes() == before


def test_undo_brings_the_former_value_and_tells_none(host: Host) -> None:
    path = env_path(host)
    path.write_text(f"HF_TOKEN={CANARY}\n")
    path.chmod(0o600)
    host.call("apply", apply_request(step(path, row(value=OTHER))))
    answer = host.call("undo", {"change": "change-1"})
    assert answer["status"] == "ROLLED_BACK" and path.read_text() == f"HF_TOKEN={CANARY}\n"
    assert CANARY not in json.dumps(answer) and OTHER not in json.dumps(answer)


def test_look_says_by_name_what_differs_and_changes_nothing(host: Host) -> None:
    assert look(host, row()) == {"HF_TOKEN": "new"}
    assert not env_path(host).exists()
    host.call("apply", apply_request(step(env_path(host), row("A"), row("B"), row("C"))))
    assert look(host, row("A"), row("B", OTHER)) == {
        "A": "unchanged", "B": "changed", "C": "removed"
    }  # fmt: skip


@pytest.mark.parametrize("quoted", [False, True])
def test_a_file_of_the_host_is_read_there(host: Host, quoted: bool) -> None:
    token = host.file("token", f"{CANARY}\n", mode=0o600)
    rows = {"name": "HF_TOKEN", "node_file": str(token)}
    host.call("apply", apply_request(step(env_path(host), rows, quoted=quoted)))
    assert lines(host) == [f"HF_TOKEN={CANARY}"]
    assert look(host, rows, quoted=quoted) == {"HF_TOKEN": "unchanged"}
    token.write_text(f"{OTHER}\r\n")
    assert look(host, rows, quoted=quoted) == {"HF_TOKEN": "changed"}


HOSTILE = ["it's", 'a "b" c', "$(touch CANARY)", "`touch CANARY`", "a\\b\\", "#no", "%n $HOME", "ü",
           " x ", '"q"', "a=b=c"]  # fmt: skip


@pytest.mark.parametrize("value", HOSTILE)
@pytest.mark.parametrize("quoted", [False, True])
def test_any_line_comes_back(tmp_path: Path, value: str, quoted: bool) -> None:
    path = str(tmp_path / "secrets.env")
    rows = secret_env.parse([{"name": "A", "value": value}], "secrets")
    Path(path).write_bytes(secret_env.render(path, rows, quoted))
    assert secret_env.value_of(path, "A", quoted) == value
    if quoted:
        return
    # as docker's --env-file takes it: all behind the first `=`, as it is
    assert Path(path).read_text().splitlines()[1] == f"A={value}"


REFUSED: list[tuple[Any, str]] = [
    ({"name": "A", "value": f"{CANARY}\nx"}, "A: the value that was sent holds a newline"),
    ({"name": "A", "value": f"{CANARY}\x1b"}, "another control character"),
    ({"name": "A", "value": ""}, "A: the value that was sent is empty"),
    ({"name": "A", "value": CANARY * 1000}, "is longer than 8192 characters"),
    ({"name": API_KEY, "value": f"{CANARY} ü"}, "no HTTP header can hold"),
    ({"name": "A", "value": [CANARY]}, "secrets[0].value is not text"),
    ({"name": f"A {CANARY}", "value": "x"}, "secrets[0].name is not a variable's name"),
    ({"name": "A", "value": CANARY, "node_file": "/x"}, "one of them"),
    ({"name": "A"}, "one of them"),
    ({"name": "A", "node_file": "x/y"}, "not an absolute, normalised path"),
    ({"name": "A", "node_file": "/nowhere/token"}, "A: /nowhere/token cannot be read: No such"),
    ({"name": "A", "node_file": "/dev/null"}, "A: /dev/null is no plain file"),
    ({"name": "A", "node_file": "@open"}, "is open to every user; chmod o="),
    ({"name": "A", "node_file": "@link"}, "cannot be read: Too many levels of symbolic links"),
    ({"name": "A", "node_file": "@empty"}, "is empty"),
    ({"name": "A", "node_file": "@two"}, "holds a newline"),
    ({"name": "A", "node_file": "@binary"}, "is not UTF-8 text"),
]


@pytest.mark.parametrize(("wanted", "said"), REFUSED)
@pytest.mark.parametrize("verb", ["apply", "secrets look"])
def test_what_cannot_be_one_is_refused_without_the_value(
    host: Host, verb: str, wanted: dict[str, Any], said: str
) -> None:
    for name, raw, bits in (
        ("open", CANARY.encode(), 0o644), ("empty", b"\n", 0o600),
        ("two", f"{CANARY}\n{CANARY}".encode(), 0o600), ("binary", b"\xff\xfe", 0o600),
    ):  # fmt: skip
        (host.root / name).write_bytes(raw)
        (host.root / name).chmod(bits)
    (host.root / "link").symlink_to(host.root / "two")
    named = str(wanted.get("node_file", ""))
    if named.startswith("@"):
        wanted = {**wanted, "node_file": str(host.root / named[1:])}
    request: Any = {"path": str(env_path(host)), "secrets": [wanted], "quoted": False}
    if verb == "apply":
        request = apply_request(step(env_path(host), wanted))
    done = host.run(host.argv(verb), json.dumps(request))
    assert done.returncode == 1 and CANARY not in done.stdout + done.stderr
    answer = json.loads(done.stdout)
    assert said in f"{answer['error']}; {answer.get('remedy')}"
    assert not env_path(host).exists()


@pytest.mark.parametrize(
    "more", [{"content": "x"}, {"mode": "0640"}, {"secrets": [row("A"), row("A")]}]
)
def test_a_step_that_would_show_them_is_refused(host: Host, more: Step) -> None:
    request = apply_request({**step(env_path(host), row()), **more})
    answer = host.call("apply", request)
    assert answer["ok"] is False and CANARY not in json.dumps(answer)


def test_a_snapshot_has_the_names_alone(host: Host) -> None:
    """Also of a name that no pattern takes for a secret, and of a file that all may read."""
    host.call("apply", apply_request(step(env_path(host), row("PIN"))))
    assert files.state(str(env_path(host)))["content"] == "#\nPIN=***\n"
    env_path(host).chmod(0o644)
    assert files.state(str(env_path(host)))["content"] == "#\nPIN=***\n"


def test_no_process_shows_a_value_while_it_works(host: Host) -> None:
    """The verb reads its stdin: nothing of it is in argv, nor in the environment of the program."""
    seen = host.root / "seen"
    poll = (
        f"cat /proc/*/cmdline /proc/*/environ 2>/dev/null | tr '\\0' '\\n' "
        f"| grep -c {shlex.quote(CANARY[:3] + '[-]' + CANARY[4:])} >> {shlex.quote(str(seen))}; "
        "bash -n $1"
    )
    checks = {"validate": ["sh", "-c", poll, "poll", "{tmp}"]}
    answer = host.call("apply", apply_request(step(env_path(host), row(), **checks)))
    assert answer["ok"] is True and seen.read_text() == "0\n"
    # the poll sees what stands in a command line
    done = subprocess.run(
        ["sh", "-c", f"{poll}; :", "poll", os.devnull, CANARY], check=False, capture_output=True
    )
    assert done.returncode == 0 and seen.read_text().splitlines()[-1] != "0"
