"""templates/image/vllm-spark built for real; test_image_spark.py beside this: what ends that."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.system.lab.support import moving as m
from tests.system.lab.support import sparkbase
from tests.system.lab.support.sparkbuild import FIX, OTHER, Spark, spark_builder
from tests.system.lab.test_image_build import IMAGE
from tests.system.rehearsal import Lab
from tests.unit.builders.mxfp4 import PATCHED, PATH


@pytest.fixture(scope="module")
def spark(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spark]:
    """No host has the image."""
    with spark_builder(lab, tmp_path_factory.mktemp("operator")) as made:
        yield made


def test_1_it_is_built_whole_once_and_says_what_it_holds(spark: Spark) -> None:
    done = spark.build("whole")
    assert done.rc == 0 and "steps.sh deepgemm" in done.text, done.text
    assert spark.file(f"/{sparkbase.LIBRARY}/{PATH}") + "\n" == PATCHED
    whole = spark.commits["whole"]
    asked = spark.file("/srv/asked").splitlines()
    assert [line for line in asked if "apply" not in line] == [
        "git clone --no-checkout -- file:///srv/DeepGEMM /opt/DeepGEMM",
        f"git -C /opt/DeepGEMM checkout --detach {whole}",
        "git -C /opt/DeepGEMM submodule update --init --recursive",
        "DG_FORCE_BUILD=1 DEEP_GEMM_FORCE_BUILD=TRUE PIP_BREAK_SYSTEM_PACKAGES=1 pip install "
        "--no-cache-dir --no-deps --no-build-isolation /opt/DeepGEMM",
    ]
    assert "2.1" in spark.file(f"/{sparkbase.LIBRARY}/deep_gemm/__init__.py")
    told = spark.run("provenance", "whole", "--data", f"commits=41834,{whole}")
    assert told.rc == 0 and "'empty_cache' 2 in" in told.text, told.text
    assert "torch 2.10.0+cu130 (cu130)" in told.text and "built_by: rigbook" in told.text
    assert f"build_args.DEEPGEMM_COMMIT: {whole}" in told.text and "1-mxfp4.patch" in told.text
    # the base's own words are not hidden behind ours
    assert "#41834: in: /workspace/build-metadata.yaml: build_args.vllm_prs" in told.text
    assert spark.at_work() == ""


def test_2_a_patch_that_does_not_fit_ends_it_and_no_tag_is_touched(spark: Spark) -> None:
    """Also where a patch behind it fits: half of the patches is not what anybody asked for."""
    before, former = spark.images(), m.image_id(spark.lab, "test1", IMAGE)
    done = spark.build("whole", {"0-other.patch": OTHER, **FIX})
    assert done.rc == 1 and "Traceback" not in done.text, done.text
    assert (
        "test1: docker build: patch 0-other.patch does not apply to the vLLM in "
        "/usr/local/lib/python3.11/dist-packages: error: patch failed: vllm/__init__.py:1"
    ) in done.text, done.text
    assert spark.images() == before and m.image_id(spark.lab, "test1", IMAGE) == former
    assert spark.at_work() == ""
