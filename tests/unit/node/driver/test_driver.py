"""What apt prints, read: recorded simulations and reasons, names of families and branches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from node.change import apply, journal, transaction
from node.core import proc
from node.core.errors import NodeError
from node.core.run import Done
from node.kernel import driver, driver_report, installed, packages_step
from tests.unit.node.support.host import Host, change
from tests.unit.node.support.kernel_world import KERNEL, MODULE, NEW, OLD, OTHER, AptWorld

SAYS = yaml.safe_load((Path(__file__).parent / "apt_says.yaml").read_text())
FAMILY = ["libnvidia-compute-580", "nvidia-dkms-580-open", "nvidia-firmware-580-580.126.09",
          "nvidia-kernel-common-580", "xserver-xorg-video-nvidia-580"]  # fmt: skip


@pytest.mark.parametrize("case", SAYS["simulated"], ids=lambda case: case["name"])
def test_a_simulation_is_read(case: dict[str, Any]) -> None:
    keys = ("name", "old", "new", "arch")
    assert driver.package_rows(case["text"]) == [
        dict(zip(keys, r, strict=True)) for r in case["rows"]
    ]


@pytest.mark.parametrize("case", SAYS["reasons"], ids=lambda case: case["says"][:40])
def test_a_reason_is_one_line(case: dict[str, Any]) -> None:
    assert driver.apt_reason(case["text"]) == case["says"]


def test_the_family_in_one_version_and_in_another_branch() -> None:
    """A firmware package is named by its version: apt exchanges it by itself."""
    version = "580.142-0ubuntu0.24.04.1"
    known = {
        name: ["580.159.03-0ubuntu0.24.04.1", version] for name in FAMILY if "firm" not in name
    }
    assert driver.wanted_packages(FAMILY, known, "580.142", None) == [
        f"{name}={version}" for name in FAMILY if "firmware" not in name
    ]
    assert driver.wanted_packages(FAMILY, known, "580.14", None) == []
    assert driver.wanted_packages(FAMILY, {FAMILY[0]: ["580.126.09-1"]}, "580.126", None) == [
        f"{FAMILY[0]}=580.126.09-1"
    ]
    # pyinfra reads 580.150 as a number
    assert driver.wanted_packages(["a"], {"a": ["580.159.03-1", "580.150-1"]}, "580.15", None) == [
        "a=580.150-1"
    ]
    assert driver.wanted_packages(["a"], {"a": ["580.150-1", "580.15-1"]}, "580.15", None) == [
        "a=580.15-1"
    ]
    assert driver.branch_of(FAMILY) == "580"
    assert driver.in_branch("nvidia-dkms-580-open", "590") == "nvidia-dkms-590-open"
    assert driver.in_branch("nvidia-persistenced", "590") == "nvidia-persistenced"


@pytest.mark.parametrize(("installed", "more", "wanted"), [
    # the seed's tower: module packages of the distribution, and one more kernel
    (["linux-modules-nvidia-580-open-6.17.0-22-generic"], "6.17.0-23-generic",
     ["linux-modules-nvidia-580-open-6.17.0-22-generic",
      "linux-modules-nvidia-580-open-6.17.0-23-generic", "linux-image-6.17.0-23-generic"]),
    (["nvidia-dkms-580-open"], "6.17.0-23-generic",
     ["linux-image-6.17.0-23-generic", "linux-headers-6.17.0-23-generic"]),
    (["nvidia-dkms-580-open"], None, []),
])  # fmt: skip
def test_the_packages_of_a_kernel(installed: list[str], more: str, wanted: list[str]) -> None:
    found: dict[str, Any] = {name: {} for name in installed}
    kernels = ("6.17.0-22-generic", "6.17.0-23-generic")
    known = {
        name: ["1"]
        for k in kernels
        for name in (f"linux-modules-nvidia-580-open-{k}", f"linux-image-{k}", f"linux-headers-{k}")
    }
    assert driver.of_kernels(found, None, kernels[0], more, known) == wanted


# The packages step with the real apt and dpkg in a root of its own: forward, back, half done.

CONF = f"etc/{MODULE}.conf"


@pytest.fixture
def apt(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AptWorld]:
    """A host with the old driver installed, the new one in its repository."""
    monkeypatch.chdir(tmp_path)
    world = AptWorld(tmp_path / "world")
    world.driver(OLD, "0ubuntu1")
    world.driver(NEW, "0ubuntu1")
    world.update()
    world.install(f"{MODULE}-dkms-580={OLD}-0ubuntu1", f"lib{MODULE}-compute-580={OLD}-0ubuntu1",
                  f"{MODULE}-firmware-580-{OLD}")  # fmt: skip
    world.run("apt-mark", "auto", f"{MODULE}-firmware-580-{OLD}")
    for name, value in world.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(driver_report, "CACHE", str(world.root / "var/cache/apt/archives"))

    def module_of(release: str, name: str) -> dict[str, Any] | None:
        path = world.root / f"lib/modules/{release}/{name}.ko"
        if not path.exists():
            return None
        return {"path": str(path), "version": path.read_text(), "vermagic": release, "signer": None}

    monkeypatch.setattr(installed, "module_of", module_of)
    monkeypatch.setattr(installed, "user_driver",
                        lambda *_: [p.name.partition(".so.")[2] for p in
                                    (world.root / "usr/lib/x").glob("*.so.*")])  # fmt: skip
    monkeypatch.setattr(driver_report, "signed_only", lambda: False)
    monkeypatch.setattr(driver, "loaded_version", lambda _: OLD)
    monkeypatch.setattr("platform.release", lambda: KERNEL)
    yield world


def looked(**asked: object) -> dict[str, Any]:
    """What `node driver` says of apt."""
    found: dict[str, Any] = driver_report.look_at_driver({"module": MODULE, **asked})["apt"]
    return found


def steps(rows: list[dict[str, Any]], version: str = NEW) -> list[dict[str, Any]]:
    """The step that a run sends."""
    keys = ("name", "old", "new", "arch", "old_arch")
    return [{"op": "packages", "module": MODULE, "version": version, "kernels": [KERNEL],
             "rows": [{key: row[key] for key in keys} for row in rows]}]  # fmt: skip


def fetched(**asked: object) -> list[dict[str, Any]]:
    """The rows of a plan, all files kept."""
    rows: list[dict[str, Any]] = looked(**asked)["rows"]
    keys = ("name", "old", "new", "arch", "old_arch")
    driver_report.fetch_packages({"rows": [{key: row[key] for key in keys} for row in rows]})
    return rows


def test_there_and_back_without_a_repository(apt: AptWorld) -> None:
    before = apt.state()
    plan = looked(version=NEW)
    assert (plan["wanted"], plan["problem"]) == (NEW, None)
    assert {(row["name"], row["old"], row["new"], row["kept"]) for row in plan["rows"]} == {
        (f"{MODULE}-dkms-580", f"{OLD}-0ubuntu1", f"{NEW}-0ubuntu1", "repository"),
        (f"lib{MODULE}-compute-580", f"{OLD}-0ubuntu1", f"{NEW}-0ubuntu1", "repository"),
        (f"{MODULE}-firmware-580-{NEW}", None, f"{NEW}-0ubuntu1", None),
    }
    rows = fetched(version=NEW)
    for path in apt.repository.glob("*.deb"):
        path.unlink()
    apply.apply({"change": change(), "steps": steps(rows)})
    assert apt.packages()[f"{MODULE}-dkms-580"] == f"{NEW}-0ubuntu1 installed"
    assert (apt.root / f"lib/modules/{KERNEL}/{MODULE}.ko").read_text() == NEW
    auto = apt.run("apt-mark", "showauto").split()
    assert f"{MODULE}-firmware-580-{NEW}" in auto and f"{MODULE}-dkms-580" not in auto
    again = apply.apply({"change": change(), "steps": steps(rows)})
    assert not again["changed"]
    assert transaction.undo({"change": str(change()["id"])})["status"] == "ROLLED_BACK"
    assert apt.state() == before


@pytest.mark.parametrize(
    ("fault", "says"),
    [("fails", "installed gpustand-dkms-580 package post-installation script"),
     ("bad", f"the {MODULE} module for {KERNEL} is 1, not {NEW}")],
)  # fmt: skip
def test_what_fails_is_taken_back_at_once(apt: AptWorld, fault: str, says: str) -> None:
    before = apt.state()
    for path in apt.repository.glob(f"*_{NEW}*.deb"):
        path.unlink()
    apt.driver(NEW, "0ubuntu1", **{fault: True})
    apt.update()
    rows = fetched(version=NEW)
    with pytest.raises(NodeError, match="nothing was changed") as caught:
        apply.apply({"change": change(), "steps": steps(rows)})
    assert says in str(caught.value)
    assert apt.state() == before
    assert journal.find(str(change()["id"])) is None


def test_a_kill_in_the_middle_is_undone_from_any_state(
    apt: AptWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """dpkg has unpacked the new packages and configured none of them."""
    before = apt.state()
    rows = fetched(version=NEW)

    def killed(wanted: list[str]) -> None:
        apt.run("dpkg", "--unpack", *wanted)
        raise KeyboardInterrupt

    monkeypatch.setattr(packages_step, "_install", killed)
    with pytest.raises(KeyboardInterrupt):
        apply.apply({"change": change(), "steps": steps(rows)})
    assert apt.packages()[f"{MODULE}-dkms-580"] == f"{NEW}-0ubuntu1 unpacked"
    assert driver_report.dpkg_problem() is not None
    assert transaction.undo({"change": str(change()["id"])})["status"] == "ROLLED_BACK"
    assert apt.state() == before and driver_report.dpkg_problem() is None


@pytest.mark.parametrize("runs", [NEW, None], ids=["it runs", "it did not load"])
def test_after_the_boot_one_more_boot_brings_the_former_module(
    apt: AptWorld, monkeypatch: pytest.MonkeyPatch, runs: str | None
) -> None:
    """The packages are back at once; the undo is whole once the former module runs."""
    before = apt.state()
    apply.apply({"change": change(), "steps": steps(fetched(version=NEW))})
    monkeypatch.setattr(driver, "loaded_version", lambda _: runs)
    with pytest.raises(NodeError, match="the former one comes with the next boot"):
        transaction.undo({"change": str(change()["id"])})
    found = journal.get(str(change()["id"]))
    assert found["status"] == "INCONSISTENT" and apt.state() == before
    assert [row["boot"] for row in found["steps"]] == [proc.boot_id()]
    monkeypatch.setattr(driver, "loaded_version", lambda _: OLD)
    assert transaction.undo({"change": str(change()["id"])})["status"] == "ROLLED_BACK"
    assert apt.state() == before


def test_an_edited_conffile_is_kept_and_asks_nothing(apt: AptWorld) -> None:
    (apt.root / CONF).write_text("edited\n")
    before = apt.state()
    apply.apply({"change": change(), "steps": steps(fetched(version=NEW))})
    assert (apt.root / CONF).read_text() == "edited\n"
    transaction.undo({"change": str(change()["id"])})
    after = apt.state()
    assert {key: after[key] for key in before} == before


def test_the_old_files_come_from_wherever_they_are(
    apt: AptWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    apt.forget(OLD)
    gone = [row["kept"] for row in looked(version=NEW)["rows"] if row["old"]]
    assert gone == ["none", "none"]
    with pytest.raises(NodeError, match="the old driver is not to be had any more"):
        fetched(version=NEW)
    monkeypatch.setattr(driver_report, "which", lambda _: "/usr/bin/dpkg-repack")
    assert {row["kept"] for row in looked(version=NEW)["rows"]} == {"repack", None}
    apt.driver(OLD, "0ubuntu1")
    for path in apt.repository.glob(f"*_{OLD}*.deb"):
        path.rename(apt.root / "var/cache/apt/archives" / path.name)
    assert {row["kept"] for row in looked(version=NEW)["rows"]} == {"cache", None}
    fetched(version=NEW)
    assert {row["kept"] for row in looked(version=NEW)["rows"]} == {"kept", None}


def test_another_branch_is_asked_for_by_its_names(apt: AptWorld) -> None:
    apt.driver(OTHER, "0ubuntu1")
    apt.update()
    plan = looked(branch="590", latest=True)
    assert plan["wanted"] == OTHER and plan["available"] == [OTHER]
    assert {row["name"] for row in plan["rows"]} == {
        f"{MODULE}-dkms-590", f"lib{MODULE}-compute-590", f"{MODULE}-firmware-590-{OTHER}"
    }  # fmt: skip
    assert looked(version="580.999")["wanted"] is None


@pytest.mark.parametrize("held", [False, True])
def test_a_package_of_others_is_named(apt: AptWorld, held: bool) -> None:
    """It needs the old library: apt would take it away, or, where it is held, refuses."""
    apt.package("viewer", "1", depends=f"lib{MODULE}-compute-580 (= {OLD}-0ubuntu1)")
    apt.update()
    apt.install("viewer")
    if held:
        apt.run("apt-mark", "hold", "viewer")
    plan = looked(version=NEW)
    assert plan["holds"] == (["viewer"] if held else [])
    if held:
        assert plan["problem"].startswith("viewer : Depends:") and plan["rows"] == []
    else:
        assert ("viewer", None) in {(row["name"], row["new"]) for row in plan["rows"]}


def test_a_file_that_is_swept_is_one_that_no_change_names(apt: AptWorld) -> None:
    rows = fetched(version=NEW)
    stray = Path(driver_report.packages_folder()) / "nvidia-x_1_amd64.deb"
    stray.write_text("x")
    apply.apply({"change": change(), "steps": steps(rows)})
    kept = {path.name for path in Path(driver_report.packages_folder()).iterdir()} - {stray.name}
    driver_report.fetch_packages({"rows": []})
    assert {path.name for path in Path(driver_report.packages_folder()).iterdir()} == kept


def test_a_new_file_that_the_repository_made_anew_is_fetched_again(apt: AptWorld) -> None:
    """A build that failed was mended under the same version."""
    rows = fetched(version=NEW)
    kept = {
        path.name: path.read_bytes() for path in Path(driver_report.packages_folder()).iterdir()
    }
    apt.driver(NEW, "0ubuntu1", bad=True)
    apt.update()
    for path in apt.repository.glob(f"*_{NEW}-*.deb"):
        path.rename(path.with_suffix(".away"))
    with pytest.raises(NodeError, match="cannot be downloaded"):
        fetched(version=NEW)
    assert {p.name: p.read_bytes() for p in Path(driver_report.packages_folder()).iterdir()} == kept
    for path in apt.repository.glob(f"*_{NEW}-*.away"):
        path.rename(path.with_suffix(".deb"))
    assert fetched(version=NEW) == [{**row, "kept": row["kept"] and "kept"} for row in rows]
    for path in Path(driver_report.packages_folder()).glob(f"*_{NEW}-*.deb"):
        assert path.read_bytes() == (apt.repository / path.name).read_bytes()
    name = f"{MODULE}-dkms-580_{NEW}-0ubuntu1_amd64.deb"
    assert (Path(driver_report.packages_folder()) / name).read_bytes() != kept[name]


def test_what_apt_would_do_differently_is_not_done(
    apt: AptWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = fetched(version=NEW)
    with pytest.raises(NodeError, match=r"apt will not: .* not installable"):
        apply.apply({"change": change(), "steps": steps(rows[1:])})
    monkeypatch.setattr(packages_step, "run", lambda *_, **__: Done(0, "", ""))
    with pytest.raises(NodeError, match="not as planned"):
        apply.apply({"change": change(), "steps": steps(rows)})
    assert driver.upstream_version("1:580.142-0ubuntu0.24.04.1") == NEW


def test_a_package_that_was_upgraded_since_is_no_way_back(apt: AptWorld) -> None:
    rows = fetched(version=NEW)
    apply.apply({"change": change(), "steps": steps(rows)})
    apt.package(f"lib{MODULE}-compute-580", "580.200-1")
    apt.run("dpkg", "--force-depends", "-i",
            str(apt.repository / f"lib{MODULE}-compute-580_580.200-1_amd64.deb"))  # fmt: skip
    with pytest.raises(NodeError, match="packages were changed since"):
        transaction.undo({"change": str(change()["id"])})
