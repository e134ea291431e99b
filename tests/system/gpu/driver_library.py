"""Swaps a preload library that caps GPU memory under running CUDA processes; needs a real driver.

Run by hand on a machine with an NVIDIA GPU and cc, in the project's root:
`python3 tests/system/gpu/driver_library.py`. Prints one line a step; exit status 1 when one is
wrong."""

import base64
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIB = r"""
#include <dlfcn.h>
#include <stddef.h>
static size_t used;
const unsigned char table[SIZE] = {[0 ... SIZE - 1] = 1};
int cuMemAlloc_v2(unsigned long long *p, size_t n) {
  volatile int sum = 0;
  for (size_t at = 0; at < SIZE; at += 4096) sum += table[at];
  if (used + n > (size_t)LIMIT << 20) return 2;
  int (*real)(unsigned long long *, size_t) = dlsym(dlopen("libcuda.so.1", 2), "cuMemAlloc_v2");
  int r = real(p, n);
  if (!r) used += n;
  return r;
}
"""
WORK = r"""
import ctypes
c, g = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL(None)
d, x, p, n = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_ulonglong(), 0
assert c.cuInit(0) == 0 and c.cuDeviceGet(ctypes.byref(d), 0) == 0
assert c.cuCtxCreate_v2(ctypes.byref(x), 0, d) == 0
while g.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(64 << 20)) == 0: n += 64
print(n, flush=True)
while True:
    g.cuMemAlloc_v2(ctypes.byref(ctypes.c_ulonglong()), ctypes.c_size_t(1 << 50))
    assert c.cuMemsetD8_v2(p, ctypes.c_ubyte(1), ctypes.c_size_t(64 << 20)) == 0
    assert c.cuCtxSynchronize() == 0
"""
top = tempfile.mkdtemp()
Path(top).chmod(0o755)
target = f"{top}/libvgpu.so"


def build(name: str, limit: int, size: int) -> str:
    path = f"{top}/{name}"
    flags = ["-shared", "-fPIC", f"-DLIMIT={limit}", f"-DSIZE={size}", "-ldl"]
    subprocess.run(["cc", "-x", "c", "-", "-o", path, *flags], input=LIB.encode(), check=True)
    return path


def start(count: int) -> tuple[list[subprocess.Popen[str]], list[str]]:
    env = {**os.environ, "LD_PRELOAD": target}
    found = [
        subprocess.Popen([sys.executable, "-c", WORK], env=env, stdout=subprocess.PIPE, text=True)
        for _ in range(count)
    ]
    return found, [process.stdout.readline().strip() for process in found if process.stdout]


def dead(processes: list[subprocess.Popen[str]]) -> list[int]:
    return [process.returncode for process in processes if process.poll() is not None]


old, new = build("old.so", 512, 900000), build("new.so", 1024, 600000)
subprocess.run(["cp", old, target], check=True)
running, capped = start(5)
print("5 CUDA processes, capped at 512 MiB, got:", capped)
step = {"op": "file", "path": target, "mode": "0755",
        "content_base64": base64.b64encode(Path(new).read_bytes()).decode()}  # fmt: skip
change = {"id": "library-on-gpu", "deploy": "libvgpu", "operator": "device"}
done = subprocess.run(
    [sys.executable, "-m", "node", "apply"], env={**os.environ, "RIGBOOK_STATE": f"{top}/state"},
    input=json.dumps({"change": change, "steps": [step]}).encode(), stdout=subprocess.PIPE,
)  # fmt: skip
print("swap:", json.loads(done.stdout)["changed"])
time.sleep(3)
alive = 5 - len(dead(running))
print("alive 3 s after the swap:", alive, "of 5")
fresh, got = start(1)
print("a fresh process, capped at 1024 MiB, got:", got)
subprocess.run(["cp", old, target], check=True)
subprocess.run(["cp", new, target], check=True)
time.sleep(2)
print("after cp onto the mapped file, the fresh one:", dead(fresh) or "alive",
      "; those of the former inode:", 5 - len(dead(running)), "of 5 alive")  # fmt: skip
for process in running + fresh:
    process.kill()
    process.wait()
time.sleep(1)
wrong = capped != ["512"] * 5 or alive != 5 or got != ["1024"]
print("WRONG" if wrong else "as expected")
sys.exit(wrong)
