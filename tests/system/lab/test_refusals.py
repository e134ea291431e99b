"""What may not run does not run, and leaves both hosts as they were."""

from __future__ import annotations

import pytest

from tests.system.rehearsal import Lab


def test_serve_without_the_image_changes_nothing(lab: Lab) -> None:
    before = lab.snapshots()
    done = lab.pyinfra(
        "serve", "--data", "recipe=absent-image", "--data", "recipes_dir=tests/system/lab/recipes"
    )
    assert done.rc == 1
    assert "image-missing" in done.text and "nothing was changed" in done.text
    assert "Traceback" not in done.text
    assert lab.snapshots() == before


@pytest.fixture
def without_test2(lab: Lab) -> object:
    """The lab with test2 switched off."""
    assert lab.verb("stop", "test2").rc == 0
    yield lab
    assert lab.verb("start", "test2").rc == 0


def test_one_host_off_stops_the_run_before_anything_changed(without_test2: Lab) -> None:
    before = without_test2.snapshots("--limit", "test1")
    for deploy in ("serve", "stop", "rollback"):
        done = without_test2.pyinfra(deploy)
        assert done.rc == 1
        assert "nodes-reachable" in done.text and "test2" in done.text, done.text
        assert "Traceback" not in done.text
    doctor = without_test2.pyinfra("doctor")
    assert doctor.rc == 1 and "nodes-reachable" in doctor.text
    assert without_test2.snapshots("--limit", "test1") == before


def test_half_a_rig_is_refused(lab: Lab) -> None:
    done = lab.pyinfra("serve", "--limit", "test1")
    assert done.rc == 1
    assert "--limit" in done.text and "test2" in done.text


def test_no_host_matched_is_an_error(lab: Lab) -> None:
    done = lab.pyinfra("serve", "--limit", "nosuch")
    assert done.rc == 1
    assert "test1, test2" in done.text and "Traceback" not in done.text


@pytest.mark.parametrize("device", ["down"])
def test_a_fabric_that_is_down_is_named(lab: Lab, device: str) -> None:
    assert lab.verb("fabric", device).rc == 0
    try:
        done = lab.pyinfra("doctor")
        assert done.rc == 1
        assert "fabric" in done.text
    finally:
        assert lab.verb("fabric", "up").rc == 0


def test_a_foreign_process_on_the_port_is_named(lab: Lab) -> None:
    lab.ssh(
        "test1", "nohup python3 -m http.server 29501 >/dev/null 2>&1 & echo $! > /tmp/foreign.pid"
    )
    try:
        done = lab.pyinfra(
            "serve",
            "--data",
            "recipe=absent-image",
            "--data",
            "recipes_dir=tests/system/lab/recipes",
        )
        assert done.rc == 1
        assert "port-taken" in done.text and "29501" in done.text and "python3" in done.text
    finally:
        lab.ssh("test1", "kill $(cat /tmp/foreign.pid); rm /tmp/foreign.pid")
