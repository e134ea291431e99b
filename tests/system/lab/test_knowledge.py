"""patch, provenance and pip's plan on booted hosts: a real venv, the real pip, a real image."""

from __future__ import annotations

import base64
import io
import json
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from facts import pack
from schema.artifact import VenvWheels
from tests.system.lab.test_node_over_ssh import send
from tests.system.rehearsal import Done, Lab
from tests.unit.builders import wheelhouse as w
from tests.unit.builders.mxfp4 import PATCHED, PATH, THREE

VENV = "/opt/knowledge"
HOUSE = "/srv/knowledge-wheels"
IMAGE = "rigbook/knowledge:1"
LIBRARY = "usr/local/lib/python3.12/dist-packages"
RECIPE = ("--data", "recipe=knowledge", "--data", "recipes_dir=tests/system/lab/knowledge")
METADATA = (
    "build_date: 2026-05-27T21:40:38Z\n"
    "vllm_commit: 48cebd4ad65d0b8263474dff1eb6ef83cb4fcc23\n"
    'build_args:\n  vllm_ref: main\n  vllm_prs: "41834"\n'
)
# A stand-in for Genesis: it changes a file once, and says its line.
TOOL = f"""#!/bin/sh
cd {VENV}/lib/python3*/site-packages/vllm || exit 9
n=0; grep -q patched tool.py || {{ echo '# patched' >> tool.py; n=1; }}
echo "$n applied, 36 skipped, 0 failed"
"""


def put(lab: Lab, host: str, raw: bytes, command: str) -> None:
    """Bytes to the stdin of a root command on a host."""
    text = base64.b64encode(raw).decode()
    lab.ssh(host, f"base64 -d | sudo sh -c '{command}'", stdin=text)


def image(files: dict[str, str]) -> bytes:
    """A root tree as a tar, for docker import."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    return buffer.getvalue()


@pytest.fixture(scope="module")
def known(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Both hosts with a venv of the doubled file, a wheel folder, and an image."""
    house: Path = tmp_path_factory.mktemp("house")
    files = w.vllm_files("0.20.2", {PATH: THREE, "vllm/tool.py": "x = 1\n"})
    made = [
        w.wheel(house, "vllm", "0.20.2", files, ["torch==2.9.0"]),
        w.wheel(house, "torch", "2.9.0+cpu", w.torch_files("2.9.0+cpu", None)),
        w.wheel(house, "torch", "2.10.0+cu130", w.torch_files("2.10.0+cu130", "13.0")),
        w.wheel(house, "vllm", "0.21.0", w.vllm_files("0.21.0"), ["torch==2.10.0"]),
    ]
    tree = image(
        {
            "workspace/build-metadata.yaml": METADATA,
            f"{LIBRARY}/vllm/_version.py": "__version__ = version = '0.21.1.dev7+g48cebd4ad'\n",
            f"{LIBRARY}/{PATH}": PATCHED,
            f"{LIBRARY}/torch/version.py": "__version__ = '2.10.0+cu130'\ncuda = '13.0'\n",
            f"{LIBRARY}/deep_gemm/__init__.py": "",
        }
    )
    for host in lab.hosts:
        lab.ssh(host, f"sudo mkdir -p {HOUSE} && sudo python3 -m venv {VENV}")
        for path in made:
            put(lab, host, path.read_bytes(), f"cat > {HOUSE}/{path.name}")
        pip = f"{VENV}/bin/python -m pip install -q --no-index --find-links {HOUSE}"
        lab.ssh(host, f"sudo {pip} vllm==0.20.2")
        put(
            lab,
            host,
            TOOL.encode(),
            f"cat > {VENV}/bin/patch-tool; chmod 755 {VENV}/bin/patch-tool",
        )
        put(lab, host, tree, f"docker import - {IMAGE}")
    yield lab
    for host in lab.hosts:
        lab.ssh(host, f"sudo rm -rf {VENV} {HOUSE}; sudo docker rmi {IMAGE}")


def target(lab: Lab, host: str) -> str:
    """The text of the file that the patch is about."""
    return lab.ssh(host, f"sudo cat {VENV}/lib/python3*/site-packages/{PATH}") + "\n"


def patch(lab: Lab, *arguments: str, yes: bool = True) -> Done:
    """A run of deploys/patch.py on the venv."""
    return lab.pyinfra("patch", *RECIPE, "--data", f"venv={VENV}", *arguments, yes=yes)


def test_the_seeds_file_is_mended_once_and_undone(known: Lab) -> None:
    """C15, C4: dry shows it, one run mends it, a second changes nothing, rollback undoes it."""
    dry = patch(known, "--dry", "--diff", yes=False)
    assert dry.rc == 0 and "stands 3 times, 2 are right" in dry.text, dry.text
    assert dry.text.count("-        torch.cuda.empty_cache()") == 2
    assert all(target(known, host) == THREE for host in known.hosts)

    run = patch(known)
    assert run.rc == 0 and "COMMITTED" in run.text, run.text
    assert "stand-in-tool: 1 applied, 36 skipped, 0 failed; 1 files changed" in run.text
    assert all(target(known, host) == PATCHED for host in known.hosts)

    again = patch(known)
    assert again.rc == 0 and "applied:" in again.text, again.text
    assert again.counts("Write the patched files")[1:3] == ("-", "-")
    said = re.search(r"change (\S+-patch-\w+)", run.text)
    assert said
    change = said[1]
    assert all(known.changes(host)[0]["id"] == change for host in known.hosts)

    back = known.pyinfra("rollback", "--data", f"change={change}")
    assert back.rc == 0 and "ROLLED_BACK" in back.text, back.text
    assert all(target(known, host) == THREE for host in known.hosts)
    tool = known.ssh("test1", f"cat {VENV}/lib/python3*/site-packages/vllm/tool.py")
    assert tool == "x = 1"


def test_a_file_in_no_known_state_stops_both_hosts(known: Lab) -> None:
    """Edited on one host: nothing is written on either."""
    edit = f"sudo sh -c 'echo nothing > {VENV}/lib/python3*/site-packages/{PATH}'"
    before = target(known, "test1")
    known.ssh("test2", edit.replace("python3*", "$(ls " + VENV + "/lib | grep python3)"))
    run = patch(known)
    assert run.rc == 1 and "patch-drifted" in run.text and "Traceback" not in run.text
    assert target(known, "test1") == before


def test_an_image_is_read_without_running_it(known: Lab) -> None:
    """C9 and C2: the metadata answers; DeepGEMM lacks CUTLASS's headers."""
    before = known.ssh("test1", "sudo docker ps -aq")
    run = known.pyinfra("provenance", *RECIPE, "--data", "commits=41834,48cebd4ad,7fb9c0197a31")
    assert run.rc == 1 and "Traceback" not in run.text, run.text
    assert "#41834: in: /workspace/build-metadata.yaml: build_args.vllm_prs" in run.text
    assert "48cebd4ad: in: " in run.text and "7fb9c0197a31: cannot tell: " in run.text
    assert "torch 2.10.0+cu130 (cu130)" in run.text
    assert "'empty_cache' 2 in /usr/local/lib/python3.12" in run.text
    assert "module-missing" in run.text
    assert ": deep_gemm/include/cutlass/cutlass.h" in run.text
    assert known.ssh("test1", "sudo docker ps -aq") == before


def test_a_venv_is_read_as_well(known: Lab) -> None:
    run = known.pyinfra(
        "provenance",
        *RECIPE,
        "--data",
        f"venv={VENV}",
        "--data",
        "json=true",
        "--data",
        "commits=1",
    )
    document = json.loads(run.text[run.text.index("{\n") : run.text.rindex("}\n") + 1])
    assert document["test1"]["vllm_version"] == "0.20.2"
    assert document["test1"]["torch_variant"] == "cpu"
    assert document["test2"]["asked"][0]["verdict"] == "cannot tell"


def test_the_hosts_own_pip_says_what_it_would_do(known: Lab) -> None:
    """B5 and C1 on the real part: torch would change its variant; the old wheel is gone."""
    request: dict[str, object] = {"venv": VENV, "package": "vllm", "wanted": "0.21.0",
               "pip_args": ["--no-index", f"--find-links={HOUSE}"]}  # fmt: skip
    answer = send(known, "test1", pack.inline_command("wheels", request))
    answer.pop("ok")
    seen = VenvWheels.model_validate(answer)
    assert seen.torch_variant() == "cpu" and "2.10.0+cu130" in str(seen.wanted)
    known.ssh("test1", f"sudo rm {HOUSE}/vllm-0.20.2-*")
    gone = send(known, "test1", pack.inline_command("wheels", request))
    assert gone["old"] is None and "vllm==0.20.2" in gone["old_error"]
