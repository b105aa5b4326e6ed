"""Temporary memory of convolutions in bf16, which oneDNN takes by the processor: no less than was measured on either."""

from __future__ import annotations

import pytest
import torch

from osdp.description.aten_workspaces import scratch_bytes

# Batch, channels, size, features, kernel, stride; KiB measured in forward and backward with AMX, and with AVX-512.
MEASURED = [
    ((4, 3, 64, 32, 3, 1), (2051, 1647), (1031, 1461)),
    ((4, 32, 64, 32, 3, 1), (2051, 2461), (1057, 2626)),
    ((4, 64, 64, 32, 3, 1), (2236, 4063), (2099, 3950)),
    ((4, 64, 32, 64, 3, 1), (1027, 1596), (599, 1454)),
    ((4, 512, 8, 512, 3, 1), (5112, 10093), (4879, 9896)),
    ((4, 64, 16, 128, 3, 2), (448, 668), (287, 558)),
    ((4, 32, 64, 1, 1, 1), (1061, 2051), (1777, 1555)),
    ((4, 64, 16, 256, 1, 1), (1027, 915), (519, 720)),
    ((4, 3, 64, 256, 8, 8), (564, 2771), (143, 375)),
    ((4, 3, 64, 48, 4, 4), (357, 610), (103, 151)),
    ((2, 3, 224, 768, 16, 16), (8628, 28392), (1551, 3211)),
    ((4, 3, 32, 64, 7, 2), (543, 666), (135, 219)),
]


@pytest.mark.parametrize(("shape", "amx", "avx512"), MEASURED, ids=str)
def test_convolutions_in_bf16_take_no_more_on_either_processor(shape, amx, avx512):
    samples, channels, size, features, kernel, stride = shape
    given = torch.empty(samples, channels, size, size, dtype=torch.bfloat16, device="meta")
    weight = torch.empty(features, channels, kernel, kernel, dtype=torch.bfloat16, device="meta")
    common = ([stride] * 2, [kernel // 2 if kernel % 2 else 0] * 2, [1, 1], False, [0, 0], 1)
    result = torch.ops.aten.convolution(given, weight, None, *common)
    forward = scratch_bytes(torch.ops.aten.convolution.default, (given, weight, None, *common), result)
    arguments = (result, given, weight, [features], *common, [True] * 3)
    backward = scratch_bytes(torch.ops.aten.convolution_backward.default, arguments, None)
    for counted, measured in ((forward, (amx[0], avx512[0])), (backward, (amx[1], avx512[1]))):
        most = 1024 * max(measured)
        assert most <= counted <= 1.3 * most + 640 * 1024
