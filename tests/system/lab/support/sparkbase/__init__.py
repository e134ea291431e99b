"""A base for templates/image/vllm-spark as two DGX Spark have one, made of this machine's files.

Real: bash, git, python3, the repositories of DeepGEMM and CUTLASS (small ones, made here), docker's
builder. Doubles, named so in their text: torch, vllm, pip and nvcc. `git` and pip write what they
are asked into /srv/asked.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import subprocess
import tarfile
from pathlib import Path

from tests.unit.builders.mxfp4 import BASE as MXFP4
from tests.unit.builders.mxfp4 import PATH

HERE = Path(__file__).parent
LIBRARY = "usr/local/lib/python3.11/dist-packages"
REPOSITORY = "file:///srv/DeepGEMM"
TORCH = "__version__ = '2.10.0+{variant}'\ncuda = {cuda}\n"
# What bash, git submodule and the steps call.
PROGRAMS = (
    "bash", "basename", "cat", "dirname", "env", "git", "grep", "ls", "mkdir", "python3.11", "rm",
    "sed", "sleep", "tr", "uname",
)  # fmt: skip
GIT_CORE = ("git-sh-i18n", "git-sh-i18n--envsubst", "git-sh-setup", "git-submodule")
# Parts of the standard library that nothing here asks for.
UNUSED = re.compile(
    r"/(__pycache__|test|idlelib|lib2to3|ensurepip|pydoc_data|turtledemo|distutils"
    r"|config-[^/]*|tkinter|asyncio|unittest|dist-packages|sqlite3)(/|$)"
)
METADATA = (
    "build_date: 2026-05-27T21:40:38Z\n"
    "vllm_commit: 48cebd4ad65d0b8263474dff1eb6ef83cb4fcc23\n"
    'build_args:\n  vllm_ref: main\n  vllm_prs: "41834"\n'
)
FILES = {
    "usr/local/bin/git": "#!/bin/bash\n# Writes down what git is asked; hands it to the real one.\n"
    'echo "git $*" >>/srv/asked\nexec /usr/bin/git "$@"\n',
    "usr/local/cuda/bin/nvcc": "#!/bin/bash\n# A double of nvcc.\n"
    "echo compute_120\necho compute_121\n",
    "etc/gitconfig": '[protocol "file"]\n\tallow = always\n[safe]\n\tdirectory = *\n',
    "workspace/build-metadata.yaml": METADATA,
    # What the builder left behind, where the base's commands begin: it is not what is installed.
    "workspace/vllm/vllm/__init__.py": "",
    f"workspace/vllm/{PATH}": MXFP4,
    # Found, never imported: a build has no GPU.
    f"{LIBRARY}/vllm/__init__.py": "raise ImportError('a double of vllm')\n",
    f"{LIBRARY}/vllm/_version.py": "__version__ = version = '0.21.1.dev7+g48cebd4ad'\n",
    f"{LIBRARY}/{PATH}": MXFP4,
    f"{LIBRARY}/torch/__init__.py": "# A double of torch.\nfrom torch import version\n"
    "from torch.version import __version__\n",
    f"{LIBRARY}/torch/version.py": TORCH.format(variant="cu130", cuda="'13.0'"),
    f"{LIBRARY}/pip/__init__.py": "",
    f"{LIBRARY}/pip/__main__.py": (HERE / "pip_double.py").read_text(),
}


def git(folder: Path, *words: str) -> str:
    """git in a folder; its output. The same commits at every run."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    for who in ("AUTHOR", "COMMITTER"):
        env |= {
            f"GIT_{who}_NAME": "t",
            f"GIT_{who}_EMAIL": "t",
            f"GIT_{who}_DATE": "2026-01-01T00:00:00Z",
        }
    env |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    argv = ["git", "-c", "protocol.file.allow=always", "-c", "init.defaultBranch=main", *words]
    done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def write(root: Path, files: dict[str, str]) -> None:
    """Files below a folder."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def commit(folder: Path, files: dict[str, str], *more: str) -> str:
    """A commit of files; its id."""
    write(folder, files)
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "x", *more)
    return git(folder, "rev-parse", "HEAD")


def repositories(srv: Path) -> dict[str, str]:
    """DeepGEMM with CUTLASS as its submodule below `srv`; its commits by what is special there."""
    for name in ("DeepGEMM", "cutlass"):
        (srv / name).mkdir(parents=True)
        git(srv / name, "init", "--quiet")
    headers = {"include/cutlass/cutlass.h": "// a double\n", "include/cute/tensor.hpp": "// too\n"}
    commit(srv / "cutlass", headers)
    own = srv / "DeepGEMM"
    made = {"without": commit(own, {"deep_gemm/__init__.py": "__version__ = '2.1'\n"})}
    git(own, "submodule", "--quiet", "add", str(srv / "cutlass"), "third-party/cutlass")
    git(own, "config", "-f", ".gitmodules", "submodule.third-party/cutlass.url",
        "file:///srv/cutlass")  # fmt: skip
    made["whole"] = commit(own, {})
    made["slow"] = commit(own, {"sleep": "8"})
    made["cpu"] = commit(
        own, {"sleep": "0", "torch-version": TORCH.format(variant="cpu", cuda=None)}
    )
    # What HEAD holds is nobody's: a build takes the commit that it names.
    commit(own, {"deep_gemm/__init__.py": "raise ImportError('HEAD, not the commit')\n"})
    return made


def libraries(program: str) -> set[str]:
    """The libraries that a program of this machine loads."""
    said = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    return set(re.findall(r"(/\S+) \(0x", said))


def tree(folder: Path) -> tuple[bytes, dict[str, str]]:
    """The base as a packed tar for docker import, and DeepGEMM's commits (see repositories)."""
    write(folder, FILES)
    for name in ("usr/local/bin/git", "usr/local/cuda/bin/nvcc"):
        (folder / name).chmod(0o755)
    commits = repositories(folder / "srv")
    (folder / "tmp").mkdir(mode=0o1777)
    # A repository around the packages, as where a venv lies in a checkout: git apply must not care.
    git(folder / "usr/local", "init", "--quiet")
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for path in sorted(folder.iterdir()):
            tar.add(path, path.name)
        programs = [f"/usr/bin/{name}" for name in PROGRAMS]
        dynamic = Path("/usr/lib/python3.11/lib-dynload").glob("*.so")
        needed = {library for one in (*programs, *map(str, dynamic)) for library in libraries(one)}
        for file in (*programs, *sorted(needed)):
            tar.add(os.path.realpath(file), file.lstrip("/"))
        for name in GIT_CORE:
            tar.add(f"/usr/lib/git-core/{name}", f"usr/lib/git-core/{name}")
        tar.add("/usr/lib/python3.11", "usr/lib/python3.11",
                filter=lambda info: None if UNUSED.search("/" + info.name) else info)  # fmt: skip
        links = {"bin": "usr/bin", "usr/bin/sh": "bash", "usr/bin/python3": "python3.11",
                 "usr/bin/git-upload-pack": "git",
                 "usr/lib/git-core/git": "../../bin/git"}  # fmt: skip
        for name, target in links.items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            tar.addfile(info)
    return gzip.compress(raw.getvalue(), 1), commits
