"""The lab's tower: one host whose engine, the real vLLM, lives in a venv, as on a desk machine.

What the tower has beyond other hosts is one layer, built once, which its overlay puts over the
hosts' root tree: `/opt/engine/venvs/0.32.0`, the link `/opt/engine/venv` to it, the model, and two
libraries. The overlay may rename folders of a layer (`redirect_dir=on`), so that on the host the
venv is a tree like any other: it can be written, moved and removed.
"""

from __future__ import annotations

from pathlib import Path

from lab.core import cache, console
from lab.core.settings import CACHE_IN_HOST, ENGINE_VERSION, MODEL_PATH, LabSettings
from lab.engine import image, venv_wheels, wheels
from lab.hosts import debian_root

HOME = "/opt/engine"
VENV = f"{HOME}/venvs/{ENGINE_VERSION}"
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
python3 -m venv {VENV}
mkdir /tmp/out
python3 -m zipfile -e /tmp/uv/uv-*.whl /tmp/out
chmod +x /tmp/out/uv-*.data/scripts/uv
/tmp/out/uv-*.data/scripts/uv pip install --quiet --offline --no-index --no-cache --no-config \
  --link-mode=copy --find-links /tmp/wheels --python {VENV}/bin/python vllm=={ENGINE_VERSION}+cpu
{VENV}/bin/python /tmp/make.py /tmp/tiny
ip link set lo up
export HOME=/tmp VLLM_NO_USAGE_STATS=1 VLLM_CPU_KVCACHE_SPACE=1 TORCHDYNAMO_DISABLE=1
export VLLM_ENABLE_V1_MULTIPROCESSING=0 VLLM_CPU_OMP_THREADS_BIND=nobind HF_HUB_OFFLINE=1
{VENV}/bin/vllm serve --help > /dev/null
{VENV}/bin/python -c "
from vllm import LLM, SamplingParams
engine = LLM('/tmp/tiny', enforce_eager=True, dtype='float32', max_model_len=64)
assert engine.generate('a', SamplingParams(max_tokens=1))[0].outputs[0].token_ids
import vllm.entrypoints.openai.api_server, vllm.v1.executor.multiproc_executor"
ln -s {VENV} {LINK}
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


def inputs(lower: Path) -> str:
    """The hash of all that decides what the layer is."""
    steps = [MOUNT, BUILD, sorted(LIBRARIES), lower.name, venv_wheels.inputs()]
    return cache.recipe_hash([steps, image.MODEL_SCRIPT.read_text()])


def layer(settings: LabSettings) -> Path:
    """The cached layer, built if it is not there."""
    lower = debian_root.host_root(settings)
    target = settings.images / f"tower-{inputs(lower)}"
    packed = venv_wheels.provide(settings)
    if not target.exists():
        debian_root.check_tools()
        with console.phase("build the tower's venv with the real vLLM", "3 minutes"):
            cache.build_once(target, lambda part: _build(settings, part, lower, packed))
    return target / "layer"


def _build(settings: LabSettings, part: Path, lower: Path, packed: Path) -> None:
    for name in ("layer", "work", "root", "tmp"):
        (part / name).mkdir(parents=True)
    with console.phase("  libraries"):
        _libraries(part, settings.images / "tower.log")
    text = BUILD.replace("@wheels@", packed.name)
    (part / "tmp" / "make.py").write_text(image.MODEL_SCRIPT.read_text())
    with console.phase("  venv, model, one real token"):
        console.run(
            ["env", "-i", "HOME=/root", "LANG=C.UTF-8", "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
             "unshare", "--mount", "--propagation=private", "--net", "--pid", "--fork",
             "sh", "-c", MOUNT, "sh", part, lower, packed, wheels.download(settings), text]
        )  # fmt: skip
    for name in ("work", "root", "tmp"):
        cache.remove(part / name)


def _libraries(part: Path, log: Path) -> None:
    """Put the libraries into the layer; the hosts' root tree stays as it is for all others."""
    extracted = part / "libraries"
    debian_root.bootstrap(extracted, "extract", sorted(LIBRARIES), (), log)
    folder = part / "layer" / LIBRARY_FOLDER
    folder.mkdir(parents=True)
    for pattern in LIBRARIES.values():
        for file in (extracted / LIBRARY_FOLDER).glob(pattern):
            if file.is_symlink():
                (folder / file.name).symlink_to(file.readlink())
            else:
                (folder / file.name).write_bytes(file.read_bytes())
    cache.remove(extracted)
