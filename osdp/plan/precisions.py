"""The precisions that a plan can have, by name."""

from __future__ import annotations

from collections.abc import Mapping

# Dtypes of (gathered parameters, gradient reduction); None: the model's own. Shards keep their dtypes in all
# of them.
PRECISIONS: Mapping[str, tuple[str | None, str | None]] = {
    "fp32": (None, None),
    # The same dtypes, with fp32 products in TF32: set by torch.set_float32_matmul_precision("high").
    "tf32": (None, None),
    "bf16": ("bfloat16", "bfloat16"),
    "fp16": ("float16", "float16"),
    "bf16-reduce-fp32": ("bfloat16", "float32"),
    "fp16-reduce-fp32": ("float16", "float32"),
}
