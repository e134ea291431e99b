"""The door of a narrow sudo: what rigbook sends goes through, and a shell does not."""

from __future__ import annotations

import base64
import json
import re
import shlex
import subprocess
import sys
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from facts.boot_id import BootId
from facts.rignode import pack
from facts.rignode.call import bounded
from facts.rignode.context import as_root
from facts.unit_state import Log, Unit
from node.cli import door
from operations.door import script as made
from operations.sealed.backup import read_line, write_line
from schema.render import node_program

ID = "sha256:" + "a" * 64
# each shell line that rigbook runs as root, as the place that sends it writes it
NCCL = (
    "journalctl -o cat --no-pager _SYSTEMD_INVOCATION_ID=$(systemctl show --value "
    "--property=InvocationID -- {}) | LC_ALL=C grep -aoE {} | sort | uniq -c | head -n 60; true"
)
BACKUP = "/var/lib/rigbook/backups/20261120T221136Z-venv-afd9"
LINES = [
    NCCL.format("rigbook-engine.service", "'via NET/[A-Z]+|Using network [A-Za-z0-9_]+'"),
    BootId().command(),
    Unit().command("rigbook-engine.service"),
    Unit().command("rigbook@a:b.timer"),
    Log().command("rigbook-watch.service", 10),
    Log().command("x.service", 40, "0123456789abcdef" * 2),
    bounded("systemctl stop rigbook-engine.service", 300),
    "nohup sh -c 'sleep 1; systemctl reboot' >/dev/null 2>&1 &",
    "systemctl is-enabled -q rigbook-engine.service 2>/dev/null"
    " && timeout 60 systemctl start --no-block rigbook-engine.service || true",
    bounded("cat /var/lib/rigbook/spool/image.progress 2>/dev/null || true", 10),
    bounded(f"docker pull --quiet vllm/vllm-openai@{ID}", 3600),
    bounded(f"docker image inspect --format {shlex.quote('{{.Id}}')} {ID}", 60),
    bounded(f"docker image inspect --format {shlex.quote('{{json .RootFS.Layers}}')} a:5000/b", 60),
    bounded(f"docker save {ID}", 60),
    bounded("docker load --quiet", 60),
    bounded(read_line(f"{BACKUP}/payload.tar.zst", 33 << 20, 32 << 20), 60),
    bounded(write_line(f"{BACKUP}.partial/base.jsonl", 0), 60),
]
SHELLS = [
    "id", "sh", "sh -i", "bash -c id", "cat /etc/shadow", "",
    "cat /proc/sys/kernel/random/boot_id; id", "cat /proc/sys/kernel/random/boot_id\nid",
    bounded("id", 60), bounded("sh -c 'id'", 60), "timeout -k 5 60 sh -c 'docker load --quiet' id",
    "timeout -k 5 60 sh -c 'docker load --quiet", "timeout -k 5 60 sh -c docker load --quiet",
    "timeout -k 5 1s sh -c 'docker load --quiet'",
    NCCL.format("a", "'x' /etc/shadow"), NCCL.format("a", "'-f/etc/shadow'"),
    NCCL.format("$(id)", "'x'"), Unit().command("$(id)"),
    Unit().command("--help"), Unit().command("a b"),
    Unit().command("a").replace("journalctl -u a", "journalctl -u b"),
    Log().command("x.service; id", 10), Log().command("-D/root", 10),
    bounded("systemctl stop ssh.service", 300), bounded("systemctl reboot", 10),
    bounded("docker run -v /:/x --privileged a sh", 60), bounded("docker pull --quiet -h", 60),
    bounded("docker save a | tar x", 60), bounded("docker save -o /etc/passwd a", 60),
    bounded("docker image inspect --format '{{.Id}}' a; id", 60),
    bounded("cat /var/lib/rigbook/spool/../../../etc/shadow 2>/dev/null || true", 10),
    bounded("cat /var/lib/rigbook/spool/a.progress /etc/shadow", 10),
    bounded(read_line("/etc/shadow", 0, 9), 60),
    bounded(read_line(f"{BACKUP}/../../../shadow", 0, 9), 60),
    bounded(read_line(f"{BACKUP}/payload /etc/shadow", 0, 9), 60),
    bounded(write_line(f"{BACKUP}/manifest.json", 0), 60),
    bounded(write_line("/etc/sudoers.d/x", 0), 60),
    "printf %s x | python3 -I -S -B -c 'import os' ; id", "python3 -c 'import os'",
    "python3 -I -S -B -c a b", "printf %s $(id) | sh",
]  # fmt: skip


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the program and the door that names it, as root's script writes them."""
    folder = tmp_path_factory.mktemp("door")
    program = folder / Path(node_program.path()).name
    program.write_bytes(pack.zipapp_bytes())
    text = made.door().replace(node_program.path(), str(program))
    (folder / "door").write_text(text.replace("/usr/bin/python3", sys.executable))
    (folder / "door").chmod(0o755)
    return folder


def through(installed: Path, *argv: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """The door started as sudo starts it; pyinfra ends what it writes to stdin with a newline."""
    return subprocess.run([str(installed / "door"), *argv], input=f"{stdin}\n", text=True,
                          capture_output=True, timeout=60, check=False)  # fmt: skip


def answer(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """What the program said."""
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("line", LINES)
def test_each_line_that_rigbook_runs_is_one_of_the_doors(line: str) -> None:
    assert door.is_line(door.split(line)[1])


@pytest.mark.parametrize("line", SHELLS)
def test_the_door_has_no_shell(installed: Path, line: str) -> None:
    done = through(installed, "-c", line)
    assert (done.returncode, done.stdout) == (126, ""), (line, done)
    assert done.stderr.startswith("rigbook-door: ") and len(done.stderr.splitlines()) == 1


def test_a_line_is_run_with_its_limit(installed: Path) -> None:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    assert through(installed, "-c", BootId().command()).stdout == boot
    timed = bounded("cat /var/lib/rigbook/spool/none.progress 2>/dev/null || true", 10)
    assert through(installed, "-c", timed).returncode == 0


def test_the_program_runs_in_each_of_its_ways(installed: Path) -> None:
    """In the line, through stdin, and installed first: a request of any length, quotes in it."""
    paths = {"paths": [f"/no'such \"file {n}" for n in range(20)]}
    line = bounded(pack.inline_command("models look", paths), 60)
    assert len(answer(through(installed, "-c", line))["files"]) == 20
    call = pack.stdin_call("models look", paths)
    done = through(installed, "-c", bounded(call.line, 60), stdin=call.stdin)
    assert len(answer(done)["files"]) == 20
    call = pack.several_call([pack.Part("models look", paths, 60), pack.Part("growth", {}, 60)])
    done = through(installed, "-c", bounded(call.line, 60), stdin=call.stdin)
    assert len(answer(done)["parts"]["models look"]["files"]) == 20
    call = pack.install_call("close", {"change": "none", "status": "COMMITTED", "x": "y" * 300_000})
    done = through(installed, "-c", bounded(call.line, 60), stdin=call.stdin)
    assert answer(done)["code"] == "bad_request", done


def test_a_person_types_a_verb(installed: Path) -> None:
    done = through(installed, "models", "look", '{"paths": ["/no"]}')
    assert answer(done)["files"][0]["path"] == "/no"


def word(value: object) -> str:
    """A word as facts/rignode/pack.py makes it."""
    return base64.b64encode(zlib.compress(json.dumps(value).encode())).decode()


def test_code_that_root_did_not_install_is_not_run(installed: Path, tmp_path: Path) -> None:
    """One changed module of those that travel, one of another name, and another program."""
    own = json.loads(zlib.decompress(base64.b64decode(pack._program("models look"))))
    mark = tmp_path / "ran"
    evil = f"open({str(mark)!r}, 'w')\n"
    asked = word(["models", "look", '{"paths": ["/no"]}'])
    run = "python3 -I -S -B -c " + shlex.quote(evil)
    for name in ("node", "node.__main__", "node.more"):
        sent = word({**own, name: (name == "node", evil)})
        done = through(installed, "-c", bounded(run, 60), stdin=f"{asked}.{sent}")
        assert (done.returncode, answer(done)["code"]) == (1, "door")
        assert "make sudoers LOGIN=NAME" in answer(done)["remedy"]
        done = through(installed, "-c", f"printf %s {asked}.{sent} | {run}")
        assert answer(done)["code"] == "door"
    header = word([["close"], "{}", str(tmp_path), "/x", "rignode-0123456789ab.pyz", False])
    install = "python3 -I -B -c " + shlex.quote(evil)
    done = through(installed, "-c", install, stdin=f"{header}:{word('x')}")
    assert answer(done)["code"] == "door" and not mark.exists()
    # the code beside it is not looked at: what runs is the installed program
    done = through(installed, "-c", bounded(run, 60), stdin=f"{asked}.{word(own)}")
    assert answer(done)["ok"] and not mark.exists()


@pytest.mark.parametrize("stdin", ["", "x", "x.y", "....", "AAAA.AAAA", "é.é"])
def test_what_is_no_request_is_refused_in_a_line(installed: Path, stdin: str) -> None:
    done = through(installed, "-c", "python3 -I -S -B -c x", stdin=stdin)
    assert done.returncode == 126 and len(done.stderr.splitlines()) == 1, done


def test_the_inventory_names_the_shell_of_root() -> None:
    for data, shell in (({"_shell_executable": made.DOOR}, made.DOOR), ({}, "sh")):
        host: Any = SimpleNamespace(data=data)
        assert as_root(host) == {"_sudo": True, "_shell_executable": shell}


def test_each_fact_that_is_a_shell_line_is_known_to_the_door() -> None:
    """A new one needs its pattern in node/cli/door.py, and a row in LINES."""
    known = {"BootId", "Unit", "Log", "NcclLog"}
    for path in (Path(__file__).parents[4] / "facts").rglob("*.py"):
        found = re.findall(r"^class (\w+)\(FactBase\[", path.read_text(), re.MULTILINE)
        assert path.name == "fact.py" or {*found} <= known, (path, found)


def test_every_command_of_roots_goes_by_the_shell_that_the_inventory_names() -> None:
    """Nothing asks for sudo past as_root: there it would be `sh`, which a narrow sudo refuses."""
    for layer in ("facts", "operations", "deploys"):
        for path in (Path(__file__).parents[4] / layer).rglob("*.py"):
            for line in path.read_text().splitlines():
                past = line.strip() == "_sudo=True," or "run_shell_command, " in line
                assert not (past and "_sudo=True" in line), (path, line)
