"""`python -m docs.site [FOLDER]`: the site, into build/site. A dead link or anchor fails it."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

from docs.site.stage import HERE, ROOT, stage

INSTALL = "pip install --require-hashes -r requirements/docs.txt"
NEEDED = ("sphinx", "myst_parser", "furo", "vl_convert")


def sphinx(source: Path, folder: Path) -> int:
    """Sphinx on these sources; its exit status, 1 after any warning."""
    words = ("-m", "sphinx", "-q", "-W", "--keep-going", "-n", "-b", "html", "-c", str(HERE))
    kept = ("-d", str(folder.with_name(f"{folder.name}-doctrees")), str(source), str(folder))
    return subprocess.run((sys.executable, *words, *kept), cwd=ROOT, check=False).returncode


def build(folder: Path) -> int:
    """Builds the site anew into a folder; the exit status."""
    source = folder.with_name(f"{folder.name}-source")
    stage(source)
    shutil.rmtree(folder, ignore_errors=True)
    return sphinx(source, folder)


def main() -> int:
    """Builds, and says where the first page is; the exit status."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        print(f"docs: {', '.join(missing)} is not installed; {INSTALL}", file=sys.stderr)
        return 1
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "site"
    try:
        status = build(folder)
    except ValueError as error:
        print(f"docs: {error}", file=sys.stderr)
        return 1
    if status == 0:
        print(f"docs: {folder / 'index.html'}")
    return status


if __name__ == "__main__":
    sys.exit(main())
