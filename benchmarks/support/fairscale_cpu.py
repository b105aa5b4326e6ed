"""FairScale's FullyShardedDataParallel on the CPU, where it was never meant to run.

It asks torch.cuda for streams at every turn. Its module gets a `torch` whose streams do nothing, which is what streams
mean on a device that has none; everything else, and every other module's torch, is the real one.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import nn


class _NoStream:
    def wait_stream(self, other: object) -> None: ...

    def synchronize(self) -> None: ...

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _NoStream)

    __hash__ = None  # type: ignore[assignment]


class _NoStreams:
    """As much of torch.cuda as FairScale's FSDP calls."""

    Stream = _NoStream

    def is_available(self) -> bool:
        return True

    def current_stream(self, device: object = None) -> _NoStream:
        return _NoStream()

    def stream(self, stream: object) -> nullcontext[None]:
        return nullcontext()

    def synchronize(self) -> None: ...


class _TorchWithoutStreams:
    cuda = _NoStreams()

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def fairscale_fsdp(model: nn.Module, units: list[nn.Module]) -> nn.Module:
    from fairscale.internal import reduce_scatter_bucketer
    from fairscale.nn.data_parallel import fully_sharded_data_parallel as implementation

    implementation.torch = _TorchWithoutStreams()
    reduce_scatter_bucketer.enable_nccl_base_collectives = False
    torch.Tensor.record_stream = lambda tensor, stream: None  # type: ignore[assignment]
    cpu = torch.device("cpu")
    chosen = {id(unit) for unit in units}
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if id(child) in chosen:
                setattr(parent, name, implementation.FullyShardedDataParallel(child, compute_device=cpu))
    return implementation.FullyShardedDataParallel(model, compute_device=cpu)
