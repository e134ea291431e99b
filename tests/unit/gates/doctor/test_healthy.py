"""What the doctor says beside its findings: a change that was taken back, and why."""

from __future__ import annotations

import pytest

from gates.doctor.healthy import went_back_lines
from tests.unit.builders import snapshots as f
from tests.unit.builders.host_parts import change
from tests.unit.builders.spark_rig import spark_plan

HEAD = "spark1"
# serve's own reason, as a start on an H200 that lacked memory left it (2026-11-23)
REASON = (
    "gputower: the engine ended (exit status 1) and systemd restarts it gputower: root cause: "
    "ValueError: Free memory on device cuda:0 (41.72/139.8 GiB) on startup is less than desired "
    "GPU memory utilization (0.3, 41.94 GiB). (vllm/v1/worker/utils.py:415 in request_memory)"
)


@pytest.mark.parametrize(
    ("status", "age_s", "reason", "says"),
    [
        ("ROLLED_BACK", 60, REASON, "was taken back: root cause: ValueError: Free memory"),
        ("ROLLED_BACK", 60, "node undo by hand", "was taken back: node undo by hand"),
        ("ROLLED_BACK", 60, "root cause: --api-key sk-12345678 is not valid", "root cause"),
        ("ROLLED_BACK", 90000, REASON, None),
        ("ROLLED_BACK", 60, None, None),
        ("COMMITTED", 60, REASON, None),
    ],
)
def test_the_newest_change_that_went_back_is_told(
    status: str, age_s: float, reason: str | None, says: str | None
) -> None:
    plan = spark_plan()
    seen = f.healthy(plan)
    closed = seen[HEAD].identity.clock_unix_s - age_s
    row = change(status).model_copy(update={"closed_unix_s": closed, "reason": reason})
    seen[HEAD] = f.put(seen[HEAD], "journal.changes", (row, change("COMMITTED")))
    lines = [line for line in went_back_lines(seen) if line.startswith(HEAD)]
    assert len(lines) == (says is not None)
    assert says is None or (says in lines[0] and row.id in lines[0])
    assert "sk-12345678" not in "".join(lines)
