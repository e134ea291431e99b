"""rigbook lab: `python -m ensurepip` of a Python without it, by the wheel of pip beside this file.

`python -m venv` calls it. Debian and Ubuntu have it in a package of its own, which a machine
without network may lack.
"""

import runpy
import sys
from pathlib import Path

wheel = str(next(Path(__file__).resolve().parent.glob("pip-*.whl")))
sys.path.insert(0, wheel)
sys.argv = ["pip", "install", "--quiet", "--no-index", "--no-deps", wheel]
runpy.run_module("pip", run_name="__main__")
