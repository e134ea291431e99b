"""The watch's files: node reads the configuration, systemd accepts the units."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from node.core import webhook
from node.watch import evidence, metrics, notices, own_unit, watch
from node.watch.config import Silence, parse
from node.watch.silence import Limits
from schema.desired.plan import Document
from schema.inputs.check import host_data
from schema.inputs.runbook_data import WatchData
from schema.render import node_program
from schema.render.watch_files import limits, watch_documents
from tests.unit.builders.engine_files import unit_lines
from tests.unit.builders.spark_rig import host, spark_plan
from tests.unit.schema.render.test_engine_files import verified


def documents(**changes: object) -> tuple[Document, ...]:
    """The documents of a watch on spark1."""
    return watch_documents(
        spark_plan(), "spark1", host_data("spark1", host(1, **changes), {}, WatchData)
    )


def test_node_reads_what_is_rendered() -> None:
    made = parse(json.loads(documents(webhook="https://h/x", misses=5)[0].content))
    assert (made.misses, made.webhook) == (5, "https://h/x")
    assert made.endpoint.url == "http://192.168.1.11:8000"
    assert (made.endpoint.model, made.endpoint.reasoning) == ("deepseek-v4-flash", True)
    asked = parse(json.loads(documents(url="http://gateway:4000/", model="best")[0].content))
    assert (asked.endpoint.url, asked.endpoint.model) == ("http://gateway:4000", "best")


@pytest.mark.parametrize(("flags", "wanted"), [
    # the Spark's balanced profile: 8192 or 16384 tokens a step, 131072 of context
    ({"max_model_len": 131072, "max_num_batched_tokens": 16384}, (164, 1311)),
    ({"max_model_len": 65536, "max_num_batched_tokens": 8192}, (120, 656)),
    ({"max_model_len": 131072, "max_num_batched_tokens": 8192, "enable_chunked_prefill": False},
     (1311, 1311)),
    ({"max_model_len": 512}, (120, 120)),
    # what the recipe does not say, or not as a number, is taken as long
    ({}, (164, 2622)),
    ({"max_model_len": "128k"}, (164, 2622)),
])  # fmt: skip
def test_silence_is_longer_than_the_longest_prefill(
    flags: dict[str, Any], wanted: tuple[int, int]
) -> None:
    assert limits(flags) == wanted


def test_only_the_own_engine_is_judged_and_restarted() -> None:
    def silence(**changes: object) -> object:
        return parse(json.loads(documents(**changes)[0].content)).silence

    assert silence() == Silence(Limits(164, 1311), False)
    assert silence(restart=True, silent_s=90) == Silence(Limits(90, 90), True)
    assert silence(url="http://gateway:4000") is None
    worker = host_data("spark2", host(2), {}, WatchData)
    rendered = json.loads(watch_documents(spark_plan(), "spark2", worker)[0].content)
    assert rendered["silence"] is None
    made = parse(json.loads(documents(textfile="/srv/a.prom")[0].content))
    assert made.textfile == "/srv/a.prom"


def test_only_root_may_read_the_configuration() -> None:
    assert [document.mode for document in documents()] == ["0600", "0644", "0644"]
    others = documents(webhook="https://h/T0P-S3CRET")[1:]
    assert not any("T0P-S3CRET" in document.content for document in others)


def test_the_service_outlasts_a_look() -> None:
    service = dict(unit_lines(documents()[1]))
    longest = watch.ANSWER_S + notices.DELIVER_S + webhook.TIMEOUT_S
    longest += 2 * metrics.TIMEOUT_S + evidence.PART_S + own_unit.GPU_S
    assert int(service["TimeoutStartSec"]) > longest


@pytest.mark.parametrize("interval", [10, 60])
def test_the_timer_has_the_interval(interval: int) -> None:
    timer = dict(unit_lines(documents(interval=interval)[2]))
    assert timer["OnUnitActiveSec"] == timer["OnActiveSec"] == str(interval)


if shutil.which("systemd-analyze"):

    def test_systemd_accepts_the_units(tmp_path: Path) -> None:
        for document in documents()[1:]:
            # a timer is checked together with the service that it starts
            text = document.content.replace(node_program.path(), "/bin/true")
            (tmp_path / Path(document.path).name).write_text(text)
        assert [verified(document, tmp_path) for document in documents()[1:]] == ["", ""]
