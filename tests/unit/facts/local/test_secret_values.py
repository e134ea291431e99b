"""A secret's value: from the shell or a file of the operator's, and shown by nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from facts import pack
from facts.local import SecretMissing, value_of
from schema.core import Secret
from schema.recipe import SecretSource
from tests.plans.support.doubles import sent

CANARY = "T0P-S3CRET"


def from_file(path: Path, name: str = "HF_TOKEN") -> Secret | None:
    return value_of(name, SecretSource(file=str(path)))


def written(folder: Path, raw: bytes, mode: int = 0o600) -> Path:
    path = folder / "secret"
    path.write_bytes(raw)
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    ("raw", "value"),
    [(b"a b\n", "a b"), (b"a\r\n", "a"), (b"a", "a"), (b" a \n", " a "), ("ü".encode(), "ü")],
)
def test_the_one_line_of_a_file(tmp_path: Path, raw: bytes, value: str) -> None:
    found = from_file(written(tmp_path, raw))
    assert found is not None and found.reveal() == value


def test_of_the_shell_of_the_home_and_of_a_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", CANARY)
    monkeypatch.setenv("HOME", str(tmp_path))
    written(tmp_path, CANARY.encode())
    for source in (SecretSource(env="TOKEN"), SecretSource(file="~/secret")):
        found = value_of("HF_TOKEN", source)
        assert found is not None and found.reveal() == CANARY
    assert value_of("HF_TOKEN", SecretSource(node_file="~/secret")) is None


@pytest.mark.parametrize(
    ("raw", "mode", "said", "remedy"),
    [
        (f"{CANARY}\n{CANARY}\n".encode(), 0o600, "holds a newline", "as one line"),
        (b"\n", 0o600, "is empty", "as one line"),
        (CANARY.encode() * 1000, 0o600, "is longer than 8192", "as one line"),
        (CANARY.encode() + b"\xff", 0o600, "is not UTF-8", "write it anew"),
        (CANARY.encode(), 0o604, "is open to every user", "chmod o= "),
    ],
)
def test_a_file_that_holds_none(
    tmp_path: Path, raw: bytes, mode: int, said: str, remedy: str
) -> None:
    with pytest.raises(SecretMissing, match=said) as caught:
        from_file(written(tmp_path, raw, mode))
    assert remedy in caught.value.remedy and str(caught.value).startswith("HF_TOKEN: ")
    assert CANARY not in str(caught.value) + caught.value.remedy


def test_no_file_and_no_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOKEN", raising=False)
    with pytest.raises(SecretMissing, match="No such file"):
        from_file(tmp_path / "none")
    with pytest.raises(SecretMissing, match="TOKEN of this shell is not set") as caught:
        value_of("HF_TOKEN", SecretSource(env="TOKEN"))
    assert caught.value.remedy == "read -rs TOKEN; export TOKEN"


def test_a_key_that_no_header_takes(tmp_path: Path) -> None:
    """The HTTP client would quote it in its error."""
    with pytest.raises(SecretMissing, match="no HTTP header can hold"):
        from_file(written(tmp_path, f"{CANARY} ü".encode()), "VLLM_API_KEY")


def test_no_text_shows_a_value() -> None:
    secret = Secret(CANARY)
    told = [repr(secret), str(secret), f"{secret}", f"{secret!r:>30}", repr({"a": [secret]})]
    assert not any(CANARY in text for text in told)
    with pytest.raises(TypeError):
        json.dumps(secret)


def test_a_request_with_one_goes_through_stdin_or_not_at_all() -> None:
    """Every user of a host reads its command lines."""
    request: dict[str, object] = {"secrets": [{"name": "A", "value": Secret(CANARY)}]}
    for call in (pack.stdin_call("secrets look", request), pack.install_call("apply", request)):
        assert sent("h", call.line, call.stdin).request["secrets"][0]["value"] == CANARY
        assert sent("h", call.line).request == {}
    with pytest.raises(TypeError, match="not JSON serializable"):
        pack.inline_command("secrets look", request)
