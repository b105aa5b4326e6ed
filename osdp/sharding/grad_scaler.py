"""ShardedGradScaler: gradient scaling for fp16 in which all ranks skip a step, or none does."""

from __future__ import annotations

from typing import Any

import torch
from torch import distributed as dist
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler as TorchScaler


class ShardedGradScaler(TorchScaler):
    """torch's GradScaler for sharded gradients: an infinity in one rank's shard makes all ranks skip the
    step.

    It extends torch.distributed.fsdp's ShardedGradScaler, in which ranks can diverge, in two respects:
    infinities that fused optimizers detect by themselves are exchanged between ranks too; and ranks agree on
    the maximum, since kernels recognize only 1.0 as an infinity, not the number of ranks that found one. It
    costs one all-reduce of one number per optimizer and step, on the caller's process group.

    `device`: the gradients' device (None: CUDA if available, else the CPU). `process_group`: the group over
    which the model is sharded (None: all ranks).

    >>> scaler = osdp.ShardedGradScaler()
    >>> scaler.scale(loss).backward()
    >>> scaler.unscale_(optimizer); osdp.clip_grad_norm_(model, 1.0)
    >>> scaler.step(optimizer); scaler.update()
    """

    def __init__(
        self,
        device: str | None = None,
        init_scale: float = 2.0**16,
        backoff_factor: float = 0.5,
        growth_factor: float = 2.0,
        growth_interval: int = 2000,
        enabled: bool = True,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__(
            device or ("cuda" if torch.cuda.is_available() else "cpu"),
            init_scale=init_scale,
            backoff_factor=backoff_factor,
            growth_factor=growth_factor,
            growth_interval=growth_interval,
            enabled=enabled,
            process_group=process_group if process_group is not None else dist.group.WORLD,
        )

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the gradients by the scale, and find on all ranks whether any of them is infinite. Collective."""
        super().unscale_(optimizer)  # sums the ranks' flags
        if self._enabled:
            found = self._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
            for device, infinite in found.items():
                found[device] = infinite.clamp_(max=1.0).view(())  # fused optimizers refuse shape [1]

    def _check_inf_per_device(self, optimizer: torch.optim.Optimizer) -> Any:
        result = super()._check_inf_per_device(optimizer)
        for infinite in self._per_optimizer_states[id(optimizer)]["found_inf_per_device"].values():
            dist.all_reduce(infinite, dist.ReduceOp.MAX, group=self.process_group)
        return result
