"""One question, one answer: what is old, forged or somebody else's says nothing."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator

import pytest

from node.lease import message
from node.lease.agreement import View

KEY, OTHER = b"k" * 32, b"o" * 32
SAID = View("promised", "OPEN", True, "", True)


@pytest.fixture
def port() -> Iterator[int]:
    """A host spark1 at 127.0.0.1 that answers about change-1."""
    sock = message.listening("127.0.0.1", 0)
    sock.settimeout(0.1)
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            try:
                message.answer(sock, KEY, "change-1", "spark1", SAID)
            except TimeoutError:
                continue

    thread = threading.Thread(target=serve)
    thread.start()
    yield sock.getsockname()[1]
    over.set()
    thread.join()
    sock.close()


def test_a_host_says_how_far_it_is(port: int) -> None:
    assert message.ask("127.0.0.1", port, KEY, "change-1", "spark1") == SAID


@pytest.mark.parametrize(
    ("key", "change", "node"),
    [
        (OTHER, "change-1", "spark1"),
        (KEY, "change-2", "spark1"),
        (KEY, "change-1", "spark2"),
    ],
    ids=["another key", "another change", "another host"],
)
def test_who_is_not_asked_says_nothing(
    port: int, key: bytes, change: str, node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message, "ANSWER_S", 0.2)
    assert message.ask("127.0.0.1", port, key, change, node) is None


@pytest.mark.parametrize(
    "raw",
    [b"", b"x" * 2000, message._pack(OTHER, {"tell": "change-1"}),
     message._pack(KEY, {"tell": "x"}),
     message._pack(KEY, {"tell": "change-1", "nonce": "old", "from": "spark1", **SAID._asdict()}),
     b"0" * 64 + b"{"],
    ids=["nothing", "noise", "another key", "another change", "an old answer", "no JSON"],
)  # fmt: skip
def test_what_is_no_answer_is_taken_for_none(raw: bytes) -> None:
    """An answer that was kept and is sent again has another nonce."""
    with message.listening("127.0.0.1", 0) as sock:

        def replay() -> None:
            sock.sendto(raw, sock.recvfrom(2048)[1])

        thread = threading.Thread(target=replay)
        thread.start()
        port = sock.getsockname()[1]
        assert message.ask("127.0.0.1", port, KEY, "change-1", "spark1") is None
        thread.join()


def test_nobody_who_listens_refuses() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(ConnectionRefusedError):
        message.ask("127.0.0.1", port, KEY, "change-1", "spark1")


def test_a_question_without_the_key_gets_no_answer(port: int) -> None:
    """A stranger learns nothing, not even that somebody listens."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(0.2)
        sock.connect(("127.0.0.1", port))
        sock.send(b"0" * 64 + json.dumps({"ask": "change-1", "of": "spark1"}).encode())
        with pytest.raises(TimeoutError):
            sock.recv(100)


def test_an_address_that_is_not_up_yet_can_be_listened_at() -> None:
    """The fabric's address comes late at boot (192.0.2.0/24 is of no host)."""
    message.listening("192.0.2.7", 0).close()
