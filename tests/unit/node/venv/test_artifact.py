"""artifact: files of an installed engine, below a folder or in an image; nothing is run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.node.support.host import Host


@pytest.fixture
def root(host: Host) -> Path:
    """A venv as far as its files go."""
    folder = host.root / "venv"
    package = folder / "lib/python3.11/site-packages/vllm"
    package.mkdir(parents=True)
    (package / "_version.py").write_text("__version__ = version = '0.20.2'\n")
    (package / "big.bin").write_bytes(b"x" * (9 << 20))
    (package / "out.py").symlink_to("/etc/passwd")
    (package.parent / "vllm-0.20.2.dist-info").mkdir()
    (package.parent / "vllm-0.20.2.dist-info/direct_url.json").write_text(
        '{"url": "https://user:hunter2@host/vllm.git"}'
    )
    return folder


def ask(host: Host, root: Path, **probe: object) -> list[dict[str, object]]:
    """The files that one probe finds."""
    answer = host.call("artifact", {"root": str(root), "probes": [probe]})
    assert answer["ok"], answer
    files: list[dict[str, object]] = answer["probes"][0]["files"]
    return files


VERSION = "/lib/*/site-packages/vllm/_version.py"


def test_a_file_is_given_with_its_text_only_when_asked_and_occurrences_are_counted(
    host: Host, root: Path
) -> None:
    (file,) = ask(host, root, path="/lib/python3*/site-packages/vllm/_version.py", content=True)
    assert file["content"] == "__version__ = version = '0.20.2'\n"
    assert str(file["path"]).endswith("/lib/python3.11/site-packages/vllm/_version.py")
    (file,) = ask(host, root, path=VERSION, contains="version")
    assert (file["count"], file["content"]) == (2, None)


@pytest.mark.parametrize("path", ["/lib/none.py", "/lib/*/site-packages/vllm/out.py"])
def test_no_link_leads_out_and_what_is_not_there_is_nothing(
    host: Host, root: Path, path: str
) -> None:
    assert ask(host, root, path=path, content=True) == []


def test_what_is_too_large_is_named_without_a_hash(host: Host, root: Path) -> None:
    (file,) = ask(host, root, path="/lib/*/site-packages/vllm/big.bin", content=True)
    assert (file["size"], file["sha256"], file["content"]) == (9 << 20, None, None)


def test_passwords_of_urls_are_masked(host: Host, root: Path) -> None:
    (file,) = ask(host, root, path="/lib/*/site-packages/vllm-*/direct_url.json", content=True)
    assert file["content"] == '{"url": "https://***@host/vllm.git"}'


def test_the_link_of_a_venv_is_followed(host: Host, root: Path) -> None:
    link = host.root / "current"
    link.symlink_to(root)
    assert len(ask(host, link, path=VERSION)) == 1


@pytest.mark.parametrize("request_", [
    {"probes": []}, {"root": "/a", "image": "b", "probes": []}, {"root": "a", "probes": []},
    {"image": "-x", "probes": []}, {"root": "/", "probes": []},
    {"root": "/srv", "probes": [{"path": "/../etc/passwd"}]},
    {"root": "/srv", "probes": [{"path": "a"}]},
    {"root": "/srv", "probes": [{"path": "/a", "more": 1}]},
])  # fmt: skip
def test_wrong_requests_are_refused(host: Host, request_: dict[str, object]) -> None:
    assert host.call("artifact", request_)["code"] == "bad_request"


def test_what_is_not_there_is_a_clear_line(host: Host, tmp_path: Path) -> None:
    gone = host.call("artifact", {"root": str(tmp_path / "gone"), "probes": []})
    assert gone["code"] == "cannot_read" and "is not a folder" in gone["error"]
