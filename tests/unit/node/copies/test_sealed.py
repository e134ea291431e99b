"""Copies that leave the rig: real age, a folder here, and a real sshd's sftp on loopback."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from operations.change.node_call import StepFailed
from operations.sealed import age, copy, places
from tests.unit.node.support import transfers
from tests.unit.node.support.trees import Engine, picture

PIECE = 64 << 10


class Keys(NamedTuple):
    """An identity's file, and its recipient."""

    identity: str
    recipient: str


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small pieces, so that there are some."""
    monkeypatch.setattr(copy, "PIECE", PIECE)


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    """A fresh identity."""
    return made_keys(tmp_path / "identity")


def made_keys(path: Path) -> Keys:
    subprocess.run(["age-keygen", "-o", str(path)], check=True, capture_output=True)
    said = subprocess.run(["age-keygen", "-y", str(path)], check=True, capture_output=True)
    return Keys(str(path), said.stdout.decode().strip())


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A folder behind a real sshd that does nothing but sftp."""
    home, port = tmp_path / "home", transfers.free_port()
    (home / ".ssh").mkdir(parents=True)
    (tmp_path / "far").mkdir()
    for key in (home / ".ssh" / "id_ed25519", tmp_path / "host_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    public = (tmp_path / "host_key.pub").read_text()
    (home / ".ssh" / "known_hosts").write_text(f"[127.0.0.1]:{port} {public}")
    conf = tmp_path / "sshd_config"
    conf.write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {tmp_path}/host_key\nUsePAM no\n"
        f"AuthorizedKeysFile {home}/.ssh/id_ed25519.pub\nStrictModes no\nPidFile none\n"
        "PermitRootLogin prohibit-password\nSubsystem sftp internal-sftp\n"
        "ForceCommand internal-sftp\n"
    )
    Path("/run/sshd").mkdir(exist_ok=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    sshd = subprocess.Popen(["/usr/sbin/sshd", "-D", "-e", "-f", str(conf)],
                            stderr=subprocess.DEVNULL)  # fmt: skip
    try:
        transfers.wait_for(lambda: transfers.listening(port))
        yield f"sftp://root@127.0.0.1:{port}{tmp_path}/far"
    finally:
        sshd.terminate()
        sshd.wait(10)


def read(path: str, at: int, size: int) -> bytes:
    """A piece of a file of the node, which is this machine."""
    with Path(path).open("rb") as file:
        file.seek(at)
        return file.read(size)


def sent(engine: Engine, place: places.Place, keys: Keys, backup: str) -> copy.Sent:
    """A copy of a backup."""
    listed = engine.ask("pieces", {"backup": backup, "size": PIECE})
    assert listed["ok"], listed
    return copy.send(place, listed, read, keys.recipient, lambda _: None)


def brought(engine: Engine, place: places.Place, folder: str, identity: str,
            stop_at: int = 1 << 60) -> dict[str, Any]:  # fmt: skip
    """A copy that comes back; what the node says of it."""
    document = copy.document_of(place, folder, identity)
    assert document is not None
    manifest = document["manifest"]
    asked = {"backup": manifest["id"], "manifest": manifest}
    expected = engine.ask("expect", asked)
    assert expected["ok"], expected
    wrote = 0

    def write(name: str, at: int, raw: bytes) -> None:
        nonlocal wrote
        path = Path(expected["folder"]) / name
        path.touch()
        with path.open("r+b") as file:
            file.seek(at)
            file.write(raw)
        wrote += 1
        if wrote == stop_at:
            raise StepFailed("cut off")

    pack = copy.bring(place, folder, document, identity, expected["have"], write, lambda _: None)
    answer = engine.ask("arrived", {**asked, "pack": base64.b64encode(pack).decode()})
    return {**answer, "wrote": wrote}


@pytest.fixture(params=["operator", "sftp"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[places.Place]:
    """Both kinds of places."""
    if request.param == "sftp":
        found = places.opened(request.getfixturevalue("url"))
    else:
        (tmp_path / "far").mkdir()
        found = places.opened(f"operator:{tmp_path}/far")
    yield found
    found.close()


def of_host(engine: Engine) -> list[str]:
    path = engine.host.file("engine.service", "[Service]\nExecStart=/secret-word\n", 0o640)
    os.chown(path, 0, 12345)
    return [str(path)]


def copies(tmp_path: Path) -> Path:
    """The one copy's folder."""
    (found,) = (tmp_path / "far" / "rigbook").glob("*/*")
    return found


def test_it_leaves_sealed_and_comes_back(
    engine: Engine, place: places.Place, keys: Keys, tmp_path: Path
) -> None:
    (engine.package / "large.bin").write_bytes(os.urandom(3 * PIECE))
    (engine.package / "word.py").write_text("secret_word = 'secret-word'\n" * 1000)
    before = picture(engine.tree)
    backup = engine.verified(files=of_host(engine))
    first = sent(engine, place, keys, backup)
    assert (first.made, first.kept) == (True, 0)
    there = copies(tmp_path)
    assert place.names(copy.folder_of(there.parent.name)) == [backup]
    assert place.names("rigbook/another") == []
    assert there.name == backup and oct(there.stat().st_mode) == "0o40700"
    for path in there.iterdir():
        assert oct(path.stat().st_mode) == "0o100600", path
        raw = path.read_bytes()
        assert path.name == "SHA256SUMS" or raw.startswith(b"age-encryption.org/v1\n"), path
        assert b"secret-word" not in raw and b"kernel" not in raw
    assert subprocess.run(["sha256sum", "-c", "--quiet", "SHA256SUMS"], cwd=there).returncode == 0
    # once more: all of it is read back, nothing is written
    inode = {path.name: path.stat().st_ino for path in there.iterdir()}
    assert sent(engine, place, keys, backup).made is False
    assert {path.name: path.stat().st_ino for path in there.iterdir()} == inode

    shutil.rmtree(engine.host.state)
    shutil.rmtree(engine.tree)
    folder = f"rigbook/{there.parent.name}/{backup}"
    with pytest.raises(StepFailed, match="cut off"):
        brought(engine, place, folder, keys.identity, stop_at=3)
    assert not (engine.backups / backup).exists()
    answer = brought(engine, place, folder, keys.identity)
    pieces = len([name for name in inode if "payload" in name or "." in name]) - 2
    assert answer["ok"] and answer["members"] > 0 and 0 < answer["wrote"] < pieces, answer
    assert engine.restore()["changed"] is True and picture(engine.tree) == before


def test_a_copy_that_was_killed_goes_on(
    engine: Engine, place: places.Place, keys: Keys, tmp_path: Path
) -> None:
    (engine.package / "large.bin").write_bytes(os.urandom(6 * PIECE))
    backup = engine.verified()
    listed = engine.ask("pieces", {"backup": backup, "size": PIECE})
    count = 0

    def dies(path: str, at: int, size: int) -> bytes:
        nonlocal count
        count += 1
        if count == 4:
            raise StepFailed("the line was cut")
        return read(path, at, size)

    with pytest.raises(StepFailed, match="cut"):
        copy.send(place, listed, dies, keys.recipient, lambda _: None)
    assert not (copies(tmp_path) / "manifest.json.age").exists()
    # one of those that are there rots, and half of another one lies about
    one = copies(tmp_path) / "payload.tar.zst.00002.age"
    one.write_bytes(one.read_bytes()[:-1] + b"x")
    (copies(tmp_path) / "payload.tar.zst.00004.age.part").write_bytes(b"half")
    rest = sent(engine, place, keys, backup)
    assert rest.made and rest.kept == 2 * PIECE
    assert (
        sorted(path.suffix for path in copies(tmp_path).iterdir() if path.suffix == ".part") == []
    )
    folder = str(copies(tmp_path).relative_to(tmp_path / "far"))
    shutil.rmtree(engine.backups)
    assert brought(engine, place, folder, keys.identity)["ok"]


def test_by_hand(engine: Engine, keys: Keys, tmp_path: Path) -> None:
    """As docs/runbooks/backup.md says it."""
    (engine.package / "large.bin").write_bytes(os.urandom(3 * PIECE))
    before = picture(engine.tree)
    (tmp_path / "far").mkdir()
    sent(engine, places.opened(f"operator:{tmp_path}/far"), keys, engine.verified())
    (tmp_path / "out").mkdir()
    script = (
        'for p in payload.tar.zst.*.age; do age -d -i "$KEY" "$p"; done | zstd -dc | '
        "tar -xpf - --xattrs --xattrs-include='*' --numeric-owner -C \"$OUT\""
    )
    page = Path(__file__).parents[4] / "docs" / "runbooks" / "backup.md"
    assert script.replace('"$KEY"', "KEY").replace('"$OUT"', "DIR") in page.read_text()
    env = {**os.environ, "KEY": keys.identity, "OUT": str(tmp_path / "out")}
    subprocess.run(["bash", "-ec", script], cwd=copies(tmp_path), check=True, env=env)
    assert picture(tmp_path / "out") == before


def test_another_recipient_s_copy_is_left_alone(engine: Engine, keys: Keys, tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    place = places.opened(f"operator:{tmp_path}/far")
    backup = engine.verified()
    sent(engine, place, keys, backup)
    other = made_keys(tmp_path / "other")
    with pytest.raises(StepFailed, match="holds another copy"):
        sent(engine, place, other, backup)
    folder = str(copies(tmp_path).relative_to(tmp_path / "far"))
    with pytest.raises(StepFailed, match="no identity matched"):
        copy.document_of(place, folder, other.identity)
    assert copy.document_of(place, "rigbook/none/none", keys.identity) is None


def test_a_piece_that_rots_is_named_and_nothing_comes(
    engine: Engine, keys: Keys, tmp_path: Path
) -> None:
    (tmp_path / "far").mkdir()
    place = places.opened(f"operator:{tmp_path}/far")
    backup = engine.verified()
    sent(engine, place, keys, backup)
    piece = copies(tmp_path) / "payload.tar.zst.00001.age"
    raw = bytearray(piece.read_bytes())
    raw[-5] ^= 1
    piece.write_bytes(raw)
    folder = str(copies(tmp_path).relative_to(tmp_path / "far"))
    shutil.rmtree(engine.backups)
    with pytest.raises(StepFailed, match=r"payload\.tar\.zst\.00001\.age"):
        brought(engine, place, folder, keys.identity)
    # one that was sealed by somebody else for the same recipient
    piece.write_bytes(age.seal(b"something else", keys.recipient))
    with pytest.raises(StepFailed, match="is not what was sealed there"):
        brought(engine, place, folder, keys.identity)
    assert engine.ask("list")["backups"] == []


def test_what_came_wrong_is_brought_anew(engine: Engine, keys: Keys, tmp_path: Path) -> None:
    """A whole file of an earlier call is not believed."""
    (tmp_path / "far").mkdir()
    place = places.opened(f"operator:{tmp_path}/far")
    backup = engine.verified()
    size = (engine.backups / backup / "payload.tar.zst").stat().st_size
    sent(engine, place, keys, backup)
    folder = str(copies(tmp_path).relative_to(tmp_path / "far"))
    shutil.rmtree(engine.backups)
    partial = engine.backups / f"{backup}.partial"
    partial.mkdir(parents=True, mode=0o700)
    (partial / "payload.tar.zst").write_bytes(bytes(size))
    assert brought(engine, place, folder, keys.identity)["code"] == "copy_damaged"
    assert brought(engine, place, folder, keys.identity)["ok"]


@pytest.mark.parametrize("broken", ["unknown host", "no folder", "nobody listens", "no key"])
def test_a_server_that_is_not_as_it_should_be(url: str, broken: str, tmp_path: Path) -> None:
    ssh = tmp_path / "home" / ".ssh"
    if broken == "unknown host":
        (ssh / "known_hosts").write_text("")
    if broken == "no key":
        (ssh / "id_ed25519").unlink()
    url = f"{url}/none" if broken == "no folder" else url
    if broken == "nobody listens":
        url = f"sftp://root@127.0.0.1:{transfers.free_port()}/far"
    words = {"unknown host": "known_hosts", "no folder": "is not there: make it",
             "nobody listens": "Unable to connect", "no key": "uthentication"}  # fmt: skip
    with pytest.raises(StepFailed, match=words[broken]) as failed:
        places.opened(url)
    assert url in str(failed.value) and "\n" not in str(failed.value)


def test_without_age_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert age.missing()
    with pytest.raises(StepFailed, match="sudo apt-get install age"):
        age.seal(b"x", "age1x")


@pytest.mark.parametrize(
    "name", ["../../../../etc/cron.d/x", "/etc/cron.d/x", "a/b", "", ".", "..", ".hidden", "x\n", 7]
)
def test_a_forged_copy_names_no_path(tmp_path: Path, keys: Keys, name: object) -> None:
    """Who may write into the place forges a manifest; root on the node wrote what it named."""
    place, written = places.opened(str(tmp_path)), []
    document = {"piece": PIECE, "pack": [], "files": [{"name": name, "bytes": 0, "pieces": []}]}
    with pytest.raises(StepFailed, match="nothing was written"):
        copy.bring(place, "rigbook/spark1/x", document, keys.identity, {},
                   lambda *row: written.append(row), lambda _size: None)  # fmt: skip
    assert written == []


@pytest.mark.parametrize(
    ("host", "backup"), [("../x", "id"), ("/etc", "id"), ("spark1", "../../spark2/id"), ("", "id")]
)
def test_a_node_names_no_folder_outside_the_place(host: str, backup: str) -> None:
    with pytest.raises(StepFailed, match="nothing was written"):
        copy.folder_of(host, backup)
