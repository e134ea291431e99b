"""What a pin and a candidate write, and which names of kernels are taken at all."""

from __future__ import annotations

import json

import pytest

from node.kernel import candidate
from schema.core.errors import SpecError
from schema.inputs.check import host_data
from schema.inputs.runbook_data import KernelData
from schema.render import node_program
from schema.render.kernel_files import candidate_documents, pin_documents
from tests.unit.builders.spark_rig import host


@pytest.mark.parametrize("key", ["kernel", "candidate"])
@pytest.mark.parametrize("value", ["-x", "6 1", "$(id)", "6.1\n", "", "../6", "6'1", 6, "latest"])
def test_a_name_that_is_no_kernel_is_refused(key: str, value: object) -> None:
    with pytest.raises(SpecError, match=key):
        host_data("spark1", host(1, **{key: value}), {}, KernelData)


@pytest.mark.parametrize("value", ["current", "6.17.0-22-generic", "6.1.0-50-cloud-amd64", "6.8+x"])
def test_a_kernel_is_taken(value: str) -> None:
    assert host_data("spark1", host(1, kernel=value), {}, KernelData).kernel == value


@pytest.mark.parametrize("value", ["-x", "a b", "A", "nvidia;", 7])
def test_a_module_that_is_none_is_refused(value: object) -> None:
    with pytest.raises(SpecError, match="driver_module"):
        host_data("spark1", host(1, driver_module=value), {}, KernelData)


def test_grub_is_told_to_use_the_saved_default_and_not_to_save_by_itself() -> None:
    grub, _ = pin_documents("6.1.0-1", ["linux-image-6.1.0-1"])
    lines = [line for line in grub.content.splitlines() if not line.startswith("#")]
    assert lines == ["GRUB_DEFAULT=saved", "GRUB_SAVEDEFAULT=false"]


def test_the_candidates_file_is_what_node_reads(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts, unit = candidate_documents("6.1.0-2", "6.1.0-1", 900, "20261120T000000Z-kernel-abcd")
    path = tmp_path_factory.mktemp("etc") / "candidate.json"
    path.write_text(facts.content)
    monkeypatch.setenv("RIGBOOK_CANDIDATE", str(path))
    assert candidate._read() == json.loads(facts.content)
    for line in ("FailureAction=reboot", "DefaultDependencies=no", "WantedBy=sysinit.target",
                 f"ExecStart={node_program.path()} candidate"):  # fmt: skip
        assert line in unit.content.splitlines()
