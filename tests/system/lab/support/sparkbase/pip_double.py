"""A double of pip: writes down what it is asked, and puts DeepGEMM's files where pip would.

What the commit that it is given says in files of its own: `sleep` (seconds that its compiler
takes) and `torch-version` (what comes in beside it, as a resolver that goes to an index does: C1).
"""

import os
import shutil
import sys
import time
from pathlib import Path

if "--version" in sys.argv:
    print("a double of pip")
    sys.exit()
NAMES = ("DG_FORCE_BUILD", "DEEP_GEMM_FORCE_BUILD", "PIP_BREAK_SYSTEM_PACKAGES")
SET = [f"{name}={os.environ[name]}" for name in NAMES if name in os.environ]
with Path("/srv/asked").open("a") as asked:
    asked.write(" ".join([*SET, "pip", *sys.argv[1:]]) + "\n")
library, source = Path(__file__).parents[1], Path(sys.argv[-1])
if (source / "sleep").exists():
    time.sleep(float((source / "sleep").read_text()))
for name in ("cutlass", "cute"):
    shutil.copytree(
        source / "third-party/cutlass/include" / name, source / "deep_gemm/include" / name
    )
shutil.copytree(source / "deep_gemm", library / "deep_gemm")
if (source / "torch-version").exists():
    shutil.copy(source / "torch-version", library / "torch" / "version.py")
