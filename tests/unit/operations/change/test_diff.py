"""How a file's change is shown: what changed, and never a secret."""

from __future__ import annotations

import pytest

from operations.change.diff import lines

PATH = "/etc/rigbook/engine/engine.env"
SECRET = "hunter2"


def test_an_equal_file_has_no_diff() -> None:
    """Nothing to show."""
    assert list(lines(PATH, "a\n", "a\n")) == []


def test_a_new_and_a_removed_file() -> None:
    """The side that is not there is /dev/null."""
    assert list(lines(PATH, None, "A=1\n"))[:2] == ["--- /dev/null", f"+++ {PATH}"]
    assert list(lines(PATH, "A=1\n", None))[:2] == [f"--- {PATH}", "+++ /dev/null"]


def test_old_and_new_value_with_two_lines_around() -> None:
    """A unified diff, without the whole file."""
    before = "".join(f"{n}\n" for n in range(9))
    shown = list(lines(PATH, before, before.replace("4\n", "four\n")))
    assert shown[3:] == [" 2", " 3", "-4", "+four", " 5", " 6"]


@pytest.mark.parametrize(
    "line",
    [
        f"HF_TOKEN={SECRET}",
        f"VLLM_API_KEY={SECRET}",
        f"AWS_SECRET_ACCESS_KEY={SECRET}",
        f"PGPASSWORD={SECRET}",
        f"HTTP_AUTH=Basic {SECRET}=x",
        f"my_token={SECRET}",
        f"  --api-key {SECRET} \\",
        f"  --api-key {SECRET} other-{SECRET}",
        f"  --ssl-token={SECRET}",
    ],
)
def test_secrets_are_masked_on_every_side(line: str) -> None:
    """Added, removed, and as context of another change."""
    for before, after in (
        (None, f"{line}\n"),
        (f"{line}\n", None),
        (f"{line}\na\n", f"{line}\nb\n"),
        (f"{line}\n", "b\n"),
    ):
        shown = "\n".join(lines(PATH, before, after))
        assert SECRET not in shown and "***" in shown


def test_a_changed_secret_is_told_without_its_value() -> None:
    """Otherwise a change would be written that no diff announced."""
    (line,) = lines(PATH, "HF_TOKEN=old\n", "HF_TOKEN=new\n")
    assert "only values of secrets" in line and "new" not in line


def test_a_value_that_the_host_masked_is_no_difference() -> None:
    """node masks secrets before they leave the host (node/core/masking.py)."""
    shown = list(lines(PATH, "HF_TOKEN=***\nA=1\n", "HF_TOKEN=new\nA=2\n"))
    assert shown[3:] == [" HF_TOKEN=***", "-A=1", "+A=2"]


def test_ordinary_values_are_shown() -> None:
    """A variable that only looks long is not hidden."""
    assert list(lines(PATH, None, "VLLM_HOST_IP=10.0.0.1\n"))[-1] == "+VLLM_HOST_IP=10.0.0.1"
