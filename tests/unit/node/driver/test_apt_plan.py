"""What apt prints, read: recorded simulations and reasons, names of families and branches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from node.driver import apt_plan

SAYS = yaml.safe_load((Path(__file__).parent / "apt_says.yaml").read_text())
FAMILY = ["libnvidia-compute-580", "nvidia-dkms-580-open", "nvidia-firmware-580-580.126.09",
          "nvidia-kernel-common-580", "xserver-xorg-video-nvidia-580"]  # fmt: skip


@pytest.mark.parametrize("case", SAYS["simulated"], ids=lambda case: case["name"])
def test_a_simulation_is_read(case: dict[str, Any]) -> None:
    keys = ("name", "old", "new", "arch")
    assert apt_plan.rows(case["text"]) == [dict(zip(keys, r, strict=True)) for r in case["rows"]]


@pytest.mark.parametrize("case", SAYS["reasons"], ids=lambda case: case["says"][:40])
def test_a_reason_is_one_line(case: dict[str, Any]) -> None:
    assert apt_plan.reason(case["text"]) == case["says"]


def test_the_family_in_one_version_and_in_another_branch() -> None:
    """A firmware package is named by its version: apt exchanges it by itself."""
    version = "580.142-0ubuntu0.24.04.1"
    known = {
        name: ["580.159.03-0ubuntu0.24.04.1", version] for name in FAMILY if "firm" not in name
    }
    assert apt_plan.wanted(FAMILY, known, "580.142", None) == [
        f"{name}={version}" for name in FAMILY if "firmware" not in name
    ]
    assert apt_plan.wanted(FAMILY, known, "580.14", None) == []
    assert apt_plan.wanted(FAMILY, {FAMILY[0]: ["580.126.09-1"]}, "580.126", None) == [
        f"{FAMILY[0]}=580.126.09-1"
    ]
    # pyinfra reads 580.150 as a number
    assert apt_plan.wanted(["a"], {"a": ["580.159.03-1", "580.150-1"]}, "580.15", None) == [
        "a=580.150-1"
    ]
    assert apt_plan.wanted(["a"], {"a": ["580.150-1", "580.15-1"]}, "580.15", None) == [
        "a=580.15-1"
    ]
    assert apt_plan.branch_of(FAMILY) == "580"
    assert apt_plan.in_branch("nvidia-dkms-580-open", "590") == "nvidia-dkms-590-open"
    assert apt_plan.in_branch("nvidia-persistenced", "590") == "nvidia-persistenced"


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
    assert apt_plan.of_kernels(found, None, kernels[0], more, known) == wanted
