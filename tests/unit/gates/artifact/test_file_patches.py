"""The states of a patch in a file, decided with the real git; and what is mended, and what not."""

from __future__ import annotations

import hashlib

import pytest

from facts.local import git_apply
from gates.artifact.file_patch_repair import added_blocks
from gates.artifact.file_patch_state import PatchState, judge
from gates.artifact.file_patches import findings, unfinished
from schema.core.errors import SpecError
from schema.core.parse import build
from schema.recipe.patches import FilePatch, PatchTool
from tests.unit.builders.mxfp4 import BASE, FOUR, PATCHED, THREE, diff

KNOWN = {"before": ["BASE"], "after": ["PATCHED"]}


def digest(text: str) -> str:
    """A text's sha256."""
    return hashlib.sha256(text.encode()).hexdigest()


def patch(**changes: object) -> FilePatch:
    """The seed's patch; a key changed to `...` is left out."""
    values: dict[str, object] = {
        "id": "mxfp4-gpu-cache",
        "path": "vllm/mxfp4.py",
        "reason": "without it the GPU's firmware hangs",
        "diff": diff(),
        "contains": "empty_cache",
        "count": 2,
        **changes,
    }
    return build(FilePatch, {k: v for k, v in values.items() if v is not ...}, lambda key: "r.yaml")


def hashed(**changes: object) -> FilePatch:
    """The same with the hashes of both known files."""
    return patch(**{"before": [digest(BASE)], "after": [digest(PATCHED)], **changes})


def state(one: FilePatch, text: str, version: str | None = "0.20.2") -> PatchState:
    """The patch's state in a file of this text."""
    return judge(one, "/v/mxfp4.py", text.encode(), version, git_apply.apply)


ONLY_DIFF = patch(contains=..., count=...)
MOVED = "# a line more\n" * 5 + BASE
OTHER_PATCHED = PATCHED + "# edited by hand\n"


@pytest.mark.parametrize("one", [patch(), hashed(), ONLY_DIFF], ids=["count", "hashes", "diff"])
def test_each_state_is_told(one: FilePatch) -> None:
    assert state(one, BASE).state == "not applied"
    assert state(one, PATCHED).state == "applied"
    assert state(one, THREE).state == "doubled"
    assert state(one, FOUR).state == "doubled"
    assert state(one, "import torch\n").state == "drifted"


@pytest.mark.parametrize("one", [patch(), hashed(), ONLY_DIFF], ids=["count", "hashes", "diff"])
def test_what_is_wanted_is_the_known_good_content(one: FilePatch) -> None:
    """C4 and C15: without the patch and with a doubled one, the outcome is the same file."""
    for text in (BASE, THREE, FOUR):
        assert state(one, text).wanted == PATCHED.encode()
    for text in (PATCHED, "import torch\n"):
        assert state(one, text).wanted is None


def test_a_file_that_moved_is_patched_where_the_hunks_are() -> None:
    moved = state(patch(), MOVED)
    assert moved.state == "not applied" and moved.wanted is not None
    assert moved.wanted.count(b"empty_cache") == 2
    again = state(patch(), moved.wanted.decode())
    assert again.state == "applied"


def test_with_hashes_only_the_known_files_are_touched() -> None:
    """A file in neither known state is refused, also when the diff would fit."""
    for text in (MOVED, OTHER_PATCHED):
        found = state(hashed(), text)
        assert found.state == "drifted" and found.wanted is None
        assert "is not known" in found.detail
    assert state(patch(), OTHER_PATCHED).state == "applied"


def test_a_doubled_file_with_other_edits_is_named_and_not_mended_by_hash() -> None:
    found = state(hashed(), THREE + "# edited\n")
    assert found.state == "doubled" and found.wanted is None
    assert findings("n", [found])[0].code == "patch-doubled"


def test_half_a_patch_is_drifted() -> None:
    half = PATCHED.replace(added_blocks(diff())[0].decode(), "", 1)
    found = state(ONLY_DIFF, half)
    assert (found.state, found.wanted) == ("drifted", None)


def test_upstreamed_is_what_the_recipe_knows_of_a_version() -> None:
    one = hashed(upstreamed=">=0.21")
    upstream = "import torch\n# rewritten\n"
    assert state(one, upstream, "0.21.0").state == "upstreamed"
    assert state(one, upstream, "0.20.2").state == "drifted"
    assert state(one, upstream, None).state == "drifted"
    assert state(one, BASE, "0.21.0").state == "not applied"
    assert state(one, PATCHED, "0.21.0").state == "applied"
    assert state(one, THREE, "0.21.0").state == "doubled"


def test_hashes_without_a_diff_are_checked_and_never_applied() -> None:
    one = hashed(diff=..., contains=..., count=...)
    found = state(one, BASE)
    assert found.state == "not applied" and found.wanted is None
    assert [v.code for v in findings("n", [found])] == ["patch-missing"]
    assert state(one, THREE).state == "drifted"


def test_a_diff_whose_outcome_is_not_the_known_file_is_refused() -> None:
    wrong = hashed(after=[digest("something else")])
    found = state(wrong, BASE)
    assert (found.state, found.wanted) == ("drifted", None)
    assert "not the patched file that the recipe knows" in found.detail


def test_findings_stop_what_nobody_may_write() -> None:
    """What patch mends is no finding; the rest blocks, an optional patch only warns."""
    assert findings("n", [state(patch(), text) for text in (BASE, PATCHED, THREE)]) == []
    found = findings("n", [state(patch(), "x\n")])
    assert [(v.code, v.severity) for v in found] == [("patch-drifted", "block")]
    optional = findings("n", [state(patch(required=False), "x\n")])
    assert [(v.code, v.severity) for v in optional] == [("patch-drifted", "warn")]
    none = PatchState(patch(required=False), "unknown", "must match one file: no such file")
    (blocked,) = findings("n", [none])
    assert (blocked.code, blocked.severity, blocked.unknown) == ("patch-unknown", "block", True)


def test_unfinished_names_every_required_patch_that_is_not_in_force() -> None:
    rows = [state(patch(), text) for text in (BASE, PATCHED, THREE, "x\n")]
    assert [v.code for v in unfinished("n", rows)] == [
        "patch-missing",
        "patch-doubled",
        "patch-drifted",
    ]
    assert unfinished("n", [state(patch(required=False), BASE)]) == []


def test_the_diffs_own_names_are_not_used() -> None:
    """A header that leads elsewhere changes nothing elsewhere."""
    evil = diff(name="../../../etc/passwd")
    assert git_apply.apply(evil, BASE.encode(), False) == PATCHED.encode()
    assert git_apply.apply(diff(), b"other\n", False) is None
    assert git_apply.apply(diff(), PATCHED.encode(), True) == BASE.encode()


def test_ends_of_lines_are_kept() -> None:
    """A file without a last newline, and one with CRLF."""
    before, after = "a\nb", "a\nc"
    text = (
        "--- a\n+++ b\n@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+c\n"
        "\\ No newline at end of file\n"
    )
    assert git_apply.apply(text, before.encode(), False) == after.encode()
    assert git_apply.apply(diff(), BASE.replace("\n", "\r\n").encode(), False) is None


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"diff": ...}, "cannot be checked"),
        ({"diff": "hello"}, "is not a unified diff of one file"),
        ({"diff": "--- a\n+++ b\nhello\n"}, "has no hunk"),
        ({"diff": diff() + diff()}, "is not a unified diff of one file"),
        ({"diff": diff() + "\x1b[31m"}, "control characters"),
        ({"count": ...}, "contains and count go together"),
        ({"count": 0}, "1 or more"),
        ({"before": ["abc"]}, "is not a sha256"),
        ({"before": [digest(BASE)], "after": [digest(BASE)]}, "in before and in after"),
        ({"path": "../x.py"}, "is not a path below site-packages"),
        ({"path": "-x.py"}, "is not a path below site-packages"),
        ({"path": "/a/../x.py"}, "is not an absolute path"),
        ({"path": "$(touch x).py"}, "is not a path below site-packages"),
        ({"upstreamed": "0.21"}, "is not a range of versions"),
        ({"id": "a;b"}, "is not a plain name"),
        ({"reason": "a\nb"}, "newline"),
        ({"colour": 1}, "unknown key"),
    ],
)
def test_a_wrong_patch_is_one_clear_line(changes: dict[str, object], part: str) -> None:
    with pytest.raises(SpecError) as caught:
        patch(**changes)
    assert part in str(caught.value) and "allowed:" in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"argv": []}, "too few"),
        ({"argv": ["genesis"]}, "is 'genesis'"),
        ({"argv": ["-c", "x"]}, "starts with `-`"),
        ({"argv": ["/bin/sh", "a\nb"]}, "newline"),
        ({"tree": "vllm/*"}, "one folder"),
        ({"tree": "../vllm"}, "is not a path below site-packages"),
        ({"env": {"A B": "1"}}, "is not a variable's name"),
        ({"timeout_s": 0}, "1 or more"),
    ],
)
def test_a_wrong_tool_is_one_clear_line(changes: dict[str, object], part: str) -> None:
    values = {"id": "genesis", "argv": ["{venv}/bin/python", "-m", "genesis"], "reason": "r"}
    assert build(PatchTool, values, lambda key: "r.yaml").tree == "vllm"
    with pytest.raises(SpecError, match=part):
        build(PatchTool, {**values, **changes}, lambda key: "r.yaml")
