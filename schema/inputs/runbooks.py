"""Which runbook takes which keys, on which rigs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from types import new_class
from typing import ClassVar, TypeVar, cast

from schema.core.host_keys import HostKeys
from schema.core.parse import known_keys
from schema.desired.kubernetes import ClusterData
from schema.inputs import cluster_runbook_data as cluster
from schema.inputs import host_settings_data as settings
from schema.inputs import measure_data as measure
from schema.inputs import runbook_data as data
from schema.inputs.driver_data import DriverData
from schema.inputs.host_data import HostData

K = TypeVar("K", bound=HostKeys)
# One type for the rigs whose engine rigbook installs, one for a Kubernetes rig; or one of them.
RUNBOOKS: dict[str, Sequence[type[HostKeys]]] = {
    "adopt": [data.AdoptData],
    "backup": [data.BackupData],
    "bench": [measure.BenchData],
    "doctor": [data.DoctorData, cluster.ClusterDoctorData],
    "driver": [DriverData],
    "fabric": [data.FabricData],
    "firmware": [data.FirmwareData],
    "gpu_limit": [cluster.GpuLimitData],
    "host": [settings.HostSettingsData, settings.ClusterHostSettingsData],
    "image": [data.ImageData],
    "kernel": [data.KernelData, cluster.ClusterKernelData],
    "libvgpu": [cluster.LibvgpuData],
    "patch": [data.PatchData],
    "provenance": [data.ProvenanceData],
    "reboot": [data.RebootData, cluster.ClusterRebootData],
    "report": [measure.ReportData, measure.ClusterReportData],
    "restart": [data.RestartData],
    "restore": [data.RestoreData],
    "rollback": [data.RollbackData, cluster.ClusterRollbackData],
    "serve": [data.ServeData, cluster.ClusterServeData],
    "soak": [measure.SoakData],
    "stop": [data.StopData],
    "unit": [data.UnitData],
    "upgrade": [data.UpgradeData],
    "verify": [data.VerifyData, cluster.ClusterVerifyData],
    "wake": [data.WakeData],
    "watch": [data.WatchData, cluster.ClusterWatchData],
    "weights": [data.WeightsData],
}
# Keys of an earlier release that are gone, each with what to do instead.
REMOVED = {
    "identity": "encrypted copies are gone; how to open one by hand: docs/runbooks/backup.md",
    "inplace": "an upgrade in place is gone; leave it out: the version comes beside, and goes back "
    "by one rename",
    "recipient": "encrypted copies are gone; restic or rclone takes a backup out of the rig: "
    "docs/runbooks/backup.md",
    "weekly": "the weekly timer is gone; take a cron line, and remove the timer of an earlier "
    "release: docs/runbooks/backup.md",
    "repeat_s": "a state that stays bad is told again each hour; leave it out",
    "start_limit_burst": "unit does not set it any more; by hand: sudo systemctl edit UNIT",
    "start_limit_interval": "unit does not set it any more; by hand: sudo systemctl edit UNIT",
    "flags": 'a command line is edited by its exact text; give edit=\'{"OLD TEXT": "NEW TEXT"}\': '
    "docs/runbooks/gpu_limit.md",
    "git": "no clone is asked any more; git merge-base --is-ancestor says it: "
    "docs/runbooks/provenance.md",
    "loaders": "each loader is a profile of the recipe now (vllm_serve: load_format), and "
    "profiles=A,B measures them: docs/runbooks/bench.md",
    "build": "an image is not built on a node any more; build it there by hand, then run this "
    "without it: docs/runbooks/image.md",
    "method": "an image goes from node to node, never whole through this machine; leave it out",
}


def rigs_of(kind: type[HostKeys]) -> type[HostKeys]:
    """The rigs that a runbook's type is for: HostData, or ClusterData for a Kubernetes rig."""
    return ClusterData if issubclass(kind, ClusterData) else HostData


def runbooks(rigs: type[K]) -> dict[str, type[K]]:
    """The runbooks of these rigs (HostData or ClusterData), each with its type."""
    return {n: kind for n, kinds in RUNBOOKS.items() for kind in kinds if issubclass(kind, rigs)}


def kind_of(names: tuple[str, ...], rigs: type[K]) -> type[K]:
    """The type of a command line that names these runbooks: what any of them takes on such rigs.

    A name that is none of ours (somebody's own deploy) takes what every runbook of ours takes.
    """
    ours = runbooks(rigs)
    kinds = [ours[n] for n in names] if names and set(names) <= ours.keys() else [*ours.values()]
    return cast(type[K], _merged(tuple(dict.fromkeys(kinds))))


@cache
def _merged(kinds: tuple[type[HostKeys], ...]) -> type[HostKeys]:
    """One type with the keys of all of them."""
    if len(kinds) == 1:
        return kinds[0]
    bases = [k for k in kinds if not any(o is not k and issubclass(o, k) for o in kinds)]
    space = {
        "__module__": __name__,
        "__doc__": "Several runbooks at once.",
        "__annotations__": {"unused": ClassVar[frozenset[str]]},
        "unused": frozenset.intersection(*(kind.unused for kind in kinds)),
    }
    made: type[HostKeys] = new_class(
        "RunbooksData", tuple(bases), exec_body=lambda ns: ns.update(space)
    )
    return made


def taken(kind: type[HostKeys]) -> list[str]:
    """The keys that --data may hold with this type."""
    return [key for key in known_keys(kind) if key not in kind.unused]


def runbooks_of(key: str, rigs: type[HostKeys]) -> list[str]:
    """The runbooks of these rigs that take this key, in alphabetical order."""
    return sorted(name for name, kind in runbooks(rigs).items() if key in taken(kind))
