"""What the split product allocates, from torch's own allocation events."""

from __future__ import annotations

import pytest
import torch

from tests.unit.allocations import peak_bytes
from tests.unit.sharding.split_helpers import TensorSource
from tests.unit.sharding.split_operators import split_linear

N, OUT, IN, G = 256, 512, 512, 8
# Scalars and the engine's own; less than one slice of a result (32 KiB in bf16), so that such a copy is seen.
SLACK_BYTES = 16 * 1024


def scratch_bytes(*products: tuple[torch.Tensor, torch.Tensor]) -> int:
    """The most that one plain matrix product takes beside its result (oneDNN's scratch, where the CPU computes in bf16)."""
    return max(
        peak_bytes(lambda a=a, b=b: a @ b) - len(a) * b.shape[1] * a.element_size() for a, b in products
    )


class ThriftySource(TensorSource):
    """Makes a fresh slice at each acquire, as a gather does, and drops the gradients, as a reduction does."""

    def acquire(self, index: int, following: int) -> torch.Tensor:
        self.held[index] = self.slices[index].clone()
        return self.held[index]

    def release(self, index: int) -> None:
        del self.held[index]

    def put_grad(self, index: int, grad: torch.Tensor) -> None:
        pass


@pytest.mark.parametrize("with_bias", (True, False))
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize("split", ("out", "in"))
def test_peak_is_results_plus_one_slice(split: str, dtype: torch.dtype, with_bias: bool) -> None:
    weight = torch.randn(OUT, IN).to(dtype)
    source = ThriftySource(weight, G, split)
    x = torch.randn(N, IN).to(dtype).requires_grad_()
    bias = torch.randn(OUT).to(dtype) if with_bias else None
    shard = weight[:1].clone().requires_grad_()
    size = weight.element_size()
    one_slice = OUT * IN // G * size
    activation = {"out": N * OUT * size, "in": N * IN * size}
    float_sum = N * OUT * 4 if dtype == torch.bfloat16 else 0  # 16-bit products are summed in float
    outputs: list[torch.Tensor] = []

    def forward() -> None:
        outputs.append(
            split_linear(
                x, shard, bias, granularity=G, split=split, out_features=OUT, in_features=IN, source=source.id
            )
        )

    forward()  # whatever is allocated once, is
    outputs.clear()
    part, rows = source.slices[0], x.detach()
    if split == "in":
        rows = rows[:, : IN // G]
    allowed = activation["out"] + one_slice + (float_sum if split == "in" else 0)
    allowed += scratch_bytes((rows, part.t()))
    assert peak_bytes(forward) <= allowed + SLACK_BYTES

    gradient = torch.randn(N, OUT).to(dtype)
    y = outputs.pop()
    allowed = activation["in"] + one_slice + (float_sum if split == "out" else 0)
    of_slice = gradient[:, : len(part)]
    allowed += scratch_bytes((of_slice, part), (of_slice.t(), rows))
    assert peak_bytes(lambda: y.backward(gradient)) <= allowed + SLACK_BYTES
    source.close()
