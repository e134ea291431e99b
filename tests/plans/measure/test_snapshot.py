"""snapshot keeps what is seen of a rig in one file, without a secret, and changes nothing."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from node.rules.secret import MASK
from schema.desired.plan import Plan
from schema.machine.rig_snapshot import KeptNode, RigSnapshot
from schema.observed.files import FileState
from schema.observed.snapshot import Unreadable
from tests.plans.support.scenario import HEAD, WORKER, Runs, Scenario, Snapshots, serving
from tests.plans.support.table import Table, each_row, quiet, refused
from tests.unit.builders import former_parts
from tests.unit.builders.engine_parts import foreign_container
from tests.unit.builders.host_parts import process, unit
from tests.unit.builders.snapshots import put

SNAPSHOT = ("deploys/snapshot.py", "-y")
MADE = tempfile.TemporaryDirectory(prefix="rigbook-snapshot-")
# one word in every place where a rig may hold a secret; it must be in no file
WORD = f"S3cr3t{os.urandom(6).hex()}"
GHOST = "vllm-ds4-head.service"
UNIT_FILE = f"/etc/systemd/system/{GHOST}"
TEXT = (
    f"[Service]\nUser=llm\nEnvironment=LITELLM_AUTH={WORD}\n"
    f'Environment="HF_TOKEN={WORD}" "NCCL_DEBUG=INFO"\n'
    f"ExecStart=/usr/bin/docker exec -e OPENAI_KEY={WORD} vllm_node bash /workspace/gone.sh "
    f"--api-key {WORD}\n"
)
PASSWD = (
    "root:x:0:0:root:/root:/bin/bash\nmilo:x:1000:1000:Milo Somebody:/home/milo:/bin/bash\n"
    "llm:x:998:998::/srv/llm:/usr/sbin/nologin\nsshd:x:110:65534::/run/sshd:/bin/false\n"
)


def file(path: str, content: str) -> FileState:
    """A file that everybody may read."""
    return FileState(path=path, kind="file", sha256=None, size=len(content), mode="0644", uid=0,
                     gid=0, content=content)  # fmt: skip


def disordered(plan: Plan) -> Snapshots:
    """A rig that serves beside a ghost unit and a foreign container, secrets everywhere."""
    seen = dict(serving(plan))
    one = seen[HEAD]
    units = (*one.units, unit(name=GHOST, fragment=UNIT_FILE, exec_start=(
        "/usr/bin/docker", "exec", "-e", f"OPENAI_KEY={WORD}", "vllm_node"),
        last_log_line=f"Authorization: Bearer {WORD}"))  # fmt: skip
    one = put(one, "units", units)
    docker = one.docker
    assert not isinstance(docker, Unreadable)
    box = foreign_container(environ={"HF_TOKEN": WORD}, labels={"note": f"https://u:{WORD}@host/"},
                            argv=("serve", "--api-key", WORD))  # fmt: skip
    one = put(one, "docker.containers", (*docker.containers, box))
    found = one.engine_processes
    assert not isinstance(found, Unreadable)
    alien = process(9, "vllm", "serve", "--hf-token", WORD, environ={"VLLM_API_KEY": WORD})
    one = put(one, "engine_processes", (*found, alien))
    assert isinstance(one.files, tuple)
    files = [*one.files, file(UNIT_FILE, TEXT), file("/etc/passwd", PASSWD)]
    return {**seen, HEAD: put(one, "files", tuple(files))}


def folder(name: str) -> dict[str, str]:
    """The variable that names the folder of this row."""
    return {"RIGBOOK_SNAPSHOTS": str(Path(MADE.name, name))}


FORMER = former_parts.said(former_parts.seed())
FORMER["engines"][0]["env"] |= {"VLLM_API_KEY": WORD}
TABLE: Table = {
    "whole": (Scenario(SNAPSHOT, disordered, env=folder("whole"),
                       faults={f"{HEAD}:says former": FORMER}),
              quiet("lab.json, secrets masked", "lab1: 3 units, 2 containers, 0 kernels")),
    "lost": (Scenario(SNAPSHOT, disordered, env=folder("lost"),
                      faults={f"{WORKER}:lost": "snapshot"}),
             quiet("lab.json, secrets masked", "lab2 is not in it: OSError")),
    "nobody": (Scenario(SNAPSHOT, env=folder("nobody"), faults={
        f"{name}:lost": "snapshot" for name in (HEAD, WORKER)}), refused("no node of rig lab")),
    "dry": (Scenario(("deploys/snapshot.py", "--dry"), disordered, env=folder("dry")),
            quiet("would write ", never=("secrets masked",))),
}  # fmt: skip
test_each_run_ends_as_its_row_says = each_row(TABLE)


def kept(ran: Runs, name: str) -> RigSnapshot:
    """The file that a row's run wrote."""
    assert ran[name].status == 0
    path = Path(MADE.name, name, "lab.json")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    return RigSnapshot.model_validate_json(path.read_text())


def test_no_secret_is_in_the_file_and_what_is_none_is(ran: Runs) -> None:
    text = Path(MADE.name, "whole", "lab.json").read_text()
    assert kept(ran, "whole") and WORD not in text
    for name in ("LITELLM_AUTH", "HF_TOKEN", "OPENAI_KEY", "--api-key", "--hf-token"):
        assert name in text, f"{name} was planted and is not there to be masked"
    assert text.count(MASK) >= 8 and "NCCL_DEBUG=INFO" in text


def test_it_has_what_a_twin_needs(ran: Runs) -> None:
    found = kept(ran, "whole")
    head, worker = found.nodes[HEAD], found.nodes[WORKER]
    assert isinstance(head, KeptNode) and isinstance(worker, KeptNode)
    assert (found.rig, found.recipe) == ("lab", "tiny")
    assert isinstance(head.texts, tuple) and isinstance(head.users, tuple)
    assert "/workspace/gone.sh" in {row.path: row.text for row in head.texts}[UNIT_FILE]
    assert [row.name for row in head.users] == ["milo", "llm"]
    assert head.former and not isinstance(head.former, Unreadable) and head.former.engines
    assert isinstance(kept(ran, "lost").nodes[WORKER], Unreadable)


def test_without_an_answer_and_in_a_dry_run_there_is_no_file(ran: Runs) -> None:
    for name in ("nobody", "dry"):
        assert "--> " in ran[name].output and not Path(MADE.name, name, "lab.json").exists()
