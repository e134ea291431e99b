"""The seed's mxfp4 case as files: the patch is two blocks, and a mod doubled one of them (C15)."""

from __future__ import annotations

import difflib

BASE = """\
import torch


class Mxfp4MoEMethod:
    def process_weights_after_loading(self, layer):
        w13, w2 = self._convert(layer.w13, layer.w2)
        self._setup_kernel(layer, w13, w2)

    def load(self, layer):
        w13, w2 = layer.w13, layer.w2
        self._setup_kernel(layer, w13, w2)
        return layer
"""
_CALL = "        self._setup_kernel(layer, w13, w2)\n"
_BLOCK = "        del w13, w2\n        torch.cuda.empty_cache()\n"
# Two empty_cache calls are right; the seed's mod put the block in once more, by its prefix: three.
PATCHED = BASE.replace(_CALL, _CALL + _BLOCK)
THREE = PATCHED.replace(_CALL, _CALL + _BLOCK, 1)
FOUR = PATCHED.replace(_CALL, _CALL + _BLOCK)
PATH = "vllm/model_executor/layers/quantization/mxfp4.py"


def diff(before: str = BASE, after: str = PATCHED, name: str = PATH) -> str:
    """A unified diff as a recipe holds it."""
    lines = difflib.unified_diff(
        before.splitlines(True), after.splitlines(True), f"a/{name}", f"b/{name}"
    )
    return "".join(lines)
