"""An operator who builds templates/image/vllm-spark on a booted host, on a base of doubles.

What is real and what stands in: tests/system/lab/support/sparkbase. The operator's project is a
copy of this one, with patches of his own in the template's folder.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from tests.system.lab.support import moving as m
from tests.system.lab.support import sparkbase
from tests.system.lab.test_image_build import CLEAR, IMAGE
from tests.system.lab.test_knowledge import put
from tests.system.rehearsal import PYINFRA, ROOT, Done, Lab
from tests.unit.builders.mxfp4 import PATH, diff

BASE = "rigbook/doubles:1"
# As git writes it: such a one git apply passes over where a repository lies around the files.
FIX = {"1-mxfp4.patch": f"diff --git a/{PATH} b/{PATH}\n{diff()}"}
OTHER = diff("a\nb\nc\n", "a\nB\nc\n", "vllm/__init__.py")


class Spark:
    """An operator with a project of his own, and the base on test1."""

    def __init__(self, lab: Lab, project: Path, commits: dict[str, str]) -> None:
        self.lab, self.project, self.commits = lab, project, commits

    def words(
        self, deploy: str, commit: str, *more: str, patches: dict[str, str] = FIX
    ) -> list[str]:
        """The command line of a deploy; the project holds these patches, the recipe this commit."""
        folder = self.project / "templates" / "image" / "vllm-spark" / "patches"
        for old in folder.glob("*.patch"):
            old.unlink()
        sparkbase.write(folder, patches)
        recipe = yaml.safe_load((ROOT / "tests/system/lab/knowledge/knowledge.yaml").read_text())
        recipe.pop("file_patches"), recipe.pop("patch_tools")
        args = {"DEEPGEMM_REPOSITORY": sparkbase.REPOSITORY}
        if commit:
            args["DEEPGEMM_COMMIT"] = self.commits.get(commit, commit)
        recipe["container"] |= {
            "image": IMAGE, "build": {"template": "vllm-spark", "base": BASE, "args": args}
        }  # fmt: skip
        (self.project / "recipes").mkdir(exist_ok=True)
        (self.project / "recipes" / "spark.yaml").write_text(yaml.safe_dump(recipe))
        chosen = ("--data", "recipe=spark", "--data", "recipes_dir=recipes")
        return [str(PYINFRA), "inventory/lab.py", f"deploys/{deploy}.py", "-y", *chosen, *more]

    def run(self, deploy: str, commit: str, *more: str, patches: dict[str, str] = FIX) -> Done:
        """A deploy of that project, to its end."""
        words = self.words(deploy, commit, *more, patches=patches)
        done = subprocess.run(
            words, cwd=self.project, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        print(done.stdout)
        return Done(done.returncode, done.stdout, 0)

    def build(self, commit: str, patches: dict[str, str] = FIX) -> Done:
        """image with build=true."""
        return self.run("image", commit, "--data", "build=true", patches=patches)

    def start(self, commit: str) -> subprocess.Popen[str]:
        """A build that runs on."""
        return subprocess.Popen(
            self.words("image", commit, "--data", "build=true"), cwd=self.project,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip

    def in_the_middle(self, started: subprocess.Popen[str]) -> None:
        """Waits until a build compiles DeepGEMM."""
        m.wait_for(lambda: "steps.sh deepgemm" in self.at_work() or started.poll() is not None)
        assert started.poll() is None, started.communicate()[0]

    def file(self, path: str, host: str = "test2") -> str:
        """A file of the image on a host, read without running it."""
        take = f"id=$(sudo docker create {IMAGE} none); sudo docker cp $id:{path} - | tar -xO; "
        return self.lab.ssh(host, f"{take} sudo docker rm $id >/dev/null")

    def at_work(self) -> str:
        """What of a build is there on test1: containers in any state, and processes."""
        return self.lab.ssh(
            "test1", "sudo docker ps -aq; pgrep -af '[d]ocker build|steps[.]sh' || true"
        )

    def images(self) -> list[str]:
        """The images that have a name, on both hosts."""
        line = "sudo docker images --format '{{.Repository}}:{{.Tag}}' | grep -v none || true"
        return [f"{host} {one}" for host in self.lab.hosts for one in
                sorted(self.lab.ssh(host, line).split())]  # fmt: skip


@contextmanager
def spark_builder(lab: Lab, folder: Path) -> Iterator[Spark]:
    """The base on test1, and no image of it on either host; `folder` is the operator's."""
    raw, commits = sparkbase.tree(folder / "base")
    put(lab, "test1", raw, f'docker import -c "WORKDIR /workspace/vllm" - {BASE}')
    project = folder / "project"
    shutil.copytree(
        ROOT, project, ignore=shutil.ignore_patterns(".*", "__pycache__", "docs", "tests")
    )
    try:
        yield Spark(lab, project, commits)
    finally:
        for host in lab.hosts:
            lab.ssh(host, CLEAR)
            lab.ssh(host, f"sudo docker rmi -f {BASE} >/dev/null 2>&1 || true")
        m.clear(lab)
