"""As fairseq has it: a subclass, modules that are wrapped while the model is built, state dicts on rank 0, no_sync.

torchrun --nproc-per-node 2 examples/drop_in/fairseq_style.py
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from small_gpt import GPT, Block, batch, device_of_rank, loss_of, show
from torch import distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import enable_wrap, wrap


class FullyShardedDataParallel(FSDP):
    def __init__(self, *args: Any, use_sharded_state: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.use_sharded_state = use_sharded_state

    def state_dict(self, destination: Any = None, prefix: str = "", keep_vars: bool = False) -> Any:
        state = super().state_dict(destination=destination, prefix=prefix, keep_vars=keep_vars)
        return state if self.rank == 0 else destination or {}

    def load_state_dict(self, state_dict: Any, strict: bool = True) -> Any:
        everyone = [state_dict]
        dist.broadcast_object_list(everyone, src=0)
        return super().load_state_dict(everyone[0], strict=strict)


@contextlib.contextmanager
def fsdp_enable_wrap(**config: Any) -> Iterator[None]:
    with enable_wrap(wrapper_cls=FullyShardedDataParallel, **config):
        yield


def fsdp_wrap(module: nn.Module, min_num_params: int = 0, **kwargs: Any) -> nn.Module:
    """Large modules only; as it is outside of fsdp_enable_wrap."""
    if sum(p.numel() for p in module.parameters()) < min_num_params:
        return module
    return wrap(module, **kwargs)


class Model(GPT):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(fsdp_wrap(Block(), min_num_params=10_000) for _ in range(3))


def train(model: nn.Module, steps: range, device: torch.device) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in steps:
        optimizer.zero_grad()
        for micro in range(2):
            tokens, targets = batch(2 * step + micro, device)
            with model.no_sync() if micro == 0 else contextlib.nullcontext():
                loss = loss_of(model(tokens), targets)
                loss.backward()
        model.clip_grad_norm_(1.0)
        optimizer.step()
        show(step, loss)


def main() -> None:
    device = device_of_rank()
    torch.manual_seed(1)
    with fsdp_enable_wrap(process_group=dist.group.WORLD, device_id=device):
        model = fsdp_wrap(Model())
    train(model, range(5), device)
    state = model.state_dict()
    assert bool(state) == (dist.get_rank() == 0)

    with fsdp_enable_wrap(process_group=dist.group.WORLD, device_id=device):
        model = fsdp_wrap(Model())
    model.load_state_dict(state)
    train(model, range(5, 10), device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
