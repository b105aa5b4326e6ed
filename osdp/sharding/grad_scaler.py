"""ShardedGradScaler: gradient scaling, for fp16, that skips a step on all ranks or on none."""

from __future__ import annotations

from typing import Any

import torch
from torch import distributed as dist
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler as TorchScaler


class ShardedGradScaler(TorchScaler):
    """torch's GradScaler for gradients that lie in shards: an infinity that only one rank holds counts on all.

    It is torch.distributed.fsdp's, with the two things put right that let ranks drift apart there: fused optimizers,
    which find infinities by themselves, ask all ranks too; and ranks agree by the maximum, since kernels take only 1.0
    for an infinity, not the number of ranks that found one. Costs one all-reduce of one number per optimizer and step,
    on the caller's process group.

    `device`: where the gradients are (None: CUDA where there is one, else the CPU). `process_group`: the one that the
    model is sharded over (None: all ranks).

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
        super().unscale_(optimizer)  # adds up what the ranks found
        if self._enabled:
            found = self._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
            for device, infinite in found.items():
                found[device] = infinite.clamp_(max=1.0).view(())  # fused optimizers refuse shape [1]

    def _check_inf_per_device(self, optimizer: torch.optim.Optimizer) -> Any:
        result = super()._check_inf_per_device(optimizer)
        for infinite in self._per_optimizer_states[id(optimizer)]["found_inf_per_device"].values():
            dist.all_reduce(infinite, dist.ReduceOp.MAX, group=self.process_group)
        return result
