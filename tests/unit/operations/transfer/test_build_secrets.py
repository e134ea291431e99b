"""What a build's script does with secrets: a real shell, and a double of docker that looks."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from facts.local.secret_values import SecretMissing
from operations.transfer.image_ssh import build_script
from schema.recipe.recipe import ImageBuild
from schema.recipe.secrets import SecretSource
from schema.render.image_build import Context
from tests.unit.builders.spark_rig import spark_plan

CANARY = f"T0P-{os.urandom(6).hex()} $(touch CANARY) \\ `x` '\""
RAW = b"the context"
# Notes its words, the secrets that it may read with their modes, and the context.
DOCKER = """#!/bin/sh
[ "$1" = build ] || exit 0
echo "$DOCKER_BUILDKIT $*" >{notes}/words
for word; do
  case $word in id=*) f=${{word#*src=}}; cat "$f" >{notes}/$(basename $f)
    stat -c %a $(dirname $f) >{notes}/$(basename $f).mode;; --iidfile) iid=1;; *) [ "$iid" = 1 ] &&
    {{ echo sha256:0 >$word; iid=; }};; esac
done
cat >{notes}/context
exit {status}
"""


def build(**secrets: SecretSource) -> Context:
    """A build that reads these secrets."""
    made = ImageBuild(template="layered", base="scratch", args={"A": "1"}, secrets=secrets)
    return Context("my/vllm:1", made, ())


def run(tmp_path: Path, context: Context, status: int = 0) -> subprocess.CompletedProcess[bytes]:
    """The script in a shell whose /run is a folder of the test."""
    script, sent = build_script(context, spark_plan().rig.head, len(RAW))
    for name in ("bin", "notes", "tmp"):
        (tmp_path / name).mkdir()
    docker = tmp_path / "bin/docker"
    docker.write_text(DOCKER.format(notes=shlex.quote(str(tmp_path / "notes")), status=status))
    docker.chmod(0o755)
    env = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "TMPDIR": str(tmp_path / "tmp")}
    script = script.replace("/run/", f"{tmp_path}/")
    assert CANARY not in script
    # its stdin stays open, as a session's does
    with subprocess.Popen(
        ["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env=env, cwd=tmp_path,
    ) as child:  # fmt: skip
        assert child.stdin is not None and child.stdout is not None and child.stderr is not None
        child.stdin.write(sent + RAW)
        child.stdin.flush()
        out, err = child.stdout.read(), child.stderr.read()
        child.stdin.close()
    return subprocess.CompletedProcess([], child.returncode, out, err)


@pytest.mark.parametrize("status", [0, 1])
def test_docker_reads_them_from_files_that_are_gone_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """Not from its command line, and not from the image: BuildKit mounts them for a step."""
    monkeypatch.setenv("BUILD_KEY", CANARY)
    of_node = tmp_path / "of-node"
    of_node.write_text("theirs")
    sources = {"KEY": SecretSource(env="BUILD_KEY"), "THEIRS": SecretSource(node_file=str(of_node))}
    done = run(tmp_path, build(**sources), status)
    assert done.returncode == status, done.stderr
    notes = {path.name: path.read_text() for path in (tmp_path / "notes").iterdir()}
    assert notes["KEY"] == CANARY and notes["of-node"] == "theirs"
    assert notes["KEY.mode"] == "700\n"
    assert notes["context"] == RAW.decode()
    assert notes["words"].startswith("1 build ") and "--secret id=KEY,src=" in notes["words"]
    assert CANARY[:16] not in notes["words"] and "--build-arg A=1" in notes["words"]
    left = [p for p in tmp_path.rglob("*") if p.is_file() and tmp_path / "notes" not in p.parents]
    assert not any(CANARY.encode() in path.read_bytes() for path in left)
    assert not (tmp_path / "rigbook-build.secrets").exists()
    assert not (tmp_path / "CANARY").exists()


def test_a_folder_of_a_build_that_was_killed_goes(tmp_path: Path) -> None:
    (tmp_path / "rigbook-build.secrets").mkdir()
    (tmp_path / "rigbook-build.secrets/OLD").write_text("old")
    assert run(tmp_path, build()).returncode == 0
    assert not (tmp_path / "rigbook-build.secrets").exists()


def test_a_build_without_secrets_keeps_dockers_own_builder(tmp_path: Path) -> None:
    assert run(tmp_path, build()).returncode == 0
    assert (tmp_path / "notes/words").read_text().startswith(" build ")


def test_one_that_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BUILD_KEY", raising=False)
    with pytest.raises(SecretMissing, match="KEY: the variable BUILD_KEY of this shell is not set"):
        build_script(build(KEY=SecretSource(env="BUILD_KEY")), spark_plan().rig.head, 1)


def test_no_secret_is_an_input() -> None:
    """The same image comes of another token: it is not built again."""
    plain = build()
    keyed = build(KEY=SecretSource(env="BUILD_KEY"))
    assert keyed.inputs == plain.inputs and keyed.metadata() == plain.metadata()
