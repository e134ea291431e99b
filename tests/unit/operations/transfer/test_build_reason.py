"""The words of docker build that tell why it failed, of both builders."""

from __future__ import annotations

import pytest

from operations.transfer.image_ssh import _reason

# As docker 20.10 of a lab host wrote it.
CLASSIC = [
    "Step 9/13 : RUN bash /opt/rigbook/steps.sh patches",
    " ---> Running in 95ab8d1d93b4",
    "\x1b[91mrigbook: patch 0-other.patch does not apply to the vLLM in /usr/lib",
    "\x1b[0mRemoving intermediate container 95ab8d1d93b4",
    "The command '/bin/sh -c bash /opt/rigbook/steps.sh patches' returned a non-zero code: 1",
]
# As BuildKit has it in plain progress (read in its progressui): twice, then the Dockerfile.
BUILDKIT = [
    "#9 [5/8] RUN bash /opt/rigbook/steps.sh deepgemm",
    "#9 0.214 fatal: repository 'x' does not exist",
    "#9 0.215 rigbook: git clone of x failed",
    '#9 ERROR: process "/bin/sh -c bash /opt" did not complete successfully: exit code: 1',
    "------",
    "0.215 rigbook: git clone of x failed",
    "------",
    "Dockerfile:15",
]


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (CLASSIC, "patch 0-other.patch does not apply to the vLLM in /usr/lib"),
        (BUILDKIT, "git clone of x failed; #9 0.214 fatal: repository 'x' does not exist"),
        (["Step 1/2 : FROM x", "", "pull access denied for x"], "Step 1/2 : FROM x pull access "
         "denied for x"),
        ([], ""),
    ],
    ids=["classic", "buildkit", "docker", "silent"],
)  # fmt: skip
def test_the_reason_is_the_steps_own_line(lines: list[str], why: str) -> None:
    assert _reason(lines) == why
