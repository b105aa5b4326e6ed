"""The forward of a Linear that torch's tensor parallelism has divided and that is computed in slices.

Its input and result are DTensors, as those of torch's own product are; the slices are of the part of the weight that this
rank holds. A weight divided by rows (ColwiseParallel) makes this rank's columns of the result from the whole input; one
divided by columns (RowwiseParallel) makes, from this rank's columns of the input, a term of the result's sum.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from osdp import _C
from osdp.base.tensor_parallel import Layout
from osdp.errors import ShardingError


class DividedSplit:
    """`product`: of this rank's part, without the bias. Takes the place of `linear.forward`."""

    def __init__(self, linear: nn.Linear, layout: Layout, product: _C.SplitCall) -> None:
        self.linear, self.layout, self.product = linear, layout, product
        self.by_rows = layout.placements[0].is_shard(0)

    def __call__(self, x: Tensor) -> Any:
        if not isinstance(x, DTensor):
            raise ShardingError(
                f"a {type(self.linear).__name__} that parallelize_module has divided was called with a plain tensor: its "
                "input is made a DTensor by the style (ColwiseParallel, RowwiseParallel)"
            )
        mesh, last = self.layout.mesh, x.dim() - 1
        if self.by_rows:
            given = x.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])
            placed: Any = Shard(last)
        else:
            given, placed = x.redistribute(placements=[Shard(last)]).to_local(), Partial()
        shape = torch.Size([*x.shape[:-1], self.linear.out_features])
        strides = torch.empty(shape, device="meta").stride()
        local = self.product(given)
        bias: Any = self.linear.bias
        if bias is not None:
            term = bias.to_local()
            if not self.by_rows and mesh.get_local_rank() != 0:
                # Counts once in the sum, and every rank's gradient is the whole one.
                term = term - term.detach()
            local = local + term
        return DTensor.from_local(local, mesh, [placed], run_check=False, shape=shape, stride=strides)

    def __repr__(self) -> str:
        return f"DividedSplit({self.product!r}, {self.layout.placements[0]})"
