"""What the endpoint on loopback says to docker, and to everybody else, over real HTTP."""

from __future__ import annotations

import base64
import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from node.core.errors import NodeError
from node.image import endpoint
from node.rules.oci_layout import digest_of

LAYER = bytes(range(200))
CONFIG = b'{"rootfs": {"type": "layers", "diff_ids": []}}'
MANIFEST = endpoint.manifest_of(CONFIG, [(digest_of(LAYER), len(LAYER))])
INDEX = json.dumps({"manifests": [{"digest": digest_of(MANIFEST)}]}).encode()
OF = {raw: digest_of(raw) for raw in (LAYER, CONFIG, MANIFEST, INDEX)}
CONTENT = {OF[raw]: endpoint.document(raw) for raw in (CONFIG, MANIFEST, INDEX)}
CONTENT[OF[LAYER]] = endpoint.blob(len(LAYER), 7)
BASE = f"/v2/{endpoint.REPOSITORY}"
BLOB, TAKEN = f"{BASE}/blobs/{OF[LAYER]}", f"{BASE}/manifests/{OF[MANIFEST]}"


class Giver:
    """Stand-in for the giving node: one layer, in pieces, and what was asked of it."""

    def __init__(self, fails: bool = False) -> None:
        self.asked, self._fails = list[tuple[int, int, int]](), fails

    def fetch(self, item: int, first: int, end: int, write: endpoint.Write) -> None:
        """Gives a part; a giver that fails does so in the middle."""
        self.asked.append((item, first, end))
        middle = (first + end) // 2
        write(memoryview(LAYER)[first:middle])
        if self._fails:
            raise NodeError("the link is gone", "no_peer")
        write(memoryview(LAYER)[middle:end])


@contextmanager
def opened(giver: Giver) -> Iterator[endpoint.Endpoint]:
    """An endpoint at work."""
    with endpoint.Endpoint(CONTENT, giver.fetch) as made:
        yield made


def password(made: endpoint.Endpoint) -> str:
    """What docker sends for the X-Registry-Auth that it is given."""
    said = json.loads(base64.urlsafe_b64decode(made.header))
    assert said["serveraddress"] == f"127.0.0.1:{made.port}"
    return "Basic " + base64.b64encode(f"{said['username']}:{said['password']}".encode()).decode()


def ask(
    made: endpoint.Endpoint,
    path: str,
    method: str = "GET",
    auth: str | None = None,
    bytes_: str = "",
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of a request, with the right password where no other is given."""
    headers = {"Authorization": password(made) if auth is None else auth}
    headers |= {"Range": f"bytes={bytes_}"} if bytes_ else {}
    line = http.client.HTTPConnection("127.0.0.1", made.port, timeout=5)
    try:
        line.request(method, path, headers=headers)
        answer = line.getresponse()
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
    finally:
        line.close()


@pytest.mark.parametrize(("path", "body", "kind"), [
    ("/v2/", b"{}", "application/json"),
    (TAKEN, MANIFEST, "application/vnd.oci.image.manifest.v1+json"),
    (f"{TAKEN}?ns=example", MANIFEST, "application/vnd.oci.image.manifest.v1+json"),
    (f"{BASE}/manifests/{OF[INDEX]}", INDEX, "application/vnd.oci.image.index.v1+json"),
    (f"{BASE}/blobs/{OF[CONFIG]}", CONFIG, "application/octet-stream"),
    (BLOB, LAYER, "application/octet-stream"),
])  # fmt: skip
def test_what_the_image_has_is_given_by_its_digest(path: str, body: bytes, kind: str) -> None:
    with opened(Giver()) as made:
        status, said, got = ask(made, path)
        assert (status, said["content-type"], got) == (200, kind, body)
        status, said, got = ask(made, path, "HEAD")
        assert (status, said["content-length"], got) == (200, str(len(body)), b"")


def test_a_question_about_a_layer_asks_nothing_of_the_giver() -> None:
    giver = Giver()
    with opened(giver) as made:
        assert ask(made, BLOB, "HEAD")[0] == 200 and not giver.asked and not made.asked
        assert ask(made, BLOB)[0] == 200 and giver.asked == [(7, 0, 200)]
        assert made.asked == {OF[LAYER]}


@pytest.mark.parametrize(("asked", "status", "span"), [
    ("150-", 206, (150, 200)), ("0-", 200, (0, 200)), ("3-5", 206, (3, 6)),
    ("199-", 206, (199, 200)), ("10-9999", 206, (10, 200)),
    ("200-", 416, (0, 0)), ("9-3", 416, (0, 0)), ("99999999999999999999999-", 200, (0, 200)),
    # forms that docker does not use get the whole
    ("-5", 200, (0, 200)), ("0-1,5-6", 200, (0, 200)),
])  # fmt: skip
def test_a_part_is_given_from_where_docker_goes_on(
    asked: str, status: int, span: tuple[int, int]
) -> None:
    with opened(Giver()) as made:
        got, said, body = ask(made, BLOB, bytes_=asked)
        assert got == status
        if status == 416:
            assert said["content-range"] == "bytes */200"
            return
        assert body == LAYER[span[0] : span[1]] and said["content-length"] == str(len(body))
        if status == 206:
            assert said["content-range"] == f"bytes {span[0]}-{span[1] - 1}/200"


@pytest.mark.parametrize("auth", [
    "", "Basic", "Basic cmlnYm9vazo=", "Bearer x", "Basic ünd", "Basic " + "A" * 5000,
])  # fmt: skip
@pytest.mark.parametrize("path", ["/v2/", TAKEN, BLOB, "/etc/passwd"])
def test_who_does_not_know_the_password_gets_nothing(auth: str, path: str) -> None:
    giver = Giver()
    with opened(giver) as made:
        status, said, body = ask(made, path, auth=auth)
        assert status == 401 and said["www-authenticate"].startswith("Basic realm=")
        assert OF[LAYER] not in body.decode() and not giver.asked


def test_each_transfer_has_a_password_of_its_own() -> None:
    with opened(Giver()) as one, opened(Giver()) as other:
        assert ask(one, BLOB, auth=password(other))[0] == 401


@pytest.mark.parametrize("path", [
    "/", "/v2/_catalog", f"{BASE}/tags/list", f"{BASE}/manifests/latest",
    f"{BASE}/manifests/{OF[LAYER]}", f"{BASE}/manifests/{OF[CONFIG]}",
    f"{BASE}/blobs/sha256:{'0' * 64}", f"{BASE}/blobs/{OF[LAYER].upper()}",
    f"{BASE}/blobs/{OF[LAYER]}/..", f"{BASE}/blobs/../blobs/{OF[LAYER]}",
    f"{BASE}/blobs/sha256:../../../../etc/passwd", f"{BASE}/blobs/%2e%2e/{OF[LAYER]}",
    f"/v2/other/blobs/{OF[LAYER]}", f"{BASE}/blobs/uploads/", f"//v2/x/blobs/{OF[LAYER]}",
])  # fmt: skip
def test_what_is_not_of_this_image_is_not_there(path: str) -> None:
    giver = Giver()
    with opened(giver) as made:
        assert ask(made, path)[0] == 404 and not giver.asked


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE", "PATCH"])
def test_nothing_can_be_changed(method: str) -> None:
    with opened(Giver()) as made:
        assert ask(made, BLOB, method)[0] == 501


def test_docker_that_greets_by_tls_is_told_that_this_is_plain_http() -> None:
    """A ClientHello has no end of line: waiting for one would end by the timeout."""
    with opened(Giver()) as made, socket.create_connection(("127.0.0.1", made.port), 5) as line:
        line.sendall(b"\x16\x03\x01\x00\x10" + b"x" * 16)
        assert line.recv(100).startswith(b"HTTP/1.0 400")


def test_a_giver_that_is_gone_cuts_the_answer_and_is_named() -> None:
    """docker has to see that it is not whole; its words alone would not say why."""
    with opened(Giver(fails=True)) as made:
        with pytest.raises(http.client.IncompleteRead):
            ask(made, BLOB)
        assert str(made.error) == "the link is gone"


def test_more_connections_than_docker_makes_are_hung_up_on() -> None:
    with opened(Giver()) as made:
        lines = [socket.create_connection(("127.0.0.1", made.port), 5)
                 for _ in range(endpoint.MAX_CONNECTIONS)]  # fmt: skip
        try:
            with socket.create_connection(("127.0.0.1", made.port), 5) as more:
                assert more.recv(1) == b""
        finally:
            for line in lines:
                line.close()


def test_it_is_on_loopback_and_gone_afterwards() -> None:
    with opened(Giver()) as made:
        port = made.port
        assert made.name == f"127.0.0.1:{port}/rigbook-pull"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 5)


def test_the_same_image_makes_the_same_manifest() -> None:
    """A second run on a node that has it by then must find it."""
    assert endpoint.manifest_of(CONFIG, [(OF[LAYER], 200)]) == MANIFEST
    said = json.loads(MANIFEST)
    assert said["config"]["digest"] == OF[CONFIG] and said["layers"][0]["size"] == 200
