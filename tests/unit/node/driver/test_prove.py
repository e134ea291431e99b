"""The proof of a driver that is loaded: what each part of it says when it does not hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from node.core.errors import NodeError
from node.core.run import Done
from node.kernel import driver, installed
from tests.unit.node.support.kernel_world import NEW, OLD

GOOD = Done(0, f"{NEW}\n", "")
# intel/llvm#17614: on stdout, the versions in a line of their own
MISMATCH = Done(18, "Failed to initialize NVML: Driver/library version mismatch\n"
                "NVML library version: 550.144\n", "")  # fmt: skip
# NVIDIA/nvidia-container-toolkit#434; docker 28 adds its help
NO_DEVICE = Done(
    125,
    "",
    "docker: Error response from daemon: failed to create task for container: error modifying OCI"
    " spec: failed to inject CDI devices: unresolvable CDI devices nvidia.com/gpu=all: unknown\n"
    "\nRun 'docker run --help' for more information\n",
)
NO_CUDA = Done(
    1,
    "",
    'Traceback (most recent call last):\n  File "<string>", line 2\n'
    "OSError: libcuda.so.1: cannot open shared object file\n",
)
ASKED: dict[str, object] = {
    "module": "nvidia",
    "version": NEW,
    "cuda": True,
    "image": "vllm/vllm-openai:v1",
    "devices": ["nvidia.com/gpu=all"],
}


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Sequence[str]]]:
    """A host whose programs answer as it is told; gives what was run."""

    def made(
        module: str | None = NEW, libraries: Sequence[str] = (NEW,), **said: Done
    ) -> list[Sequence[str]]:
        ran: list[Sequence[str]] = []

        def run(argv: Sequence[str], limit_s: float) -> Done:
            ran.append(argv)
            name = {"nvidia-smi": "smi", "docker": "docker"}.get(argv[0], "cuda")
            return said.get(name, GOOD)

        monkeypatch.setattr(driver, "loaded_version", lambda _: module)
        monkeypatch.setattr(installed, "user_driver", lambda _: list(libraries))
        monkeypatch.setattr(driver, "run", run)
        return ran

    return made


def test_a_driver_that_works_is_proven_in_a_container_too(host: Any) -> None:
    ran = host()
    assert driver.prove(ASKED)["lines"] == [
        f"module and library are {NEW}", "nvidia-smi agrees", "a CUDA context was made",
        "a container has the GPU",
    ]  # fmt: skip
    query = ["--query-gpu=driver_version", "--format=csv,noheader"]
    assert ran[0] == ["nvidia-smi", *query]
    assert ran[2] == ["docker", "run", "--rm", "--network", "none", "--device",
                      "nvidia.com/gpu=all", "--entrypoint", "nvidia-smi", "vllm/vllm-openai:v1",
                      *query]  # fmt: skip


@pytest.mark.parametrize(
    ("made", "says"),
    [
        ({"module": None}, f"the loaded nvidia module is none, not {NEW}"),
        ({"module": OLD}, f"the loaded nvidia module is {OLD}, not {NEW}"),
        ({"libraries": [OLD, NEW]}, f"programs load {OLD}, {NEW}, the module is {NEW}"),
        ({"smi": MISMATCH}, "nvidia-smi: Failed to initialize NVML: Driver/library version "
                            "mismatch; NVML library version: 550.144"),
        ({"smi": Done(0, "", "")}, f"nvidia-smi tells no GPU, not {NEW}"),
        ({"cuda": Done(1, "", "cuInit gave 803\n")}, "a CUDA context: cuInit gave 803"),
        ({"cuda": NO_CUDA}, "a CUDA context: OSError: libcuda.so.1: cannot open shared object"),
        ({"docker": NO_DEVICE}, "unresolvable CDI devices nvidia.com/gpu=all: unknown"),
        ({"docker": Done(0, f"{OLD}\n", "")}, f"in a container nvidia-smi tells {OLD}, not {NEW}"),
    ],
)  # fmt: skip
def test_what_does_not_hold_is_one_line(host: Any, made: dict[str, Any], says: str) -> None:
    host(**made)
    with pytest.raises(NodeError) as caught:
        driver.prove(ASKED)
    assert says in str(caught.value) and caught.value.code == "not_proven"
    assert "\n" not in str(caught.value) and "--help" not in str(caught.value)


def test_a_rig_without_cdi_is_proven_without_a_container(host: Any) -> None:
    ran = host()
    assert len(driver.prove({**ASKED, "devices": [], "cuda": False})["lines"]) == 2
    assert [argv[0] for argv in ran] == ["nvidia-smi"]


@pytest.mark.parametrize(
    ("program", "done", "says"),
    [
        (None, GOOD, None),
        (
            "/usr/bin/nvidia-ctk",
            Done(0, "kind: nvidia.com/gpu\ndevices:\n- name: all\n", ""),
            "all",
        ),
        ("/usr/bin/nvidia-ctk", Done(1, "", "ERRO[0000] failed to initialize NVML\n"), "NVML"),
        ("/usr/bin/nvidia-ctk", Done(0, "", ""), "nvidia-ctk cdi generate"),
    ],
)
def test_a_cdi_spec_or_why_there_is_none(
    monkeypatch: pytest.MonkeyPatch, program: str | None, done: Done, says: str | None
) -> None:
    monkeypatch.setattr(driver, "which", lambda _: program)
    monkeypatch.setattr(driver, "run", lambda *_: done)
    if says == "all":
        assert driver.cdi({})["text"] == done.out
    elif says is None:
        assert driver.cdi({}) == {"text": None}
    else:
        with pytest.raises(NodeError, match=says):
            driver.cdi({})
