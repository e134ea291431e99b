"""Waking: the wait, the plug's off time, and an sshd that is known by its banner."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import pytest

from operations.host import answers_ssh, cycle, send_here, wait_wake
from operations.run import StepFailed

MAC = "04:7c:16:aa:bb:cc"


def test_an_sshd_is_known_by_its_banner() -> None:
    for banner, wanted in ((b"SSH-2.0-OpenSSH_9.2\r\n", True), (b"HTTP/1.1", False), (b"", False)):
        with socket.create_server(("127.0.0.1", 0)) as server:

            def serve(server: socket.socket = server, banner: bytes = banner) -> None:
                line, _ = server.accept()
                with line:
                    line.sendall(banner)

            threading.Thread(target=serve, daemon=True).start()
            assert answers_ssh("127.0.0.1", server.getsockname()[1]) is wanted


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert not answers_ssh("127.0.0.1", port)


def test_the_packet_is_sent_again_until_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    sent: list[float] = []
    said: list[str] = []

    def pause(seconds: float) -> None:
        now[0] += seconds

    def send() -> str:
        sent.append(now[0])
        return "sent"

    took = wait_wake(send, lambda: now[0] >= 50, 600, said.append, pause)
    assert 50 <= took < 53 and len(sent) == 3 and sent[0] == 0
    assert said[0] == "sent" and "no sshd yet" in said[1]
    now[0] = 0
    with pytest.raises(StepFailed, match="no sshd after 60 s"):
        wait_wake(send, lambda: False, 60, said.append, pause)


def test_where_no_packet_leaves_it_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr("wakeonlan.wake", refuse)
    with pytest.raises(StepFailed, match=r"no packet to 10\.9\.9\.255.*--data via=HOST"):
        send_here(MAC, "10.9.9.255")


PLUG = """#!/bin/sh
# rigbook stand-in for a smart plug: it writes down when it was called
echo "$1 $2 $(date +%s.%N)" >> "$(dirname "$0")/log"
[ "$2" = off ] && [ -e "$(dirname "$0")/stuck" ] && { echo "no such plug" >&2; exit 3; }
exit 0
"""


@pytest.fixture
def plug(tmp_path: Path) -> Path:
    """A plug's program."""
    path = tmp_path / "plug"
    path.write_text(PLUG)
    path.chmod(0o755)
    return path


def calls(plug: Path) -> list[tuple[str, float]]:
    """What the plug was told, and when."""
    rows = [line.split() for line in (plug.parent / "log").read_text().splitlines()]
    assert {row[0] for row in rows} == {"tower"}
    return [(row[1], float(row[2])) for row in rows]


def test_the_plug_stays_off_for_the_whole_time(plug: Path) -> None:
    said: list[str] = []
    # a pause that comes back early must not cut the time short
    cycle((str(plug), "tower"), 3, said.append, lambda seconds: time.sleep(min(seconds, 0.4)))
    (off, on) = calls(plug)
    assert (off[0], on[0]) == ("off", "on") and on[1] - off[1] >= 3
    assert "plug on after 3." in said[-1]


def test_a_wait_that_is_cut_off_leaves_the_plug_on(plug: Path) -> None:
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cycle((str(plug), "tower"), 3, lambda line: None, interrupted)
    assert [word for word, _ in calls(plug)] == ["off", "on"]


def test_a_plug_that_refuses_is_named(plug: Path) -> None:
    (plug.parent / "stuck").touch()
    with pytest.raises(StepFailed, match=r"plug tower off: exit status 3: no such plug; switch"):
        cycle((str(plug), "tower"), 3, lambda line: None, time.sleep)
    assert [word for word, _ in calls(plug)] == ["off", "on"]
    with pytest.raises(StepFailed, match="No such file"):
        cycle(("/no/such/plug",), 3, lambda line: None, time.sleep)
