"""HAMi's shared cache: real files, and real processes that have them mapped."""

from __future__ import annotations

import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from node.kube import hami_cache

CACHE = struct.pack("<i", hami_cache.MAGIC) + bytes(8192)
HOLD = """
import mmap, sys, time
with open(sys.argv[1], "r+b") as file:
    memory = mmap.mmap(file.fileno(), 0)
print("mapped", flush=True)
time.sleep(60)
"""


@contextmanager
def mapping(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that maps the file and has it open no more, as HAMi-core does."""
    with subprocess.Popen([sys.executable, "-c", HOLD, path], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"mapped\n"
        try:
            yield process
        finally:
            process.kill()


def deployment(
    folder: Path, grace: int = 1, **volume: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A Deployment whose container has `folder` of the host at /tmp, and that container."""
    box = {"name": "engine", "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}]}
    volumes = [{"name": "tmp", **(volume or {"hostPath": {"path": str(folder)}})}]
    spec = {"containers": [box], "volumes": volumes, "terminationGracePeriodSeconds": grace}
    return {"spec": {"template": {"spec": spec}}}, box


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A shared cache that a pod left on the host."""
    path = tmp_path / "cudevshr.cache"
    path.write_bytes(CACHE)
    return path


def test_one_that_nobody_has_is_removed(cache: Path) -> None:
    said = hami_cache.clear(*deployment(cache.parent))
    assert said == f"the former shared cache {cache} was removed" and not cache.exists()
    assert hami_cache.clear(*deployment(cache.parent)) == f"there is no shared cache {cache}"


def test_it_waits_for_the_pod_that_goes(cache: Path) -> None:
    with mapping(cache) as process:
        timer = threading.Timer(0.5, process.kill)
        timer.start()
        said = hami_cache.clear(*deployment(cache.parent))
        assert "was removed" in said and not cache.exists()


def test_a_newcomer_keeps_it(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new pod has it already: to unlink it would part the processes of one container."""
    started: list[Any] = []

    def sleep(_: float) -> None:
        started.append(mapping(cache))
        started[-1].__enter__()

    with mapping(cache) as first:
        monkeypatch.setattr(time, "sleep", sleep)
        said = hami_cache.clear(*deployment(cache.parent))
        monkeypatch.undo()
        for one in started:
            one.__exit__(None, None, None)
        assert "stays, with the former limit" in said and str(first.pid) in said
        assert len(started) == 1 and cache.exists()


def test_a_pod_that_does_not_end_keeps_it(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hami_cache, "GRACE_S", 0.2)
    with mapping(cache):
        assert "stays, with the former limit" in hami_cache.clear(*deployment(cache.parent, 0))
        assert cache.exists()


def test_what_is_no_cache_of_hami_is_left(cache: Path) -> None:
    """A link, a folder, a file of others, an empty one."""
    others = cache.parent / "others"
    others.write_bytes(CACHE)
    for make in (lambda: cache.symlink_to(others), cache.mkdir, lambda: cache.write_bytes(b"mine"),
                 cache.touch):  # fmt: skip
        cache.unlink(missing_ok=True)
        make()
        assert "it is left" in hami_cache.clear(*deployment(cache.parent))
        assert cache.is_symlink() or cache.exists()
        if cache.is_dir() and not cache.is_symlink():
            cache.rmdir()
    assert others.exists()


@pytest.mark.parametrize(("volume", "why"), [
    ({"emptyDir": {}}, "it goes with the pod"),
    ({"persistentVolumeClaim": {"claimName": "x"}}, "which is not looked into"),
])  # fmt: skip
def test_other_volumes_are_told(cache: Path, volume: dict[str, Any], why: str) -> None:
    assert why in hami_cache.clear(*deployment(cache.parent, **volume)) and cache.exists()


def test_the_variable_names_it_and_a_sub_path_counts(tmp_path: Path) -> None:
    document, box = deployment(tmp_path)
    box["env"] = [{"name": hami_cache.VARIABLE, "value": "/vgpu/a/x.cache"}]
    box["volumeMounts"].append({"name": "tmp", "mountPath": "/vgpu", "subPath": "pods/one"})
    found = hami_cache.place(document["spec"]["template"], box)
    assert (found.inside, found.host) == ("/vgpu/a/x.cache", f"{tmp_path}/pods/one/a/x.cache")
    box["env"] = [{"name": hami_cache.VARIABLE, "value": "/cache/x"}]
    assert hami_cache.place(document["spec"]["template"], box).host is None
