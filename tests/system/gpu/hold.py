"""Holds memory of a GPU until it is ended: `hold.py MIB [GPU]`, or `hold.py free MIB` to leave so
many free as nvidia-smi tells them. Prints `held` once it does. Run by the machine's python3."""

import subprocess
import sys
import time

import torch


def free() -> int:
    """MiB free, as the driver tells."""
    query = ["nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits", "-i", gpu]
    return int(subprocess.run(query, capture_output=True, text=True, check=True).stdout)


leave = sys.argv[1] == "free"
amount = int(sys.argv[2] if leave else sys.argv[1])
gpu = sys.argv[2] if len(sys.argv) > 2 and not leave else "0"
torch.cuda.set_device(int(gpu))
torch.zeros(1, device="cuda")
torch.cuda.synchronize()
kept = [torch.empty((free() - amount if leave else amount) << 20, dtype=torch.uint8, device="cuda")]
while leave and free() > amount + 2:
    kept.append(torch.empty((free() - amount) // 2 * 2 << 20, dtype=torch.uint8, device="cuda"))
torch.cuda.synchronize()
print(f"held; {free()} MiB free", flush=True)
time.sleep(3600)
