"""Real shared libraries and real processes that map them, compiled by the test with cc."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# A table over many pages, and a function that touches every page of it: as a busy engine does.
SOURCE = """
const unsigned char table[{size}] = {{[0 ... {size} - 1] = {fill}}};
int cuInit(int flags) {{
    volatile unsigned sum = flags;
    for (unsigned at = 0; at < sizeof table; at += 4096) sum += table[at];
    return (int)sum;
}}
int cuCtxGetDevice(int *device) {{ *device = 0; return 0; }}
{more}
"""
HOLDER = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>
#include <stdio.h>
int main(void) {
    int (*touch)(int) = (int (*)(int))dlsym(RTLD_DEFAULT, "cuInit");
    if (!touch) return 3;
    puts("mapped"); fflush(stdout);
    for (;;) { touch(0); usleep(2000); }
}
"""


def cc(source: str, out: Path, *flags: str) -> Path:
    """Compiles C source; gives the file."""
    done = subprocess.run(
        ["cc", "-x", "c", "-", "-x", "none", *flags, "-o", str(out)],
        input=source, text=True, capture_output=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return out


def sha(path: Path) -> str:
    """A file's sha256."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def needing(folder: Path) -> Path:
    """A library that needs libdep.so, which only `folder` has."""
    library(folder / "libdep.so", 100)
    return cc("int f(void){return 1;}", folder / "x.so", "-shared", "-fPIC",
              "-Wl,--no-as-needed", f"-L{folder}", "-ldep")  # fmt: skip


def library(out: Path, size: int = 900_000, fill: int = 1, more: str = "", *flags: str) -> Path:
    """A preload library of about `size` bytes."""
    source = SOURCE.format(size=size, fill=fill, more=more)
    return cc(source, out, "-shared", "-fPIC", *flags)


@contextmanager
def folder() -> Iterator[Path]:
    """A folder that every user may enter, as a library's is (pytest's own are root's alone)."""
    path = Path(tempfile.mkdtemp(prefix="rigbook-lib-"))
    path.chmod(0o755)
    try:
        yield path
    finally:
        shutil.rmtree(path)


class Holders:
    """Processes that have a library mapped through LD_PRELOAD and use it without a pause."""

    def __init__(self, program: Path, preload: Path, count: int) -> None:
        env = {"LD_PRELOAD": str(preload), "PATH": os.environ["PATH"]}
        self.processes = [
            subprocess.Popen([str(program)], env=env, stdout=subprocess.PIPE, text=True)
            for _ in range(count)
        ]
        for process in self.processes:
            assert process.stdout is not None and process.stdout.readline() == "mapped\n"

    @property
    def pids(self) -> list[int]:
        """The pids of those that were started."""
        return [process.pid for process in self.processes]

    def deaths(self) -> list[int]:
        """The exit statuses of those that ended (negative: the signal)."""
        return [code for process in self.processes if (code := process.poll()) is not None]

    def end(self) -> None:
        """Ends those that still run."""
        for process in self.processes:
            process.kill()
            process.communicate()


@contextmanager
def holding(program: Path, preload: Path, count: int = 1) -> Iterator[Holders]:
    """Processes that hold a library while the block runs."""
    held = Holders(program, preload, count)
    try:
        yield held
    finally:
        held.end()
