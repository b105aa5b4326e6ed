"""The precisions that a plan may say, by name."""

from __future__ import annotations

from collections.abc import Mapping

# What a plan may say: (parameters, reduction), the model's own dtypes where None. What stays on a rank never changes.
PRECISIONS: Mapping[str, tuple[str | None, str | None]] = {
    "fp32": (None, None),
    # The same, and what fp32 is multiplied in is TF32: torch.set_float32_matmul_precision("high") sees to it.
    "tf32": (None, None),
    "bf16": ("bfloat16", "bfloat16"),
    "fp16": ("float16", "float16"),
    "bf16-reduce-fp32": ("bfloat16", "float32"),
    "fp16-reduce-fp32": ("float16", "float32"),
}
