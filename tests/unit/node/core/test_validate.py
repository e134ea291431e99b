"""Hostile and wrong values: one clear line, exit 1, nothing changed, no canary."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from facts.rignode import pack
from tests.unit.node.support.host import Host, apply_request, file_step, unit_step

HOSTILE = ["'; touch CANARY; #", "a\nb", "$(touch CANARY)", "`touch CANARY`", "-rf", "\0", "",
           "x" * 5000, 7, None, True, [], {}, "\ud800"]  # fmt: skip


def replaced(request: dict[str, Any], where: tuple[str | int, ...], value: object) -> Any:
    """The request with one value put in another's place."""
    out = copy.deepcopy(request)
    at: Any = out
    for key in where[:-1]:
        at = at[key]
    at[where[-1]] = value
    return out


PLACES = [("change", "id"), ("change", "deploy"), ("change", "operator"), ("steps", 0, "path"),
          ("steps", 0, "mode"), ("steps", 0, "owner"), ("steps", 0, "group"),
          ("steps", 0, "expect_sha256"), ("steps", 0, "validate"), ("steps", 0, "sensitive"),
          ("steps", 0, "content"), ("steps", 0, "op"), ("steps", 1, "unit"),
          ("steps", 1, "enabled"), ("steps", 1, "active"), ("steps", 1, "daemon_reload"),
          ("dry",), ("steps",), ("change",)]  # fmt: skip
# values that are good ones in their place
GOOD = {
    "deploy": [HOSTILE[0], HOSTILE[2], HOSTILE[3], "-rf", ""],
    "operator": [HOSTILE[0], HOSTILE[2], HOSTILE[3], "-rf", ""],
    "content": [v for v in HOSTILE if isinstance(v, str) and v != "\ud800"],
    "expect_sha256": [None], "validate": [None], "enabled": [None, True], "active": [None],
    "dry": [True], "sensitive": [True], "daemon_reload": [True], "steps": [[]],
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES, ids=lambda place: ".".join(map(str, place)))
def test_hostile_values_are_refused(
    host: Host, place: tuple[str | int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    from node.__main__ import dispatch
    from node.core.errors import NodeError

    units = host.systemctl()
    monkeypatch.chdir(host.root)
    monkeypatch.setenv("PATH", host.environ()["PATH"])
    step = file_step(host.root / "f", owner="root", group="root", validate=["true"],
                     expect_sha256=None, sensitive=False)  # fmt: skip
    request = {**apply_request(step, unit_step("start", enabled=True)), "dry": False}
    for value in HOSTILE:
        if any(value is good or (value == good and type(value) is type(good))
               for good in GOOD.get(str(place[-1]), [])):  # fmt: skip
            continue
        with pytest.raises(NodeError) as caught:
            dispatch(["apply", json.dumps(replaced(request, place, value))])
        assert caught.value.code == "bad_request", (value, caught.value)
        assert "\n" not in str(caught.value) and str(place[-1]) in str(caught.value)
    assert not host.state.exists() and not (units / "log").exists()
    assert sorted(path.name for path in host.root.iterdir()) == ["bin"]


@pytest.mark.parametrize("path", ["etc/x", "/etc/../x", "/etc//x", "/", "//x", "/x/", "/etc/./x"])
def test_paths_must_be_absolute_and_normalised(host: Host, path: str) -> None:
    answer = host.call("apply", apply_request(file_step(Path("/f")) | {"path": path}))
    assert answer["code"] == "bad_request" and "absolute, normalised" in answer["error"]


@pytest.mark.parametrize("request_", [{"x": 1}, {"files": "/etc/passwd"}, {"files": ["etc"]},
    {"units": ["-x.service"]}, {"units": ["x"]}, {"peers": ["::g"]}, {"peers": ["-c"]},
    {"fabric_device": "-i"}, {"fabric_device": "a b"}, {"fabric_mtu": "9000"}, {"fabric_mtu": True},
    {"deep": 1}, {"sysctls": ["../etc/passwd"]}, {"sysctls": ["a/../../x"]}, {"images": ["-x"]},
    {"images": ["a b"]}, {"images": ["x?y"]}])  # fmt: skip
def test_a_bad_snapshot_request_is_refused(host: Host, request_: dict[str, object]) -> None:
    answer = host.call("snapshot", request_)
    assert answer["code"] == "bad_request" and next(iter(request_)) in answer["error"]


def test_setuid_and_unknown_owner_are_refused(host: Host) -> None:
    path = host.root / "f"
    assert "setuid" in host.call("apply", apply_request(file_step(path, mode="4755")))["error"]
    answer = host.call("apply", apply_request(file_step(path, owner="nobody-here")))
    assert "no user 'nobody-here'" in answer["error"] and not path.exists()


@pytest.mark.parametrize(("args", "stdin", "words"), [
    (["fly"], "", "unknown verb"), ([], "", "no verb"), (["apply"], "", "no JSON object"),
    (["apply"], "[1]", "not a JSON object"), (["apply"], "{", "not JSON"),
    (["snapshot", "--deep"], "", "unknown argument"), (["status", "x"], "", "unknown argument"),
    (["undo", "-f"], "", "unknown argument"),
    (["lock", "--", "sh", "-c", "id"], "", "unknown argument"),
])  # fmt: skip
def test_bad_usage_is_exit_2_and_one_line(
    host: Host, args: list[str], stdin: str, words: str
) -> None:
    done = host.run([host.python, "-I", str(host.pyz), *args], stdin)
    answer = json.loads(done.stdout)
    assert (done.returncode, done.stderr, answer["code"]) == (2, "", "usage")
    assert words in answer["error"]


@pytest.mark.parametrize("text", ["'; touch CANARY; #", "$(touch CANARY)", "`touch CANARY`",
                                  "\n touch CANARY\n", '"; touch CANARY; "', "\\"])  # fmt: skip
@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_a_hostile_request_reaches_the_program_as_text(host: Host, shell: str, text: str) -> None:
    line = pack.inline_command("snapshot", {"files": [text]})
    done = host.run([shell, "-c", f"cd {host.root} && {line}"])
    assert json.loads(done.stdout)["code"] == "bad_request"
    assert not (host.root / "CANARY").exists()


@pytest.mark.parametrize("verb", ["snapshot; touch x", "", "$(x)", "a'b", "--help"])
def test_a_hostile_verb_never_becomes_a_command(verb: str) -> None:
    with pytest.raises(ValueError, match="not a verb"):
        pack.inline_command(verb, {})
