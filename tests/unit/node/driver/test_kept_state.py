"""What a change of packages keeps of DKMS and modprobe.d, and how it comes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from node.core.errors import NodeError
from node.driver import kept_state, loaded, store
from node.kernel import installed
from tests.unit.node.support.apt_world import KERNEL, MODULE, NEW, OLD
from tests.unit.node.support.host import Host

TREE = f"dkms/{MODULE}/{OLD}"
BUILT = f"{TREE}/{KERNEL}/x86_64/module/{MODULE}.ko"
LOADED = f"modules/{KERNEL}/updates/dkms/{MODULE}.ko"


@pytest.fixture
def root(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host on which DKMS has built the old module for one kernel."""
    Path(store.folder()).mkdir(parents=True)
    others = (f"{TREE}/build/make.log", f"dkms/other/{OLD}/source/x")
    told = ("etc/modprobe.d/nvidia.conf", "etc/modprobe.d/zz-rigbook-driver.conf")
    for name in (BUILT, LOADED, *others, *told):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{name} of {OLD}")
    (tmp_path / TREE / "source").symlink_to(f"/usr/src/{MODULE}-{OLD}")
    monkeypatch.setattr(kept_state, "DKMS", str(tmp_path / "dkms"))
    monkeypatch.setattr(kept_state, "CONF", (str(tmp_path / "etc/modprobe.d"),))
    monkeypatch.setattr(kept_state, "NO_BUILD", str(tmp_path / "etc/dkms/no-autoinstall"))
    monkeypatch.setattr(loaded, "BLOCK", str(tmp_path / "etc/modprobe.d/zz-rigbook-driver.conf"))
    found: dict[str, Any] = {"path": str(tmp_path / LOADED)}
    monkeypatch.setattr(installed, "module_of", lambda *_: found)
    return tmp_path


def kept(root: Path) -> dict[str, Any]:
    """What the step keeps before it changes a thing."""
    return kept_state.keep(MODULE, {KERNEL: OLD, "6.17.0-23-generic": None})


def seen(root: Path, *parts: str) -> dict[str, str]:
    """path -> content, or where a link leads."""
    return {str(path.relative_to(root)): str(path.readlink()) if path.is_symlink()
            else path.read_text() for part in parts for path in (root / part).rglob("*")
            if path.is_symlink() or path.is_file()}  # fmt: skip


def test_a_module_that_cannot_be_built_any_more_comes_back(root: Path) -> None:
    before, row = seen(root, "dkms", "modules"), kept(root)
    for path in sorted((root / TREE).rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    (root / LOADED).write_text(f"of {NEW}")
    kept_state.put_back_modules(row, [KERNEL])
    assert seen(root, "dkms", "modules") == before
    assert "other" not in Path(row["path"]).read_text(errors="replace")


@pytest.mark.parametrize(
    ("packages", "later", "ends"),
    [
        ("nvidia.conf changed", "", "nvidia.conf as before"),
        ("nvidia.conf gone", "", "nvidia.conf as before"),
        ("new.conf changed", "", "nvidia.conf as before"),
        ("", "nvidia.conf edited", "nvidia.conf edited"),
        ("nvidia.conf changed", "nvidia.conf edited", "nvidia.conf edited"),
        ("nvidia.conf changed", "none recorded", "nvidia.conf as before"),
    ],
)
def test_modprobe_d_comes_back_unless_it_was_edited_since(
    root: Path, packages: str, later: str, ends: str
) -> None:
    folder = root / "etc/modprobe.d"
    before, row = seen(root, "etc"), kept(root)

    def write(words: str) -> None:
        name, _, what = words.partition(" ")
        if what == "gone":
            (folder / name).unlink()
        elif what in ("changed", "edited"):
            (folder / name).write_text(what)

    write(packages)
    after = None if later == "none recorded" else kept_state.conf()
    write(later)
    (folder / "zz-rigbook-driver.conf").write_text("this change's own block")
    changed = kept_state.moved(row, after)
    assert kept_state.put_back_conf(row, after) == changed
    assert bool(changed) == (bool(packages) and "edited" not in later)
    assert kept_state.moved(row, after) == []
    found = {name: text for name, text in seen(root, "etc").items() if "zz-rigbook" not in name}
    wanted = {name: text for name, text in before.items() if "zz-rigbook" not in name}
    if ends == "nvidia.conf edited":
        wanted["etc/modprobe.d/nvidia.conf"] = "edited"
    assert found == wanted


def test_the_mark_that_has_dkms_build_nothing_goes_with_the_undo(root: Path) -> None:
    mark = Path(kept_state.NO_BUILD)
    with pytest.raises(KeyboardInterrupt), kept_state.nothing_built():
        assert mark.exists()
        raise KeyboardInterrupt
    assert not mark.exists()
    mark.write_text("the operator's own\n")
    with kept_state.nothing_built():
        assert mark.exists()
    kept_state.forget_mark()
    assert mark.read_text() == "the operator's own\n"


def test_a_kept_file_that_is_gone_is_told(root: Path) -> None:
    row = kept(root)
    Path(row["path"]).unlink()
    with pytest.raises(NodeError, match=r"kept-.*No such file"):
        kept_state.put_back_modules(row, [KERNEL])
