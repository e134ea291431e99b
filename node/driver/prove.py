"""driver prove, driver cdi: the driver works for programs, and in a container by its CDI spec."""

from __future__ import annotations

import re
import sys

from node.core import validate
from node.core.errors import Json, NodeError
from node.core.run import Done, TimedOut, run, which
from node.driver import apt_plan, loaded
from node.kernel import installed

SMI_S = 60.0
CUDA_S = 120.0
BOX_S = 180.0
CDI_S = 60.0
DEVICE = re.compile(r"^[a-z0-9.-]+/[a-z0-9-]+=[A-Za-z0-9:._-]+$")
# a context on the first GPU, by the driver's own API (cuda.h); 0 is CUDA_SUCCESS
_CUDA = """\
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
context, device = ctypes.c_void_p(), ctypes.c_int()
for what, said in (
    ("cuInit", cuda.cuInit(0)),
    ("cuDeviceGet", cuda.cuDeviceGet(ctypes.byref(device), 0)),
    ("cuDevicePrimaryCtxRetain", cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)),
    ("cuDevicePrimaryCtxRelease", cuda.cuDevicePrimaryCtxRelease(device)),
):
    if said:
        raise SystemExit(f"{what} gave {said}")
"""


def _ran(what: str, argv: list[str], limit_s: float) -> Done:
    """Gives a command that worked. Raises NodeError (`not_proven`) with its own line."""
    try:
        done = run(argv, limit_s)
    except (FileNotFoundError, TimedOut) as error:
        raise NodeError(f"{what}: {error}", "not_proven") from None
    if done.rc != 0:
        raise NodeError(f"{what}: {_said(done)[:400]}", "not_proven")
    return done


def _said(done: Done) -> str:
    """Gives what a program said in one line. nvidia-smi names the library's version behind its
    reason, docker its own help; of a traceback the last line tells.
    """
    for text in (done.err, done.out):
        lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
        if lines:
            told = [line for line in lines if "--help" not in line]
            return lines[-1] if lines[0].startswith("Traceback") else "; ".join(told)
    return done.last_line()


def prove(request: Json) -> Json:
    """Gives the lines of the proof: module and library, nvidia-smi, a CUDA context, a container.

    `image` and `devices`: a container of that image with these CDI devices runs nvidia-smi.
    Raises NodeError (`not_proven`). Reads and starts programs that end; changes nothing.
    """
    names = ("module", "version", "cuda", "image", "devices")
    body = validate.keys(request, "request", names, names[:3])
    module = validate.name(body["module"], "module")
    version = apt_plan.checked(body["version"], "version")
    here = loaded.version(module)
    if here != version:
        raise NodeError(f"the loaded {module} module is {here or 'none'}, not {version}",
                        "not_proven")  # fmt: skip
    libraries = installed.user_driver(module)
    if libraries != [version]:
        raise NodeError(f"programs load {', '.join(libraries) or 'no library'}, the module is "
                        f"{version}", "not_proven")  # fmt: skip
    lines = [f"module and library are {version}"]
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    said = set(_ran("nvidia-smi", query, SMI_S).out.split())
    if said != {version}:
        raise NodeError(f"nvidia-smi tells {', '.join(sorted(said)) or 'no GPU'}, not {version}",
                        "not_proven")  # fmt: skip
    lines.append("nvidia-smi agrees")
    if validate.boolean(body["cuda"], "cuda"):
        _ran("a CUDA context", [sys.executable, "-c", _CUDA], CUDA_S)
        lines.append("a CUDA context was made")
    devices = validate.array(body.get("devices") or [], "devices", 16)
    if body.get("image") and devices:
        for n, device in enumerate(devices):
            if not DEVICE.match(validate.text(device, f"devices[{n}]", 120)):
                raise validate.bad(f"devices[{n}]: {device[:60]!r} is no CDI device")
        image = validate.image(body["image"], "image")
        asked = [word for device in devices for word in ("--device", device)]
        argv = ["docker", "run", "--rm", "--network", "none", *asked, "--entrypoint", query[0],
                image, *query[1:]]  # fmt: skip
        said = set(_ran("a container with the GPU", argv, BOX_S).out.split())
        if said != {version}:
            raise NodeError(f"in a container nvidia-smi tells {', '.join(sorted(said))}, not "
                            f"{version}", "not_proven")  # fmt: skip
        lines.append("a container has the GPU")
    return {"lines": lines}


def cdi(request: Json) -> Json:
    """Gives a CDI spec for the driver that is loaded now; None without the toolkit.

    Raises NodeError (`no_cdi`).
    """
    validate.keys(request, "request", ())
    if which("nvidia-ctk") is None:
        return {"text": None}
    try:
        done = run(["nvidia-ctk", "cdi", "generate"], CDI_S)
    except TimedOut as error:
        raise NodeError(f"nvidia-ctk: {error}", "no_cdi") from None
    if done.rc != 0 or "devices:" not in done.out:
        raise NodeError(f"nvidia-ctk cdi generate: {done.last_line()[:300]}", "no_cdi")
    return {"text": done.out}
