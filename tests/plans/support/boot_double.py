"""What a real host's `node kernel` says after a grub or hold step."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]


def act(kernel: Json, step: Json) -> None:
    """Alters the host's document of kernels as the step would."""
    if step["op"] == "hold":
        kernel["apt"]["holds"] = sorted({*kernel["apt"]["holds"], *step["packages"]})
        return
    grub = kernel["grub"]
    if step.get("next") is not None:
        return
    path = next(e["path"] for e in grub["entries"] if e["kernel"] == step["saved"]
                and "-advanced-" in e["path"].rpartition(">")[2])  # fmt: skip
    target = {"kernel": step["saved"], "entry": path, "title": "x", "how": "saved",
              "why": "saved_entry names it", "missing": []}  # fmt: skip
    grub.update(saves=True, saved_entry=path, next_entry=None, default=target, next=target,
                ours=True, grubenv="ok")  # fmt: skip
    grub["configured"] = {"value": "saved", "file": "zz-rigbook.cfg", "mode": "saved"}
