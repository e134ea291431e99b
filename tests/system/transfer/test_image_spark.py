"""What ends a build of templates/image/vllm-spark, in its steps and in its middle.

The former image stays under its tag, no half-made one has a name, no container of a step is left.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.system.lab.support import moving as m
from tests.system.lab.support.sparkbuild import FIX, Spark, spark_builder
from tests.system.lab.test_image_build import IMAGE, SEED
from tests.system.rehearsal import Lab
from tests.unit.builders.mxfp4 import diff


@pytest.fixture(scope="module")
def spark(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spark]:
    """Both hosts have the image, and a second build has nothing to do."""
    with spark_builder(lab, tmp_path_factory.mktemp("operator")) as made:
        assert made.build("whole").rc == 0
        again = made.build("whole")
        assert again.rc == 0 and "test1, test2 has them" in again.text, again.text
        yield made


@pytest.mark.parametrize(
    ("commit", "patches", "why"),
    [
        ("whole", {**FIX, "2-twice.patch": diff()},
         "docker build: patch 2-twice.patch is in the base already"),
        ("cpu", FIX, "docker build: torch 2.10.0+cpu is a cpu build, this image needs cu130"),
        ("without", FIX, "has no third-party/cutlass/include/cutlass/cutlass.h: its submodule"),
        ("main", FIX, "docker build: build.args DEEPGEMM_COMMIT is 'main'; allowed: a commit with"),
    ],
    ids=["twice", "cpu-torch", "no-cutlass", "branch"],
)  # fmt: skip
def test_1_what_is_wrong_ends_it_in_one_line_and_no_tag_is_touched(
    spark: Spark, commit: str, patches: dict[str, str], why: str
) -> None:
    before = spark.images()
    done = spark.build(commit, patches)
    assert done.rc == 1 and "Traceback" not in done.text, done.text
    lines = [line for line in done.text.splitlines() if "docker build: " in line]
    assert lines and all(why in line for line in lines), done.text
    assert spark.images() == before and f"test1 {IMAGE}" in before
    assert spark.at_work() == ""


def test_2_a_killed_operator_ends_the_build_and_no_tag_is_touched(spark: Spark) -> None:
    before = spark.images()
    started = spark.start("slow")
    spark.in_the_middle(started)
    # nobody else builds on this host meanwhile
    assert (
        spark.lab.ssh("test1", "sudo flock -n /run/rigbook-build.lock true || echo held") == "held"
    )
    m.kill(started)
    m.wait_for(lambda: spark.at_work() == "", 6)
    assert spark.images() == before


def test_3_a_docker_that_restarts_leaves_the_former_image_and_the_next_run_succeeds(
    spark: Spark,
) -> None:
    before, former = spark.images(), m.image_id(spark.lab, "test2", IMAGE)
    started = spark.start("slow")
    spark.in_the_middle(started)
    spark.lab.ssh("test1", "sudo systemctl restart docker")
    text, _ = started.communicate(timeout=60)
    assert started.returncode == 1 and "Traceback" not in text, text
    assert "test1: docker build: " in text and spark.images() == before, text
    assert spark.at_work() == ""
    done = spark.build("slow")
    assert done.rc == 0 and done.counts(SEED)[1] == "1", done.text
    assert m.image_id(spark.lab, "test2", IMAGE) == m.image_id(spark.lab, "test1", IMAGE) != former
    for host in spark.lab.hosts:
        assert m.image_id(spark.lab, host, f"rigbook-kept:{former[7:19]}") == former
