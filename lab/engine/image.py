"""The engine: build the image and the tiny model once, load them into the hosts' dockers."""

from __future__ import annotations

import json
from pathlib import Path

from lab.core import cache, console
from lab.core.parallel import in_parallel
from lab.core.settings import (
    CACHE_IN_HOST,
    ENGINE_IMAGE,
    ENGINE_VERSION,
    MODEL_PATH,
    SSH_USER,
    LabError,
    LabHost,
    LabSettings,
)
from lab.engine import docker_archive, wheels
from lab.hosts import debian_root, ssh, state

MODEL_SCRIPT = Path(__file__).parents[1] / "files" / "make_tiny_model.py"
VENV = "/opt/vllm"
PACKAGES = [
    "bash", "coreutils", "findutils", "grep", "sed", "libc-bin", "python3", "libssl3",
    "libffi8", "libsqlite3-0", "libreadline8", "libexpat1", "libgomp1", "libnuma1",
    "libstdc++6", "libncursesw6", "procps", "iproute2", "ca-certificates",
]  # fmt: skip
ENVIRONMENT = [
    f"PATH={VENV}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG=C.UTF-8",
]
# left out of the image: caches, package lists, and what differs from build to build
SKIP_BELOW = (
    "wheels", "proc", "sys", "dev", "run", "tmp", "root", "var/cache", "var/log", "var/lib/apt",
    "var/tmp", "usr/share/doc", "usr/share/man", "usr/share/locale", "usr/include",
)  # fmt: skip
INSTALL = f"""set -e
python3 -m venv --without-pip {VENV}
mkdir /tmp/uv
python3 -m zipfile -e /wheels/uv-*.whl /tmp/uv
chmod +x /tmp/uv/uv-*.data/scripts/uv
ls /wheels/*.whl | grep -v /uv- > /tmp/wheels.txt
/tmp/uv/uv-*.data/scripts/uv pip install --quiet --offline --no-index --no-deps --no-cache \
  --no-config --link-mode=copy --python {VENV}/bin/python --requirements /tmp/wheels.txt
rm -r /tmp/uv /tmp/wheels.txt
"""


# one real token: proves the build, and leaves the .pyc files of what the engine imports,
# which takes 18 s off each start; their sources' date is the archive's, so they stay valid
TRY_OUT = f"""set -e
find {VENV} /usr/lib/python3* -name '*.py' -exec touch -h -d @{docker_archive.EPOCH} {{}} +
ip link set lo up
export HOME=/tmp VLLM_NO_USAGE_STATS=1 VLLM_CPU_KVCACHE_SPACE=1 TORCHDYNAMO_DISABLE=1
export VLLM_ENABLE_V1_MULTIPROCESSING=0 VLLM_CPU_OMP_THREADS_BIND=nobind
{VENV}/bin/vllm serve --help > /dev/null
{VENV}/bin/python -c "
from vllm import LLM, SamplingParams
engine = LLM('/tmp/tiny', enforce_eager=True, dtype='float32', max_model_len=64)
assert engine.generate('a', SamplingParams(max_tokens=1))[0].outputs[0].token_ids
import vllm.entrypoints.openai.api_server, vllm.v1.executor.multiproc_executor"
"""


def skip(path: str) -> bool:
    """Whether a path of the root stays out of the image (the empty folders stay in)."""
    return path == "wheels" or path.startswith(tuple(f"{below}/" for below in SKIP_BELOW))


def inputs() -> str:
    """The hash of all that decides what the image and the model are."""
    script = MODEL_SCRIPT.read_text()
    pins = wheels.REQUIREMENTS.read_text()
    steps = [PACKAGES, ENVIRONMENT, SKIP_BELOW, INSTALL, TRY_OUT, docker_archive.EPOCH]
    return cache.recipe_hash([debian_root.SUITE, steps, script, pins])


def provide(settings: LabSettings, on_one: bool = False) -> None:
    """Image and model: in the cache, and in every running host.

    `on_one`: the image in the first host only, so that deploys/image.py has something to move.
    """
    folder = build(settings)
    # a tower has its own engine and model, in its layer
    hosts = [
        host
        for host in settings.hosts()
        if not host.is_tower and state.read(settings, host).live_leader()
    ]
    if not hosts:
        raise LabError("no host runs: 'up' first")
    image_id = json.loads((folder / "build.json").read_text())["image_id"]
    in_parallel(hosts, lambda host: put_model(settings, host, folder))
    wanted = hosts[:1] if on_one else hosts
    lacking = [host for host in wanted if image_in(settings, host) != image_id]
    if not lacking:
        console.say(f"{ENGINE_IMAGE} is in {'all hosts' if not on_one else wanted[0].name}")
        return
    with console.phase(f"docker load into {len(lacking)} hosts", "1 minute"):
        in_parallel(lacking, lambda host: load_image(settings, host, folder, image_id))


def build(settings: LabSettings) -> Path:
    """The cached folder of the engine: image.tar, tiny/ and build.json."""
    target = settings.images / f"engine-{inputs()}"
    if not target.exists():
        debian_root.check_tools()
        settings.images.mkdir(parents=True, exist_ok=True)
        packed = wheels.download(settings)
        with console.phase("build the engine's image and model", "3 minutes"):
            cache.build_once(target, lambda part: _build(settings, part, packed))
    for older in settings.images.glob("engine-*"):
        if older != target:
            cache.remove(older)
    return target


def _build(settings: LabSettings, part: Path, packed: Path) -> None:
    root = part / "root"
    part.mkdir()
    with console.phase("  base system"):
        debian_root.bootstrap(root, "essential", PACKAGES, (), settings.images / "engine.log")
    with console.phase("  install the wheels"):
        (root / "wheels").mkdir()
        in_root(root, packed, INSTALL)
        add_vllm_metadata(root)
    with console.phase("  tiny model"):
        (root / "tmp/make.py").write_text(MODEL_SCRIPT.read_text())
        in_root(root, packed, f"{VENV}/bin/python /tmp/make.py /tmp/tiny")
    with console.phase("  try the engine out"):
        in_root(root, packed, TRY_OUT)
        (root / "tmp/tiny").rename(part / "tiny")
    (root / "build-metadata.yaml").write_text(
        f"image: {ENGINE_IMAGE}\nvllm: {ENGINE_VERSION}+cpu\ndate: 2026-01-01\ninputs: {inputs()}\n"
    )
    with console.phase("  write the archive"):
        image_id = docker_archive.write_archive(
            root, part / "image.tar", ENGINE_IMAGE, ENVIRONMENT, skip
        )
    cache.remove(root)
    (part / "build.json").write_text(json.dumps({"image_id": image_id, "tag": ENGINE_IMAGE}))


def in_root(root: Path, packed: Path, script: str) -> None:
    """Run a shell script in the image's root: no network, the wheels read-only at /wheels."""
    mounts = (
        'mount --bind "$2" "$1/wheels" && mount -o remount,ro,bind "$1/wheels" && '
        'mount -t proc proc "$1/proc" && mount -t sysfs sysfs "$1/sys" && '
        'mount --rbind /dev "$1/dev" && '
        'exec chroot "$1" /bin/sh -c "$3"'
    )
    console.run(
        ["env", "-i", "HOME=/root", "LANG=C.UTF-8", "HF_HUB_OFFLINE=1",
         "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
         "unshare", "--mount", "--propagation=private", "--net", "--pid", "--fork",
         "sh", "-c", mounts, "sh", root, packed, script]
    )  # fmt: skip


def add_vllm_metadata(root: Path) -> None:
    """A distribution named ``vllm``: ``bin/vllm`` looks it up, and ``+cpu`` picks the device."""
    packages = next((root / VENV.lstrip("/") / "lib").glob("python3*")) / "site-packages"
    folder = packages / f"vllm-{ENGINE_VERSION}+cpu.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: vllm\nVersion: {ENGINE_VERSION}+cpu\n"
    )
    (folder / "INSTALLER").write_text("rigbook\n")


def image_in(settings: LabSettings, host: LabHost) -> str:
    """The id of the engine's image in a host's docker; empty if it is not there."""
    done = ssh.sudo(settings, host, f"docker image inspect --format '{{{{.Id}}}}' {ENGINE_IMAGE}")
    return done.stdout.strip()


def load_image(settings: LabSettings, host: LabHost, folder: Path, image_id: str) -> None:
    """Load the image from the folder that the host sees read-only, and check what came."""
    # an image that lost its tag to this one would keep its 2 GB
    script = f"docker load -i {CACHE_IN_HOST}/{folder.name}/image.tar && docker image prune -f"
    done = ssh.sudo(settings, host, script, timeout=900)
    if done.returncode != 0 or image_in(settings, host) != image_id:
        raise LabError(f"{host.name}: docker load failed: {(done.stderr or done.stdout).strip()}")


def put_model(settings: LabSettings, host: LabHost, folder: Path) -> None:
    """Copy the tiny model to the host, owned by the login user, unless it is there as it is."""
    source = f"{CACHE_IN_HOST}/{folder.name}/tiny"
    done = ssh.sudo(
        settings, host,
        f"diff -rq {source} {MODEL_PATH} > /dev/null 2>&1 && exit 0\n"
        f"rm -rf {MODEL_PATH} && cp -r {source} {MODEL_PATH} && "
        f"chown -R {SSH_USER}: {MODEL_PATH} && chmod -R u=rwX,go=rX {MODEL_PATH}",
    )  # fmt: skip
    if done.returncode != 0:
        raise LabError(f"{host.name}: the model was not copied: {done.stderr.strip()}")
