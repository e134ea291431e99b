"""rigbook lab: keeps every multiprocessor of GPU 0 busy, inside of vLLM's core, when told to.

A plugin of vLLM, for the GPU tier alone. Each process of the engine calls `watch`; once SIGN is
there, the core starts a kernel that ends after MOST_S seconds whatever happens. No other kernel
runs meanwhile, so the engine's step does not end, and its server goes on answering /health.
"""

import ctypes
import threading
import time
from pathlib import Path

SIGN = "/run/rigbook-gpu-spin"
TITLE = b"VLLM::EngineCore"
MOST_S = 240
THREADS = 1024
# threads that a multiprocessor holds (2048 or 1536), over THREADS, rounded up
BLOCKS_EACH = 2
PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 length)
{
  .reg .u64 %rd<5>;
  .reg .pred %p;
  ld.param.u64 %rd1, [length];
  mov.u64 %rd2, %globaltimer;
again:
  mov.u64 %rd3, %globaltimer;
  sub.u64 %rd4, %rd3, %rd2;
  setp.lt.u64 %p, %rd4, %rd1;
  @%p bra again;
  ret;
}
"""


def watch() -> None:
    """Start the thread that waits for SIGN; vLLM calls it in each of its processes."""
    threading.Thread(target=_wait, daemon=True).start()


def _wait() -> None:
    while not Path(SIGN).exists():
        time.sleep(0.5)
    if Path("/proc/self/cmdline").read_bytes().startswith(TITLE):
        spin(MOST_S)


def spin(seconds: float) -> None:
    """Fill GPU 0 with threads that wait, in this process's own context."""
    cuda = ctypes.CDLL("libcuda.so.1")
    device, count = ctypes.c_int(), ctypes.c_int()
    context, module, kernel, stream = (ctypes.c_void_p() for _ in range(4))

    def call(name: str, *arguments: object) -> None:
        code = getattr(cuda, name)(*arguments)
        if code:
            raise RuntimeError(f"{name}: error {code}")

    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    call("cuDeviceGetAttribute", ctypes.byref(count), 16, device)  # MULTIPROCESSOR_COUNT
    call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(PTX))
    call("cuModuleGetFunction", ctypes.byref(kernel), module, b"spin")
    call("cuStreamCreate", ctypes.byref(stream), 1)  # NON_BLOCKING
    length = ctypes.c_uint64(int(seconds * 1e9))
    values = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(length), ctypes.c_void_p))
    blocks = count.value * BLOCKS_EACH
    call("cuLaunchKernel", kernel, blocks, 1, 1, THREADS, 1, 1, 0, stream, values, None)
    print(f"rigbook lab: {blocks} blocks spin for {seconds} s", flush=True)
