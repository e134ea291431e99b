"""The table of causes for a Kubernetes rig (gates/doctor/causes.py takes it in)."""

from __future__ import annotations

from gates.doctor.cause import Cause

CLUSTER: dict[str, Cause] = {
    "cluster-unreadable": Cause("kubectl is not there, may not read, or the API is down"),
    "pod-stuck": Cause("the container's own last lines say why"),
    "model-file": Cause(
        "the other loader's format, or a download that was cut off (A2)", here=("pod-stuck",)
    ),
    "gpu-limit": Cause(
        "the platform's `no limit` is 0m, which HAMi-core reads as 0 bytes (A3)",
        here=("pod-stuck", "gpu-limit-short"),
    ),
    "gpu-limit-short": Cause("the limit was guessed, not computed (A5)", here=("pod-stuck",)),
    "libvgpu-unreadable": Cause("the host could not be asked; unknown is not healthy"),
    "libvgpu-target": Cause("several versions lie there, and nothing says which one is mounted"),
    "libvgpu-preload": Cause("edited by hand, or left by a former setup"),
    "libvgpu-other": Cause("the plugin was updated and brings another library (A6)"),
    "libvgpu-candidate": Cause("built for another machine, or a copy that was cut off"),
    "libvgpu-symbols": Cause("built with fewer options than the plugin's own (A1)"),
    "libvgpu-drift": Cause(
        "the plugin's pod was restarted or updated and copied its own back (A6)",
        here=("libvgpu-old-mapped", "pod-stuck"),
    ),
    "libvgpu-old-mapped": Cause("started before the swap; a mapped library stays what it was"),
}
