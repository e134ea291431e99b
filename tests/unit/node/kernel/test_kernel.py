"""grub.cfg and grubenv: which entry GRUB takes, and what it does when the named one is gone."""

from __future__ import annotations

import contextlib
import json
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from node.change.kinds import Steps
from node.core import run as core_run
from node.core.errors import NodeError
from node.core.files import Lock
from node.kernel import boot, grub_step, installed
from schema.host import KernelFacts
from tests.unit.node.support.host import Host
from tests.unit.node.support.kernel_world import UUID, advanced, grub_cfg

NEW, OLD = "6.17.0-23-generic", "6.17.0-22-generic"
BOTH = (NEW, OLD)


def _next(text: str, env: dict[str, str] | None, state: str = "ok") -> dict[str, object]:
    return boot.following_boot(boot.Menu(text, env), env, state)


@pytest.mark.parametrize(("default", "env", "kernel", "how"), [
    ("0", {}, NEW, "menu"),
    ("1>2", {}, OLD, "menu"),
    ("1>9", {}, NEW, "first"),
    ("gnulinux-simple-" + UUID, {}, NEW, "menu"),
    # the seed's way: a title
    ("Optionen für Debian>Debian GNU/Linux, with Linux " + OLD, {}, OLD, "menu"),
    ("Advanced options for Ubuntu>Ubuntu, with Linux " + OLD, {}, NEW, "first"),
    ("${saved_entry}", {"saved_entry": advanced(OLD)}, OLD, "saved"),
    ("${saved_entry}", {}, NEW, "first"),
    ("${saved_entry}", None, NEW, "first"),
    ("${saved_entry}", {"saved_entry": advanced("6.1.0-1-gone")}, NEW, "first"),
    ("${saved_entry}", {"saved_entry": advanced(OLD), "next_entry": advanced(NEW)}, NEW,
     "next_entry"),
    ("${saved_entry}", {"saved_entry": advanced(NEW), "next_entry": "nowhere"}, NEW, "first"),
    ("0", {"next_entry": advanced(OLD)}, OLD, "next_entry"),
    # what 00_header does before it reads saved_entry: an older saved one is put back, later
    ("${saved_entry}", {"saved_entry": advanced(OLD), "initrdfail": "1",
                        "prev_entry": advanced(NEW)}, NEW, "next_entry"),
])  # fmt: skip
def test_the_next_boot(default: str, env: dict[str, str] | None, kernel: str, how: str) -> None:
    state = "missing" if env is None else "ok"
    found = _next(grub_cfg(BOTH, default), env, state)
    assert (found["kernel"], found["how"]) == (kernel, how), found
    if how == "first":
        assert "first entry" in str(found["why"])


def test_a_pin_whose_kernel_was_removed_names_what_is_missing() -> None:
    found = _next(grub_cfg([NEW]), {"saved_entry": advanced(OLD)})
    assert found["kernel"] == NEW
    # the submenu is still there: GRUB takes ITS first entry
    assert found["entry"] == advanced(NEW)
    assert found["missing"] == [f"gnulinux-{OLD}-advanced-{UUID}"]


def test_what_lasts_is_told_apart_from_one_boot() -> None:
    env = {"saved_entry": advanced(OLD), "next_entry": advanced(NEW)}
    text = grub_cfg(BOTH)
    menu = boot.Menu(text, env)
    assert boot.following_boot(menu, env, "ok")["kernel"] == NEW
    assert boot.lasting_boot(menu, env, "ok", text, "/nowhere")["kernel"] == OLD


@pytest.mark.parametrize(("text", "kernel", "paths"), [
    (grub_cfg(BOTH), NEW, [advanced(NEW)]), (grub_cfg(BOTH), "6.17.0-2", []),
    (grub_cfg([NEW, NEW]), NEW, [advanced(NEW)] * 2),
    (grub_cfg(BOTH, said="Debian GNU/Linux, mit"), OLD, [advanced(OLD)]),
], ids=["no recovery", "none", "two are both told", "translated"])  # fmt: skip
def test_the_entries_of_a_kernel(text: str, kernel: str, paths: list[str]) -> None:
    menu = boot.Menu(text, {})
    assert [path for path, _ in boot.entries_of(menu.entries, kernel)] == paths


def test_a_default_under_a_condition_of_grub_itself_is_unknown() -> None:
    text = grub_cfg(BOTH) + 'if keystatus --shift; then\n set default="1>2"\nfi\n'
    found = _next(text, {"saved_entry": advanced(OLD)})
    assert (found["kernel"], found["how"]) == (None, "unknown")


def test_custom_cfg_counts() -> None:
    menu = boot.Menu(grub_cfg(BOTH), {"saved_entry": advanced(OLD)}, 'set default="0"\n')
    assert boot.following_boot(menu, {}, "ok")["kernel"] == NEW


def test_entries_with_quotes_and_braces_in_their_titles() -> None:
    name = "'It'\\''s {one}; # no comment' --id \"a\\\"b\""
    text = f"menuentry {name} {{ linux /vmlinuz-1.2.3 ro kho=off }}\n"
    (entry,) = boot.Menu(text, {}).entries
    assert (entry["title"], entry["id"]) == ("It's {one}; # no comment", 'a"b')
    assert (entry["kernel"], entry["options"]) == ("1.2.3", "ro kho=off")


@pytest.mark.parametrize("text", [
    "", "set default=0\n", grub_cfg(BOTH)[:-1200], grub_cfg(BOTH) + "}\n",
    grub_cfg(BOTH) + "menuentry 'never ends\n", grub_cfg(BOTH) + "if [ 1 ]; then\n", "\0" * 4096,
], ids=["empty", "no-entry", "cut", "closed-twice", "quote", "if", "zeros"])  # fmt: skip
def test_a_malformed_file_is_said_to_be_one(text: str) -> None:
    with pytest.raises(boot.Malformed):
        boot.Menu(text, {})


def test_every_cut_of_a_file_is_malformed_or_says_where_it_leads() -> None:
    whole = grub_cfg(BOTH)
    for end in range(0, len(whole), 37):
        try:
            menu = boot.Menu(whole[:end], {"saved_entry": advanced(OLD)})
        except boot.Malformed:
            continue
        found = boot.following_boot(menu, {"saved_entry": advanced(OLD)}, "ok")
        assert found["kernel"] in (OLD, NEW)


def test_the_environment_block_is_read_and_written_as_grub_does() -> None:
    raw = boot.render_env({"saved_entry": advanced(OLD), "odd": "back\\slash"})
    assert len(raw) == 1024 and raw.startswith(b"# GRUB Environment Block\n")
    assert boot.parse_env(raw) == {"saved_entry": advanced(OLD), "odd": "back\\slash"}


@pytest.mark.parametrize("raw", [b"", b"\0" * 1024, boot.render_env({"a": "b"})[:1000]])
def test_a_corrupt_block_is_said_to_be_one(raw: bytes) -> None:
    with pytest.raises(boot.CorruptEnv):
        boot.parse_env(raw)


def test_a_new_saved_entry_keeps_foreign_variables() -> None:
    before = {"recordfail": "1", "prev_saved_entry": "x", "saved_entry": "y", "next_entry": "z"}
    assert boot.changed_env(before, "new", None) == {"recordfail": "1", "saved_entry": "new"}
    assert boot.changed_env(before, None, None) == {"recordfail": "1"}


def test_a_block_that_is_full_is_refused() -> None:
    with pytest.raises(boot.CorruptEnv, match="1024"):
        boot.render_env({"long": "x" * 1000})


# Kernels, packages, the boot device: parsers on what the real programs print, hostile or not.

OLD_DKMS = "nvidia, 580.126.09, 6.17.0-22-generic, x86_64: installed\n"
NEW_DKMS = """nvidia/580.126.09, 6.17.0-22-generic, x86_64: installed
nvidia/580.126.09, 6.17.0-23-generic, x86_64: built (WARNING! Diff between built and installed!)
broken: added
"""


def test_both_formats_of_dkms() -> None:
    (old,) = installed.dkms_rows(OLD_DKMS)
    assert old == {"name": "nvidia", "version": "580.126.09", "kernel": "6.17.0-22-generic",
                   "state": "installed"}  # fmt: skip
    rows = installed.dkms_rows(NEW_DKMS)
    assert rows[0] == old and len(rows) == 2
    assert rows[1]["state"].startswith("built (WARNING")


def test_kernels_are_found_by_their_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "boot").mkdir()
    for name in ("vmlinuz-6.1.0-1", "initrd.img-6.1.0-1", "vmlinuz-6.1.0-2"):
        (tmp_path / "boot" / name).write_text("x")
    (tmp_path / "boot" / "initrd.img-6.1.0-2").touch()  # empty: cut off by a full disk
    (tmp_path / "lib/modules/6.1.0-3").mkdir(parents=True)
    (tmp_path / "lib/modules/6.1.0-3/modules.dep").touch()
    rows = {row["release"]: row for row in installed.installed(None, str(tmp_path))}
    assert list(rows) == ["6.1.0-1", "6.1.0-2", "6.1.0-3"]
    assert rows["6.1.0-1"]["initrd"] and rows["6.1.0-2"]["initrd"] is None
    assert rows["6.1.0-3"]["vmlinuz"] is None


MODINFO = """filename:       /lib/modules/6.1.0-1/updates/nvidia.ko
version:        580.126.09
license:        NVIDIA
vermagic:       6.1.0-1 SMP preempt mod_unload modversions
signer:         DKMS module signing key
parm:           version:a parameter of that name
"""


@pytest.mark.parametrize(("rc", "out", "found"), [
    (0, MODINFO, "580.126.09"), (1, "", None), (0, "filename:       (builtin)\n", None),
])  # fmt: skip
def test_the_module_of_a_kernel(
    monkeypatch: pytest.MonkeyPatch, rc: int, out: str, found: str | None
) -> None:
    monkeypatch.setattr(installed, "run", lambda argv, limit: core_run.Done(rc, out, ""))
    module = installed.module_of("6.1.0-1", "nvidia")
    assert (module["version"] if module else None) == found
    if module:
        assert module["signer"] == "DKMS module signing key"


UBUNTU = {
    "linux-image-6.17.0-22-generic": ["linux-modules-6.17.0-22-generic", "kmod"],
    "linux-image-6.17.0-23-generic": [], "linux-modules-6.17.0-22-generic": [],
    "linux-modules-nvidia-580-6.17.0-22-generic": [], "linux-firmware": [], "linux-libc-dev": [],
    "linux-image-generic-hwe-24.04": ["linux-image-6.17.0-23-generic", "linux-firmware"],
    "linux-generic-hwe-24.04": ["linux-image-generic-hwe-24.04", "linux-headers-generic-hwe-24.04"],
    "linux-headers-generic-hwe-24.04": ["linux-headers-6.17.0-23-generic"],
    "nvidia-driver-580": ["linux-image-6.17.0-23-generic"],
}  # fmt: skip


def test_a_pin_holds_its_own_packages_and_every_meta() -> None:
    found = {name: {"hold": False, "version": "1", "depends": d} for name, d in UBUNTU.items()}
    assert installed.pinning(found, "6.17.0-22-generic") == [
        "linux-generic-hwe-24.04", "linux-headers-generic-hwe-24.04",
        "linux-image-6.17.0-22-generic", "linux-image-generic-hwe-24.04",
        "linux-modules-6.17.0-22-generic", "linux-modules-nvidia-580-6.17.0-22-generic",
    ]  # fmt: skip


# `dpkg -l | grep nvidia` of Ubuntu 24.04 (NVIDIA/gpu-driver-container#186), with the packages of
# DKMS, of CUDA's repository, and others of NVIDIA's (NVIDIA/nvidia-container-toolkit#188).
DPKG = {
    "libnvidia-cfg1-550-server": "550.127.08-0ubuntu0.24.04.1",
    "libnvidia-compute-550-server": "550.127.08-0ubuntu0.24.04.1",
    "linux-modules-nvidia-550-server-6.8.0-51-generic": "6.8.0-51.52+1",
    "linux-objects-nvidia-550-server-6.8.0-51-generic": "6.8.0-51.52+1",
    "nvidia-compute-utils-550-server": "550.127.08-0ubuntu0.24.04.1",
    "nvidia-dkms-550-server": "550.127.08-0ubuntu0.24.04.1",
    "nvidia-firmware-550-server-550.127.08": "550.127.08-0ubuntu0.24.04.1",
    "cuda-drivers-550": "1:550.127.08-1",
    "libnvidia-compute-495": "510.47.03-0ubuntu1",
    "libnvidia-container1": "1.17.4-1",
    "libnvidia-egl-wayland1": "1:1.1.13-1build1",
    "nvidia-prime": "0.8.17.2",
    "nvidia-settings": "510.47.03-0ubuntu4",
    "linux-firmware": "550.127.08",
}  # fmt: skip


@pytest.mark.parametrize(("drivers", "module", "held"), [
    (["550.127.08"], "nvidia", [
        "cuda-drivers-550", "libnvidia-cfg1-550-server", "libnvidia-compute-550-server",
        "nvidia-compute-utils-550-server", "nvidia-dkms-550-server",
        "nvidia-firmware-550-server-550.127.08"]),
    (["550.127"], "nvidia", []), ([], "nvidia", []), (["550.127.08"], None, []),
])  # fmt: skip
def test_a_pin_holds_the_drivers_other_parts_too(
    monkeypatch: pytest.MonkeyPatch, drivers: list[str], module: str | None, held: list[str]
) -> None:
    """Those of the version that programs load; a kernel's own are held as before."""
    rows = "".join(f"{n}\t{v}\tinstall\tinstalled\t\n" for n, v in DPKG.items())
    answers = {"dpkg-query": rows, "apt-config": ""}
    monkeypatch.setattr(
        installed, "run", lambda argv, limit: core_run.Done(0, answers[argv[0]], "")
    )
    monkeypatch.setattr(installed, "user_driver", lambda name: drivers)
    monkeypatch.setattr(installed, "installed", lambda name: [])
    monkeypatch.setattr(installed, "releases", lambda: ["6.8.0-51-generic"])
    pinning = boot.collect_kernel({"module": module})["apt"]["pinning"]["6.8.0-51-generic"]
    kernels = [name for name in sorted(DPKG) if name.endswith("-6.8.0-51-generic")]
    assert pinning == [*kernels, *held]


def test_dpkg_and_apt_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = ("linux-image-6.1.0-1\t6.1-1\thold\tinstalled\tkmod, linux-base (>= 4) | other\n"
            "linux-image-6.1.0-0\t6.0-1\tdeinstall\tconfig-files\t\n")  # fmt: skip
    dump = ('APT::NeverAutoRemove:: "^linux-x$";\n'
            'Unattended-Upgrade::Package-Blacklist:: "^a b$";\n'
            'Unattended-Upgrade::Remove-Unused-Kernel-Packages "false";\n')  # fmt: skip
    answers = {"dpkg-query": rows, "apt-config": dump}
    monkeypatch.setattr(
        installed, "run", lambda argv, limit: core_run.Done(0, answers[argv[0]], "")
    )
    ((name, row),) = installed.kernel_packages().items()
    assert name == "linux-image-6.1.0-1" and row["hold"]
    assert row["depends"] == ["kmod", "linux-base", "other"]
    config = installed.apt_config()
    assert config["blacklist"] == ["^a b$"] and config["never_auto_remove"] == ["^linux-x$"]
    assert config["remove_unused_kernels"] is False


MOUNTS = """22 1 252:1 / / rw,relatime - ext4 /dev/vda1 rw
30 22 253:0 / /boot rw - ext4 /dev/mapper/vg-boot rw
31 22 0:40 / /boot\\040x rw - tmpfs tmpfs rw
"""


def test_the_mount_that_holds_grub() -> None:
    assert boot.mount_of("/boot/grub", MOUNTS)[:2] == ("/boot", "253:0")
    assert boot.mount_of("/boot x/grub", MOUNTS)[0] == "/boot x"
    assert boot.mount_of("/etc", MOUNTS)[3] == "/dev/vda1"


@pytest.mark.parametrize(("number", "filesystem", "source", "uuid", "kind"), [
    ("252:1", "ext4", "/dev/vda1", "", "plain"),
    ("253:0", "ext4", "/dev/mapper/vg-boot", "LVM-abc", "lvm"),
    ("253:0", "ext4", "/dev/mapper/x", "CRYPT-LUKS2-abc", "crypt"),
    ("253:0", "ext4", "/dev/mapper/x", "mpath-abc", "unknown"),
    ("9:0", "ext4", "/dev/md0", "", "raid"), ("0:31", "btrfs", "/dev/sda2", "", "btrfs"),
    ("0:99", "overlay", "overlay", "", "unknown"),
])  # fmt: skip
def test_what_grub_can_write_through(
    tmp_path: Path, number: str, filesystem: str, source: str, uuid: str, kind: str
) -> None:
    name = {"9:0": "md0", "253:0": "dm-0"}.get(number, "vda1")
    device = tmp_path / "devices" / name
    device.mkdir(parents=True)
    (tmp_path / "dev/block").mkdir(parents=True)
    (tmp_path / "dev/block" / number).symlink_to(device)
    if uuid:
        (device / "dm").mkdir()
        (device / "dm/uuid").write_text(uuid + "\n")
    assert boot.device_kind(number, filesystem, source, str(tmp_path)) == kind


@pytest.mark.parametrize(("lines", "value", "mode", "file"), [
    ("GRUB_DEFAULT=0\n", "0", "index", "/etc/default/grub"),
    ('GRUB_DEFAULT="1>2"\n', "1>2", "index", "/etc/default/grub"),
    ('GRUB_DEFAULT="Advanced options for Ubuntu>Ubuntu, with Linux 6"\n',
     "Advanced options for Ubuntu>Ubuntu, with Linux 6", "title", "/etc/default/grub"),
    ("#GRUB_DEFAULT=saved\n", "0", "index", "unset"),
    ("GRUB_DEFAULT=saved\n", "saved", "saved", "/etc/default/grub"),
])  # fmt: skip
def test_the_configured_default(
    tmp_path: Path, lines: str, value: str, mode: str, file: str
) -> None:
    folder = tmp_path / "etc/default/grub.d"
    folder.mkdir(parents=True)
    folder.with_name("grub").write_text(lines)
    assert boot.configured(str(tmp_path)) == {"value": value, "mode": mode, "file": file}
    (folder / "zz.cfg").write_text("GRUB_DEFAULT=saved\n")
    assert boot.configured(str(tmp_path))["file"] == "/etc/default/grub.d/zz.cfg"


def test_a_boot_loader_that_is_not_grub_is_named(tmp_path: Path) -> None:
    assert boot.loader(str(tmp_path))[0] == "none"
    (tmp_path / "boot/loader").mkdir(parents=True)
    (tmp_path / "boot/loader/loader.conf").touch()
    assert boot.loader(str(tmp_path))[0] == "systemd-boot"
    (tmp_path / "boot/grub").mkdir()
    (tmp_path / "boot/grub/grub.cfg").write_text("x")
    assert boot.loader(str(tmp_path))[0] == "grub"
    efi = tmp_path / "sys/firmware/efi/efivars"
    efi.mkdir(parents=True)
    said = b"\x06\0\0\0" + "systemd-boot 255".encode("utf-16-le") + b"\0\0"
    (efi / "LoaderInfo-4a67").write_bytes(said)
    assert boot.loader(str(tmp_path)) == (
        "systemd-boot", "the firmware was left to systemd-boot 255")  # fmt: skip


def test_this_host_answers_in_the_type(host: Host) -> None:
    """The verb on this machine, whatever it boots by: every section is there or says why not."""
    document = host.call("kernel", {"module": "nvidia"})
    assert document.pop("ok") is True
    facts = KernelFacts.model_validate(document)
    assert facts.module == "nvidia" and facts.took_s < 5


@pytest.mark.parametrize("module", ["-x", "a b", "$(id)", "a\nb", 7])
def test_a_hostile_module_name_is_refused(module: object) -> None:
    with pytest.raises(NodeError):
        boot.collect_kernel({"module": module})


class Apt:
    """Stand-in for dpkg's selections and apt-mark."""

    def __init__(self, **states: str) -> None:
        self.states = {name.replace("_", "-"): state for name, state in states.items()}
        self.fails = False

    def run(self, argv: list[str], limit: float) -> core_run.Done:
        """What dpkg-query and apt-mark answer."""
        if argv[0] == "dpkg-query":
            names = [n for n in argv[3:] if n in self.states]
            return core_run.Done(0, "".join(f"{n} {self.states[n]} installed\n" for n in names), "")
        assert argv[0] == "apt-mark"
        if self.fails:
            return core_run.Done(100, "", "E: Could not get lock /var/lib/dpkg/lock-frontend")
        for name in argv[2:]:
            self.states[name] = argv[1].replace("unhold", "install")
        return core_run.Done(0, "", "")


HOLD = grub_step.AptHoldKind("hold")


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Apt:
    """One package that somebody held before, two that nobody did."""
    made = Apt(linux_a="hold", linux_b="install", linux_c="install")
    monkeypatch.setattr(grub_step, "run", made.run)
    return made


def _hold(*names: str, held: bool = True) -> dict[str, Any]:
    return HOLD.parse({"op": "hold", "packages": list(names), "held": held}, "step")


def test_a_hold_is_set_once_and_undo_leaves_foreign_holds(held: Apt) -> None:
    records: list[dict[str, Any]] = []
    before = dict(held.states)
    steps = Steps({"steps": records}, lambda: None)
    assert HOLD.do(_hold("linux-a", "linux-b"), steps)[0]
    assert held.states["linux-b"] == "hold" and records[0]["packages"] == ["linux-b"]
    assert not HOLD.do(_hold("linux-a", "linux-b"), steps)[0]
    assert HOLD.recover(records[0], records) == "done"
    assert HOLD.verify(records[0], "post") == []
    assert HOLD.verify(records[0], "pre") == ["linux-b held is True, not False"]
    HOLD.revert(records[0], overwrite=False)
    assert held.states == before and HOLD.recover(records[0], records) == "undone"
    assert HOLD.verify(records[0], "pre") == []
    assert HOLD.revert(records[0], overwrite=False) == "was as before"


@pytest.mark.parametrize(("names", "busy", "words"), [
    (("linux-a", "linux-z"), False, "not installed: linux-z"),
    (("linux-b",), True, "lock-frontend"),
])  # fmt: skip
def test_a_package_that_is_not_there_and_apt_that_is_busy_fail_the_step(
    held: Apt, names: tuple[str, ...], busy: bool, words: str
) -> None:
    held.fails = busy
    with pytest.raises(NodeError, match=words):
        HOLD.do(_hold(*names), Steps({"steps": []}, lambda: None))


@pytest.mark.parametrize("name", ["-x", "a b", "$(id)", "a\n", "A"])
def test_a_hostile_package_name_is_refused(name: str) -> None:
    with pytest.raises(NodeError):
        _hold(name)


# A candidate that nobody blesses fails its unit; one that is blessed, or over, does not.

RUNS = platform.release()


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the program looks for the file of the candidate, also in this process."""
    monkeypatch.setenv("RIGBOOK_CANDIDATE", str(tmp_path / "candidate.json"))
    monkeypatch.setenv("RIGBOOK_STATE", str(tmp_path / "host" / "state"))
    monkeypatch.setattr(grub_step, "POLL_S", 0.01)
    return tmp_path / "candidate.json"


def write(path: Path, **changes: Any) -> None:
    """The candidate's file."""
    facts = {"format": 1, "candidate": RUNS, "pinned": "6.1.0-1", "budget_s": 86400,
             "change": "20261120T000000Z-kernel-abcd", **changes}  # fmt: skip
    path.write_text(json.dumps(facts))


def start(host: Host, path: Path, **changes: Any) -> subprocess.Popen[str]:
    """The unit's program with such a file."""
    write(path, **changes)
    return subprocess.Popen(
        host.argv("candidate"), env=host.environ(), stdout=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize(("budget_s", "under_way"), [(86400, False), (1, True)])
def test_it_waits_for_the_blessing_also_past_its_budget_for_one_that_is_under_way(
    host: Host, path: Path, budget_s: int, under_way: bool
) -> None:
    with Lock("the deploy blesses") if under_way else contextlib.nullcontext():
        process = start(host, path, budget_s=budget_s)
        time.sleep(1.5)
        assert process.poll() is None
        path.unlink()
    said, _ = process.communicate(timeout=30)
    assert process.returncode == 0 and f"{RUNS} is blessed" in said


@pytest.mark.parametrize(("changes", "code", "words"), [
    ({"budget_s": 1}, 1, "was not blessed within 1 s: back to 6.1.0-1"),
    ({"candidate": "6.1.0-2"}, 0, "rignode undo 20261120T000000Z-kernel-abcd"),
])  # fmt: skip
def test_after_its_budget_it_fails_and_on_another_kernel_it_is_over(
    host: Host, path: Path, changes: dict[str, Any], code: int, words: str
) -> None:
    """A failure makes systemd reboot."""
    process = start(host, path, **changes)
    said, _ = process.communicate(timeout=30)
    assert process.returncode == code and words in said


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}'])
def test_a_damaged_file_fails_the_unit(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(NodeError):
        grub_step.run_candidate()
